"""Methods of gradients: weights that count only as far as they raise the score.

Each weight is multiplied by the gradient of one score with respect to it, and what is negative is
dropped: `Ā = mean over heads of relu(A ⊙ ∇A)`. The rows of Ā are no distributions: their size says
how much the score depends on a position at a layer, and is zero where it does not. So the rows
that mean something are those of the position the score was read from, and those it draws on.

Gradient attention leaves out the position on which a causal model parks attention that it does not
need, its sink, where `find_sink` finds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from attnflow.attribution import Attribution, spread
from attnflow.errors import MethodError, shorten
from attnflow.errors.arguments import check_named
from attnflow.methods.base import (
    Compared,
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    checked_flag,
    checked_start,
    required,
)
from attnflow.methods.flow import gradient_weighted
from attnflow.methods.mixing import Heads, Matrix, checked_heads
from attnflow.methods.products import (
    TowerRule,
    carried,
    check_gradients,
    connector_index,
    gradient_steps,
    language_layers,
    recorded_rows,
    roll_out_factors,
)
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import (
    ANSWER_ROWS,
    BALANCED,
    BALANCED_INPUTS,
    BALANCED_ROWS,
    BALANCED_SCORES,
    GRADIENT_ATTENTION,
    GRADIENTS,
    LENS,
    LOG_PROB,
    ScoreName,
)


@dataclass(frozen=True, kw_only=True)
class GradientRollout(Method):
    """Gradient-weighted rollout: R starts as the identity and grows by Ā R at every layer.

    Chefer, Gur & Wolf (2021), "Generic Attention-model Explainability". The values are R as it is,
    identity included, so rows do not sum to 1. In an encoder–decoder each side grows by its own
    attention, and cross attention adds `norm(R_dd)ᵀ Ā norm(R_ee)` to what decoder positions draw
    on the input, where `norm(R) = (R - I) / row sums + I`. In a vision-language model both towers
    grow so, and at the connector an image token takes what the patches that feed it have.

    heads: how heads are mixed: "mean" (the paper's), "max", "min", the number of one head, or one
        weight for each head.
    start_layer: the first layer that counts; those below are left out.
    score: what gradients are taken of: the answer's "log-prob", its "log-odds", which keep their
        size where it is sure, or its "logit", the number before the softmax.

    >>> from attnflow.testing import random_trace
    >>> GradientRollout()(random_trace(length=5, record=("gradients",)), targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "gradient-rollout"
    heads: Heads = "mean"
    start_layer: int = 1
    score: ScoreName = LOG_PROB

    def __post_init__(self) -> None:
        check_named("score", self.score, get_args(ScoreName))
        object.__setattr__(self, "heads", checked_heads(self.heads))
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        if isinstance(trace, FactoredTrace):
            check_gradients(self, trace, GRADIENTS)
            steps = gradient_steps(trace, self.heads)
            values, compared = roll_out_factors(trace, selection, steps)
            return attribution_of(self, trace, values, selection, compared=compared)
        relevance = np.eye(trace.length)
        others = spread(trace.length)
        rows = [*selection.rows, *others]
        grown: dict[int, Matrix] = {}
        for number in selection.available:
            index = trace.layers.index(number)
            weighted = gradient_weighted(self, trace, index, self.heads)
            if trace.encoder_length is not None and trace.stages and trace.stages[index] == "cross":
                relevance = _crossed(relevance, weighted, trace.encoder_length)
            elif index == connector_index(trace):
                relevance = trace.weights[index, 0].astype(np.float64) @ relevance
            else:
                relevance = relevance + weighted @ relevance
            grown[number] = relevance[rows]
        every = np.stack([grown[number] for number in selection.layers])
        values, comparison = np.split(every, [len(selection.rows)], axis=1)
        compared = Compared(others, comparison)
        return attribution_of(self, trace, values, selection, compared=compared)

    @property
    def requires(self) -> Requirements:
        """Gradients of the score; a gradient belongs to one head."""
        return Requirements(heads=None, record=(GRADIENTS,), score=self.score, needs_matrix=False)


def _crossed(relevance: Matrix, weighted: Matrix, encoder: int) -> Matrix:
    """Apply the bi-modal rule to decoder positions that attend to the encoder's.

    The paper's other half, what the decoder's own relevance gains through the context's view of
    it, is zero here: the encoder sees nothing of the decoder.
    """
    grown = relevance.copy()
    own = _normalized(relevance[encoder:, encoder:])
    context = _normalized(relevance[:encoder, :encoder])
    grown[encoder:, :encoder] += own.T @ weighted[encoder:, :encoder] @ context
    return grown


def _normalized(relevance: Matrix) -> Matrix:
    """Scale what was added to the identity, each row to a sum of 1; a row of zeros stays so."""
    identity = np.eye(len(relevance))
    gained = relevance - identity
    total = gained.sum(axis=1, keepdims=True)
    return np.divide(gained, total, out=np.zeros_like(gained), where=total > 0) + identity


@dataclass(frozen=True, kw_only=True)
class GradientAttention(Method):
    """Gradient attention: weights of the predicting position, as far as they raise its answer.

    `Σ over layers of mean over heads of relu(A[t, j] · ∂ log p / ∂ A[t, j])`.

    t is the position that predicts, and p the probability of what it says: for a causal language
    model the token that follows each position, for other models their answer. A weight counts as
    far as it raises the answer. The value at a layer is the sum from the start layer up to it, so
    the highest layer holds the whole of it. Values are in nats and do not add up to 1; `normalize`
    makes them shares.

    start_layer: the first layer that counts.
    score: what gradients are taken of: the answer's "log-prob", its "log-odds", which keep their
        size where it is sure, or its "logit", the number before the softmax.
    drop_sink: leave out the position on which the model parks attention it does not need, where
        one is found; what falls on it is counted in `elsewhere`. The provenance names it.
    tower: how far what falls on an image is followed in a vision-language model: to the patches at
        the place of each image token ("connector"), on through the vision tower's rollout
        ("rollout"), or through that of its gradient-weighted attention ("gradients"). No other
        model has one.

    balanced: gradients are those of a backward pass that hands on fair shares (`BalancedGradient`).
    lens: each patch of an image is weighed by how probable the answer is when the model's own head
        reads it, in place of the position that predicts, as it enters the layer: the mean of it and
        the patches next to it. What raises every class alike counts little then.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(record=["gradient-attention"])
    >>> GradientAttention()(trace, targets=-1, layers=-1).values.shape
    (1, 1, 5)
    """

    name: ClassVar[str] = "gradient-attention"
    start_layer: int = 1
    score: ScoreName = LOG_PROB
    drop_sink: bool = True
    tower: TowerRule = "connector"
    balanced: bool = False
    lens: bool = False

    def __post_init__(self) -> None:
        check_named("score", self.score, get_args(ScoreName))
        check_named("tower", self.tower, get_args(TowerRule))
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))
        for name in ("drop_sink", "balanced", "lens"):
            object.__setattr__(self, name, checked_flag(name, getattr(self, name)))
        if self.lens and self.balanced:
            raise MethodError("lens= is for images and balanced= for texts; leave one out.")

    @property
    def _record(self) -> str:
        return BALANCED_ROWS if self.balanced else GRADIENT_ATTENTION

    @property
    def requires(self) -> Requirements:
        """The products of weights and gradients, which capture forms row by row."""
        record = (self._record, LENS) if self.lens else (self._record,)
        return Requirements(record=record, score=self.score, needs_matrix=False)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        rows = list(selection.rows)
        indices = [trace.layers.index(number) for number in selection.available]
        layers = [recorded_rows(self, trace, k, rows, self._record) for k in indices]
        sums = np.cumsum(layers, axis=0, dtype=np.float64)
        values = sums[[level - 1 for level in selection.levels]]
        if self.lens:
            read = self._read_around(trace)[[trace.layers.index(k) for k in selection.layers]]
            values = values * read[:, None]
        if connector_index(trace) is not None:
            recorded = required(self, trace, self._record)
            values = carried(values, trace, self.tower, recorded.astype(np.float64))
        sink = sink_of(trace, rows)
        values, elsewhere = self.without_sink(values, np.zeros(values.shape[:2]), sink)
        result = attribution_of(self, trace, values, selection, notes={"sink": sink})
        return replace(result, elsewhere=elsewhere) if sink is not None else result

    def _read_around(self, trace: AttentionTrace) -> Matrix:
        """Return `(layers, n)`: the answer's probability at each patch and those next to it."""
        grid = trace.tokens.grid
        if grid is None:
            raise MethodError("lens=true is for the patches of one image.")
        read = required(self, trace, LENS).astype(np.float64)
        patches = read[:, grid.prefix : grid.length].reshape(-1, grid.rows, grid.columns)
        padded = np.pad(patches, [(0, 0), (1, 1), (1, 1)], mode="edge")
        means = sliding_window_view(padded, (3, 3), axis=(1, 2)).mean(axis=(-2, -1))
        read[:, grid.prefix : grid.length] = means.reshape(len(read), -1)
        return read

    def without_sink(
        self, values: Matrix, elsewhere: Matrix, sink: int | None
    ) -> tuple[Matrix, Matrix]:
        """Return the values and what is elsewhere, the sink's part there if it is to be dropped."""
        return without_sink(values, elsewhere, sink if self.drop_sink else None)


