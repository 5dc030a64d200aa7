"""Heat maps: sources × layers of one target, and the paper's figure of methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.attribution import Attribution
from attnflow.errors import InputError, TargetError
from attnflow.plots.canvas import COLOURS, bare, pyplot
from attnflow.tokens import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["layers_map", "methods_figure"]

_NUMBERED_UP_TO = 260  # cells; beyond that numbers would only be noise


def layers_map(
    result: Attribution,
    *,
    target: Target | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Sources (down) × layers (across) of one target."""
    row = _one_target(result, target)
    axes = _new_axes(row) if ax is None else ax
    values = row.values[:, 0, :].T
    image = axes.imshow(values, aspect="auto", cmap=COLOURS, vmin=0, vmax=values.max() or 1)
    axes.set_xticks(range(len(row.layers)), [str(number) for number in row.layers])
    axes.set_yticks(range(len(row.sources)), list(row.sources))
    axes.set_xlabel("layer")
    bare(axes)
    axes.set_title(title if title is not None else f"{row.targets[0]}: {row.title}", fontsize=10)
    if values.size <= _NUMBERED_UP_TO:
        _write_numbers(axes, image, values)
    return axes


def methods_figure(
    groups: Sequence[Sequence[Attribution]], *, names: Sequence[str], headings: Sequence[str]
) -> Figure:
    """The paper's figure: one line for each sentence, its methods side by side."""
    heights = [len(group[0].sources) for group in groups]
    figure = pyplot().figure(
        figsize=(3.4 * len(names), 0.27 * sum(heights) + 1.15 * len(groups)),
        layout="constrained",
    )
    parts = np.atleast_1d(figure.subfigures(len(groups), 1, height_ratios=[h + 4 for h in heights]))
    for part, group, heading in zip(parts, groups, headings, strict=True):
        part.suptitle(heading, fontsize=11, fontweight="bold")
        for k, (axes, result, name) in enumerate(
            zip(part.subplots(1, len(names), sharey=True), group, names, strict=True)
        ):
            layers_map(result, ax=axes, title=name)
            if k:
                axes.tick_params(labelleft=False)
    return figure


def _one_target(result: Attribution, target: Target | None) -> Attribution:
    if target is not None:
        return result.row(target)
    if len(result.targets) > 1:
        raise TargetError(
            f"A map of layers shows one target and this result has {len(result.targets)}; name "
            f"it: target=... The targets are {result.targets.listing()}."
        )
    if not len(result.sources):
        raise InputError("There is nothing to draw: the result has no sources.")
    return result


def _new_axes(result: Attribution) -> Axes:
    size = (1.6 + 0.55 * len(result.layers), 1.0 + 0.27 * len(result.sources))
    return pyplot().subplots(figsize=size, layout="constrained")[1]


def _write_numbers(axes: Axes, image: Any, values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    for source, layer in np.ndindex(values.shape):
        value = float(values[source, layer])
        dark = image.norm(value) > 0.55
        axes.text(
            layer,
            source,
            f"{value:.2f}".removeprefix("0"),
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if dark else "black",
        )
