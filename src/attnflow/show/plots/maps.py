"""Heat maps: sources × layers of one target, targets × sources of one layer, and the paper's
figure of methods side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.show.plots.canvas import (
    SMALL,
    bare,
    colour_bar,
    heading,
    heat,
    label,
    name_ticks,
    new_axes,
    one_target,
    plain,
    pyplot,
)
from attnflow.show.sentences import place_of, short_number
from attnflow.tokens import TokenRef

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["layers_map", "methods_figure", "pairs_map"]

_NUMBERED_UP_TO = 260  # cells; beyond that numbers would only be noise


def layers_map(
    result: Attribution,
    *,
    target: TokenRef | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Sources (down) × layers (across) of one target.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> layers_map(Rollout()(trace), target="key").get_xlabel()
    'layer'
    """
    row = one_target(result, target)
    size = (1.6 + 0.55 * len(row.layers), 1.0 + 0.27 * len(row.sources))
    axes = new_axes(*size) if ax is None else ax
    values = row.values[:, 0, :].T
    image = heat(axes, values)
    name_ticks(axes, "x", [str(number) for number in row.layers])
    name_ticks(axes, "y", row.sources)
    axes.set_xlabel("layer")
    line = title if title is not None else f"{label(row.targets[0])}: {row.title}"
    heading(axes, line, size=9 if title is None else 10)
    if values.size <= _NUMBERED_UP_TO:
        _write_numbers(axes, image, values)
    return bare(axes)


def pairs_map(
    result: Attribution, *, layer: int = -1, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Targets (down) × sources (across) at one layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> pairs_map(Rollout()(trace)).get_ylabel()
    'target'
    """
    one = result.layer(layer)
    size = (2.6 + 0.27 * len(one.sources), 1.6 + 0.27 * len(one.targets))
    axes = new_axes(*size) if ax is None else ax
    image = heat(axes, one.values[0])
    name_ticks(axes, "x", one.sources)
    name_ticks(axes, "y", one.targets)
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    line = title if title is not None else f"{place_of(one.layers[0])}: {one.title}"
    heading(axes, line, size=9 if title is None else 10)
    colour_bar(axes, image)
    return bare(axes)


def methods_figure(
    groups: Sequence[Sequence[Attribution]], *, names: Sequence[str], headings: Sequence[str]
) -> Figure:
    """The paper's figure: one line for each sentence, its methods side by side.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> group = [Rollout()(trace, targets=["key"])]
    >>> len(methods_figure([group], names=["rollout"], headings=["the key"]).axes)
    1
    """
    heights = [len(group[0].sources) for group in groups]
    figure = pyplot().figure(
        figsize=(3.4 * len(names), 0.27 * sum(heights) + 1.15 * len(groups)),
        layout="constrained",
    )
    parts = np.atleast_1d(figure.subfigures(len(groups), 1, height_ratios=[h + 4 for h in heights]))
    for part, group, line in zip(parts, groups, headings, strict=True):
        part.suptitle(line, fontsize=11, fontweight="bold", **plain())
        panels = part.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for k, (axes, result, name) in enumerate(zip(panels, group, names, strict=True)):
            layers_map(result, ax=axes, title=name)
            if k:
                axes.tick_params(labelleft=False)
    return figure


def _write_numbers(axes: Axes, image: Any, values: NDArray[np.float64]) -> None:
    for source, layer in np.ndindex(values.shape):
        value = float(values[source, layer])
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.55
        axes.text(
            layer,
            source,
            short_number(value, 2),
            ha="center",
            va="center",
            fontsize=SMALL,
            color="white" if dark else "black",
        )
