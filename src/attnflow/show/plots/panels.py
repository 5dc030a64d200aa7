"""Panels of numbers with intervals: one line for each method and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.show.plots.canvas import BLUE, new_panels, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def intervals(panel: Mapping[str, Any], *, ax: Axes) -> Axes:
    """Draw a dot for each row's mean and a bar for its interval; what is undefined is left out.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> intervals(panel, ax=pyplot().subplots()[1]).get_title()
    'compr.'
    """
    values = np.array(panel["cells"], dtype=np.float64).reshape(-1, 3)
    places = np.arange(len(values))
    known = np.isfinite(values).all(axis=1)
    mean, low, high = values[known].T
    ax.hlines(places[known], low, high, color=BLUE, linewidth=2, alpha=0.5)
    ax.plot(mean, places[known], "o", color=BLUE, markersize=4)
    ax.set_yticks(places, panel["names"])
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.grid(axis="x", linewidth=0.4)
    return finish_panel(panel, ax, "top", "right", "left")


def interval_panels(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Draw panels side by side over the same rows; with a path, write them there too.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> len(interval_panels([panel, panel]).axes)
    2
    """
    size = (2.2 + 2.6 * len(panels), 0.9 + 0.27 * len(panels[0]["names"]))
    figure = side_by_side(panels, intervals, size)
    if path is not None:
        save_figure(figure, path)
    return figure


def finish_panel(panel: Mapping[str, Any], ax: Axes, *bare_sides: str) -> Axes:
    """Write a panel's title, and take the frame away on these sides."""
    ax.set_title(panel["title"], fontsize=10)
    for side in bare_sides:
        ax.spines[side].set_visible(False)
    return ax


def side_by_side(
    panels: Sequence[Mapping[str, Any]], draw: Callable[..., Axes], size: tuple[float, float]
) -> Figure:
    """Draw panels beside each other in a new figure of this size."""
    figure, axes = new_panels(size, 1, len(panels), sharey=True)
    for panel, ax in zip(panels, axes[0], strict=True):
        draw(panel, ax=ax)
    return figure
