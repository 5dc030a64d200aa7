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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import spread
from attnflow.errors import MethodError
from attnflow.methods.base import Compared, Method, Selection, required
from attnflow.methods.mixing import Heads, Matrix, Mixing, distributions, mix_heads
from attnflow.trace import AttentionTrace, FactoredTrace, LayerMix

RowsOf = Callable[[int, NDArray[np.intp]], Matrix]
"""`rows_of(index, places)`: these rows of the matrix of the trace's layer at this index."""

Step = Callable[[int, Any], Any]
"""`step(index, vectors)`: vectors times the matrix of the trace's layer at this index."""

Block = tuple[int, int, int]
"""Rows of a matrix, from one to before another, and the first vector that reaches them."""

_NUMBERS = 2**25  # weights of a block of rows over all heads: 128 MB
_BLOCK = 128  # rows of a matrix at a time: more skip less and leave the cache, fewer add too often
_BUFFER = 256  # numbers; with numpy's own 8,192 half the time of adding goes into copies


Rolled = tuple[Matrix, Compared]
"""The rows of a rollout that were asked for, `(layers, targets, n)`, and those of other targets to
hold them against.
"""


def roll_out(
    trace: AttentionTrace, mixing: Mixing, selection: Selection, tops: RowsOf | None = None
) -> Rolled:
    """Return the products of the matrices up to each level; `tops` replace the uppermost ones."""
    rows_of = partial(mixing.matrix_rows, trace)
    rows = sorted({*selection.rows, *spread(trace.length)})
    indices = [trace.layers.index(number) for number in selection.available]
    levels, places = sorted(set(selection.levels)), np.array(rows)
    vectors = len(rows) * sum(levels)  # rows of level l are multiplied l - 1 times
    if vectors < len(indices) * trace.length:
        products = _rows_from_the_top(
            indices,
            levels,
            start=lambda index: (tops or rows_of)(index, places),
            step=_Down(trace, mixing, places, most=len(rows) * len(levels)).step,
            join=partial(np.concatenate, axis=1),
        )
    else:
        products = _whole_matrices(rows_of, tops, indices, levels, places, trace.length)
    return _selected(selection, rows, products)


class _Down:
    """Vectors on their way down; what passes a layer by is added to them, not to its matrix.

    most: how many vectors there will be in the end.
    """

    def __init__(
        self, trace: AttentionTrace, mixing: Mixing, places: NDArray[np.intp], most: int
    ) -> None:
        self._trace, self._mixing, self._targets = trace, mixing, len(places)
        self._blocks = _blocks(places + 1, _BLOCK) if mixing.takes_nothing_later(trace) else None
        # written to again and again, so that they stay in the cache
        self._rows, self._added = np.empty(_BLOCK * trace.length), np.empty(most * trace.length)

    def step(self, index: int, vectors: Matrix) -> Matrix:
        """Multiply vectors, of which each target has as many, by a layer's matrix."""
        if self._blocks is None:
            blocks = _reached(vectors, _BLOCK)
        else:
            count = len(vectors) // self._targets
            blocks = [(start, end, first * count) for start, end, first in self._blocks]
        return _times(
            vectors,
            partial(self._mixing.attended_rows, self._trace, index, room=self._rows),
            blocks,
            passed_by=self._mixing.passed_by(self._trace, index),
            added=self._added,
            in_place=self._blocks is not None,
        )


def _selected(selection: Selection, rows: Sequence[int], products: Mapping[int, Matrix]) -> Rolled:
    """Return what a selection asks for out of the products of these rows, by level."""
    stacked = np.stack([products[level] for level in selection.levels])
    place = {row: k for k, row in enumerate(rows)}
    others = spread(stacked.shape[-1])
    if not place.keys() >= set(others):  # many targets, held against themselves
        others = [rows[k] for k in spread(len(rows))]
    compared = Compared(others, stacked[:, [place[row] for row in others]])
    return stacked[:, [place[row] for row in selection.rows]], compared


def _whole_matrices(
    rows_of: RowsOf,
    tops: RowsOf | None,
    indices: Sequence[int],
    levels: Sequence[int],
    rows: NDArray[np.intp],
    length: int,
) -> dict[int, Matrix]:
    """Return by level the rows of the product of all matrices up to it."""
    every = np.arange(length)
    below = np.eye(length)
    products: dict[int, Matrix] = {}
    for level, index in enumerate(indices[: levels[-1]], start=1):
        matrix = rows_of(index, every)
        if level in levels:
            products[level] = (matrix[rows] if tops is None else tops(index, rows)) @ below
        below = matrix @ below
    return products


def _rows_from_the_top(
    indices: Sequence[int],
    levels: Sequence[int],
    *,
    start: Callable[[int], Any],
    step: Step,
    join: Callable[[list[Any]], Any],
) -> dict[int, Any]:
    """Return the same, vector by vector: all levels go down together, a matrix is made once.

    Vectors are `(targets, levels, n)`, so that those of the latest targets, which reach furthest,
    stand together at the end.
    """
    vectors: Any = None
    order: list[int] = []
    for level in range(max(levels), 0, -1):
        index = indices[level - 1]
        if order:
            shape = vectors.shape
            vectors = step(index, vectors.reshape(-1, shape[-1])).reshape(shape)
        if level in levels:
            started = start(index)[:, None]
            vectors = join([vectors, started]) if order else started
            order.append(level)
    return {level: vectors[:, k] for k, level in enumerate(order)}


