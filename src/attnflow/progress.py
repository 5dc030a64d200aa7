"""How long work tells how far it is: one value, handed to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Progress", "ProgressCallback", "tell"]


class Progress(NamedTuple):
    """`done` of `total` steps of a stage, such as "flow" with 120 of 4,096 pairs."""

    stage: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def tell(progress: ProgressCallback | None, stage: str, done: int, total: int) -> None:
    """Call `progress`, if there is one."""
    if progress is not None:
        progress(Progress(stage, done, total))
