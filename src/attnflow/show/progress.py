"""How far long work is, for people: a bar on a terminal and in a notebook, elsewhere a line now and
then. What a model writes is shown as it comes.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

from rich import progress as rich_progress
from rich.console import Console

from attnflow.errors.progress import Progress, is_heard, listening

WRITING = "writing"
"""The stage in which a model writes, told with each piece of text."""

_COLUMNS = (
    rich_progress.SpinnerColumn(),
    rich_progress.TextColumn("{task.description}"),
    rich_progress.BarColumn(),
    rich_progress.MofNCompleteColumn(),
    rich_progress.TimeElapsedColumn(),
    rich_progress.TimeRemainingColumn(),
)
_PATIENCE = 4.0  # seconds after which a reader of a log is told, and between two lines
_BLINK = 0.2  # seconds between two changes of a notebook's bar
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def progress_bars(
    first: str | None = None,
    *,
    console: Console | None = None,
    write: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Show the progress of the work inside; `first` is what is done until it says something.

    A total of 0 or 1 is a stage without steps: its bar moves until the next stage begins.
    write: gets the first text that a model writes, piece by piece; there is no bar meanwhile.
    """
    console = console or Console(stderr=True)
    bars: rich_progress.Progress | None = None
    if console.is_terminal:
        bars = rich_progress.Progress(*_COLUMNS, console=console, transient=True)
    show = tell_lines(console) if bars is None else _tell_bars(bars)
    phase = "before"  # the text is before us, in the middle, or behind

    def hear(progress: Progress) -> None:
        nonlocal phase
        if write is None or phase == "behind" or (phase == "before" and not progress.text):
            show(progress)
        elif progress.stage == WRITING:
            if phase == "before" and bars is not None:
                bars.stop()
            phase = "middle"
            write(progress.text)
        else:
            phase = "behind"
            write("\n")
            if bars is not None:
                bars.start()
            show(progress)

    try:
        if bars is not None:
            bars.start()
        with listening(hear):
            if first is not None:
                show(Progress(first, 0, 0))
            yield
    finally:
        if bars is not None:
            bars.stop()


def _tell_bars(bars: rich_progress.Progress) -> Callable[[Progress], None]:
    tasks: dict[str, rich_progress.TaskID] = {}

    def show(progress: Progress) -> None:
        stage, done, total, _ = progress
        if stage not in tasks:
            for other in tasks.values():
                bars.stop_task(other)
            tasks[stage] = bars.add_task(stage, total=None)
        bars.update(tasks[stage], completed=done, total=total if total > 1 else None)

    return show


def tell_lines(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Callable[[Progress], None]:
    """Return a listener that writes a line where work takes long, with the time that is left."""
    last = clock()
    begin: dict[str, tuple[float, int]] = {}  # when a stage was first heard of, and how far it was

    def show(progress: Progress) -> None:
        nonlocal last
        now = clock()
        start, before = begin.setdefault(progress.stage, (now, progress.done))
        if now - last < _PATIENCE or progress.total < 2:
            return
        last = now
        line = _line(progress, now - start, before)
        console.print(f"attnflow: {line}.", markup=False, highlight=False, soft_wrap=True)

    return show


def _line(progress: Progress, seconds: float, before: int) -> str:
    """Return how far a stage is, and the time that is left as it went since `before` steps."""
    stage, done, total, _ = progress
    if total < 2:
        return stage
    line = f"{stage}, {done:,} of {total:,}"
    if not before < done < total:
        return line
    rest = seconds / (done - before) * (total - done)
    left = f"{rest:.0f} seconds" if rest < 90 else f"{rest / 60:.0f} minutes"
    return f"{line}, about {left} left"


def in_notebook(function: Callable[P, R]) -> Callable[P, R]:
    """Show a bar under a notebook's cell while a function works, unless someone listens already."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if is_heard() or type(shell).__name__ != "ZMQInteractiveShell":
            return function(*args, **kwargs)
        display: Any = importlib.import_module("IPython.display").display
        handle = display({"text/plain": "attnflow: working"}, raw=True, display_id=True)
        with listening(_tell_cell(handle)):
            try:
                return function(*args, **kwargs)
            finally:
                handle.update({"text/html": "", "text/plain": ""}, raw=True)

    return call


def _tell_cell(
    handle: Any, clock: Callable[[], float] = time.monotonic
) -> Callable[[Progress], None]:
    """Return a listener that draws a bar in a cell; what the model writes stands under it."""
    begin: dict[str, tuple[float, int]] = {}
    last, text = -_BLINK, ""

    def show(progress: Progress) -> None:
        nonlocal last, text
        text, now = text + progress.text, clock()
        start, before = begin.setdefault(progress.stage, (now, progress.done))
        if now - last < _BLINK:
            return
        last = now
        line = _line(progress, now - start, before)
        value = f' value="{progress.done}" max="{progress.total}"' if progress.total > 1 else ""
        bar = f"<progress{value}></progress> {escape(line)}<br>{escape(text)}"
        handle.update({"text/html": bar, "text/plain": f"{line}\n{text}"}, raw=True)

    return show
