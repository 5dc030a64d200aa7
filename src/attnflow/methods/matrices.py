"""The matrix of each layer by the name of its kind: read off the attention, or measured.

Attention weights leave out the vectors they weigh, the residual stream and the LayerNorm. A
measured matrix is made at capture, inside the block, and every row of it is scaled to sum to 1. The
residual is inside the measurement: none is added. A row of zeros, a position that nothing was
measured to reach, stays with itself. docs/how/index.md says whose each kind is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.methods.base import Method, Requirements, required
from attnflow.methods.mixing import Matrix, Mixing, distributions, without_columns
from attnflow.trace import AttentionTrace

MatrixKind = Literal[
    "attention",
    "measured-residual",
    "measured-residual-others",
    "norms",
    "norms-layernorm",
    "norms-encoder",
    "alti",
    "value-zeroing",
]
ATTENTION: Final = "attention"
_SHARE = "residual-share"
_OTHERS = "measured-residual-others"
MEASUREMENTS: Final[Mapping[str, str]] = {
    "measured-residual": _SHARE,
    _OTHERS: _SHARE,
    "norms": "norms-residual",
    "norms-layernorm": "norms-layernorm",
    "norms-encoder": "norms-encoder",
    "alti": "alti",
    "value-zeroing": "value-zeroing",
}
"""The measurement that each kind of matrix is made of."""


@dataclass(frozen=True, kw_only=True)
class MixingMethod(Method, Mixing):
    """A method on one matrix for each layer: attention weights, mixed, or what was measured.

    >>> from attnflow import Flow, Rollout
    >>> issubclass(Rollout, MixingMethod), issubclass(Flow, MixingMethod)
    (True, True)
    """

    @property
    def measured_kind(self) -> str | None:
        """The kind of measured matrix that stands in for attention; None for attention."""
        return None

    @property
    def requires(self) -> Requirements:
        """The mixture, and the measurement that each matrix is made of."""
        if self.measured_kind is None:
            return Requirements(heads=self.heads)
        measurement = MEASUREMENTS[self.measured_kind]
        if measurement == _SHARE:
            return Requirements(heads=self.heads, record=(measurement,))
        return Requirements(record=(measurement,))

    def passed_by(self, trace: AttentionTrace, index: int) -> float:
        """Return the share of the skip connection; what is measured holds it already."""
        return super().passed_by(trace, index) if self.measured_kind is None else 0.0

    def takes_nothing_later(self, trace: AttentionTrace) -> bool:
        """Return whether rows end at their own place; of what is measured nobody looked."""
        return self.measured_kind is None and super().takes_nothing_later(trace)

    def attended_rows(
        self,
        trace: AttentionTrace,
        index: int,
        places: NDArray[np.intp],
        room: Matrix | None = None,
    ) -> Matrix:
        """Return these rows of attention, or of what was measured, `(rows, n)`."""
        if self.measured_kind is None:
            return super().attended_rows(trace, index, places, room)
        measurement = MEASUREMENTS[self.measured_kind]
        matrix = required(self, trace, measurement)[index, places].astype(np.float64)
        if measurement == _SHARE:
            matrix = self._with_share(trace, index, places, matrix[:, None])
        else:
            matrix = distributions(matrix, places)
        if not self.drop:
            return matrix
        columns = trace.tokens.occurrences_of(self.drop, required=True)
        return without_columns(matrix, columns, places)

    def _with_share(
        self, trace: AttentionTrace, index: int, places: NDArray[np.intp], share: Matrix
    ) -> Matrix:
        """Return attention and the residual, each row with the share that was measured for it."""
        mixed = self.mixed_rows(trace, index, places)
        identity = np.eye(trace.length)[places]
        if self.measured_kind == _OTHERS:
            mixed = distributions(mixed * (1 - identity), places)
        return (1 - share) * mixed + share * identity
