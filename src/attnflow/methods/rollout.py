"""Raw attention, the baseline, and attention rollout: products of the layers' matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.methods.base import (
    Execution,
    MixingMethod,
    Requirements,
    Selection,
    attribution_of,
    roll_out,
)
from attnflow.methods.mixing import Mixing, Residual
from attnflow.trace import AttentionTrace

__all__ = ["UNIFORM_BASELINE", "Raw", "Rollout", "uniform_rollout"]

UNIFORM_BASELINE = "uniform-baseline"


@dataclass(frozen=True, kw_only=True)
class Raw(MixingMethod):
    """Raw attention: the weights of each layer as they are, the paper's baseline."""

    name: ClassVar[str] = "raw"
    residual: Residual = None

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """The weights of these layers, rows of these targets."""
        matrices = self.matrices(trace)
        rows = list(selection.rows)
        weights = [matrices[trace.layers.index(number)][rows] for number in selection.layers]
        return attribution_of(self, trace, np.stack(weights), selection)


@dataclass(frozen=True, kw_only=True)
class Rollout(MixingMethod):
    """Attention rollout: the product of all layers' matrices from the input up.

    start_layer: the first layer that counts; those below are taken as identity.
    top_head: use only this head at the layer being explained, on top of the rollout of all heads
        below it (single-head rollout, the paper's appendix).
    receptive_field: "column" or "element" (see above), or "uniform-baseline": the rollout divided
        by the rollout of uniform causal attention, so 1 is what position alone would give.
    """

    name: ClassVar[str] = "rollout"
    start_layer: int = 1
    top_head: int | None = None

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """The rollout of these layers, rows of these targets."""
        tops = None if self.top_head is None else self._with_top_head().matrices(trace)
        values = roll_out(trace, self.matrices(trace), selection, tops)
        if self.receptive_field == UNIFORM_BASELINE:
            values = values / self._uniform(trace, selection)
        return attribution_of(self, trace, values, selection)

    @property
    def receptive_fields(self) -> tuple[str, ...]:
        """A rollout can also be held against the rollout of uniform attention."""
        return (*super().receptive_fields, UNIFORM_BASELINE)

    def _uniform(self, trace: AttentionTrace, selection: Selection) -> NDArray[np.float64]:
        """The same layers and rows, had attention been uniform; 1 where a row cannot see."""
        indices = [trace.layers.index(number) for number in selection.available]
        shares = self.residual_shares(len(trace.layers))[indices]
        every_layer = uniform_rollout(shares, trace.length, selection.rows)
        uniform = every_layer[[level - 1 for level in selection.levels]]
        return np.where(uniform > 0, uniform, 1.0)

    @property
    def requires(self) -> Requirements:
        """Single-head rollout takes one head beside the mixture, so all are kept."""
        return Requirements(heads=self.heads if self.top_head is None else None)

    def _with_top_head(self) -> Mixing:
        if self.top_head is None:
            raise MethodError("top_head is not set.")
        weighed = self.receptive_field if self.receptive_field != UNIFORM_BASELINE else None
        return Mixing(
            heads=self.top_head,
            residual=self.residual,
            discard=self.discard,
            drop=self.drop,
            receptive_field=weighed,
        )


def uniform_rollout(
    shares: NDArray[np.float64], length: int, rows: Sequence[int]
) -> NDArray[np.float64]:
    """Rows of the rollout of `A[i, j] = 1/(i+1)`, j ≤ i, at every layer: a running mean a layer."""
    below = np.eye(length)
    seen = np.arange(1, length + 1)[:, None]
    uniform = np.empty((len(shares), len(rows), length))
    for layer, share in enumerate(shares.tolist()):
        below = share * below + (1 - share) * np.cumsum(below, axis=0) / seen
        uniform[layer] = below[list(rows)]
    return uniform
