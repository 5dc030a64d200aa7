"""Does a row still depend on its target? The rows of different targets, held against each other.

Rollout multiplies one matrix a layer. Where every row draws on the same few positions (a decoder's
first token, a separator), the product forgets where it started: with depth all rows become the
same, and a row says what the model attends to in general instead of what its target draws on. That
is *collapse*, and it is measured, not guessed: `dependence[layer, target]` is the mean total
variation between the target's row and those of some other targets, each as shares of its row. It
is 1 where rows have nothing in common, and 0 where they are the same: a dependence of 0.05 means
that 5 % of a row's mass lies elsewhere than in the rows of other targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COLLAPSED = 0.01
"""The mean dependence below which a layer's rows count as collapsed.

Less than a hundredth of a row's mass then tells it from the rows of other targets, so that numbers
of two digits are the same for every target. It is also where depth alone leads: a residual of one
half leaves a row 1/2 ** layers of its own, 0.016 over the six layers that rollout was made for and
0.008 over seven. Measured: encoders of six layers keep 0.017 to 0.084 on ordinary sentences;
SmolLM2 falls below 0.01 at layers 10 to 17 of 30 and ends below 0.0001, and with
`residual="one-step"` it keeps 0.45 to 0.79.
"""
_COLUMNS = 4096  # sources at a time
_ROWS = 4  # that a row is held against: the mean is within a few hundredths of that over all,
# as near as with eight, which would double the work of a single row


def spread(length: int, count: int = _ROWS) -> list[int]:
    """Return the middles of `count` equal parts of a sequence: indices to hold rows against.

    >>> spread(4), spread(100, 3)
    ([0, 1, 2, 3], [16, 50, 83])
    """
    if length <= count:
        return list(range(length))
    return ((np.arange(count) + 0.5) * length // count).astype(int).tolist()


def dependence_of(
    values: NDArray[np.float64],
    others: NDArray[np.float64],
    rows: Sequence[int],
    other_rows: Sequence[int],
) -> NDArray[np.float64] | None:
    """`(layers, targets)`: the mean total variation between each row and the others.

    values: `(layers, targets, sources)`, the rows of the targets at the indices `rows`. others: the
    same of the indices `other_rows`. A row is not held against itself, nor against a row of zeros;
    a row with nothing to be held against counts as 1. None where there is one row only.

    >>> rows = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    >>> dependence_of(rows, rows, [0, 1], [0, 1]).tolist()
    [[0.5, 0.5]]
    """
    differs = np.asarray(rows)[:, None] != np.asarray(other_rows)[None, :]
    if not differs.any():
        return None
    own, comparison = _shares(values), _shares(others)
    empty = np.abs(comparison).sum(axis=-1) == 0
    total = np.zeros(values.shape[:2])
    count = np.zeros(values.shape[:2])
    for k in range(comparison.shape[1]):  # one at a time: all differences at once may not fit
        counts = differs[None, :, k] & ~empty[:, k, None]
        total += counts * _distance(own, comparison[:, k, None]) / 2
        count += counts
    counted = own.any(axis=-1) & (count > 0)
    return np.divide(total, count, out=np.ones_like(total), where=counted)


def _distance(rows: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum absolute differences, `(layers, targets)`, few sources at a time for the cache's sake."""
    total = np.zeros(rows.shape[:2])
    for start in range(0, rows.shape[-1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        difference = rows[..., part] - other[..., part]
        total += np.abs(difference, out=difference).sum(axis=-1)
    return total


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.abs(values)
    total = sizes.sum(axis=-1, keepdims=True)
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)
