"""Texts of about equal length together, as many as a budget of tokens allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["batches_within"]

# Attention grows with the square of the length: a batch has at most this many weights for each
# token of its budget, which bounds the memory of long texts as the budget does of short ones.
_WEIGHTS_PER_TOKEN = 256


def batches_within(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The numbers of the texts in each batch, shortest first; padding counts. A text that is too
    long for the budget goes alone.

    >>> list(batches_within([9, 3, 8, 3], 18))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batch: list[int] = []
    for number in order:
        longest, count = max(1, lengths[number]), len(batch) + 1
        fits = count * longest <= tokens and count * longest**2 <= tokens * _WEIGHTS_PER_TOKEN
        if batch and not fits:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
