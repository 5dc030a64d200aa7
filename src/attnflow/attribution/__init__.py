"""Attribution: what a method found, and what can be done to it."""

from __future__ import annotations

from attnflow.attribution.dependence import COLLAPSED, dependence_of, spread
from attnflow.attribution.operations import MEAN_OVER_LAYERS
from attnflow.attribution.rescaling import Normalization
from attnflow.attribution.result import Attribution, Contribution
from attnflow.attribution.verdict import Verdict

__all__ = [
    "COLLAPSED",
    "MEAN_OVER_LAYERS",
    "Attribution",
    "Contribution",
    "Normalization",
    "Verdict",
    "dependence_of",
    "spread",
]
