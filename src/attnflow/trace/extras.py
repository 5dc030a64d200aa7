"""Extras of a trace beside its weights: the model's answer, gradients, and measurements.

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

from attnflow.errors import InputError, did_you_mean, percent, shorten
from attnflow.errors.arguments import check_count, is_number

__all__ = [
    "ANSWER_ROWS",
    "ASKABLE",
    "BALANCED",
    "BALANCED_INPUTS",
    "BALANCED_ROWS",
    "BALANCED_SCORES",
    "GRADIENTS",
    "GRADIENT_ATTENTION",
    "LENS",
    "LOG_PROB",
    "MEASURES",
    "OF_AN_ANSWER",
    "Prediction",
    "ScoreName",
]

GRADIENTS = "gradients"
GRADIENT_ATTENTION = "gradient-attention"
LENS = "lens"
"""Of an image: the answer's probability, read by the head at each position that enters a layer."""
BALANCED = "balanced"
BALANCED_ROWS = "balanced-rows"
BALANCED_INPUTS = "balanced-inputs"
"""Measured beside BALANCED: what enters a layer × its gradient, signed; of the first few only."""
BALANCED_SCORES = "balanced-scores"
"""Measured beside BALANCED: the gradient of the scores before the softmax, where positive."""

ANSWER_ROWS = "answer_rows"
"""Where the provenance names the positions that predict tokens which are explained together."""

ScoreName = Literal["log-prob", "log-odds", "logit"]
"""The number whose gradient is taken: how likely the answer is, or its score before the softmax.

Log odds keep their size where the answer is sure: the gradient of log p fades with 1 - p.
"""
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
OF_AN_ANSWER = frozenset((GRADIENTS, GRADIENT_ATTENTION, LENS, BALANCED, BALANCED_ROWS))
ASKABLE = (GRADIENTS, GRADIENT_ATTENTION, LENS, BALANCED, BALANCED_ROWS, *MEASURES)


def checked_record(record: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what capture shall record beside the weights, each once."""
    several = isinstance(record, Iterable) and not isinstance(record, str)
    names = list(record) if several and getattr(record, "ndim", 1) == 1 else [record]
    for name in names:
        if not isinstance(name, str) or name not in ASKABLE:
            raise InputError(
                f"record={shorten(record)}: there is nothing called {shorten(name)} to capture."
                f"{did_you_mean(str(name), ASKABLE)} Allowed are {', '.join(ASKABLE)}."
            )
    return tuple(dict.fromkeys(map(str, names)))


@dataclass(frozen=True)
class Prediction:
    """The answer of the model in this forward pass, and the position it was read from.

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
            if not is_number(probability) or not -1e-6 <= probability <= 1 + 1e-6:
                raise InputError(
                    f"A prediction's probability is from 0 to 1; got {shorten(probability)}."
                )
        check_count("A prediction's position", self.position, 0)

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
        """Return what `to_dict` was called on."""
        alternatives = tuple((str(name), float(p)) for name, p in record["alternatives"])
        pooled = bool(record["pooled"])
        return cls(record["label"], record["probability"], record["position"], alternatives, pooled)
