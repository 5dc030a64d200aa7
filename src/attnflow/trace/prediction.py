"""What the model said in a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.errors import InputError, shorten, whole_number
from attnflow.errors.percent import percent

__all__ = ["Prediction"]


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