def _times(
    vectors: Matrix,
    rows_of: Callable[[NDArray[np.intp]], Matrix],
    blocks: Sequence[Block],
    *,
    passed_by: float = 0.0,
    added: Matrix | None = None,
    in_place: bool = False,
) -> Matrix:
    """Multiply vectors by a matrix, a block of its rows at a time; what is out of reach is left.

    Of causal attention that is most: a vector is 0 after its target, a row after its own place, so
    that a block adds to nothing that a later one reads, and vectors may be changed in place.
    passed_by: the share of the identity, which is added to the vectors and not to the matrix.
    added: room for what a block adds.
    """
    onto = vectors if in_place else passed_by * vectors
    room = np.empty(vectors.size) if added is None else added
    for start, end, first in blocks:
        rows = rows_of(np.arange(start, end))
        own = vectors[first:, start:end]
        # a half, as in the paper, passes on what it keeps: no copy
        shares = own if passed_by == 0.5 and in_place else (1 - passed_by) * own
        if in_place:
            own *= passed_by
        reached = onto[first:, : rows.shape[1]]
        _add(np.matmul(shares, rows, out=room[: reached.size].reshape(reached.shape)), reached)
    return onto


def _add(added: Matrix, onto: Matrix) -> None:
    """Add in place; rows that are longer than numpy's buffer are not copied into it first."""
    before = np.setbufsize(_BUFFER)  # of this thread alone
    try:
        onto += added
    finally:
        np.setbufsize(before)


def _blocks(ends: NDArray[np.intp], block: int) -> list[Block]:
    """Return the blocks of rows that vectors need; `ends`: where each ends, sorted.

    >>> _blocks(np.array([100, 300, 1000]), 256)
    [(0, 100, 0), (100, 300, 1), (300, 556, 2), (556, 812, 2), (812, 1000, 2)]
    """
    edges = pairwise(_edges(np.unique(ends), block))
    return [(start, end, int((ends > start).argmax())) for start, end in edges]


def _reached(vectors: Matrix, block: int) -> list[Block]:
    """Return the same as the vectors show it; rows at which all are 0 are left out."""
    counts = vectors != 0
    counted, ends = counts.any(axis=0), vectors.shape[1] - counts[:, ::-1].argmax(axis=1)
    return [each for each in _blocks(ends, block) if counted[each[0] : each[1]].any()]


