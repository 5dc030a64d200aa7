"""Lines over layers, with intervals and the paper's own numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.show.plots.canvas import pyplot, save_figure
from attnflow.show.plots.maps import finish_panel, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by the colour-blind and in print: Okabe and Ito's colours, and a marker each.
_LOOKS = (("#888888", "o"), ("#0072B2", "s"), ("#D55E00", "^"), ("#009E73", "D"), ("#CC79A7", "v"))


def curves(panel: Mapping[str, Any], *, ax: Axes) -> Axes:
    """Draw one line for each series with its 95 % interval; the paper's numbers dashed."""
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
    return finish_panel(panel, ax, "top", "right")


def layer_curves(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Draw panels side by side with one legend; with a path, write them there too."""
    size = (max(5.6, 4.3 * len(panels)), 3.6)  # one panel must be as wide as the legend
    figure = side_by_side(panels, curves, size)
    figure.axes[0].set_ylabel("mean rank correlation")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if any(series["paper"][0] is not None for series in panels[0]["series"].values()):
        handles.append(pyplot().Line2D([], [], color="black", linestyle="--", linewidth=1))
        labels.append("dashed: the paper")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if path is not None:
        save_figure(figure, path)
    return figure
