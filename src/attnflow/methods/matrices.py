"""The matrix of each layer by the name of its kind: read off the attention, or measured.

Attention weights leave out the vectors they weigh, the residual stream and the LayerNorm. A
measured matrix is made at capture, inside the block, and every row of it is scaled to sum to 1. The
residual is inside the measurement: none is added. A row of zeros, a position that nothing was
measured to reach, stays with itself.

- "measured-residual": attention with a residual share that is measured, not one half,
  `(1 - r) W + r I`. It is GlobEnc's W-Res (Modarressi et al. 2022): r differs from position to
  position, `‖own‖ / (‖own‖ + ‖others‖)`, where own is the vector a position's output has from
  itself, its residual included, and others the sum of the vectors it has from all other positions.
  As published, attention's own diagonal counts beside r; "measured-residual-others" spreads 1 - r
  over the other positions alone, so that the diagonal is exactly r.
- "norms": how long the vector is that each source adds to each target, after the residual is added
  (N-Res, Kobayashi et al. 2020, 2021); "norms-layernorm" after the LayerNorm that follows
  (N-ResLN), "norms-encoder" after the one that ends the block (N-Enc, Modarressi et al. 2022). The
  last two exist only in post-norm models such as BERT.
- "alti": how much nearer each source brings the attention block's output, in the L1 norm
  (Ferrando, Gállego & Costa-jussà 2022).
- "value-zeroing": how far each position's output turns, by the cosine distance, when a source's
  value is zeroed (Mohebbi et al. 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MethodError, did_you_mean, shorten
from attnflow.methods.base import MixingMethod, Requirements, required
from attnflow.methods.mixing import Heads, Mixing, without_columns
from attnflow.trace import AttentionTrace

Matrix = NDArray[np.float64]
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


def check_kind(option: str, kind: object, allowed: Sequence[str]) -> None:
    """Raise a MethodError unless this kind of matrix is among those allowed."""
    if not isinstance(kind, str) or kind not in allowed:
        raise MethodError(
            f"Unknown {option}={shorten(kind)}.{did_you_mean(str(kind), allowed)} Allowed are "
            f"{', '.join(map(repr, allowed))}."
        )


def measured_requirements(kind: str, heads: Heads) -> Requirements:
    """Return what a trace must hold for measured matrices of this kind."""
    measurement = MEASUREMENTS[kind]
    if measurement == _SHARE:
        return Requirements(heads=heads, record=(measurement,))
    return Requirements(record=(measurement,))


def measured_rows(
    method: MixingMethod, kind: str, trace: AttentionTrace, index: int, rows: NDArray[np.intp]
) -> Matrix:
    """Return these rows of one layer's measured matrix, `(rows, n)`, each summing to 1."""
    measurement = MEASUREMENTS[kind]
    recorded = required(method, trace, measurement)[index, rows].astype(np.float64)
    if measurement == _SHARE:
        matrix = _with_share(method.heads, kind, trace, index, rows, recorded[:, None])
    else:
        matrix = _distributions(recorded, rows)
    if not method.drop:
        return matrix
    return without_columns(matrix, trace.tokens.occurrences_of(method.drop, required=True), rows)


def _with_share(
    heads: Heads,
    kind: str,
    trace: AttentionTrace,
    index: int,
    rows: NDArray[np.intp],
    share: Matrix,
) -> Matrix:
    """Return attention and the residual, each row with the share that was measured for it."""
    mixed = Mixing(heads=heads).mixed_rows(trace, index, rows)
    identity = np.eye(trace.length)[rows]
    if kind == _OTHERS:
        mixed = _distributions(mixed * (1 - identity), rows)
    return (1 - share) * mixed + share * identity


def _distributions(matrix: Matrix, places: NDArray[np.intp]) -> Matrix:
    """Return rows scaled to sum to 1; a row of zeros becomes the identity's, by its place."""
    total = matrix.sum(axis=-1, keepdims=True)
    scaled = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    return scaled + (total == 0) * np.eye(matrix.shape[-1])[places]