def _edges(ends: NDArray[np.intp], block: int) -> list[int]:
    """Return where blocks of rows begin and end: after `block` rows, or sooner where vectors end.

    `ends` are sorted. What a vector shares a block with after its end is multiplied for nothing.

    >>> _edges(np.array([100, 300, 1000]), 256)
    [0, 100, 300, 556, 812, 1000]
    """
    edges = [0]
    while edges[-1] < ends[-1]:
        furthest = min(edges[-1] + block, int(ends[-1]))
        near = ends[(ends > edges[-1] + block // 3) & (ends <= furthest)]
        edges.append(int(near[-1]) if near.size else furthest)
    return edges


def head_shares(heads: Heads, count: int) -> tuple[float, ...] | None:
    """Return the share of each head in the mixture; None where it is no weighted mean."""
    if heads == "mean":
        return (1 / count,) * count
    if isinstance(heads, str):
        return None
    mixed = mix_heads(np.eye(count)[None, :, :, None].astype(np.float64), heads)
    return tuple(mixed[0, :, 0].tolist())


def roll_out_factors(
    trace: FactoredTrace, selection: Selection, step: Step, top: Step | None = None
) -> Rolled:
    """Return the same of a trace in factors, where many targets are held against each other."""
    others = spread(trace.length)
    enough = len(set(selection.rows)) >= len(others)
    rows = sorted({*selection.rows, *(() if enough else others)})
    layer = trace.factors[0]
    products = _rows_from_the_top(
        [trace.layers.index(number) for number in selection.available],
        sorted(set(selection.levels)),
        start=lambda index: (top or step)(index, layer.unit_rows(rows)),
        step=step,
        join=layer.join,
    )
    arrays = {level: layer.array(vectors) for level, vectors in products.items()}
    return _selected(selection, rows, arrays)


def steps_of(mixing: Mixing, trace: FactoredTrace) -> Step:
    """Return how vectors pass a layer: through its factors, or its matrix block by block."""
    shares = head_shares(mixing.heads, trace.heads)
    if shares is None or mixing.discard or mixing.receptive_field in ("column", "element"):
        return _by_blocks(trace, partial(mixing.matrix_rows, trace))  # not linear in the heads
    drop = trace.tokens.occurrences_of(mixing.drop, required=True) if mixing.drop else ()
    residual = mixing.residual_shares(len(trace.layers)).tolist()
    mixes = [LayerMix(shares, share, tuple(drop)) for share in residual]
    return lambda index, vectors: trace.factors[index].times(vectors, mixes[index])


def gradient_steps(trace: FactoredTrace, heads: Heads) -> Step:
    """Return the step to vectors plus vectors times the layer's relu(A ⊙ ∇A)."""
    shares = head_shares(heads, trace.heads)
    if shares is not None:
        return lambda index, vectors: vectors + trace.factors[index].times_gradient(vectors, shares)
    times = _by_blocks(trace, lambda index, rows: gradient_rows(trace, index, rows, heads))
    return lambda index, vectors: vectors + times(index, vectors)


def gradient_rows(
    trace: FactoredTrace, index: int, rows: Sequence[int] | NDArray[np.intp], heads: Heads
) -> Matrix:
    """Return these rows of one layer's relu(A ⊙ ∇A), heads mixed, `(rows, n)`."""
    products = trace.factors[index].weight_rows(rows, with_gradient=True)
    return mix_heads(np.maximum(products, 0)[None], heads)[0]


def score_gradients(weights: Any, products: Any) -> Any:
    """Return the gradient of the scores that a softmax made weights of.

    products: weights × their gradients. A weight is raised at the others' cost: what a row would
    have gained by them is taken off.
    """
    return products - weights * products.sum(axis=-1, keepdims=True)


def _by_blocks(trace: FactoredTrace, rows_of: RowsOf) -> Step:
    """Return how vectors pass a matrix whose rows are formed some at a time."""
    block = max(1, _NUMBERS // (trace.heads * trace.length))

    def step(index: int, vectors: Any) -> Any:
        layer = trace.factors[index]
        array = layer.array(vectors)
        return layer.vectors(_times(array, partial(rows_of, index), _reached(array, block)))

    return step


def recorded_rows(
    method: Method, trace: AttentionTrace, index: int, rows: list[int], kind: str
) -> Matrix:
    """Return rows of one layer's weights × gradients, as recorded or formed from the factors."""
    if isinstance(trace, FactoredTrace):
        check_gradients(method, trace, kind)
        return gradient_rows(trace, index, rows, "mean")
    return required(method, trace, kind)[index, rows].astype(np.float64)


def check_gradients(method: Method, trace: FactoredTrace, kind: str) -> None:
    """Raise unless the factors hold the gradients that a method needs."""
    if trace.gradient_kind != kind:
        raise MethodError(
            f"{method.name!r} needs {kind!r}, and the factors of this trace hold "
            f"{trace.gradient_kind or 'queries and keys only'}. Capture it with: attnflow.capture("
            f"model, text, methods=[{type(method).__name__}()])."
        )


# -- two towers in one trace ----------------------------------------------------------------------
#
# A trace of a vision-language model holds the layers of the vision tower, one layer for the
# connector, and the layers of the language model, over all positions of both. At the connector an
# image token hands all it has to the patches that feed it: there is no residual, because the token
# is made of nothing else. Products of layers need to know only that. A method that reads single
# layers of the language model would leave its mass on the image tokens; it is carried on here.

TowerRule = Literal["connector", "rollout", "gradients"]
_RESIDUAL = 0.5


def connector_index(trace: AttentionTrace) -> int | None:
    """Return the index of the connector among the layers; None for a trace of one tower."""
    if trace.stages is None or "connector" not in trace.stages:
        return None
    return trace.stages.index("connector")


def language_layers(trace: AttentionTrace) -> list[int]:
    """Return the indices of the language model's layers; all of a trace of one tower."""
    if connector_index(trace) is None or trace.stages is None:
        return list(range(len(trace.layers)))
    return [k for k, stage in enumerate(trace.stages) if stage == "language"]


def image_sources(trace: AttentionTrace) -> list[int] | None:
    """Return the positions that can be sources, patches and words; None for one tower: all."""
    index = connector_index(trace)
    if index is None:
        return None
    own = trace.weights[index].mean(axis=0).diagonal()
    return [k for k in range(trace.length) if own[k] > 0]


def carried(
    values: Matrix, trace: AttentionTrace, rule: TowerRule, contributions: Matrix | None = None
) -> Matrix:
    """Hand what falls on image tokens of the language model on to vision positions, `(..., n)`.

    rule: "connector" stops at the output of the vision tower, so that each token stands for the
    patches at its place; "rollout" goes on through the tower's rollout; "gradients" through the
    rollout of `contributions`, gradient-weighted attention of every layer, rows scaled to 1. Sums
    stay what they are.
    """
    index = connector_index(trace)
    if index is None:
        return values
    vectors = values @ _mixed(trace, index)
    if rule == "connector":
        return vectors
    for layer in range(index - 1, -1, -1):
        if rule == "rollout" or contributions is None:
            matrix = _mixed(trace, layer)
        else:
            matrix = distributions(contributions[layer], np.arange(trace.length))
        vectors = _RESIDUAL * vectors + (1 - _RESIDUAL) * (vectors @ matrix)
    return vectors


def _mixed(trace: AttentionTrace, index: int) -> Matrix:
    return trace.weights[index].mean(axis=0, dtype=np.float64)
