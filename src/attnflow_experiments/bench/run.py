"""The bench as a run: every item of every model and data set, each kept in a journal.

A journal has a record for what ablations say of an item, and one for each method on it. A record
that is there is never measured again; a method that could not be run is tried again. Several
processes take one item each, of one model and data set after the other.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch

from attnflow.errors import StoppedError, TokensError
from attnflow.errors.progress import tell
from attnflow_experiments.bench.cases import NotCountedError
from attnflow_experiments.bench.data import DATA_SETS
from attnflow_experiments.bench.images import PhotoJudge
from attnflow_experiments.bench.plan import REFERENCE, BenchPlan, record_name
from attnflow_experiments.bench.prompts import PromptJudge, close_peers
from attnflow_experiments.journal import append_record, read_journal

Records = list[dict[str, Any]]


class Judge(Protocol):
    """The judge of a kind of data: its items, what is measured once, and what by method."""

    def names(self) -> Sequence[str]:
        """Return the names of the items, in their order."""

    def reference(self, name: str) -> dict[str, Any]:
        """Return what is measured of an item once, for all methods."""

    def method(self, name: str, method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one method says of an item, and what it cost."""

    def close(self) -> None:
        """End what runs beside it."""


def run_bench(plan: BenchPlan) -> None:
    """Run every item that is not done; what is there already is not run again."""
    with _alone(plan.output / "journal" / ".lock"):  # a second run waits for the first
        jobs = [Job(plan, label, name) for label, name in plan.jobs]
        if plan.processes > 1:
            _run_together(plan, jobs)
            return
        try:
            for job in jobs:
                while (name := job.next()) is not None:
                    job.end(name, run_item(plan, *job.of, name, job.done))
                    _tell(jobs)
        finally:
            _close_judge()
            close_peers()


class Job:
    """One model on one data set: which items are done, which are running, and which is next.

    As many items as the plan says count: the first that can be run, in their order, however many
    processes take them.
    """

    def __init__(self, plan: BenchPlan, label: str, data_set: str) -> None:
        self.of = label, data_set
        self.samples = plan.samples * DATA_SETS[data_set].runs
        self.done = read_journal(plan.journal(label, data_set))
        self._plan = plan
        self._running: set[str] = set()
        self._ended: set[str] = set()

    @cached_property
    def _names(self) -> Sequence[str]:
        return _judge_of(self._plan, *self.of).names()

    @property
    def counted(self) -> int:
        """How many items count, of those that have ended in this run."""
        return sum(not self._is_left_out(name) for name in self._ended)

    def next(self) -> str | None:
        """Return an item to run, and take it as running; None where no more are needed now."""
        counted = 0
        for name in self._names:
            if counted >= self.samples:
                return None
            if name not in self._running | self._ended and not self._is_done(name):
                self._running.add(name)
                return name
            self._ended |= {name} - self._running
            counted += not self._is_left_out(name)
        return None

    def end(self, name: str, records: Records) -> None:
        """Take what was kept of an item that has ended."""
        self._running.discard(name)
        self._ended.add(name)
        self.done.update({record["name"]: record for record in records})

    def _is_left_out(self, name: str) -> bool:
        return "left_out" in self.done.get(record_name(name, REFERENCE), {})

    def _is_done(self, name: str) -> bool:
        records = [self.done.get(record_name(name, method)) for method in self._plan.methods]
        return self._is_left_out(name) or not any(r is None or "refused" in r for r in records)


def _tell(jobs: Sequence[Job]) -> None:
    tell("items", sum(job.counted for job in jobs), sum(job.samples for job in jobs))


def _run_together(plan: BenchPlan, jobs: Sequence[Job]) -> None:
    """Give each process an item, and the next one when that has ended."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(plan.processes, spawn, _begin, (plan.processes,))
    running: dict[Future[Records], tuple[Job, str]] = {}
    try:
        while True:
            for job in jobs:
                while len(running) < plan.processes and (name := job.next()) is not None:
                    done = {k: v for k, v in job.done.items() if v.get("item") == name}
                    task = pool.submit(run_item, plan, *job.of, name, done, os.getpid())
                    running[task] = job, name
            if not running:
                break
            for task in wait(running, return_when=FIRST_COMPLETED).done:
                job, name = running.pop(task)
                job.end(name, task.result())
            _tell(jobs)
    except BrokenProcessPool:
        raise StoppedError(
            f"A process of the bench was ended from outside. What is done is kept in "
            f"{str(plan.output)!r}, and the same command goes on from there."
        ) from None
    except BaseException:
        for process in multiprocessing.active_children():  # no item is waited for: all is kept
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin(processes: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the run has been killed: it would wait for items for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_item(
    plan: BenchPlan,
    label: str,
    data_set: str,
    name: str,
    done: Mapping[str, dict[str, Any]],
    parent: int | None = None,
) -> Records:
    """Run what is missing of one item, and return what was kept.

    done: what is there. parent: the process without which this one must end.
    """
    judge, records = _judge_of(plan, label, data_set), list[dict[str, Any]]()

    def keep(record: dict[str, Any]) -> dict[str, Any]:
        path = plan.journal(label, data_set)
        with _alone(path):
            if parent is not None and os.getppid() != parent:
                os._exit(1)  # the run was killed: another may write to this journal by now
            append_record(path, record)
        records.append(record)
        return record

    reference = done.get(record_name(name, REFERENCE))
    if reference is None:
        try:
            reference = judge.reference(name)
        except (NotCountedError, TokensError) as error:
            # of this item; a device that fails would leave out every one, for ever
            reference = {"left_out": str(error)}
        reference = keep({"name": record_name(name, REFERENCE), "item": name, **reference})
    if "left_out" in reference:
        return records
    for method in plan.methods:
        key = record_name(name, method)
        if key in done and "refused" not in done[key]:
            continue
        try:
            values = judge.method(name, method, reference)
        except Exception as error:  # a method that fails is listed with the reason
            values = {"refused": f"{type(error).__name__}: {error}"[:300]}
        if values != {"refused": done.get(key, {}).get("refused")}:
            keep({"name": key, "item": name, "method": method, **values})
    return records


_OPEN: list[tuple[BenchPlan, str, str, Judge]] = []  # the judge of this process


def _judge_of(plan: BenchPlan, label: str, data_set: str) -> Judge:
    """Return the judge of one model on one data set; that of another is closed."""
    if not _OPEN or _OPEN[0][:3] != (plan, label, data_set):
        _close_judge()
        kind = PhotoJudge if DATA_SETS[data_set].kind == "photos" else PromptJudge
        _OPEN[:] = [(plan, label, data_set, kind(plan, label, data_set))]
    return _OPEN[0][3]


def _close_judge() -> None:
    for *_, judge in _OPEN:
        judge.close()
    _OPEN.clear()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process holds a file; where files cannot be locked, go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
