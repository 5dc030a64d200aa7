"""Gradient attention: what the predicting position attends to, as far as it raises the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError, shorten
from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    check_score,
    checked_start,
    required,
)
from attnflow.methods.factored import check_gradients, gradient_rows, mean_weights
from attnflow.methods.sinks import find_sink
from attnflow.methods.towers import (
    TowerRule,
    carried,
    check_tower_rule,
    connector_index,
    language_layers,
)
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, LOG_PROB, ScoreName

__all__ = ["GradientAttention"]

Values = NDArray[np.float64]


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
    score: what gradients are taken of: the answer's "log-prob", or its "logit", the number before
        the softmax.
    drop_sink: leave out the position on which the model parks attention it does not need, where
        one is found; what falls on it is counted in `elsewhere`. The provenance names it.
    tower: how far what falls on an image is followed in a vision-language model: to the patches at
        the place of each image token ("connector"), on through the vision tower's rollout
        ("rollout"), or through that of its gradient-weighted attention ("gradients"). No other
        model has one.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(record=["gradient-attention"])
    >>> GradientAttention()(trace, targets=-1, layers=-1).values.shape
    (1, 1, 5)
    """

    name: ClassVar[str] = "gradient-attention"
    start_layer: int = 1
    score: ScoreName = LOG_PROB
    drop_sink: bool = True
    tower: TowerRule = "rollout"

    def __post_init__(self) -> None:
        check_score(self.score)
        check_tower_rule(self.tower)
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))
        if not isinstance(self.drop_sink, bool):
            raise MethodError(f"drop_sink is True or False; got {shorten(self.drop_sink)}.")

    @property
    def requires(self) -> Requirements:
        """The products of weights and gradients, which capture forms row by row."""
        return Requirements(record=(GRADIENT_ATTENTION,), score=self.score, needs_matrix=False)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """The running sum over layers of what was recorded, rows of these targets."""
        rows = list(selection.rows)
        sums = np.cumsum(self._contributions(trace, selection), axis=0, dtype=np.float64)
        values = sums[[level - 1 for level in selection.levels]]
        if connector_index(trace) is not None:
            recorded = required(self, trace, GRADIENT_ATTENTION)
            values = carried(values, trace, self.tower, recorded.astype(np.float64))
        sink = find_sink(_mean_weights(trace, rows)) if _has_sink(trace) else None
        values, elsewhere = self.without_sink(values, np.zeros(values.shape[:2]), sink)
        result = attribution_of(self, trace, values, selection, notes={"sink": sink})
        return replace(result, elsewhere=elsewhere) if sink is not None else result

    def _contributions(self, trace: AttentionTrace, selection: Selection) -> Values:
        """`(available layers, rows, n)`: as they were recorded, or formed from the factors."""
        indices = [trace.layers.index(number) for number in selection.available]
        if not isinstance(trace, FactoredTrace):
            recorded = required(self, trace, GRADIENT_ATTENTION)
            return recorded[indices][:, list(selection.rows)].astype(np.float64)
        check_gradients(self, trace, GRADIENT_ATTENTION)
        return np.stack([gradient_rows(trace, k, selection.rows, "mean") for k in indices])

    def without_sink(
        self, values: Values, elsewhere: Values, sink: int | None
    ) -> tuple[Values, Values]:
        """What falls on the sink goes elsewhere: `(layers, targets, sources)`, `(layers, targets)`.

        A sink among generated tokens is no column here and is elsewhere already. The only source
        there is stays, whatever it is.
        """
        columns = values.shape[-1]
        if not self.drop_sink or sink is None or not 0 <= sink < columns or columns == 1:
            return values, elsewhere
        rest = values.copy()
        rest[..., sink] = 0.0
        return rest, elsewhere + values[..., sink]


def _mean_weights(trace: AttentionTrace, rows: list[int]) -> Values:
    """`(rows, n)`: the mean weight over layers and heads."""
    if isinstance(trace, FactoredTrace):
        return mean_weights(trace, rows)
    return trace.weights[language_layers(trace)][:, :, rows].mean(axis=(0, 1))


def _has_sink(trace: AttentionTrace) -> bool:
    """Only a causal text of some length has a place to park attention that all rows share."""
    writes = trace.kind == "causal" or connector_index(trace) is not None
    return writes and trace.length > 2
