"""Panels of numbers with intervals: lines over layers, and one line for each method and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.show.plots.canvas import BLUE, new_panels, pyplot, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by the colour-blind and in print: Okabe and Ito's colours, and a marker each.
_LOOKS = (("#888888", "o"), ("#0072B2", "s"), ("#D55E00", "^"), ("#009E73", "D"), ("#CC79A7", "v"))


def curves(panel: Mapping[str, Any], *, ax: Axes) -> Axes:
    """Draw one line for each series with its 95 % interval; the paper's numbers dashed.

    >>> line = {"value": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3], "paper": [None, None]}
    >>> panel = {"title": "rollout", "columns": ["1", "2"], "series": {"rollout": line}}
    >>> curves(panel, ax=pyplot().subplots()[1]).get_title()
    'rollout'
    """
    places = np.arange(len(panel["columns"]))
    for (name, series), (colour, marker) in zip(panel["series"].items(), _LOOKS, strict=False):
        value = np.array(series["value"], dtype=np.float64)
        ax.plot(places, value, color=colour, marker=marker, markersize=5, label=name)
        if series["low"][0] is not None:
            ax.fill_between(places, series["low"], series["high"], color=colour, alpha=0.25, lw=0)
        printed = [k for k, number in enumerate(series["paper"]) if number is not None]
        if printed:  # the paper may leave layers out
            numbers = [series["paper"][k] for k in printed]
            ax.plot(printed, numbers, color=colour, linestyle="--", linewidth=1, alpha=0.8)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.set_xticks(places, panel["columns"])
    return _finish(panel, ax, "top", "right")


def layer_curves(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Draw panels side by side with one legend; with a path, write them there too.

    >>> line = {"value": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3], "paper": [None, None]}
    >>> panel = {"title": "rollout", "columns": ["1", "2"], "series": {"rollout": line}}
    >>> len(layer_curves([panel, panel]).axes)
    2
    """
    size = (max(5.6, 4.3 * len(panels)), 3.6)  # one panel must be as wide as the legend
    figure = _side_by_side(panels, curves, size)
    figure.axes[0].set_ylabel("mean rank correlation")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if any(series["paper"][0] is not None for series in panels[0]["series"].values()):
        handles.append(pyplot().Line2D([], [], color="black", linestyle="--", linewidth=1))
        labels.append("dashed: the paper")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if path is not None:
        save_figure(figure, path)
    return figure


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
    return _finish(panel, ax, "top", "right", "left")


def interval_panels(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Draw panels side by side over the same rows; with a path, write them there too.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> len(interval_panels([panel, panel]).axes)
    2
    """
    size = (2.2 + 2.6 * len(panels), 0.9 + 0.27 * len(panels[0]["names"]))
    figure = _side_by_side(panels, intervals, size)
    if path is not None:
        save_figure(figure, path)
    return figure


def _finish(panel: Mapping[str, Any], ax: Axes, *bare_sides: str) -> Axes:
    ax.set_title(panel["title"], fontsize=10)
    for side in bare_sides:
        ax.spines[side].set_visible(False)
    return ax


def _side_by_side(
    panels: Sequence[Mapping[str, Any]], draw: Callable[..., Axes], size: tuple[float, float]
) -> Figure:
    figure, axes = new_panels(size, 1, len(panels), sharey=True)
    for panel, ax in zip(panels, axes[0], strict=True):
        draw(panel, ax=ax)
    return figure
