"""A disk that fills up while a file is written, for every output format.

The limit on a file's size makes every write past it fail, as on a full disk. What stood under the
name before must still be there afterwards, nothing else may lie beside it, and the answer is one
sentence.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    for name in names:
        (folder / name.replace(".", "-")).mkdir()
        _target(folder, name).write_bytes(_BEFORE)
    command = [sys.executable, "-W", "ignore", __file__, str(folder), *names]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if process.returncode:
        return 0, [(process.stdout + process.stderr)[-300:].strip()]
    answers = json.loads(process.stdout.splitlines()[-1])
    problems = {name: answers[name] or _left(_target(folder, name)) for name in names}
    return len(names), [f"{name}: {problem}" for name, problem in problems.items() if problem]


def _target(folder: Path, name: str) -> Path:
    return folder / name.replace(".", "-") / name


def _left(target: Path) -> str:
    """What is wrong with a folder after a write that failed."""
    if target.read_bytes() != _BEFORE:
        return "what stood there before is gone"
    beside = sorted(path.name for path in target.parent.iterdir() if path != target)
    return f"left behind: {', '.join(beside)}" if beside else ""


def main(folder: str, *names: str) -> None:
    """In a process of its own: the limit holds for the whole process."""
    answers = {}
    for name in names:
        target = _target(Path(folder), name)
        FORMATS[name](target.with_name(f"warm-{name}"))  # imports and caches write files too
        target.with_name(f"warm-{name}").unlink()
        resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM, resource.RLIM_INFINITY))
        try:
            FORMATS[name](target)
            answers[name] = "no error at all"
        except AttnflowError as error:
            answers[name] = "" if str(error).strip() else "an error without a sentence"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
