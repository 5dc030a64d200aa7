"""AttentionTrace: what one forward pass did, as plain arrays.

This is the lowest door into attnflow: attention weights and tokens from anywhere make a trace,
with no model and no torch. Everything is checked here, once, so that methods need not.
"""

from __future__ import annotations

from attnflow.trace.attention_trace import AttentionTrace
from attnflow.trace.checks import ROW_TOLERANCE, Kind
from attnflow.trace.extras import Prediction
from attnflow.trace.factored_trace import FactoredTrace, LayerFactors, LayerMix

__all__ = [
    "ROW_TOLERANCE",
    "AttentionTrace",
    "FactoredTrace",
    "Kind",
    "LayerFactors",
    "LayerMix",
    "Prediction",
]
