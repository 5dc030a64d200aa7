"""Figures (matplotlib): functions take `ax=` and return Axes, so they fit into any figure."""

from __future__ import annotations

from attnflow.plots.completions import (
    completion_figure,
    completion_map,
    source_bars,
    token_layers,
)
from attnflow.plots.curves import curves, layer_curves
from attnflow.plots.intervals import interval_panels, intervals
from attnflow.plots.maps import layers_map, methods_figure
from attnflow.plots.pronouns import agreement_figure, pronoun_figure

__all__ = [
    "agreement_figure",
    "completion_figure",
    "completion_map",
    "curves",
    "interval_panels",
    "intervals",
    "layer_curves",
    "layers_map",
    "methods_figure",
    "pronoun_figure",
    "source_bars",
    "token_layers",
]
