"""Bars with intervals: how often, for each of many contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.plots.canvas import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["interval_bars", "interval_bars_figure"]

_COLOURS = ("#08519c", "#9ecae1", "#bdbdbd")


def interval_bars(panel: Mapping[str, Any], *, columns: Sequence[int], ax: Axes) -> Axes:
    """One row for each series, one bar in it for each of these columns, with its interval."""
    names = list(panel["series"])
    height = 0.8 / len(columns)
    for place, column in enumerate(columns):
        found = [panel["series"][name] for name in names]
        value = np.array([series["value"][column] for series in found])
        low = np.array([series["low"][column] for series in found])
        high = np.array([series["high"][column] for series in found])
        at = np.arange(len(names)) + (place - (len(columns) - 1) / 2) * height
        errors = np.clip([value - low, high - value], 0, None)
        ax.barh(
            at,
            value,
            height,
            xerr=errors,
            color=_COLOURS[place % len(_COLOURS)],
            error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
            label=panel["columns"][column],
        )
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_title(panel["title"], fontsize=10)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def interval_bars_figure(
    panels: Sequence[Mapping[str, Any]], path: Path, *, columns: Sequence[int] = (0, 1)
) -> None:
    """Panels side by side, written to a file."""
    rows = max(len(panel["series"]) for panel in panels)
    figure, axes = pyplot().subplots(
        1,
        len(panels),
        figsize=(6.5 * len(panels), 1.4 + 0.32 * rows),
        squeeze=False,
        layout="constrained",
    )
    for panel, ax in zip(panels, axes[0], strict=True):
        interval_bars(panel, columns=columns, ax=ax)
        ax.set_xlim(0, 1)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=160)
    pyplot().close(figure)
