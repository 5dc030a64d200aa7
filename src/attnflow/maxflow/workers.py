"""Threads that stop when asked to.

A job is a generator: it works for a few tens of milliseconds (the compiled part releases the
interpreter lock), says how many pairs it has decided, and goes on.  Between two steps the thread
looks whether it should stop, so Ctrl-C, or an error anywhere, ends all threads promptly and leaves
nothing running.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from attnflow.errors import InputError

Scratch = TypeVar("Scratch")
Job = Callable[[Scratch], Iterator[int]]

POLL_SECONDS = 0.05


def thread_count(threads: int | None) -> int:
    """`threads`, or the number of cores this process may use."""
    if threads is None:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    if threads < 1:
        raise InputError(f"threads must be at least 1, or None for all cores; got {threads}.")
    return threads


class _Board(Generic[Scratch]):
    """State that the threads share: the next job, the count of decided pairs, the first error."""

    def __init__(self, jobs: Sequence[Job[Scratch]], count: int) -> None:
        self.jobs: Iterator[Job[Scratch]] = iter(jobs)
        self.done = 0
        self.error: BaseException | None = None
        self.stop = Event()
        self.running = count
        self.finished = Event()
        self.lock = Lock()

    def next_job(self) -> Job[Scratch] | None:
        with self.lock:
            return None if self.stop.is_set() else next(self.jobs, None)

    def work(self, new_scratch: Callable[[], Scratch]) -> None:
        try:
            scratch = new_scratch()
            while (job := self.next_job()) is not None:
                for count in job(scratch):
                    with self.lock:
                        self.done += count
                    if self.stop.is_set():
                        return
        except BaseException as error:
            self.error = self.error or error
            self.stop.set()
        finally:
            with self.lock:
                self.running -= 1
                if self.running == 0:
                    self.finished.set()


def run_jobs(
    jobs: Sequence[Job[Scratch]],
    new_scratch: Callable[[], Scratch],
    *,
    threads: int | None,
    report: Callable[[int], None],
) -> None:
    """Run all jobs, each thread with its own scratch memory; re-raise the first error.

    `report` is called in the calling thread with the count of decided pairs; it may raise.
    """
    count = min(thread_count(threads), len(jobs))
    if count <= 1:
        _run_here(jobs, new_scratch, report)
        return
    board = _Board(jobs, count)
    pool = [Thread(target=board.work, args=(new_scratch,), daemon=True) for _ in range(count)]
    for thread in pool:
        thread.start()
    try:
        # Not Thread.join: interrupted by Ctrl-C, it takes a running thread for a finished one.
        while not board.finished.wait(POLL_SECONDS):
            report(board.done)
    finally:
        board.stop.set()
        board.finished.wait()
        for thread in pool:
            thread.join()
    report(board.done)
    if board.error is not None:
        raise board.error


def _run_here(
    jobs: Sequence[Job[Scratch]], new_scratch: Callable[[], Scratch], report: Callable[[int], None]
) -> None:
    done = 0
    scratch = new_scratch()
    for job in jobs:
        for count in job(scratch):
            done += count
            report(done)
