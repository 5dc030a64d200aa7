"""Kills of a corpus that is being explained; a script, and functions for it.

`python tests/torture_corpus.py local 100` kills runs at random moments, goes on with each, and
holds the parts against those of an uninterrupted run, byte by byte. Nine of ten runs have the model
in the process that is killed, forked from one that has loaded everything; every tenth has worker
processes, and a worker or the whole run is killed. `... ray 20` kills workers and nodes of a real
Ray with two worker nodes. Each prints `tried N, wrong M` with what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torture_evaluation
from torture_evaluation import Tally

WORDS = [
    "key",
    "keys",
    "king",
    "book",
    "books",
    "author",
    "officers",
    "people",
    "city",
    "river",
    "cabinet",
    "cabinets",
    "old",
]
TEXTS = 60
SHARD = 4
RAY_TEXTS = 600
RAY_SHARD = 10


run_script = partial(torture_evaluation.run_script, script=__file__)


def _write_texts(path: Path, count: int) -> None:
    rng = random.Random(0)
    lines = [
        "the " + " of the ".join(rng.choices(WORDS, k=rng.randint(1, 5))) for _ in range(count)
    ]
    lines[7] = "the " * 3000  # too long for the model: an error row in every run
    path.write_text("\n".join(lines), encoding="utf-8")


def _run(
    data: Path, output: Path, model: Any = None, engine: Any = None, shard_size: int = SHARD
) -> None:
    from attnflow import corpus

    settings = corpus.Settings(methods=["rollout", "raw"], shard_size=shard_size)
    corpus.run(model, data, output, settings=settings, engine=engine)


def _parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*.parquet")}


def _problems(output: Path, expected: dict[str, bytes], before: set[str]) -> list[str]:
    """What a killed run has left that it should not, or has lost."""
    parts = _parts(output)
    wrong = [f"{name} differs" for name in parts if parts[name] != expected.get(name)]
    return wrong + [f"{name} was lost" for name in before - parts.keys()]


def _start(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def local(count: int, seed: int, folder: Path) -> Tally:
    """Kill runs at random moments and go on; nothing may be lost, doubled or changed."""
    from attnflow.models.verb_number import load_verb_number

    rng, loaded, data = random.Random(seed), load_verb_number(), folder / "texts.txt"
    _write_texts(data, TEXTS)
    _run(data, folder / "first", loaded)  # warms up
    begin = time.perf_counter()
    _run(data, folder / "whole", loaded)
    longest = time.perf_counter() - begin
    expected = _parts(folder / "whole")
    wrong: list[str] = []
    output, before, ways = folder / "0", set[str](), count // 10
    for number in range(count - ways):
        child = _start(lambda output=output: _run(data, output, loaded))  # type: ignore[misc]
        time.sleep(rng.uniform(0, 1.2 * longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        wrong += [f"kill {number}: {each}" for each in _problems(output, expected, before)]
        before = set(_parts(output))
        if before == expected.keys() or number == count - ways - 1:
            _run(data, output, loaded)
            if _parts(output) != expected:
                wrong.append(f"kill {number}: the rows are not those of an unbroken run")
            output, before = folder / str(number + 1), set()
    wrong += _kill_processes(ways, rng, data, folder) if ways else []
    return Tally(count, wrong)


def _kill_processes(count: int, rng: random.Random, data: Path, folder: Path) -> list[str]:
    """The same with worker processes: one of them is killed, or the process that started them."""
    from attnflow.corpus import Local

    single, double = Local(processes=1, threads=1), Local(processes=2, threads=1)
    _run(data, folder / "processes", engine=single)
    expected = _parts(folder / "processes")
    wrong: list[str] = []
    for number in range(count):
        output, whole_run = folder / f"p{number}", number % 2 == 1
        child = _start(lambda output=output: _run(data, output, engine=double))  # type: ignore[misc]
        _wait(lambda output=output: len(_parts(output)) > rng.randint(0, 8))  # type: ignore[misc]
        victims = [child] if whole_run else descendants(child, b"worker_process")[:1]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not whole_run and status != 0:
            wrong.append(f"process {number}: the run ended with {status}")
        wrong += [f"process {number}: {each}" for each in _problems(output, expected, set())]
        if whole_run:
            _run(data, output, engine=single)
        if _parts(output) != expected:
            wrong.append(f"process {number}: the rows are not those of an unbroken run")
    return wrong


def _wait(ready: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not ready() and time.monotonic() < end:
        time.sleep(0.005)


def descendants(root: int, mark: bytes) -> list[int]:
    """The processes under one of ours whose command line holds a mark."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()

    def is_under(process: int) -> bool:
        while process in parents and process != root:
            process = parents[process]
        return process == root

    return [k for k in commands if k != root and mark in commands[k] and is_under(k)]


