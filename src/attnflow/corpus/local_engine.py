"""Processes on this machine, with a copy of the model each.

A process that dies (it was killed, or the memory was used up) costs its shard, which is done again.
Where a batch has ended three processes, its texts are run alone, and a text that has ended three
processes alone becomes an error row.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attnflow
from attnflow import errors
from attnflow.corpus.engines import BatchBegun, Engine, Event, Identity, JobSpec, Local
from attnflow.corpus.folder import PartNotes
from attnflow.corpus.plan import Shard
from attnflow.errors import ModelError

_DEATHS = 3  # of processes in one batch before its texts are run alone
_STARTS = 3  # of processes that die before they are ready, before the run gives up
_SECONDS_TO_END = 5.0
_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON", "VECLIB")


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count_gpus() -> int:
    """Count the NVIDIA devices without loading torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


class _Process:
    """A worker process: JSON lines in both directions, read by a thread of its own."""

    def __init__(self, start: dict[str, Any], inbox: queue.Queue[tuple[_Process, Any]]) -> None:
        self.shard: Shard | None = None
        self.batch: tuple[int, ...] = ()
        self.ready = False
        self.last_words = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnflow.corpus.worker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(int(start["threads"])),
        )
        self.send(start)
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Write a line to it; a process that has died is noticed where its end is read."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, inbox: queue.Queue[tuple[_Process, Any]]) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            for line in self._process.stdout:
                inbox.put((self, json.loads(line)))
        inbox.put((self, None))

    def end(self) -> str:
        """End it, if it has not, and say how it ended."""
        with suppress(OSError):
            self._process.terminate()
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self.last_words = lines[-1][:300] if lines else "nothing"
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        return _ending(status)


def _ending(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _environment(threads: int) -> dict[str, str]:
    """Give each library as many threads as a process has cores."""
    root = str(Path(attnflow.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **{f"{name}_NUM_THREADS": str(threads) for name in _THREADS},
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": root if not path else f"{root}{os.pathsep}{path}",
    }


class ProcessPool(Engine):
    """Processes on this machine, each with a copy of the model and a share of the cores."""

    def __init__(self, job: JobSpec, options: Local) -> None:
        self._devices, cores = _count_gpus(), _count_cores()
        self._count = options.processes or self._devices or cores
        threads = options.threads or max(1, cores // self._count)
        self._start = {"job": job.to_dict(), "threads": threads}
        self._inbox: queue.Queue[tuple[_Process, Any]] = queue.Queue()
        self._processes: list[_Process] = []
        self._started = 0
        self._failed_starts = 0
        self._identity: Identity | None = None

    def identity(self) -> Identity:
        """Return what the first process that is ready says."""
        self._add_process()
        while self._identity is None:
            process, message = self._inbox.get()
            self._take_start(process, message)
        return self._identity

    def pace(self, sample: Shard) -> float | None:
        """Have the process that is ready time some texts; all of them share the work later."""
        next(process for process in self._processes if process.ready).send({"sample": vars(sample)})
        while True:
            process, message = self._inbox.get()
            if message is None:  # a text ended it: the run finds out which
                self._replace(process, None)
                return None
            if "pace" in message:
                return float(message["pace"]) / self._count

    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Give each process the next shard when it has done one."""
        if self._identity is None:
            self.identity()
        run = _Assignments(shards, about)
        while len(self._processes) < min(self._count, len(shards)):
            self._add_process()
        for process in self._processes:
            if process.ready:
                run.assign(process)
        while run.unfinished:
            process, message = self._inbox.get()
            if message is None:
                self._replace(process, run)
            elif "part" in message:
                notes = PartNotes(**message["part"])
                run.unfinished.discard(notes.shard)
                run.assign(process)
                yield notes
            elif "batch" in message and process.shard is not None:
                process.batch = tuple(message["batch"])
                yield BatchBegun(process.shard.number, len(process.batch), message["tokens"])
            else:
                self._take_start(process, message)
                run.assign(process)

    def close(self) -> None:
        """End all processes; what they had not committed is done again in the next run."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.end()

    def _add_process(self) -> None:
        device = f"cuda:{self._started % self._devices}" if self._devices else None
        self._started += 1
        self._processes.append(_Process({**self._start, "device": device}, self._inbox))

    def _take_start(self, process: _Process, message: Any) -> None:
        """Note that a process is ready, or raise why it and every other would fail."""
        if message is None:
            self._replace(process, None)
        elif "failed" in message:
            failure = message["failed"]
            raise getattr(errors, failure["kind"], ModelError)(failure["message"])
        elif "ready" in message:
            identity = Identity(**message["ready"])
            if self._identity is not None and identity.settings != self._identity.settings:
                raise ModelError("The model has changed while the run went on; start again.")
            self._identity, process.ready = identity, True
            self._failed_starts = 0

    def _replace(self, process: _Process, run: _Assignments | None) -> None:
        """Give back the shard of a process that has died, and put another in its place."""
        ending = process.end()
        self._processes.remove(process)
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                raise ModelError(
                    f"A worker process {ending} before it was ready, {_STARTS} times; the last one "
                    f"said: {process.last_words}"
                )
        if run is not None:
            run.give_back(process, ending)
        self._add_process()


class _Assignments:
    """The shards that are to be done, the process that does each, and what has ended processes."""

    def __init__(self, shards: Sequence[Shard], about: dict[str, Any]) -> None:
        self._about = about
        self._waiting = deque(shards)
        self.unfinished = {shard.number for shard in shards}
        self._deaths: Counter[tuple[int, ...]] = Counter()
        self._unread: Counter[int] = Counter()
        self._suspects: set[int] = set()
        self._fatal: dict[int, str] = {}

    def assign(self, process: _Process) -> None:
        process.shard, process.batch = None, ()
        if not self._waiting:
            return
        shard = process.shard = self._waiting.popleft()
        rows = range(shard.first, shard.first + shard.count)
        process.send(
            {
                "shard": vars(shard),
                "about": self._about,
                "suspects": [number for number in self._suspects if number in rows],
                "fatal": {k: why for k, why in self._fatal.items() if k in rows},
            }
        )

    def give_back(self, process: _Process, ending: str) -> None:
        """Make the shard of a process that died the next to be done."""
        if process.shard is None:
            return
        self._waiting.appendleft(process.shard)
        if not process.batch:
            self._count_unread(process.shard, ending, process.last_words)
            return
        self._deaths[process.batch] += 1
        if self._deaths[process.batch] < _DEATHS:
            return
        if len(process.batch) > 1:
            self._suspects |= set(process.batch)
        else:
            self._fatal[process.batch[0]] = (
                f"The process that explained this text {ending}, {_DEATHS} times. The text may "
                "need more memory than there is."
            )

    def _count_unread(self, shard: Shard, ending: str, last_words: str) -> None:
        """Give up on what ends every process that reads a shard: it would do so for ever."""
        self._unread[shard.number] += 1
        if self._unread[shard.number] >= _DEATHS:
            raise ModelError(
                f"A worker process {ending} while it read the texts from number {shard.first:,} "
                f"on, {_DEATHS} times; it said: {last_words}"
            )
