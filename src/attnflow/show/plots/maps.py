"""Results as heat maps, bars and intervals: what a target, a completion or an answer draws on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError, percent
from attnflow.show.plots import canvas
from attnflow.show.sentences import place_of, short_number
from attnflow.tokens import TokenRef
from attnflow.tokens.text import common_tokens
from attnflow.trace import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUMBERED_UP_TO = 260  # cells; beyond that numbers would only be noise
_BARS = 15  # sources a bar chart names; the map beside it has all of them
_METHOD_COLOURS = (canvas.GREY, canvas.BLUE, canvas.VERMILION, canvas.GREEN, "#CC79A7")
_HATCHES = ("", "", "///", "...", "xxx")  # told apart in print too


# -- maps -------------------------------------------------------------------------------------


def layers_map(
    result: Attribution,
    *,
    target: TokenRef | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw sources (down) × layers (across) of one target.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> layers_map(Rollout()(trace), target="key").get_xlabel()
    'layer'
    """
    row = canvas.one_target(result, target)
    size = (1.6 + 0.55 * len(row.layers), 1.0 + 0.27 * len(row.sources))
    axes = canvas.new_axes(*size) if ax is None else ax
    image = _draw_layers(axes, row)
    line = title if title is not None else f"{canvas.label(row.targets[0])}: {row.title}"
    canvas.heading(axes, line, size=9 if title is None else 10)
    if row.values.size <= _NUMBERED_UP_TO:
        _write_numbers(axes, image, row.values[:, 0, :].T)
    return axes


def token_layers(result: Attribution, *, ax: Axes | None = None) -> Axes:
    """Draw prompt tokens (down) × layers (across) of one generated token.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> token_layers(Rollout()(trace, targets=["key"])).get_xlabel()
    'layer'
    """
    row = canvas.one_target(result, None)
    axes = canvas.new_axes(6.0, 1.2 + 0.27 * len(row.sources)) if ax is None else ax
    _draw_layers(axes, row)
    return axes


def _draw_layers(axes: Axes, row: Attribution) -> Any:
    image = canvas.heat(axes, row.values[:, 0, :].T)
    canvas.name_ticks(axes, "x", [str(number) for number in row.layers])
    canvas.name_ticks(axes, "y", row.sources)
    axes.set_xlabel("layer")
    canvas.bare(axes)
    return image


def _write_numbers(axes: Axes, image: Any, values: NDArray[np.float64]) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": canvas.SMALL}
    for (source, layer), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.55
        number = short_number(float(value), 2)
        axes.text(layer, source, number, color="white" if dark else "black", **style)


