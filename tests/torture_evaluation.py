"""Kills of a running evaluation, and runs on one journal at once; a script, and functions for it.

`python tests/torture_evaluation.py kills 100` kills a run at random moments a hundred times, goes
on with it each time, and holds what is kept against an uninterrupted run; `prompts` does so with a
language model. `... together 20` starts runs on one journal at the same moment; `kills,together`
does both. Each prints `tried N, wrong M` with what was wrong.

Runs are forked from one process that has loaded everything, so that a kill costs no start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

TEXTS = [f"the {a} of the {b}" for a in ("key", "books", "author") for b in ("king", "old cities")]
TEXTS += ["some people in the old city", "the officers that the king saw near the river"]
PROMPTS = [f"the {a} to the {b}" for a in ("key", "keys") for b in ("book", "cabinets", "key")]
PROMPTS += ["the book is", "the keys are"]
BUSY = 4  # exit status of a run that was told the journal is taken


class Tally(NamedTuple):
    """How many attempts were made, and what was wrong in each that failed."""

    tried: int
    wrong: list[str]


def run_script(kind: str, count: int, seed: int = 0, script: str = __file__) -> Tally:
    """Kinds in a process of their own: forking needs a process with a single thread."""
    command = [sys.executable, script, kind, str(count), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        return Tally(0, [process.stderr[-2000:]])
    return Tally(**json.loads(process.stdout.splitlines()[-1]))


def _evaluate(path: Path | None, model: Any, vocabulary: Any) -> Any:
    """A classifier on texts; a language model on prompts."""
    from attnflow.evaluation import Prompts, evaluate

    loaded = (model, vocabulary)
    if not hasattr(model, "generate"):
        return evaluate(loaded, TEXTS, ["raw", "rollout"], journal=path)
    few = Prompts(ablations=8, max_new_tokens=2)
    return evaluate(loaded, PROMPTS, ["default", "leave-one-out"], subject=few, journal=path)


def _start(path: Path, loaded: Any) -> int:
    """A child that runs an evaluation and ends with 0, or with BUSY where the journal is taken."""
    from attnflow.errors import FileError

    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _evaluate(path, *loaded)
        status = 0
    except FileError as error:
        status = BUSY if "is being written by another run" in str(error) else 1
    finally:
        os._exit(status)


def _scores(evaluation: Any) -> list[Any]:
    records = [record.to_dict() for record in evaluation.records]
    return [(r["number"], r["probability"], r["scores"], r["left_out"]) for r in records]


def _records(path: Path) -> list[bytes]:
    """The whole lines of a journal after its header."""
    return path.read_bytes().split(b"\n")[1:-1] if path.exists() else []


def kills(count: int, seed: int, folder: Path, loaded: Any) -> Tally:
    """Kill runs at random moments and go on with them; nothing may be lost, doubled or changed."""
    rng = random.Random(seed)
    expected = _scores(_evaluate(None, *loaded))  # the first run also compiles
    begin = time.perf_counter()
    _evaluate(None, *loaded)
    longest = time.perf_counter() - begin
    wrong: list[str] = []
    path, kept = folder / "0.jsonl", list[bytes]()
    for number in range(count):
        child = _start(path, loaded)
        time.sleep(rng.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        after = _records(path)
        if after[: len(kept)] != kept:
            wrong.append(f"kill {number}: records were lost or changed")
        if [json.loads(line)["number"] for line in after] != list(range(len(after))):
            wrong.append(f"kill {number}: records are doubled or out of order")
        kept = after
        if len(after) == len(TEXTS) or number == count - 1:
            if _scores(_evaluate(path, *loaded)) != expected:
                wrong.append(f"kill {number}: the numbers are not those of an unbroken run")
            path, kept = folder / f"{number + 1}.jsonl", []
    return Tally(count, wrong)


def together(count: int, seed: int, folder: Path, loaded: Any) -> Tally:
    """Three runs on one journal at once: one writes, the others are told; what is kept is whole."""
    expected = _scores(_evaluate(None, *loaded))
    wrong: list[str] = []
    for number in range(count):
        path = folder / f"together-{number}.jsonl"
        children = [_start(path, loaded) for _ in range(3)]
        states = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if not set(states) <= {0, BUSY} or 0 not in states:
            wrong.append(f"round {number}: the runs ended with {states}")
        if len(_records(path)) != len(TEXTS):
            wrong.append(f"round {number}: {len(_records(path))} records of {len(TEXTS)} texts")
        elif _scores(_evaluate(path, *loaded)) != expected:
            wrong.append(f"round {number}: the numbers are not those of one run alone")
    return Tally(count, wrong)


def main() -> None:
    """The command line: a kind, a count, and a seed."""
    import torch

    from attnflow.models.verb_number import load_verb_number
    from attnflow.testing import tiny_decoder

    torch.set_num_threads(1)
    kinds, count, *seed = sys.argv[1:]
    tally = Tally(0, [])
    for kind in kinds.split(","):
        loaded: Any = tiny_decoder() if kind == "prompts" else load_verb_number()
        with tempfile.TemporaryDirectory() as folder:
            run = {"kills": kills, "prompts": kills, "together": together}[kind]
            found = run(int(count), int(seed[0]) if seed else 0, Path(folder), loaded)
        tally = Tally(tally.tried + found.tried, tally.wrong + found.wrong)
    print(f"tried {tally.tried}, wrong {len(tally.wrong)}")
    print(json.dumps(tally._asdict()))


if __name__ == "__main__":
    main()
