"""What a trace may carry beside its weights: the model's answer, gradients, and measurements.

Gradients are those of one score with respect to every weight, `(layers, heads, n, n)`.
Measurements are named arrays of non-negative numbers, one matrix `(layers, n, n)` or one number
for each position `(layers, n)`. Both are asked for at capture, because they need more than the
weights: `capture(model, text, record=("gradients",))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError, WeightsError, did_you_mean, percent, shorten, whole_number

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
    "Prediction",
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
    """The names of what capture shall record beside the weights, each once.

    >>> checked_record("gradients")
    ('gradients',)
    """
    several = isinstance(record, Iterable) and not isinstance(record, str)
    names = list(record) if several and getattr(record, "ndim", 1) == 1 else [record]
    for name in names:
        if not isinstance(name, str) or name not in ASKABLE:
            raise InputError(
                f"record={shorten(record)}: there is nothing called {shorten(name)} to capture."
                f"{did_you_mean(str(name), ASKABLE)} Allowed are {', '.join(ASKABLE)}."
            )
    return tuple(dict.fromkeys(map(str, names)))


def checked_gradients(
    gradients: ArrayLike | None, weights: Floats, *, copy: bool = True
) -> Floats | None:
    """One finite number for each weight, `(layers, heads, n, n)`, frozen.

    >>> checked_gradients(np.ones((1, 2, 2)), np.ones((1, 1, 2, 2))).shape
    (1, 1, 2, 2)
    """
    if gradients is None:
        return None
    array: Floats = _floats("gradients", gradients).astype(weights.dtype, copy=copy)
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
    """Named arrays of finite numbers that are not negative, one matrix or row a layer, frozen.

    >>> dict(checked_measured({"alti": [[[1.0]]]}, layers=1, length=1))
    {'alti': array([[[1.]]])}
    """
    checked: dict[str, Floats] = {}
    allowed = ((layers, length, length), (layers, length))
    if measured is not None and not isinstance(measured, Mapping):
        raise WeightsError(f"measured gives arrays by name; got {shorten(measured)}.")
    for name, values in (measured or {}).items():
        array = np.array(_floats(f"measured[{name!r}]", values))
        if array.shape not in allowed or not np.isfinite(array).all() or (array < 0).any():
            raise WeightsError(
                f"measured[{shorten(name)}] must be finite, not negative and of shape {allowed[0]} "
                f"(layers, n, n) or {allowed[1]} (layers, n); got shape {array.shape}."
            )
        checked[name] = _frozen(array)
    return MappingProxyType(checked)


def _floats(name: str, values: ArrayLike) -> Floats:
    """As floats, in the dtype they have if it is one of floats."""
    try:
        array = np.asarray(values)
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise WeightsError(f"{name} cannot be read as numbers: {str(error)[:200]}.") from error


def _frozen(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def pack(gradients: Floats | None, measured: Mapping[str, Floats]) -> dict[str, Floats]:
    """Gradients and measurements as named arrays for a file.

    >>> list(pack(None, {"alti": np.zeros((1, 2, 2))}))
    ['measured/alti']
    """
    arrays = {_PREFIX + name: array for name, array in measured.items()}
    return arrays if gradients is None else {GRADIENTS: gradients, **arrays}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The inverse of `pack`, as arguments of a trace.

    >>> unpack(pack(None, {"alti": np.zeros((1, 2, 2))}))["measured"]["alti"].shape
    (1, 2, 2)
    """
    measured = {
        name.removeprefix(_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(_PREFIX)
    }
    unknown = [name for name in arrays if name != GRADIENTS and not name.startswith(_PREFIX)]
    if unknown:
        raise InputError(f"there is an array that no trace has, {shorten(unknown[0])}")
    return {GRADIENTS: arrays.get(GRADIENTS), "measured": measured}


@dataclass(frozen=True)
class Prediction:
    """What the model said in this forward pass, and the position it was read from.

    probability: from 0 to 1. alternatives: pairs of a label and its probability, likeliest first.
    pooled: it was read from the mean of all positions; then `position` is only the first of them.

    >>> print(Prediction("plural", 0.9, position=0))
    plural (90.0 %)
    """

    label: str
    probability: float
    position: int
    alternatives: tuple[tuple[str, float], ...] = ()
    pooled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise InputError(f"A prediction's label is a text; got {shorten(self.label)}.")
        for probability in (self.probability, *(p for _, p in self.alternatives)):
            number = isinstance(probability, (int, float, np.integer, np.floating))
            if not number or isinstance(probability, bool) or not -1e-6 <= probability <= 1 + 1e-6:
                raise InputError(
                    f"A prediction's probability is from 0 to 1; got {shorten(probability)}."
                )
        position = whole_number(self.position)
        if position is None or position < 0:
            raise InputError(
                f"A prediction's position is a whole number from 0; got {shorten(self.position)}."
            )

    def __str__(self) -> str:
        return f"{self.label} ({percent(self.probability, 1)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "label": self.label,
            "probability": self.probability,
            "position": self.position,
            "alternatives": [list(pair) for pair in self.alternatives],
            "pooled": self.pooled,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Prediction:
        """The inverse of `to_dict`."""
        alternatives = tuple((str(name), float(p)) for name, p in record["alternatives"])
        pooled = bool(record["pooled"])
        return cls(record["label"], record["probability"], record["position"], alternatives, pooled)