def without_sink(values: Matrix, elsewhere: Matrix, sink: int | None) -> tuple[Matrix, Matrix]:
    """Move what falls on the sink elsewhere: `(layers, targets, sources)`, `(layers, targets)`.

    A sink among generated tokens is no column here and is elsewhere already. The only source
    there is stays, whatever it is.
    """
    columns = values.shape[-1]
    if sink is None or not 0 <= sink < columns or columns == 1:
        return values, elsewhere
    rest = values.copy()
    rest[..., sink] = 0.0
    return rest, elsewhere + values[..., sink]


def sink_of(trace: AttentionTrace, rows: list[int]) -> int | None:
    """Return the sink of these rows, where a text can have one."""
    writes = trace.kind == "causal" or connector_index(trace) is not None
    if not writes or trace.length < 3:  # only then can all rows park attention in one place
        return None
    if not isinstance(trace, FactoredTrace):
        return find_sink(trace.weights[language_layers(trace)][:, :, rows].mean(axis=(0, 1)))
    total = np.zeros((len(rows), trace.length))
    for layer in trace.factors:
        total += layer.mean_rows(rows)
    return find_sink(total / len(trace.factors))


_SHARE_OF_A_SINK = 0.3  # of all weight, over layers and heads; what a text says never draws so much
_FACTOR = 2.0  # a sink gets more than this many times what uniform attention would give it


