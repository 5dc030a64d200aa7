"""Means with intervals, one line for each row and one panel for each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.show.plots.canvas import pyplot, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["interval_panels", "intervals"]

_COLOUR = "#0072B2"


def intervals(panel: Mapping[str, Any], *, ax: Axes) -> Axes:
    """A dot for each row's mean and a bar for its interval; what is undefined is left out.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> intervals(panel, ax=pyplot().subplots()[1]).get_title()
    'compr.'
    """
    values = np.array(panel["cells"], dtype=np.float64).reshape(-1, 3)
    places = np.arange(len(values))
    known = np.isfinite(values).all(axis=1)
    mean, low, high = values[known].T
    ax.hlines(places[known], low, high, color=_COLOUR, linewidth=2, alpha=0.5)
    ax.plot(mean, places[known], "o", color=_COLOUR, markersize=4)
    ax.set_title(panel["title"], fontsize=10)
    ax.set_yticks(places, panel["names"])
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.grid(axis="x", linewidth=0.4)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax


def interval_panels(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Panels side by side over the same rows; with a path, written there too.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> len(interval_panels([panel, panel]).axes)
    2
    """
    size = (2.2 + 2.6 * len(panels), 0.9 + 0.27 * len(panels[0]["names"]))
    figure, axes = pyplot().subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for panel, ax in zip(panels, axes[0], strict=True):
        intervals(panel, ax=ax)
    if path is not None:
        save_figure(figure, path)
    return figure
