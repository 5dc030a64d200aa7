"""Figures (matplotlib): functions take `ax=` and return Axes, so they fit into any figure."""

from __future__ import annotations

from attnflow.plots.curves import curves, layer_curves
from attnflow.plots.maps import layers_map, methods_figure

__all__ = ["curves", "layer_curves", "layers_map", "methods_figure"]