def find_sink(weights: NDArray[np.floating[Any]]) -> int | None:
    """Return the position that takes most of the weight, if that is so much that it is a sink.

    weights: `(rows, n)`, the mean weight over all layers and heads of each row that is explained.

    So much is measured beyond what uniform attention gives it, since that is a lot in a short text:
    all of it where a row sees one position, which is then its only source and no sink.
    """
    rows = np.asarray(weights, dtype=np.float64)
    mean = rows.mean(axis=0)
    position = int(mean.argmax())
    visible = rows > 0
    uniform = float((visible[:, position] / np.maximum(visible.sum(axis=1), 1)).mean())
    enough = uniform + (1 - uniform) * _SHARE_OF_A_SINK
    return position if mean[position] > enough else None


def attention_sink(trace: AttentionTrace) -> int | None:
    """Return the source that gets most attention from other positions, over layers and heads.

    It must get more than twice what it would if every position attended alike to all that it sees.
    Of an encoder–decoder only the encoder's positions are sources.
    """
    weights = trace.weights.mean(axis=1, dtype=np.float64)
    visible = weights > 0
    uniform = visible / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    others = ~np.eye(trace.length, dtype=bool)
    received, expected = ((x * others).sum(axis=(0, 1)) for x in (weights, uniform))
    sink = int(received[: trace.encoder_length].argmax())
    return sink if received[sink] > _FACTOR * expected[sink] else None


READINGS = ("rows", "keys", "inputs")


