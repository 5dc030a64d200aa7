"""How long work tells how far it is: one value, handed to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Progress", "ProgressCallback", "tell"]


class Progress(NamedTuple):
    """`done` of `total` steps of a stage, such as "flow" with 120 of 4,096 pairs.

    >>> Progress("flow", done=120, total=4096).stage
    'flow'
    """

    stage: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def tell(progress: ProgressCallback | None, stage: str, done: int, total: int) -> None:
    """Call `progress`, if there is one.

    >>> tell(print, "flow", 1, 2)
    Progress(stage='flow', done=1, total=2)
    """
    if progress is not None:
        progress(Progress(stage, done, total))
