"""Products of the layers' matrices from the input up: what every rollout is.

Two ways give the same numbers to the last bits. *Whole matrices*: n × n times n × n at every layer,
from the bottom. *Rows from the top*: the row of a target at layer l is a vector, multiplied by the
matrices of layers l - 1, l - 2, ... 1, so that few rows cost n² a layer instead of n³, and the
matrix of a layer is made a block of rows at a time and never stands in memory. Whichever takes
fewer multiplications is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import spread
from attnflow.methods.base import Compared, Selection
from attnflow.trace import AttentionTrace

__all__ = ["RowsOf", "Rolled", "roll_out"]

Matrix = NDArray[np.float64]
RowsOf = Callable[[int, NDArray[np.intp]], Matrix]
"""`rows_of(index, places)`: these rows of the matrix of the trace's layer at this index."""

_BLOCK = 128  # rows of a matrix at a time: 2 MB of 2,048 columns, which stay in the cache


class Rolled:
    """The rows of a rollout that were asked for, and those of other targets to hold them against.

    values: `(layers, targets, n)`, as the selection asks.
    """

    def __init__(self, selection: Selection, rows: Sequence[int], products: Matrix) -> None:
        place = {row: k for k, row in enumerate(rows)}
        others = [row for row in spread(products.shape[-1]) if row in place]
        self.values: Matrix = products[:, [place[row] for row in selection.rows]]
        self.compared = Compared(others, products[:, [place[row] for row in others]])


def roll_out(
    trace: AttentionTrace, rows_of: RowsOf, selection: Selection, tops: RowsOf | None = None
) -> Rolled:
    """The products of the matrices from the lowest available layer up, at the selected layers.

    `tops` replace the uppermost matrix of each product.

    >>> from attnflow import Rollout
    >>> from attnflow.testing import random_trace
    >>> trace, method = random_trace(layers=3, length=5), Rollout()
    >>> selection = method.select(trace, targets=[4], layers=-1)
    >>> rolled = roll_out(trace, lambda k, rows: method.matrix_rows(trace, k, rows), selection)
    >>> rolled.values.shape
    (1, 1, 5)
    """
    rows = sorted({*selection.rows, *spread(trace.length)})
    vectors = sum(len(rows) for top in set(selection.levels) for _ in range(top))
    few = vectors < len(selection.available) * trace.length
    multiply = _rows_from_the_top if few else _whole_matrices
    indices = [trace.layers.index(number) for number in selection.available]
    levels = sorted(set(selection.levels))
    products = multiply(rows_of, tops or rows_of, indices, levels, np.array(rows), trace.length)
    return Rolled(selection, rows, np.stack([products[level] for level in selection.levels]))


def _whole_matrices(
    rows_of: RowsOf,
    tops: RowsOf,
    indices: Sequence[int],
    levels: Sequence[int],
    rows: NDArray[np.intp],
    length: int,
) -> dict[int, Matrix]:
    """By level: these rows of the product of all matrices up to it."""
    every = np.arange(length)
    below = np.eye(length)
    products: dict[int, Matrix] = {}
    for level, index in enumerate(indices[: levels[-1]], start=1):
        matrix = rows_of(index, every)
        if level in levels:
            products[level] = (matrix[rows] if tops is rows_of else tops(index, rows)) @ below
        below = matrix @ below
    return products


def _rows_from_the_top(
    rows_of: RowsOf,
    tops: RowsOf,
    indices: Sequence[int],
    levels: Sequence[int],
    rows: NDArray[np.intp],
    length: int,
) -> dict[int, Matrix]:
    """The same, vector by vector: all levels go down together, so each matrix is made once."""
    products: dict[int, Matrix] = {}
    for level in range(levels[-1], 0, -1):
        index = indices[level - 1]
        if products:
            stacked = _times(np.concatenate(list(products.values())), rows_of, index)
            products = dict(zip(products, np.split(stacked, len(products)), strict=True))
        if level in levels:
            products[level] = tops(index, rows)
    return products


def _times(vectors: Matrix, rows_of: RowsOf, index: int) -> Matrix:
    """Vectors times a matrix, a block of its rows at a time; blocks they do not reach are left."""
    product = np.zeros_like(vectors)
    for start in range(0, vectors.shape[1], _BLOCK):
        part = vectors[:, start : start + _BLOCK]
        if part.any():
            product += part @ rows_of(index, np.arange(start, start + part.shape[1]))
    return product
