"""Generated text: which prompt tokens each new token drew on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow.attribution import MEAN_OVER_LAYERS, Attribution
from attnflow.common_tokens import common_tokens
from attnflow.plots.canvas import COLOURS, bare, pyplot
from attnflow.tokens import Target, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["completion_figure", "completion_map", "source_bars", "token_layers"]

_BARS = 15  # sources a bar chart names; the map beside it has all of them
_DEEP, _PALE = "#08519c", "#bdbdbd"


def completion_figure(result: Attribution, target: Target | None = None) -> Figure:
    """All generated tokens against the prompt, or one of them as bars and layer by layer."""
    if target is None:
        size = (2.2 + 0.3 * len(result.sources), 1.6 + 0.32 * len(result.targets))
        figure, ax = pyplot().subplots(figsize=size, layout="constrained")
        completion_map(result, ax=ax)
        return figure
    row = result.row(target)
    height = 1.4 + 0.27 * len(row.sources)
    figure, (left, right) = pyplot().subplots(
        1, 2, figsize=(11, max(height, 3.0)), layout="constrained", width_ratios=[1, 1.6]
    )
    source_bars(row, ax=left)
    token_layers(row, ax=right)
    figure.suptitle(f"{_name(row.targets[0])}: {row.title}", fontsize=10)
    return figure


def completion_map(result: Attribution, *, layer: int = -1, ax: Axes | None = None) -> Axes:
    """Generated tokens (down) × prompt tokens (across) at one layer."""
    one = result.layer(layer)
    values = one.values[0]
    axes = pyplot().subplots(layout="constrained")[1] if ax is None else ax
    axes.imshow(values, aspect="auto", cmap=COLOURS, vmin=0, vmax=values.max() or 1)
    axes.set_xticks(range(len(one.sources)), [_name(token) for token in one.sources], rotation=90)
    axes.set_yticks(range(len(one.targets)), [_name(token) for token in one.targets])
    axes.set_ylabel("generated")
    axes.set_xlabel("prompt")
    axes.set_title(_at(one), fontsize=10)
    return bare(axes)


def source_bars(result: Attribution, *, layer: int = -1, ax: Axes | None = None) -> Axes:
    """The strongest sources of one generated token as bars, in the prompt's order.

    Common tokens (punctuation, function words) are pale.
    """
    one = result.layer(layer)
    values = one.values[0, 0]
    kept = sorted(np.argsort(-np.abs(values), kind="stable")[:_BARS].tolist())
    common = common_tokens(one.sources)
    axes = pyplot().subplots(layout="constrained")[1] if ax is None else ax
    axes.barh(
        range(len(kept)),
        values[kept],
        color=[_PALE if common[k] else _DEEP for k in kept],
    )
    axes.set_yticks(range(len(kept)), [_name(one.sources[k]) for k in kept])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlabel(_at(one))
    return bare(axes)


def token_layers(result: Attribution, *, ax: Axes | None = None) -> Axes:
    """Prompt tokens (down) × layers (across) of one generated token."""
    values = result.values[:, 0, :].T
    axes = pyplot().subplots(layout="constrained")[1] if ax is None else ax
    axes.imshow(values, aspect="auto", cmap=COLOURS, vmin=0, vmax=values.max() or 1)
    step = max(1, len(result.layers) // 15)
    axes.set_xticks(range(0, len(result.layers), step), [str(n) for n in result.layers[::step]])
    axes.set_yticks(range(len(result.sources)), [_name(token) for token in result.sources])
    axes.set_xlabel("layer")
    return bare(axes)


def _name(token: str) -> str:
    return written(token).strip(" ").replace("\n", "⏎") or "␣"


def _at(result: Attribution) -> str:
    number = result.layers[0]
    return "mean over layers" if number == MEAN_OVER_LAYERS else f"layer {number}"
