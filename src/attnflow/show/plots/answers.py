"""What the model says beside where it comes from: the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.errors.percent import percent
from attnflow.show.plots.canvas import (
    BLUE,
    GREEN,
    GREY,
    SMALL,
    VERMILLION,
    bare,
    heading,
    label,
    name_ticks,
    new_axes,
    one_target,
    pyplot,
)
from attnflow.show.sentences import place_of
from attnflow.tokens import TokenRef
from attnflow.trace import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["answer_figure", "method_bars", "probability_bars"]

_METHOD_COLOURS = (GREY, BLUE, VERMILLION, GREEN, "#CC79A7")
_HATCHES = ("", "", "///", "...", "xxx")  # told apart in print too


def answer_figure(
    results: Sequence[Attribution],
    *,
    target: TokenRef | None = None,
    sources: Sequence[TokenRef] | None = None,
    answers: int = 5,
) -> Figure:
    """The model's answers with their probabilities, and beside them what each method says the
    target drew on at the highest layer: on these sources, such as two candidates, or on all.

    >>> import attnflow
    >>> result = attnflow.explain(None, "the key", targets=["[CLS]"])
    >>> len(answer_figure([result]).axes)
    2
    """
    if not results or results[0].prediction is None:
        raise InputError("These results carry no prediction: the model's output was not captured.")
    figure, (left, right) = pyplot().subplots(
        1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1, 2]
    )
    probability_bars(results[0].prediction, answers=answers, ax=left)
    method_bars(results, target=target, sources=sources, ax=right)
    return figure


def probability_bars(prediction: Prediction, *, answers: int = 5, ax: Axes | None = None) -> Axes:
    """The model's most probable answers.

    >>> prediction = Prediction(position=0, label="is", probability=0.9)
    >>> probability_bars(prediction).get_title()
    'the model says'
    """
    pairs = prediction.alternatives or ((prediction.label, prediction.probability),)
    best = sorted(pairs, key=lambda pair: -pair[1])[: max(answers, 1)]
    axes = new_axes(4.0, 1.2 + 0.32 * len(best)) if ax is None else ax
    bars = axes.barh(range(len(best)), [share for _, share in best], 0.6, color=BLUE)
    axes.bar_label(bars, [percent(share, 1) for _, share in best], padding=3, fontsize=SMALL)
    name_ticks(axes, "y", [name for name, _ in best])
    axes.set_ylim(max(len(best), 4) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * best[0][1])
    axes.set_xticks([])
    heading(axes, "the model says")
    return bare(axes)


def method_bars(
    results: Sequence[Attribution],
    *,
    target: TokenRef | None = None,
    sources: Sequence[TokenRef] | None = None,
    layer: int = -1,
    ax: Axes | None = None,
) -> Axes:
    """Sources across, one bar for each method: each method's values as shares of its strongest.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> len(method_bars([Rollout()(trace)], target="key").patches)
    2
    """
    rows = [one_target(result, target).layer(layer) for result in results]
    columns = rows[0].sources.indices_of(sources)
    axes = new_axes(2.0 + 0.3 * len(results) * len(columns), 3.6) if ax is None else ax
    width = 0.8 / len(rows)
    for k, row in enumerate(rows):
        values = row.values[0, 0]
        shares = values[columns] / (float(np.abs(values).max()) or 1.0)
        axes.bar(
            np.arange(len(columns)) + (k - (len(rows) - 1) / 2) * width,
            shares,
            width,
            color=_METHOD_COLOURS[k % len(_METHOD_COLOURS)],
            hatch=_HATCHES[k % len(_HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            label=row.method.name,
        )
    name_ticks(axes, "x", [rows[0].sources[k] for k in columns])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylabel("share of the strongest source", fontsize=SMALL + 1)
    heading(axes, f"{label(rows[0].targets[0])} at {place_of(rows[0].layers[0])} draws on")
    axes.set_ylim(top=1.15)  # room for the legend
    axes.legend(fontsize=SMALL + 1, frameon=False, ncols=len(rows), loc="upper center")
    return bare(axes)
