"""Many texts in few passes: those of about equal length together, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["batches_by_length"]


def batches_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The numbers of the texts in each batch of at most `size`, shortest texts first.

    >>> list(batches_by_length([9, 3, 8, 3], 2))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for start in range(0, len(order), size):
        yield order[start : start + size]