def ray(count: int, seed: int, folder: Path) -> Tally:
    """Kill actors and nodes of a Ray with two worker nodes while they explain a corpus."""
    import ray as library
    from ray.cluster_utils import Cluster

    from attnflow.corpus import Local, Ray
    from attnflow.errors.progress import listening

    rng, data = random.Random(seed), folder / "texts.txt"
    _write_texts(data, RAY_TEXTS)
    _run(data, folder / "whole", engine=Local(processes=2, threads=1), shard_size=RAY_SHARD)
    expected = _parts(folder / "whole")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [_add_node(cluster) for _ in range(2)]
    cluster.connect()
    tried, wrong = 0, list[str]()
    try:
        while tried < count:
            killer = _RayKiller(cluster, nodes, rng, first=tried, most=min(10, count - tried))
            output = folder / f"r{tried}"
            with listening(killer):
                _run(data, output, engine=Ray(actors=2), shard_size=RAY_SHARD)
            if _parts(output) != expected:
                wrong.append(f"after {killer.kills} kills: the rows are not those of a local run")
            if not killer.kills:
                return Tally(tried, [*wrong, "a run ended before anything was killed"])
            tried += killer.kills
    finally:
        library.shutdown()
        cluster.shutdown()
    return Tally(tried, wrong)


def _add_node(cluster: Any) -> Any:
    """Ray gives a node half a minute to start, which a busy machine may need twice."""
    for _ in range(4):
        with suppress(Exception):  # Ray raises nothing narrower
            return cluster.add_node(num_cpus=2)
    return cluster.add_node(num_cpus=2)


class _RayKiller:
    """Kills actors, and every fourth time a node, each time some texts after the last."""

    def __init__(
        self, cluster: Any, nodes: list[Any], rng: random.Random, *, first: int, most: int
    ) -> None:
        self.kills = 0
        self._cluster, self._nodes, self._rng = cluster, nodes, rng
        self._first, self._most = first, most
        self._due = rng.randint(1, RAY_TEXTS // 10)

    def __call__(self, state: Any) -> None:
        if state.stage != "texts" or state.done < self._due or self.kills == self._most:
            return
        time.sleep(self._rng.uniform(0, 0.3))  # the workers go on meanwhile
        if (self._first + self.kills) % 4 == 1:
            self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)
            self._nodes.append(_add_node(self._cluster))
        else:
            actors = descendants(os.getpid(), b"MapWorker")
            if not actors:
                return  # they are being started anew
            os.kill(actors[0], signal.SIGKILL)
        self.kills += 1
        self._due = state.done + self._rng.randint(1, RAY_TEXTS // 10)


def main() -> None:
    """The command line: a kind, a count, and a seed."""
    import torch

    torch.set_num_threads(1)
    kind, count, *seed = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        run = {"local": local, "ray": ray}[kind]
        tally = run(int(count), int(seed[0]) if seed else 0, Path(folder))
    print(f"tried {tally.tried}, wrong {len(tally.wrong)}")
    print(json.dumps(tally._asdict()))


if __name__ == "__main__":
    main()
