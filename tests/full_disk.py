"""A disk that fills up while a file is written, for every output format.

The limit on a file's size makes every write past it fail, as on a full disk. What stood under the
name before must still be there afterwards, nothing else may lie beside it, and the answer is one
sentence.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attnflow
from attnflow.errors import AttnflowError
from attnflow.testing import random_trace, tiny_decoder

__all__ = ["FORMATS", "full_disks"]

_BEFORE = b"what was there before"
_ROOM = 500  # bytes: less than any of these files needs


def _result() -> Any:
    return attnflow.Flow()(random_trace(6, 2, 24), threads=1)


def _command(path: Path) -> None:
    from attnflow.cli.app import _run

    if _run(["explain", "the key to the cabinets", "--output", str(path)]) != 0:
        raise AttnflowError("the command failed with a sentence")


def _report(path: Path) -> None:
    from attnflow.cli.app import _run

    if _run(["report", "the key to the cabinets", "--output", str(path)]) != 0:
        raise AttnflowError("the command failed with a sentence")


def _completion(path: Path) -> None:
    model, tokenizer = tiny_decoder()
    result = attnflow.generate((model, tokenizer), "the keys to", max_new_tokens=12)
    attnflow.Attribution.save(result, path)


FORMATS: dict[str, Callable[[Path], None]] = {
    "result.json": lambda path: _result().save(path),
    "result.safetensors": lambda path: _result().save(path),
    "completion.json": _completion,
    "report.html": _report,
    "trace.json": lambda path: random_trace(6, 2, 24).save(path),
    "trace.safetensors": lambda path: random_trace(6, 2, 24).save(path),
    **{f"command.{ending}": _command for ending in ("png", "svg", "pdf", "gif", "html", "json")},
}


def full_disks(folder: Path, names: Sequence[str] = ()) -> tuple[int, list[str]]:
    """How many formats were tried, by default all, and what went wrong with each."""
    names = names or tuple(FORMATS)
    with ThreadPoolExecutor(2) as pool:  # most of the time goes into imports of new processes
        problems = list(pool.map(lambda name: _written(folder, name), names))
    pairs = zip(names, problems, strict=True)
    return len(names), [f"{name}: {problem}" for name, problem in pairs if problem]


def _written(folder: Path, name: str) -> str:
    room = folder / name.replace(".", "-")
    room.mkdir()
    target = room / name
    target.write_bytes(_BEFORE)
    command = [sys.executable, "-W", "ignore", __file__, name, str(target)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    answer = "" if process.returncode == 0 else (process.stdout + process.stderr)[-300:].strip()
    if answer:
        return answer
    if target.read_bytes() != _BEFORE:
        return "what stood there before is gone"
    beside = sorted(path.name for path in room.iterdir() if path != target)
    return f"left behind: {', '.join(beside)}" if beside else ""


def main(name: str, target: str) -> int:
    """In a process of its own: the limit holds for the whole process."""
    FORMATS[name](Path(target).with_name(f"warm-{name}"))  # imports and caches write files too
    Path(target).with_name(f"warm-{name}").unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM, resource.RLIM_INFINITY))
    try:
        FORMATS[name](Path(target))
    except AttnflowError as error:
        return int(not str(error).strip())
    print("no error at all")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
