"""Products of the layers' matrices from the input up: what every rollout is.

Two ways give the same numbers to the last bits. *Whole matrices*: n × n times n × n at every layer,
from the bottom. *Rows from the top*: the row of a target at layer l is a vector, multiplied by the
matrices of layers l - 1, l - 2, ... 1, so that few rows cost n² a layer instead of n³, and the
matrix of a layer is made a block of rows at a time and never stands in memory. Whichever takes
fewer multiplications is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
        if len(others) < len(spread(products.shape[-1])):  # many targets, held against themselves
            others = [rows[k] for k in spread(len(rows))]
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
    stack = _Stack(
        rows_of=rows_of,
        tops=tops or rows_of,
        indices=[trace.layers.index(number) for number in selection.available],
        levels=sorted(set(selection.levels)),
        rows=np.array(rows),
        length=trace.length,
    )
    vectors = len(rows) * sum(stack.levels)  # rows of level l are multiplied l - 1 times
    few = vectors < len(stack.indices) * trace.length
    products = _rows_from_the_top(stack) if few else _whole_matrices(stack)
    return Rolled(selection, rows, np.stack([products[level] for level in selection.levels]))


@dataclass(frozen=True)
class _Stack:
    """The matrices of a rollout, and which rows of which products are needed.

    indices: the trace's layers, from the lowest level up. levels: those to give products of,
    counted from 1. rows: the targets. length: how many positions there are.
    """

    rows_of: RowsOf
    tops: RowsOf
    indices: Sequence[int]
    levels: Sequence[int]
    rows: NDArray[np.intp]
    length: int


def _whole_matrices(stack: _Stack) -> dict[int, Matrix]:
    """By level: the rows of the product of all matrices up to it."""
    every = np.arange(stack.length)
    below = np.eye(stack.length)
    products: dict[int, Matrix] = {}
    for level, index in enumerate(stack.indices[: stack.levels[-1]], start=1):
        matrix = stack.rows_of(index, every)
        if level in stack.levels:
            own = stack.tops is stack.rows_of
            products[level] = (matrix[stack.rows] if own else stack.tops(index, stack.rows)) @ below
        below = matrix @ below
    return products


def _rows_from_the_top(stack: _Stack) -> dict[int, Matrix]:
    """The same, vector by vector: all levels go down together, so each matrix is made once."""
    products: dict[int, Matrix] = {}
    for level in range(stack.levels[-1], 0, -1):
        index = stack.indices[level - 1]
        if products:
            stacked = _times(np.concatenate(list(products.values())), stack.rows_of, index)
            products = dict(zip(products, np.split(stacked, len(products)), strict=True))
        if level in stack.levels:
            products[level] = stack.tops(index, stack.rows)
    return products


def _times(vectors: Matrix, rows_of: RowsOf, index: int) -> Matrix:
    """Vectors times a matrix, a block of its rows at a time; blocks they do not reach are left."""
    product = np.zeros_like(vectors)
    for start in range(0, vectors.shape[1], _BLOCK):
        part = vectors[:, start : start + _BLOCK]
        if part.any():
            product += part @ rows_of(index, np.arange(start, start + part.shape[1]))
    return product