def pairs_map(
    result: Attribution, *, layer: int = -1, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw targets (down) × sources (across) at one layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> pairs_map(Rollout()(trace)).get_ylabel()
    'target'
    """
    top = result.layer(layer)
    size = (2.6 + 0.27 * len(top.sources), 1.6 + 0.27 * len(top.targets))
    axes = canvas.new_axes(*size) if ax is None else ax
    image = canvas.heat(axes, top.values[0])
    canvas.name_ticks(axes, "x", top.sources)
    canvas.name_ticks(axes, "y", top.targets)
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    line = title if title is not None else f"{place_of(top.layers[0])}: {top.title}"
    canvas.heading(axes, line, size=9 if title is None else 10)
    canvas.colour_bar(axes, image)
    return canvas.bare(axes)


def completion_map(result: Attribution, *, layer: int = -1, ax: Axes | None = None) -> Axes:
    """Draw generated tokens (down) × prompt tokens (across) at one layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> completion_map(Rollout()(trace)).get_ylabel()
    'generated'
    """
    top = result.layer(layer)
    axes = pairs_map(top, ax=ax, title=place_of(top.layers[0]))
    axes.set_ylabel("generated")
    axes.set_xlabel("prompt")
    return axes


def methods_figure(
    groups: Sequence[Sequence[Attribution]], *, names: Sequence[str], headings: Sequence[str]
) -> Figure:
    """Draw the paper's figure: one line for each sentence, its methods side by side.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> group = [Rollout()(trace, targets=["key"])]
    >>> len(methods_figure([group], names=["rollout"], headings=["the key"]).axes)
    1
    """
    heights = [len(group[0].sources) for group in groups]
    size = (3.4 * len(names), 0.27 * sum(heights) + 1.15 * len(groups))
    figure = canvas.pyplot().figure(figsize=size, layout="constrained")
    lines = figure.subfigures(len(groups), 1, height_ratios=[h + 4 for h in heights])
    for line, group, text in zip(np.atleast_1d(lines), groups, headings, strict=True):
        line.suptitle(text, fontsize=11, fontweight="bold", **canvas.plain())
        panels = line.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for k, (axes, result, name) in enumerate(zip(panels, group, names, strict=True)):
            layers_map(result, ax=axes, title=name)
            if k:
                axes.tick_params(labelleft=False)
    return figure


def completion_figure(result: Attribution, target: TokenRef | None = None) -> Figure:
    """Draw all generated tokens against the prompt, or one of them as bars and layer by layer.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> completion_figure(Rollout()(trace)).axes[0].get_xlabel()
    'prompt'
    """
    if target is None:
        return cast("Figure", completion_map(result).figure)
    row = result.row(target)
    height = min(max(1.4 + 0.27 * len(row.sources), 3.0), 14.0)
    figure, [[left, right]] = canvas.new_panels((11, height), 1, 2, width_ratios=[1, 1.6])
    source_bars(row, ax=left)
    token_layers(row, ax=right)
    title = f"{canvas.label(row.targets[0])}: {row.title}"
    figure.suptitle("\n".join(wrap(title, 130)), fontsize=10, **canvas.plain())
    return figure


# -- bars -------------------------------------------------------------------------------------


def source_bars(
    result: Attribution, *, target: TokenRef | None = None, layer: int = -1, ax: Axes | None = None
) -> Axes:
    """Draw the strongest sources of one target as bars, in the text's order.

    Common tokens (punctuation, function words) are pale.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> [float(bar.get_width()) for bar in source_bars(Rollout()(trace), target="key").patches]
    [0.25, 0.75]
    """
    row = canvas.one_target(result, target).layer(layer)
    values = row.values[0, 0]
    columns = sorted(np.argsort(-np.abs(values), kind="stable")[:_BARS].tolist())
    common = common_tokens(row.sources)
    axes = canvas.new_axes(5.0, 1.2 + 0.27 * len(columns)) if ax is None else ax
    colours = [canvas.PALE if common[k] else canvas.BLUE for k in columns]
    axes.barh(range(len(columns)), values[columns], color=colours)
    canvas.name_ticks(axes, "y", [row.sources[k] for k in columns])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlabel(place_of(row.layers[0]))
    return canvas.bare(axes)


def answer_figure(
    results: Sequence[Attribution],
    *,
    target: TokenRef | None = None,
    sources: Sequence[TokenRef] | None = None,
    answers: int = 5,
) -> Figure:
    """Draw the model's answers with their probabilities, and beside them what each method says the
    target drew on at the highest layer: on these sources, such as two candidates, or on all.

    >>> import attnflow
    >>> result = attnflow.explain(None, "the key", targets=["[CLS]"])
    >>> len(answer_figure([result]).axes)
    2
    """
    if not results or results[0].prediction is None:
        raise InputError("These results carry no prediction: the model's output was not captured.")
    figure, [[left, right]] = canvas.new_panels((10, 4.2), 1, 2, width_ratios=[1, 2])
    probability_bars(results[0].prediction, answers=answers, ax=left)
    method_bars(results, target=target, sources=sources, ax=right)
    return figure


def probability_bars(prediction: Prediction, *, answers: int = 5, ax: Axes | None = None) -> Axes:
    """Draw the model's most probable answers.

    >>> prediction = Prediction(position=0, label="is", probability=0.9)
    >>> probability_bars(prediction).get_title()
    'the model says'
    """
    pairs = prediction.alternatives or ((prediction.label, prediction.probability),)
    best = sorted(pairs, key=lambda pair: -pair[1])[: max(answers, 1)]
    axes = canvas.new_axes(4.0, 1.2 + 0.32 * len(best)) if ax is None else ax
    bars = axes.barh(range(len(best)), [share for _, share in best], 0.6, color=canvas.BLUE)
    axes.bar_label(bars, [percent(share, 1) for _, share in best], padding=3, fontsize=canvas.SMALL)
    canvas.name_ticks(axes, "y", [name for name, _ in best])
    axes.set_ylim(max(len(best), 4) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * best[0][1])
    axes.set_xticks([])
    canvas.heading(axes, "the model says")
    return canvas.bare(axes)


def method_bars(
    results: Sequence[Attribution],
    *,
    target: TokenRef | None = None,
    sources: Sequence[TokenRef] | None = None,
    layer: int = -1,
    ax: Axes | None = None,
) -> Axes:
    """Draw sources across, one bar for each method: its values as shares of its strongest.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> len(method_bars([Rollout()(trace)], target="key").patches)
    2
    """
    rows = [canvas.one_target(result, target).layer(layer) for result in results]
    columns = rows[0].sources.indices_of(sources)
    axes = canvas.new_axes(2.0 + 0.3 * len(results) * len(columns), 3.6) if ax is None else ax
    width = 0.8 / len(rows)
    for k, row in enumerate(rows):
        values = row.values[0, 0]
        axes.bar(
            np.arange(len(columns)) + (k - (len(rows) - 1) / 2) * width,
            values[columns] / (float(np.abs(values).max()) or 1.0),
            width,
            color=_METHOD_COLOURS[k % len(_METHOD_COLOURS)],
            hatch=_HATCHES[k % len(_HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            label=row.method.name,
        )
    canvas.name_ticks(axes, "x", [rows[0].sources[k] for k in columns])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylabel("share of the strongest source", fontsize=canvas.SMALL + 1)
    target_name, place = canvas.label(rows[0].targets[0]), place_of(rows[0].layers[0])
    canvas.heading(axes, f"{target_name} at {place} draws on")
    axes.set_ylim(top=1.15)  # room for the legend
    axes.legend(fontsize=canvas.SMALL + 1, frameon=False, ncols=len(rows), loc="upper center")
    return canvas.bare(axes)


# -- intervals --------------------------------------------------------------------------------


def intervals(panel: Mapping[str, Any], *, ax: Axes) -> Axes:
    """Draw a dot for each row's mean and a bar for its interval; what is undefined is left out.

    >>> panel = {"title": "compr.", "names": ["rollout"], "cells": [(0.3, 0.2, 0.4)]}
    >>> intervals(panel, ax=canvas.pyplot().subplots()[1]).get_title()
    'compr.'
    """
    values = np.array(panel["cells"], dtype=np.float64).reshape(-1, 3)
    places = np.arange(len(values))
    known = np.isfinite(values).all(axis=1)
    mean, low, high = values[known].T
    ax.hlines(places[known], low, high, color=canvas.BLUE, linewidth=2, alpha=0.5)
    ax.plot(mean, places[known], "o", color=canvas.BLUE, markersize=4)
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
        canvas.save_figure(figure, path)
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
    figure, axes = canvas.new_panels(size, 1, len(panels), sharey=True)
    for panel, ax in zip(panels, axes[0], strict=True):
        draw(panel, ax=ax)
    return figure