@dataclass(frozen=True, kw_only=True)
class BalancedGradient(Method):
    """Balanced gradients: what speaks for an answer, and what against it, in one backward pass.

    Every operation of the model hands on what it got in fair shares (docs/how/gradients.md), and
    the pass is read in up to three ways, each scaled to shares. What is read in attention and what
    is read at the inputs count the same:

    - "rows": gradients of the scores (before the softmax) of the positions that predict, as far as
      they are positive;
    - "keys": weights × gradients of all positions where positive, summed into what they attend to;
    - "inputs": embedded token × gradient, which is negative where a token speaks against the
      answer; and what stands in its place after the first tenth of the blocks, the mean of all.

    The gradient is that of one answer. Its own row has all readings; where it is read from several
    positions, their rows share them, and other rows have only "rows": what they contribute to this
    answer. The value at a layer has the weights up to it; the highest layer holds the whole.

    readings: which of them, joined by "+".
    score: what gradients are taken of: the answer's "log-prob", "log-odds" or "logit".
    drop_sink: leave out the position on which a causal model parks attention it does not need.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(record=["balanced"])
    >>> BalancedGradient()(trace, targets=-1, layers=-1).values.shape
    (1, 1, 5)
    """

    name: ClassVar[str] = "balanced"
    readings: str = "rows+inputs"
    score: ScoreName = LOG_PROB
    drop_sink: bool = True

    def __post_init__(self) -> None:
        check_named("score", self.score, get_args(ScoreName))
        names = self.readings.split("+") if isinstance(self.readings, str) else []
        if not names or not set(names) <= set(READINGS) or len(set(names)) < len(names):
            raise MethodError(
                f"readings={shorten(self.readings)}: join some of {', '.join(READINGS)} by '+'."
            )
        object.__setattr__(self, "drop_sink", checked_flag("drop_sink", self.drop_sink))

    @property
    def requires(self) -> Requirements:
        """A backward pass of its own under the rules; a gradient belongs to one head."""
        return Requirements(heads=None, record=(BALANCED,), score=self.score, needs_matrix=False)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        rows, names = list(selection.rows), self.readings.split("+")
        answer = _answer_rows(trace, rows)
        sink = sink_of(trace, answer) if self.drop_sink else None
        keep = np.array([k for k in range(trace.length) if k != sink])
        total = np.zeros((len(selection.layers), len(rows), trace.length))
        own = [k for k, row in enumerate(rows) if row in answer]
        for name in names:
            values = self._read(trace, selection.available, answer, name, keep)
            size = np.abs(values[-1].sum(axis=0)[keep]).sum() / _weight_of(name, names)
            if size == 0:
                continue
            if name == "rows":
                values = self._read(trace, selection.available, rows, name, keep)
                total += values[[level - 1 for level in selection.levels]] / size
            elif own:
                shared = values[[level - 1 for level in selection.levels]][:, :1] / size
                total[:, own] += shared
        values, elsewhere = without_sink(total, np.zeros(total.shape[:2]), sink)
        result = attribution_of(self, trace, values, selection, notes={"sink": sink})
        # rows of one answer are alike because they share it, not because attention collapsed
        result = replace(result, dependence=None)
        return replace(result, elsewhere=elsewhere) if sink is not None else result

    def _read(
        self,
        trace: AttentionTrace,
        layers: Sequence[int],
        rows: list[int],
        name: str,
        keep: NDArray[np.intp],
    ) -> Matrix:
        """Return `(layers, rows, n)`: one reading, summed up to each layer."""
        indices = [trace.layers.index(number) for number in layers]
        shape = (len(indices), len(rows), trace.length)
        if name == "inputs":
            streams = required(self, trace, BALANCED_INPUTS).astype(np.float64)
            sizes = np.abs(streams[:, keep]).sum(axis=1, keepdims=True)
            relevance = (streams / np.where(sizes == 0, 1.0, sizes)).sum(axis=0)
            return np.broadcast_to(relevance / len(rows), shape)
        if isinstance(trace, FactoredTrace):
            check_gradients(self, trace, BALANCED)
            factors = [trace.factors[index] for index in indices]
            read = [x.score_rows(rows) if name == "rows" else x.gradient_sums() for x in factors]
        elif name == "rows":
            read = [required(self, trace, BALANCED_SCORES)[index, rows] for index in indices]
        else:
            read = [
                required(self, trace, BALANCED)[index].sum(axis=0, dtype=np.float64)
                for index in indices
            ]
        parts = [each.astype(np.float64) for each in read]
        if name == "keys":
            parts = [np.broadcast_to(each / len(rows), shape[1:]) for each in parts]
        return np.cumsum(parts, axis=0)


def _weight_of(name: str, names: Sequence[str]) -> float:
    """Return what a reading counts: half of all, or of the half that it shares with another."""
    at_weights = [each for each in names if each != "inputs"]
    sides = (1 if at_weights else 0) + ("inputs" in names)
    return 1 / sides if name == "inputs" else 1 / sides / len(at_weights)


def _answer_rows(trace: AttentionTrace, rows: list[int]) -> list[int]:
    """Return the rows that the answer is read from: those of a phrase, of all positions, of one."""
    if ANSWER_ROWS in trace.provenance:
        return [int(row) for row in trace.provenance[ANSWER_ROWS]]
    if trace.prediction is None:
        return rows
    return list(range(trace.length)) if trace.prediction.pooled else [trace.prediction.position]
