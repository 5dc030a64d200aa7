"""Raw attention, the baseline, and attention rollout: products of the layers' matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.methods.base import (
    MixingMethod,
    attribution_of,
    checked_trace,
    layers_from,
    rolled_out,
    wanted_layers,
)
from attnflow.methods.mixing import Heads, Mixing, Residual
from attnflow.tokens import Target
from attnflow.trace import AttentionTrace

__all__ = ["UNIFORM_BASELINE", "Raw", "Rollout", "uniform_rollout"]

UNIFORM_BASELINE = "uniform-baseline"


@dataclass(frozen=True, kw_only=True)
class Raw(MixingMethod):
    """Raw attention: the weights of each layer as they are, the paper's baseline."""

    name: ClassVar[str] = "raw"
    residual: Residual = None

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """The weights of these layers, rows of these targets."""
        rows = checked_trace(trace).tokens.indices_of(targets)
        wanted = wanted_layers(trace.layers, layers)
        matrices = self.matrices(trace)
        picked = np.stack([matrices[trace.layers.index(number)][rows] for number in wanted])
        return attribution_of(self, trace, picked, wanted, rows)


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

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """The rollout of these layers, rows of these targets."""
        matrices = self.matrices(checked_trace(trace))
        tops = None if self.top_head is None else self._with_top_head().matrices(trace)
        found = rolled_out(
            self,
            trace,
            matrices,
            start=self.start_layer,
            targets=targets,
            layers=layers,
            tops=tops,
        )
        if self.receptive_field != UNIFORM_BASELINE:
            return found
        rows = trace.tokens.indices_of(targets)
        return replace(found, values=found.values / self._uniform(trace, rows, found.layers))

    @property
    def receptive_fields(self) -> tuple[str, ...]:
        """A rollout can also be held against the rollout of uniform attention."""
        return (*super().receptive_fields, UNIFORM_BASELINE)

    def _uniform(
        self, trace: AttentionTrace, rows: Sequence[int], wanted: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """The same layers and rows, had attention been uniform; 1 where a row cannot see."""
        shares = self.residual_shares(len(trace.layers))
        used = [trace.layers.index(n) for n in layers_from(trace.layers, self.start_layer)]
        uniform = uniform_rollout(shares[used], trace.length, rows)
        picked = uniform[[used.index(trace.layers.index(number)) for number in wanted]]
        return np.where(picked > 0, picked, 1.0)

    @property
    def heads_to_capture(self) -> Heads | None:
        """Single-head rollout needs one head beside the mixture, so all are kept."""
        return self.heads if self.top_head is None else None

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
    found = np.empty((len(shares), len(rows), length))
    for layer, share in enumerate(shares.tolist()):
        below = share * below + (1 - share) * np.cumsum(below, axis=0) / seen
        found[layer] = below[rows]
    return found
