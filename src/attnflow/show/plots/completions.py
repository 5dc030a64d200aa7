"""Generated text: which prompt tokens each new token drew on."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, cast

import numpy as np

from attnflow.attribution import Attribution
from attnflow.show.plots.canvas import (
    BLUE,
    PALE,
    bare,
    heat,
    label,
    name_ticks,
    new_axes,
    one_target,
    plain,
    pyplot,
)
from attnflow.show.plots.maps import pairs_map
from attnflow.show.sentences import place_of
from attnflow.tokens import TokenRef
from attnflow.tokens.common_words import common_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["completion_figure", "completion_map", "source_bars", "token_layers"]

_BARS = 15  # sources a bar chart names; the map beside it has all of them


def completion_figure(result: Attribution, target: TokenRef | None = None) -> Figure:
    """All generated tokens against the prompt, or one of them as bars and layer by layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> completion_figure(Rollout()(trace)).axes[0].get_xlabel()
    'prompt'
    """
    if target is None:
        return cast("Figure", completion_map(result).figure)
    row = result.row(target)
    height = min(max(1.4 + 0.27 * len(row.sources), 3.0), 14.0)
    figure, (left, right) = pyplot().subplots(
        1, 2, figsize=(11, height), layout="constrained", width_ratios=[1, 1.6]
    )
    source_bars(row, ax=left)
    token_layers(row, ax=right)
    title = f"{label(row.targets[0])}: {row.title}"
    figure.suptitle("\n".join(wrap(title, 130)), fontsize=10, **plain())
    return figure


def completion_map(result: Attribution, *, layer: int = -1, ax: Axes | None = None) -> Axes:
    """Generated tokens (down) × prompt tokens (across) at one layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> completion_map(Rollout()(trace)).get_ylabel()
    'generated'
    """
    one = result.layer(layer)
    axes = pairs_map(one, ax=ax, title=place_of(one.layers[0]))
    axes.set_ylabel("generated")
    axes.set_xlabel("prompt")
    return axes


def source_bars(
    result: Attribution, *, target: TokenRef | None = None, layer: int = -1, ax: Axes | None = None
) -> Axes:
    """The strongest sources of one target as bars, in the text's order.

    Common tokens (punctuation, function words) are pale.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> [float(bar.get_width()) for bar in source_bars(Rollout()(trace), target="key").patches]
    [0.25, 0.75]
    """
    one = one_target(result, target).layer(layer)
    values = one.values[0, 0]
    columns = sorted(np.argsort(-np.abs(values), kind="stable")[:_BARS].tolist())
    common = common_tokens(one.sources)
    axes = new_axes(5.0, 1.2 + 0.27 * len(columns)) if ax is None else ax
    colours = [PALE if common[k] else BLUE for k in columns]
    axes.barh(range(len(columns)), values[columns], color=colours)
    name_ticks(axes, "y", [one.sources[k] for k in columns])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlabel(place_of(one.layers[0]))
    return bare(axes)


def token_layers(result: Attribution, *, ax: Axes | None = None) -> Axes:
    """Prompt tokens (down) × layers (across) of one generated token.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> token_layers(Rollout()(trace, targets=["key"])).get_xlabel()
    'layer'
    """
    row = one_target(result, None)
    axes = new_axes(6.0, 1.2 + 0.27 * len(row.sources)) if ax is None else ax
    heat(axes, row.values[:, 0, :].T)
    name_ticks(axes, "x", [str(number) for number in row.layers])
    name_ticks(axes, "y", row.sources)
    axes.set_xlabel("layer")
    return bare(axes)
