"""The five pictures of docs/how: `make figures` draws them.

The numbers of rollout, flow and joint flow are the library's own; those of gradient attention are
made up to show the rule, and its page says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from attnflow import AttentionTrace, Flow, Rollout, ShapleyFlow

FOLDER = Path(__file__).parent / "how"
BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#B0B0B0", "#222222"  # after Okabe and Ito
TOKENS = ("Anna", "likes", "tea")
# Two layers over three tokens, heads already averaged.
WEIGHTS = np.array(
    [
        [[0.6, 0.2, 0.2], [0.6, 0.2, 0.2], [0.2, 0.2, 0.6]],
        [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.6, 0.2]],
    ]
)
CAPACITIES = 0.5 * WEIGHTS + 0.5 * np.eye(3)
TARGET, SOURCE = 2, 0


def draw_all() -> None:
    """Draw every picture."""
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 10, "font.family": "DejaVu Sans"})
    FOLDER.mkdir(exist_ok=True)
    for draw in (draw_rollout, draw_flow, draw_joint_flow, draw_gradient_attention):
        draw()
    draw_long_context()


def _node(ax: Axes, layer: int, position: int, text: str, *, colour: str = "white") -> None:
    ax.text(
        1.7 * position,
        layer,
        text,
        ha="center",
        va="center",
        zorder=5,
        color="white" if colour != "white" else INK,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": INK, "lw": 1},
    )


def _edge(
    ax: Axes, layer: int, top: int, bottom: int, value: float, colour: str, text: str = ""
) -> None:
    """An arrow from a position down to one it draws on, as wide as its value."""
    start, end = (1.7 * top, layer - 0.13), (1.7 * bottom, layer - 0.87)
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=10,
        lw=0.8 + 7 * value,
        color=colour,
        alpha=0.95 if colour != GREY else 0.35,
        zorder=2 if colour == GREY else 3,
        shrinkA=2,
        shrinkB=2,
    )
    ax.add_patch(arrow)
    if text:
        share = {0: 0.5, 1: 0.45, 2: 0.68}[abs(top - bottom)] if layer == 2 else 0.4
        x, y = (start[k] + share * (end[k] - start[k]) for k in (0, 1))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
        ax.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, zorder=6, bbox=box)


def _grid(title: str, width: float = 6.2) -> tuple[Any, Axes]:
    figure, ax = pyplot.subplots(figsize=(width, 4.1))
    for layer in range(3):
        label = "inputs" if layer == 0 else f"layer {layer}"
        ax.text(-1.35, layer, label, ha="left", va="center", color="#555555", fontsize=9)
        for position, token in enumerate(TOKENS):
            colour = "white"
            if (layer, position) == (2, TARGET):
                colour = BLUE
            elif (layer, position) == (0, SOURCE):
                colour = ORANGE
            _node(ax, layer, position, token, colour=colour)
    ax.set_xlim(-1.45, 4.2)
    ax.set_ylim(-0.75, 2.4)
    ax.axis("off")
    ax.set_title(title, fontsize=10.5, loc="left")
    return figure, ax


def _save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.png", dpi=150, bbox_inches="tight", facecolor="white")
    pyplot.close(figure)
    print(f"wrote {FOLDER / name}.png")


def _trace() -> AttentionTrace:
    return AttentionTrace.from_arrays(WEIGHTS, TOKENS)


def draw_rollout() -> None:
    """Three ways from the target to one input, each with the product of its shares."""
    figure, ax = _grid("Rollout: multiply along each way down, add up the ways")
    upper, lower = CAPACITIES[1][TARGET], CAPACITIES[0][:, SOURCE]
    for middle in range(3):
        _edge(ax, 2, TARGET, middle, upper[middle], BLUE, f"{upper[middle]:.2f}")
        _edge(ax, 1, middle, SOURCE, lower[middle], ORANGE, f"{lower[middle]:.2f}")
    products = upper * lower
    value = float(Rollout()(_trace(), targets=[TARGET], layers=-1).values[0, 0, SOURCE])
    assert np.isclose(products.sum(), value)
    ways = " + ".join(f"{a:.2f}·{b:.2f}" for a, b in zip(upper, lower, strict=True))
    ax.text(-1.35, -0.5, f"“tea” draws on “Anna”: {ways} = {value:.2f}", fontsize=10, color=INK)
    _save(figure, "rollout")


def draw_flow() -> None:
    """The same graph as pipes: each way carries what its narrower pipe lets through."""
    figure, ax = _grid("Flow: the same numbers are widths of pipes")
    upper, lower = CAPACITIES[1][TARGET], CAPACITIES[0][:, SOURCE]
    carried = np.minimum(upper, lower)
    for middle in range(3):
        for layer, ends, width in ((2, (TARGET, middle), upper), (1, (middle, SOURCE), lower)):
            is_full = np.isclose(carried[middle], width[middle])
            text = f"{carried[middle]:.1f} of {width[middle]:.1f}"
            _edge(ax, layer, *ends, width[middle], ORANGE if is_full else BLUE, text)
    value = float(Flow()(_trace(), targets=[TARGET], layers=-1).values[0, 0, SOURCE])
    assert np.isclose(carried.sum(), value)
    sums = " + ".join(f"{amount:.2f}" for amount in carried)
    text = f"Most that can pass from “tea” to “Anna”: {sums} = {value:.2f}"
    note = f"{text}\nOrange pipes are full, and every way down has one: no more can pass."
    ax.text(-1.35, -0.5, note, fontsize=10, color=INK, va="center")
    _save(figure, "flow")


def draw_joint_flow() -> None:
    """Flows one at a time against the shares of one flow."""
    trace = _trace()
    single = Flow()(trace, targets=[TARGET], layers=-1).values[0, 0]
    joint = ShapleyFlow()(trace, targets=[TARGET], layers=-1).values[0, 0]
    figure, axes = pyplot.subplots(1, 2, figsize=(7.2, 2.9), sharey=True)
    titles = ("Flow: each input alone", "Joint flow: all inputs share the pipes")
    for ax, values, title, colour in zip(
        axes, (single, joint), titles, (BLUE, ORANGE), strict=True
    ):
        bottom = 0.0
        for token, value, shade in zip(TOKENS, values, (1.0, 0.7, 0.45), strict=True):
            ax.bar(0, value, bottom=bottom, width=0.7, color=colour, alpha=shade, edgecolor="white")
            text = f"{token} {value:.2f}"
            ax.text(0, bottom + value / 2, text, ha="center", va="center", color=INK, fontsize=9)
            bottom += value
        ax.axhline(1, color=INK, lw=1, ls="--")
        ax.text(0.42, bottom - 0.07, f"sum {bottom:.2f}", va="center", fontsize=10)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_xlim(-0.6, 1.1)
        ax.set_xticks([])
        for side in ("top", "right", "bottom"):
            ax.spines[side].set_visible(False)
    axes[0].set_ylabel("what “tea” draws on")
    axes[0].text(0.4, 1.03, "all that the target sends", fontsize=8.5, color="#555555")
    figure.tight_layout()
    _save(figure, "joint-flow")


def draw_gradient_attention() -> None:
    """One row: a weight times its gradient, and what is positive of it."""
    tokens = ("<s>", "Anna", "lives", "in", "Rome", ".", "She", "is", "in")
    weights = np.array([0.62, 0.05, 0.03, 0.02, 0.12, 0.05, 0.04, 0.03, 0.04])
    gradients = np.array([0.01, 1.1, 0.3, 0.2, 3.9, -0.9, 0.5, -0.3, 0.4])
    products = np.maximum(weights * gradients, 0)
    products[0] = 0  # the sink, left out
    panels: Iterable[tuple[str, Any, str]] = (
        ("attention weight A", weights, GREY),
        ("gradient of log p(Rome)", gradients, BLUE),
        ("positive part of their product", products, ORANGE),
    )
    figure, axes = pyplot.subplots(3, 1, figsize=(6.6, 4.6), sharex=True)
    for ax, (title, values, colour) in zip(axes, panels, strict=True):
        ax.bar(range(len(tokens)), values, color=colour, width=0.7)
        ax.axhline(0, color=INK, lw=0.8)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_yticks([])
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    axes[0].annotate("the sink: much weight,\nno meaning", (0.45, 0.5), (1.3, 0.38), fontsize=9)
    axes[2].annotate("the answer draws on this", (4.4, products[4] * 0.6), fontsize=9, color=ORANGE)
    axes[2].set_xticks(range(len(tokens)), tokens)
    axes[2].set_xlabel("prompt; the model writes “Rome” next")
    figure.tight_layout()
    _save(figure, "gradient-attention")


def draw_long_context() -> None:
    """A row that goes down through blocks of a matrix that is never there as a whole."""
    figure, axes = pyplot.subplots(1, 2, figsize=(7.4, 3.3))
    _draw_blocks(axes[0])
    _draw_spans(axes[1])
    figure.tight_layout()
    _save(figure, "long-context")


def _draw_blocks(ax: Axes) -> None:
    ax.set_title("Rows downwards: r W, a block at a time", fontsize=10, loc="left")
    ax.add_patch(Rectangle((0, 0), 8, 8, fill=False, ec=GREY, ls="--"))
    for row, column in ((k, j) for k in range(4) for j in range(4) if j <= k):
        is_lit = (row, column) == (2, 1)
        colour = ORANGE if is_lit else "#F2F2F2"
        ax.add_patch(Rectangle((2 * column, 6 - 2 * row), 2, 2, fc=colour, ec="white", lw=1.5))
    ax.text(3, 3, "softmax\n(q kᵀ)", ha="center", va="center", fontsize=8, color="white")
    ax.add_patch(Rectangle((-1.2, 0), 0.8, 8, fc=BLUE, alpha=0.35))
    ax.add_patch(Rectangle((-1.2, 2), 0.8, 2, fc=BLUE))
    ax.text(-0.8, 8.35, "r", ha="center", color=BLUE)
    ax.add_patch(Rectangle((0, -1.6), 8, 0.8, fc=BLUE, alpha=0.35))
    ax.add_patch(Rectangle((2, -1.6), 2, 0.8, fc=BLUE))
    ax.text(8.25, -1.2, "r W", va="center", color=BLUE)
    ax.text(5.1, 6.2, "n × n, never stored", fontsize=9, color="#555555", ha="center")
    _bare(ax, (-2, 10), (-2.2, 9))


def _draw_spans(ax: Axes) -> None:
    ax.set_title("Spans upwards: one column for each document", fontsize=10, loc="left")
    spans = ((0, 3, BLUE, "doc 1"), (3, 6, ORANGE, "doc 2"), (6, 8, "#009E73", "question"))
    for level, mix in enumerate((0.0, 0.25, 0.45)):
        y = 3.1 * level
        for first, end, colour, name in spans:
            for x in range(8):
                inside = first <= x < end
                share = (1 - mix if inside else mix / 2) if x >= first else 0.0
                row = [s[2] for s in spans].index(colour)
                box = Rectangle((x, y + 0.62 * row), 0.92, 0.55, fc=colour, alpha=max(share, 0.03))
                ax.add_patch(box)
            if level == 0:
                row = [s[2] for s in spans].index(colour)
                ax.text(-0.2, 0.3 + 0.62 * row, name, ha="right", va="center", fontsize=8.5)
        label = "inputs" if level == 0 else f"layer {level}"
        ax.text(8.3, y + 0.9, label, va="center", fontsize=9, color="#555555")
        if level:
            ax.annotate("", (4, y - 0.1), (4, y - 1.15), arrowprops={"arrowstyle": "-|>"})
            ax.text(4.2, y - 0.65, "C ← ½ C + ½ W C", va="center", fontsize=8.5)
    _bare(ax, (-2.6, 10.5), (-0.5, 8.6))


def _bare(ax: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    ax.set_xlim(*x)
    ax.set_ylim(*y)
    ax.set_aspect("equal")
    ax.axis("off")


if __name__ == "__main__":
    draw_all()
