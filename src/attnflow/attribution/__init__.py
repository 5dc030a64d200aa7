"""Attribution: what a method found, and what can be done to it."""

from __future__ import annotations

from attnflow.attribution.result import (
    MEAN_OVER_LAYERS,
    Attribution,
    Contribution,
    Normalization,
)

__all__ = ["MEAN_OVER_LAYERS", "Attribution", "Contribution", "Normalization"]
