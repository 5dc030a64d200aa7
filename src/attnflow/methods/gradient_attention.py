"""Gradient attention: what the predicting position attends to, as far as it raises the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.extras import GRADIENT_ATTENTION
from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    required,
)
from attnflow.trace import AttentionTrace

__all__ = ["GradientAttention"]


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

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(record=["gradient-attention"])
    >>> GradientAttention()(trace, targets=-1, layers=-1).values.shape
    (1, 1, 5)
    """

    name: ClassVar[str] = "gradient-attention"
    start_layer: int = 1

    @property
    def requires(self) -> Requirements:
        """The products of weights and gradients, which capture forms row by row."""
        return Requirements(record=(GRADIENT_ATTENTION,))

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """The running sum over layers of what was recorded, rows of these targets."""
        recorded = required(self, trace, GRADIENT_ATTENTION)
        indices = [trace.layers.index(number) for number in selection.available]
        rows = recorded[indices][:, list(selection.rows)]
        return attribution_of(self, trace, self.summed(rows)[_places(selection)], selection)

    def summed(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """`(layers, targets, sources)`: at each layer what it and all layers below it add up to."""
        return np.cumsum(rows, axis=0, dtype=np.float64)


def _places(selection: Selection) -> list[int]:
    return [level - 1 for level in selection.levels]
