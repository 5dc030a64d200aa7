"""Figures (matplotlib).

A figure of one panel is a function that takes `ax=` and returns the Axes, so that it fits into any
figure: `layers_map`, `pairs_map`, `source_bars`, `token_layers`, `completion_map`, `method_bars`,
`probability_bars`, `attention_graph`, `cut_graph`, `image_overlay`, `intervals`.
A figure of several panels cannot stand in one Axes; its function makes and returns a Figure:
those called `..._figure`, and `interval_panels`. `build_up` writes an animated
GIF and returns nothing. `save_figure` writes any Figure, whole or not at all.
"""

from __future__ import annotations

from attnflow.show.plots.animation import build_up
from attnflow.show.plots.canvas import save_figure
from attnflow.show.plots.graphs import attention_graph, cut_graph
from attnflow.show.plots.images import image_overlay, image_words_figure, overlay_figure
from attnflow.show.plots.maps import (
    answer_figure,
    completion_figure,
    completion_map,
    interval_panels,
    intervals,
    layers_map,
    method_bars,
    methods_figure,
    pairs_map,
    probability_bars,
    source_bars,
    token_layers,
)

__all__ = [
    "answer_figure",
    "attention_graph",
    "build_up",
    "completion_figure",
    "completion_map",
    "cut_graph",
    "image_overlay",
    "image_words_figure",
    "interval_panels",
    "intervals",
    "layers_map",
    "method_bars",
    "methods_figure",
    "overlay_figure",
    "pairs_map",
    "probability_bars",
    "save_figure",
    "source_bars",
    "token_layers",
]
