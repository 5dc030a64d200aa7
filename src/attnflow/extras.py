"""What a trace may carry beside its weights: gradients, and measurements of each layer.

Gradients are those of one score with respect to every weight, `(layers, heads, n, n)`.
Measurements are named arrays of non-negative numbers, one matrix `(layers, n, n)` or one number
for each position `(layers, n)`. Both are asked for at capture, because they need more than the
weights: `capture(model, text, record=("gradients",))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError, WeightsError, did_you_mean

__all__ = [
    "ASKABLE",
    "GRADIENTS",
    "GRADIENT_ATTENTION",
    "LOG_PROB",
    "ScoreName",
    "MEASURES",
    "checked_record",
    "checked_gradients",
    "checked_measured",
    "pack",
    "unpack",
]

Floats = NDArray[np.floating[Any]]

GRADIENTS = "gradients"
GRADIENT_ATTENTION = "gradient-attention"

ScoreName = Literal["log-prob", "logit"]
"""The number whose gradient is taken: how likely the answer is, or its score before the softmax."""
LOG_PROB: ScoreName = "log-prob"

# What capture can measure, and what the numbers are.
MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "norms": "length of what each source adds to the attention's output",
        "norms-residual": "the same with the target's own residual",
        "norms-layernorm": "the same after the LayerNorm that follows attention",
        "norms-encoder": "the same after the LayerNorm that ends the block",
        "residual-share": "how much of each position's output is its own",
        "alti": "how much nearer each source brings the block's output",
        "value-zeroing": "how far the layer's output turns when a source's value is zeroed",
    }
)
ASKABLE = (GRADIENTS, GRADIENT_ATTENTION, *MEASURES)
_PREFIX = "measured/"  # of the names of their arrays in a file


def checked_record(record: Sequence[str]) -> tuple[str, ...]:
    """The names of what capture shall record beside the weights, each once."""
    asked = (record,) if isinstance(record, str) else tuple(record)
    for name in asked:
        if name not in ASKABLE:
            raise InputError(
                f"record={record!r}: there is nothing called {name!r} to capture."
                f"{did_you_mean(str(name), ASKABLE)} Allowed are {', '.join(ASKABLE)}."
            )
    return tuple(dict.fromkeys(asked))


def checked_gradients(
    gradients: ArrayLike | None, weights: Floats, *, copy: bool = True
) -> Floats | None:
    """One number for each weight, frozen."""
    if gradients is None:
        return None
    array: Floats = np.asarray(gradients).astype(weights.dtype, copy=copy)
    if array.ndim == 3:
        array = array[:, None]
    if array.shape != weights.shape or not np.isfinite(array).all():
        raise WeightsError(
            f"gradients must be finite, one for each weight: shape {weights.shape} (layers, heads, "
            f"n, n); got shape {array.shape}. They belong to single heads, so keep every head."
        )
    return _frozen(array)


def checked_measured(
    measured: Mapping[str, ArrayLike] | None, layers: int, length: int
) -> Mapping[str, Floats]:
    """Each one matrix or one row of numbers for each layer, frozen."""
    checked: dict[str, Floats] = {}
    allowed = ((layers, length, length), (layers, length))
    for name, given in (measured or {}).items():
        array = np.array(given, dtype=None if np.asarray(given).dtype.kind == "f" else np.float64)
        if array.shape not in allowed or not np.isfinite(array).all() or (array < 0).any():
            raise WeightsError(
                f"measured[{name!r}] must be finite, not negative and of shape {allowed[0]} "
                f"(layers, n, n) or {allowed[1]} (layers, n); got shape {array.shape}."
            )
        checked[name] = _frozen(array)
    return MappingProxyType(checked)


def _frozen(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def pack(gradients: Floats | None, measured: Mapping[str, Floats]) -> dict[str, Floats]:
    """As named arrays for a file."""
    arrays = {_PREFIX + name: array for name, array in measured.items()}
    return arrays if gradients is None else {GRADIENTS: gradients, **arrays}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The inverse of `pack`, as arguments of a trace."""
    measured = {
        name.removeprefix(_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(_PREFIX)
    }
    return {GRADIENTS: arrays.get(GRADIENTS), "measured": measured}
