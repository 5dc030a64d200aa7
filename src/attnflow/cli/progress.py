"""How far a command is: one bar for each stage, on standard error and only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

__all__ = ["progress_bars"]

_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@contextmanager
def progress_bars(first: str | None = None, *, console: Console | None = None) -> Iterator[None]:
    """Show the progress of the work inside; `first` is what is done until it says something.

    A total of 0 or 1 is a stage without steps: its bar moves until the next stage begins.
    """
    console = console or Console(stderr=True)
    bars = Bars(*_COLUMNS, console=console, disable=not console.is_terminal, transient=True)
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
