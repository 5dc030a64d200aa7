"""The paper's Figure 4: a model's pronouns beside what attention says of their antecedents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.show.plots.canvas import bare, pyplot, save_figure
from attnflow_experiments.curves import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAIR = ("#0072B2", "#D55E00")  # the first antecedent and its pronoun, the second and its
_MARKERS = ("o", "s")
_DASHES = ("--", "-.", "-")


def pronoun_figure(sentences: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """A line for each sentence: its pronouns' probabilities, then each method over layers.

    With a path it is written there too.
    """
    names = list(sentences[0]["methods"])
    figure = pyplot().figure(
        figsize=(2.4 + 2.7 * len(names), 2.5 * len(sentences) + 0.4), layout="constrained"
    )
    parts = np.atleast_1d(figure.subfigures(len(sentences), 1))
    for part, sentence in zip(parts, sentences, strict=True):
        part.suptitle(sentence["heading"], fontsize=11, fontweight="bold")
        bars, *panels = part.subplots(1, 1 + len(names), width_ratios=[0.8] + [1] * len(names))
        _probabilities(sentence, bars)
        for ax, name in zip(panels, names, strict=True):
            _antecedents(sentence, name, ax)
        handles, labels = panels[0].get_legend_handles_labels()
        part.legend(handles, labels, loc="outside right center", frameon=False)
    if path is not None:
        save_figure(figure, path)
    return figure


def _probabilities(sentence: Mapping[str, Any], ax: Axes) -> None:
    values = sentence["probabilities"]
    ax.bar(sentence["pronouns"], values, color=_PAIR, width=0.6)
    for place, value in enumerate(values):
        ax.text(place, value, f"{value:.3f}".removeprefix("0"), ha="center", va="bottom")
    ax.set_ylim(0, 1.18 * max(values))
    ax.set_yticks([])
    ax.set_title("the model's probability", fontsize=9)
    bare(ax)


def _antecedents(sentence: Mapping[str, Any], name: str, ax: Axes) -> None:
    lines = zip(sentence["antecedents"], sentence["methods"][name], _PAIR, _MARKERS, strict=True)
    for word, values, colour, marker in lines:
        ax.plot(
            sentence["layers"], values, color=colour, marker=marker, markersize=3, label=word
        )  # nan, where a word is not seen, draws nothing
    ax.axhline(0, color="black", linewidth=0.6)
    ax.set_title(name, fontsize=9)
    ax.set_xlabel("layer", fontsize=8)
    ax.tick_params(labelsize=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def agreement_figure(panels: Sequence[Mapping[str, Any]], path: Path | None = None) -> Figure:
    """Shares over layers with their intervals; what does not depend on the layer as a line.

    With a path it is written there too.
    """
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure, axes = pyplot().subplots(
        down, across, figsize=(5.2 * across, 3.3 * down + 0.6), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    handle_of: dict[str, Any] = {}
    for panel, ax in zip(panels, axes.flat, strict=False):
        _agreement(panel, ax)
        handles, names = ax.get_legend_handles_labels()
        handle_of |= dict(zip(names, handles, strict=True))
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("share")
    figure.legend(handle_of.values(), handle_of, loc="outside lower center", ncols=3, frameon=False)
    if path is not None:
        save_figure(figure, path)
    return figure


def _agreement(panel: Mapping[str, Any], ax: Axes) -> None:
    values = {name: np.array(line["value"]) for name, line in panel["series"].items()}
    styles = dict(zip(panel["fixed"], _DASHES, strict=False))
    fixed = {name: line[0] for name, line in values.items() if name in styles}
    moving = {name: panel["series"][name] for name in values if name not in fixed}
    curves({**panel, "series": moving, "title": fill(panel["title"], 52)}, ax=ax)
    for name, value in fixed.items():
        ax.axhline(value, color="black", linewidth=1, linestyle=styles[name], label=name)
    ax.axhline(0.5, color="black", linewidth=0.8, linestyle=":", label="chance")
    places = np.unique(np.linspace(0, len(panel["columns"]) - 1, 7).round().astype(int))
    ax.set_xticks(places, [panel["columns"][k] for k in places])
    ax.set_ylim(0, 1)
