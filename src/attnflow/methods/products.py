"""Products of the layers' matrices from the input up: what every rollout is.

Two ways give the same numbers to the last bits. *Whole matrices*: n × n times n × n at every layer,
from the bottom. *Rows from the top*: the row of a target at layer l is a vector, multiplied by the
matrices of layers l - 1, l - 2, ... 1, so that few rows cost n² a layer instead of n³, and the
matrix of a layer is made a block of rows at a time and never stands in memory. Whichever takes
fewer multiplications is used.

On a trace in factors rows always go down from the top, and no layer's matrix is formed: each
layer's factors take vectors as they are, so a few targets cost a few products a layer. What is not
linear in the heads ("max", "min", discarding, a receptive field) takes the layer's matrix a block
of rows at a time instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import spread
from attnflow.errors import MethodError
from attnflow.methods.base import Compared, Selection
from attnflow.methods.mixing import Heads, Mixing, mix_heads
from attnflow.trace import AttentionTrace, FactoredTrace, LayerMix

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


Step = Callable[[int, Any], Any]
"""`step(index, vectors)`: vectors times the matrix of the trace's layer at this index."""

_NUMBERS = 2**25  # weights of a block of rows over all heads: 128 MB


def head_shares(heads: Heads, count: int) -> tuple[float, ...] | None:
    """The share of each head in the mixture; None where it is no weighted mean."""
    if heads == "mean":
        return (1 / count,) * count
    if isinstance(heads, str):
        return None
    mixed = mix_heads(np.eye(count)[None, :, :, None].astype(np.float64), heads)
    return tuple(mixed[0, :, 0].tolist())


def layer_mixes(mixing: Mixing, trace: FactoredTrace) -> list[LayerMix] | None:
    """For each layer how its heads become one matrix; None where that is not linear in them."""
    shares = head_shares(mixing.heads, trace.heads)
    fields = mixing.receptive_field in ("column", "element")
    if shares is None or mixing.discard or fields:
        return None
    drop = trace.tokens.occurrences_of(mixing.drop, required=True) if mixing.drop else ()
    residual = mixing.residual_shares(len(trace.layers)).tolist()
    return [LayerMix(shares, share, tuple(drop)) for share in residual]


def roll_out_factors(
    trace: FactoredTrace, selection: Selection, step: Step, top: Step | None = None
) -> Rolled:
    """Rows of the products at the selected layers, as `roll_out` gives them for weights.

    Many targets are held against each other, few against others spread over the text.
    """
    others = spread(trace.length)
    enough = len(set(selection.rows)) >= len(others)
    rows = sorted({*selection.rows, *(() if enough else others)})
    products = rows_from_the_top(
        trace,
        rows,
        [trace.layers.index(number) for number in selection.available],
        sorted(set(selection.levels)),
        step,
        top,
    )
    return Rolled(selection, rows, np.stack([products[level] for level in selection.levels]))


def rows_from_the_top(
    trace: FactoredTrace,
    rows: Sequence[int],
    indices: Sequence[int],
    levels: Sequence[int],
    step: Step,
    top: Step | None = None,
) -> dict[int, Matrix]:
    """By level, counted from 1: rows of the product of all matrices up to it.

    `top` replaces the uppermost matrix of each product. All levels go down together, so that each
    layer is gone through once.
    """
    where = trace.factors[0]
    vectors: Any = None
    order: list[int] = []
    for level in range(max(levels), 0, -1):
        index = indices[level - 1]
        lower = None if vectors is None else step(index, vectors)
        if level in levels:
            started = (top or step)(index, where.unit_rows(rows))
            lower = started if lower is None else where.join([lower, started])
            order.append(level)
        vectors = lower
    parts = where.array(vectors).reshape(len(order), len(rows), trace.length)
    return dict(zip(order, parts, strict=True))


def steps_of(mixing: Mixing, trace: FactoredTrace) -> Step:
    """How vectors pass a layer: through its factors, or through its matrix block by block."""
    mixes = layer_mixes(mixing, trace)
    if mixes is not None:
        return lambda index, vectors: trace.factors[index].times(vectors, mixes[index])
    return _by_blocks(trace, lambda index, rows: mixing.matrix_rows(trace, index, rows))


def gradient_steps(trace: FactoredTrace, heads: Heads) -> Step:
    """Vectors plus vectors times the layer's relu(A ⊙ ∇A)."""
    shares = head_shares(heads, trace.heads)
    if shares is not None:
        return lambda index, vectors: vectors + trace.factors[index].times_gradient(vectors, shares)
    times = _by_blocks(trace, lambda index, rows: gradient_rows(trace, index, rows, heads))
    return lambda index, vectors: vectors + times(index, vectors)


def gradient_rows(
    trace: FactoredTrace, index: int, rows: Sequence[int] | NDArray[np.intp], heads: Heads
) -> Matrix:
    """`(rows, n)`: these rows of one layer's relu(A ⊙ ∇A), heads mixed."""
    products = trace.factors[index].weight_rows(rows, with_gradient=True)
    return mix_heads(np.maximum(products, 0)[None], heads)[0]


def mean_weights(trace: FactoredTrace, rows: Sequence[int]) -> Matrix:
    """`(rows, n)`: the mean weight over all layers and heads."""
    total = np.zeros((len(rows), trace.length))
    for layer in trace.factors:
        total += layer.weight_rows(rows).mean(axis=0, dtype=np.float64)
    return total / len(trace.factors)


def _by_blocks(trace: FactoredTrace, rows_of: Callable[[int, NDArray[np.intp]], Matrix]) -> Step:
    """Vectors times a matrix whose rows are formed some at a time."""
    block = max(1, _NUMBERS // (trace.heads * trace.length))

    def step(index: int, vectors: Any) -> Any:
        layer = trace.factors[index]
        array = layer.array(vectors)
        product = np.zeros_like(array)
        for start in range(0, trace.length, block):
            part = array[:, start : start + block]
            if part.any():
                product += part @ rows_of(index, np.arange(start, start + part.shape[1]))
        return layer.vectors(product)

    return step


def check_gradients(method: Any, trace: FactoredTrace, kind: str) -> None:
    """Raise unless the factors hold the gradients that a method needs."""
    if trace.gradient_kind != kind:
        raise MethodError(
            f"{method.name!r} needs {kind!r}, and the factors of this trace hold "
            f"{trace.gradient_kind or 'queries and keys only'}. Capture it with: attnflow.capture("
            f"model, text, methods=[{type(method).__name__}()])."
        )
