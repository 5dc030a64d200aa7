"""Weights that count only as far as they raise the score: gradient-weighted rollout and flow.

Each weight is multiplied by the gradient of one score with respect to it, and what is negative is
dropped: `Ā = mean over heads of relu(A ⊙ ∇A)`. The rows of Ā are no distributions: their size says
how much the score depends on a position at a layer, and is zero where it does not. So the rows
that mean something are those of the position the score was read from, and those it draws on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, spread
from attnflow.methods.base import (
    Compared,
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    check_score,
    checked_start,
)
from attnflow.methods.capacities import gradient_weighted
from attnflow.methods.factored import check_gradients, gradient_steps, roll_out_factors
from attnflow.methods.mixing import Heads, checked_heads
from attnflow.methods.towers import connector_index
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import GRADIENTS, LOG_PROB, ScoreName

__all__ = ["GradientRollout"]

Matrix = NDArray[np.float64]


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
    score: what gradients are taken of: the answer's "log-prob", or its "logit", the number before
        the softmax.

    >>> from attnflow.testing import random_trace
    >>> GradientRollout()(random_trace(length=5, record=("gradients",)), targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "gradient-rollout"
    heads: Heads = "mean"
    start_layer: int = 1
    score: ScoreName = LOG_PROB

    def __post_init__(self) -> None:
        check_score(self.score)
        object.__setattr__(self, "heads", checked_heads(self.heads))
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """R after each of these layers, rows of these targets."""
        if isinstance(trace, FactoredTrace):
            check_gradients(self, trace, GRADIENTS)
            rolled = roll_out_factors(trace, selection, gradient_steps(trace, self.heads))
            return attribution_of(self, trace, rolled.values, selection, compared=rolled.compared)
        weighted = gradient_weighted(self, trace, self.heads)
        relevance = np.eye(trace.length)
        rows, others = list(selection.rows), spread(trace.length)
        grown: dict[int, Matrix] = {}
        comparison: dict[int, Matrix] = {}
        for number in selection.available:
            index = trace.layers.index(number)
            if trace.encoder_length is not None and trace.stages and trace.stages[index] == "cross":
                relevance = _crossed(relevance, weighted[index], trace.encoder_length)
            elif index == connector_index(trace):
                relevance = trace.weights[index, 0].astype(np.float64) @ relevance
            else:
                relevance = relevance + weighted[index] @ relevance
            grown[number], comparison[number] = relevance[rows], relevance[others]
        values = np.stack([grown[number] for number in selection.layers])
        compared = Compared(others, np.stack([comparison[number] for number in selection.layers]))
        return attribution_of(self, trace, values, selection, compared=compared)

    @property
    def requires(self) -> Requirements:
        """Gradients of the score; a gradient belongs to one head."""
        return Requirements(heads=None, record=(GRADIENTS,), score=self.score, needs_matrix=False)


def _crossed(relevance: Matrix, weighted: Matrix, encoder: int) -> Matrix:
    """The bi-modal rule for decoder positions that attend to the encoder's.

    The paper's other half, what the decoder's own relevance gains through the context's view of
    it, is zero here: the encoder sees nothing of the decoder.
    """
    grown = relevance.copy()
    own = _normalized(relevance[encoder:, encoder:])
    context = _normalized(relevance[:encoder, :encoder])
    grown[encoder:, :encoder] += own.T @ weighted[encoder:, :encoder] @ context
    return grown


def _normalized(relevance: Matrix) -> Matrix:
    """What was added to the identity, each row scaled to sum to 1; a row of zeros stays so."""
    identity = np.eye(len(relevance))
    gained = relevance - identity
    total = gained.sum(axis=1, keepdims=True)
    return np.divide(gained, total, out=np.zeros_like(gained), where=total > 0) + identity
