"""Raw attention, the baseline, and attention rollout: products of the layers' matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.methods.base import (
    MixingMethod,
    attribution_of,
    checked_trace,
    rolled_out,
    wanted_layers,
)
from attnflow.mixing import Heads, Mixing, Residual
from attnflow.tokens import Target
from attnflow.trace import AttentionTrace

__all__ = ["Raw", "Rollout"]


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
        return rolled_out(
            self,
            trace,
            matrices,
            start=self.start_layer,
            targets=targets,
            layers=layers,
            tops=tops,
        )

    @property
    def heads_to_capture(self) -> Heads | None:
        """Single-head rollout needs one head beside the mixture, so all are kept."""
        return self.heads if self.top_head is None else None

    def _with_top_head(self) -> Mixing:
        if self.top_head is None:
            raise MethodError("top_head is not set.")
        return Mixing(heads=self.top_head, residual=self.residual, discard=self.discard)
