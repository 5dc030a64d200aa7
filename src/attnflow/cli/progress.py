"""How far a command is, on standard error: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from attnflow.errors.progress import Progress, listening

_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
_PATIENCE = 20.0  # seconds after which a reader of a log is told, and between two lines


@contextmanager
def progress_bars(first: str | None = None, *, console: Console | None = None) -> Iterator[None]:
    """Show the progress of the work inside; `first` is what is done until it says something.

    A total of 0 or 1 is a stage without steps: its bar moves until the next stage begins.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        with listening(_tell_lines()):
            yield
        return
    bars = Bars(*_COLUMNS, console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(progress: Progress) -> None:
        stage, done, total, _ = progress
        if stage not in tasks:
            for other in tasks.values():
                bars.stop_task(other)
            tasks[stage] = bars.add_task(stage, total=None)
        bars.update(tasks[stage], completed=done, total=total if total > 1 else None)

    with bars, listening(show):
        if first is not None:
            show(Progress(first, 0, 0))
        yield


def _tell_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Return a listener that writes a line where the work takes long, with the time that is left.

    clock: the seconds that have passed.
    """
    last = clock()
    begin: dict[str, tuple[float, int]] = {}  # when a stage was first heard of, and how far it was

    def show(progress: Progress) -> None:
        nonlocal last
        stage, done, total, _ = progress
        now = clock()
        start, before = begin.setdefault(stage, (now, done))
        if now - last < _PATIENCE or total < 2:
            return
        last = now
        line = f"attnflow: {stage}, {done:,} of {total:,}"
        if done > before:
            seconds = (now - start) / (done - before) * (total - done)
            line += f", about {_duration(seconds)} left"
        typer.echo(f"{line}.", err=True)

    return show


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
