"""Rollout of matrices that were measured inside the blocks instead of read off the attention.

Attention weights leave out the vectors they weigh, the residual stream and the LayerNorm. These
methods take each layer's matrix from a measurement made at capture, scale every row to sum to 1,
and multiply the layers as rollout does. The residual is inside the measurement: none is added. A
row of zeros, a position that nothing was measured to reach, stays with itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError, did_you_mean, shorten
from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    checked_flag,
    checked_start,
    required,
)
from attnflow.methods.mixing import Heads, Mixing, checked_heads
from attnflow.methods.products import roll_out
from attnflow.trace import AttentionTrace

__all__ = ["Alti", "MeasuredResidualRollout", "NormKind", "NormRollout", "ValueZeroingRollout"]

NormKind = Literal["residual", "layernorm", "encoder"]
_KINDS = ("residual", "layernorm", "encoder")


@dataclass(frozen=True, kw_only=True)
class _MeasuredRollout(Method):
    """Rollout of one measurement, rows scaled to sum to 1.

    start_layer: the first layer that counts; those below are taken as identity.
    """

    start_layer: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    @property
    @abstractmethod
    def measurement(self) -> str:
        """The name of what is measured at capture."""

    @property
    def requires(self) -> Requirements:
        """The measurement alone."""
        return Requirements(record=(self.measurement,))

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """The rollout of these layers, rows of these targets."""
        rolled = roll_out(
            trace, lambda index, rows: self.matrix_rows(trace, index, rows), selection
        )
        return attribution_of(self, trace, rolled.values, selection, compared=rolled.compared)

    def matrices(self, trace: AttentionTrace) -> NDArray[np.float64]:
        """`(layers, n, n)`: what each layer takes from the one below, rows summing to 1."""
        every = np.arange(trace.length)
        return np.stack([self.matrix_rows(trace, k, every) for k in range(len(trace.layers))])

    def matrix_rows(
        self, trace: AttentionTrace, index: int, rows: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """`(rows, n)`: these rows of one layer's matrix."""
        measured = required(self, trace, self.measurement)[index, rows]
        return _distributions(measured.astype(np.float64), rows)


@dataclass(frozen=True, kw_only=True)
class NormRollout(_MeasuredRollout):
    """Rollout of norms: how long the vector is that each source adds to each target.

    Kobayashi et al. (2020, 2021) and Modarressi et al. (2022, "GlobEnc").

    kind: where the vectors are measured: "residual" after the residual is added (N-Res),
        "layernorm" after the LayerNorm that follows (N-ResLN), "encoder" after the one that ends
        the block (N-Enc); the last two exist only in post-norm models such as BERT.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(length=5, record=("norms-residual",))
    >>> NormRollout()(trace, targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "norm-rollout"
    kind: NormKind = "residual"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kind, str) or self.kind not in _KINDS:
            raise MethodError(
                f"Unknown kind={shorten(self.kind)}.{did_you_mean(str(self.kind), _KINDS)} "
                f"Allowed are {', '.join(map(repr, _KINDS))}."
            )

    @property
    def measurement(self) -> str:
        """The norms of this kind."""
        return f"norms-{self.kind}"


@dataclass(frozen=True, kw_only=True)
class Alti(_MeasuredRollout):
    """ALTI: rollout of how much nearer each source brings the attention block's output.

    Ferrando, Gállego & Costa-jussà (2022), distances in the L1 norm.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(length=5, record=("alti",))
    >>> Alti()(trace, targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "alti"

    @property
    def measurement(self) -> str:
        """The contributions."""
        return "alti"


@dataclass(frozen=True, kw_only=True)
class ValueZeroingRollout(_MeasuredRollout):
    """Value zeroing: rollout of how far outputs turn when a source's value is zeroed.

    Mohebbi et al. (2023): the cosine distance of each position's output, layer by layer.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(length=5, record=("value-zeroing",))
    >>> ValueZeroingRollout()(trace, targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "value-zeroing"

    @property
    def measurement(self) -> str:
        """The distances."""
        return "value-zeroing"


@dataclass(frozen=True, kw_only=True)
class MeasuredResidualRollout(_MeasuredRollout):
    """Rollout of attention with a residual share that is measured, not one half: `(1 - r) W + r I`.

    GlobEnc's W-Res (Modarressi et al. 2022). r differs from position to position: it is
    `‖own‖ / (‖own‖ + ‖others‖)`, where own is the vector a position's output has from itself, its
    residual included, and others the sum of the vectors it has from all other positions.

    heads: "mean", "max", "min", the number of one head (from 0), or one weight for each head.
    others_only: spread 1 - r over the other positions alone, so that the diagonal is exactly r. As
        published (False) attention's own diagonal counts beside r.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(length=5, record=("residual-share",))
    >>> MeasuredResidualRollout()(trace, targets=[0]).values.shape
    (3, 1, 5)
    """

    name: ClassVar[str] = "measured-residual"
    heads: Heads = "mean"
    others_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "heads", checked_heads(self.heads))
        object.__setattr__(self, "others_only", checked_flag("others_only", self.others_only))

    def matrix_rows(
        self, trace: AttentionTrace, index: int, rows: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Each row with its own residual share."""
        recorded = required(self, trace, self.measurement)[index, rows]
        share = recorded.astype(np.float64)[:, None]
        mixed = Mixing(heads=self.heads).mixed_rows(trace, index, rows)
        identity = np.eye(trace.length)[rows]
        if self.others_only:
            mixed = _distributions(mixed * (1 - identity), rows)
        return (1 - share) * mixed + share * identity

    @property
    def requires(self) -> Requirements:
        """The mixture of the heads, and the share of each position."""
        return Requirements(heads=self.heads, record=(self.measurement,))

    @property
    def measurement(self) -> str:
        """The share of each position."""
        return "residual-share"


def _distributions(matrix: NDArray[np.float64], places: NDArray[np.intp]) -> NDArray[np.float64]:
    """Rows scaled to sum to 1; a row of zeros becomes the identity's, by its place."""
    total = matrix.sum(axis=-1, keepdims=True)
    scaled = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    return scaled + (total == 0) * np.eye(matrix.shape[-1])[places]
