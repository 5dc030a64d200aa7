"""Attention as the layered graph it is: arrows from each target down to the layer below.

The paper's Figure 1. Layer 0 at the bottom is the input; what is drawn of an arrow, its width and
its strength, is its weight, or, for one target, how much of it passes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.graph import Cut, LayeredGraph
from attnflow.methods import Flow, MixingMethod, Rollout
from attnflow.methods.base import checked_trace, layers_from
from attnflow.show.plots import canvas
from attnflow.tokens import TokenRef, Tokens
from attnflow.trace import AttentionTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Matrix = NDArray[np.float64]

_MOST_ARROWS = 4000  # more take minutes to draw and show nothing
_WIDEST = 4.5  # points, of the strongest arrow
_WIDEST_SHARE = 12.0  # of all of a target: below it divides with every layer
_FAINTEST = 0.01  # arrows below this share of the strongest are not seen
_TARGET_SIDE, _SOURCE_SIDE = "#56B4E9", "#F0E442"  # Okabe and Ito's sky blue and yellow


@dataclass(frozen=True)
class _Stack:
    """Capacities between consecutive layers that are drawn, with the names of both."""

    capacities: Matrix
    numbers: tuple[int, ...]
    tokens: Tokens
    below: int  # the number of the lowest row of nodes; 0 is the input


def attention_graph(
    graph: AttentionTrace | LayeredGraph,
    *,
    target: TokenRef | None = None,
    layers: Sequence[int] | None = None,
    top: int = 4,
    tokens: Sequence[str] | None = None,
    mixing: MixingMethod | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw nodes layer × token and the `top` strongest arrows of each, as wide as their weight.

    With a target, its paths from the uppermost layer down are coloured. An arrow is then as wide
    as the share of the target that passes there, so that what arrives at a token is its rollout;
    with `mixing=Flow()`, as wide as the pipe is.

    layers: consecutive ones, e.g. range(1, 4); default: all. tokens: names for a LayeredGraph.
    mixing: the method whose matrices are drawn; default `Rollout()`, heads averaged and half of
        each layer the residual connection.

    >>> from attnflow import AttentionTrace
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> attention_graph(trace, target="key").get_title()
    'width, dots: share of the target that passes'
    """
    stack = _between(_stack(graph, tokens, mixing or Rollout()), layers)
    strengths = stack.capacities
    row = None if target is None else stack.tokens.index_of(target)
    axes = _new_graph(stack) if ax is None else ax
    arrows, strongest = _strongest(strengths, top), float(strengths.max())
    if row is None:
        caption = "width: weight"
        _draw_arrows(axes, arrows, strongest, canvas.GREY)
    else:
        _draw_arrows(axes, arrows, strongest, canvas.GREY, faint=0.1)
        caption = _draw_paths(axes, strengths, arrows, row, top, pipes=isinstance(mixing, Flow))
    _draw_nodes(axes, stack, row)
    canvas.heading(axes, caption)
    return axes


def cut_graph(
    method: Flow,
    trace: AttentionTrace,
    *,
    target: TokenRef,
    source: TokenRef,
    layer: int = -1,
    top: int = 4,
    ax: Axes | None = None,
) -> Axes:
    """Draw the minimum cut between a target and a source: the cut arrows are coloured, the
    target's side and the source's side shaded.

    >>> from attnflow import AttentionTrace, Flow
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> axes = cut_graph(Flow(), trace, target="key", source="the")
    >>> axes.get_title().splitlines()[0]
    'key at layer 1 to the: flow 0.250'
    """
    cut = method.minimum_cut(trace, target=target, source=source, layer=layer)
    numbers = layers_from(trace.layers, method.start_layer)
    numbers = numbers[: numbers.index(cut.layer) + 1]
    capacities = method.graph(trace).capacities[: len(numbers)]
    bottom = trace.layers.index(numbers[0])
    stack = _Stack(capacities, numbers, trace.tokens, trace.layers[bottom - 1] if bottom else 0)
    ends = trace.tokens.index_of(target), trace.tokens.index_of(source)
    crossing = _crossing(stack, cut)
    axes = _new_graph(stack) if ax is None else ax
    # Every edge from the target's side to the source's is cut, so walking uncut edges never leaves
    # it. All of it is reached: the solver counts to it the nodes the target has room to, and where
    # that room is flow taken back from a node, the flow came to that node along edges of this
    # side, for flow crosses a minimum cut once.
    _shade(axes, _reached(capacities * ~crossing, ends[0]), _TARGET_SIDE)
    reachable = _reached(capacities, ends[0])
    upside_down = (capacities * ~crossing).transpose(0, 2, 1)[::-1]
    _shade(axes, reachable & _reached(upside_down, ends[1])[::-1], _SOURCE_SIDE)
    strongest = float(capacities.max())
    _draw_arrows(axes, _strongest(capacities * ~crossing, top), strongest, canvas.GREY, faint=0.35)
    _draw_arrows(axes, capacities * crossing, strongest, canvas.VERMILION, least=0.0, floor=0.9)
    _draw_nodes(axes, stack, ends[0])
    _draw_cut_legend(axes, cut)
    return axes


def passing(capacities: Matrix, target: int) -> Matrix:
    """Return how much of a target passes each edge, `(layers, n, n)`: its rollout at the inputs."""
    mass = np.zeros(capacities.shape[1])
    mass[target] = 1.0
    passed = np.empty_like(capacities)
    for k in range(len(capacities) - 1, -1, -1):
        passed[k] = mass[:, None] * capacities[k]
        mass = passed[k].sum(axis=0)
    return passed


# -- what is drawn ----------------------------------------------------------------------------


def _stack(
    graph: AttentionTrace | LayeredGraph, tokens: Sequence[str] | None, mixing: MixingMethod
) -> _Stack:
    if isinstance(graph, Attribution):
        raise InputError("A graph is drawn of a trace or a LayeredGraph; a result has no edges.")
    if isinstance(graph, LayeredGraph):
        names = Tokens.of(tokens or [str(k) for k in range(graph.length)])
        if len(names) != graph.length:
            raise InputError(f"{len(names)} tokens for a graph of {graph.length} positions.")
        return _Stack(graph.capacities, tuple(range(1, graph.layers + 1)), names, 0)
    if tokens is not None:
        raise InputError("tokens= names the positions of a LayeredGraph; a trace has its own.")
    trace = checked_trace(graph)
    return _Stack(mixing.layer_matrices(trace), trace.layers, trace.tokens, 0)


def _between(stack: _Stack, layers: Sequence[int] | None) -> _Stack:
    """Return the part of a stack that these consecutive layers make."""
    if layers is None:
        return stack
    numbers = tuple(sorted(layers))
    index = [k for k, number in enumerate(stack.numbers) if number in numbers]
    if not index or len(index) != len(numbers) or index[-1] - index[0] + 1 != len(index):
        raise InputError(
            f"layers={list(layers)!r}: a graph needs consecutive layers, from "
            f"{', '.join(map(str, stack.numbers))}; for example layers=range(1, 4)."
        )
    below = stack.numbers[index[0] - 1] if index[0] else 0
    return _Stack(stack.capacities[index[0] : index[-1] + 1], numbers, stack.tokens, below)


def _strongest(strengths: Matrix, top: int) -> Matrix:
    """Return only the `top` strongest edges out of each node; all others are zero."""
    if top < 1:
        raise InputError(f"top is at least 1 arrow for each node; got {top}.")
    order = np.argsort(-strengths, axis=2, kind="stable")[:, :, :top]
    arrows = np.zeros_like(strengths)
    np.put_along_axis(arrows, order, np.take_along_axis(strengths, order, axis=2), axis=2)
    return arrows


def _crossing(stack: _Stack, cut: Cut) -> NDArray[np.bool_]:
    crossing = np.zeros(stack.capacities.shape, bool)
    for edge in cut.edges:
        crossing[stack.numbers.index(edge.layer), edge.target, edge.source] = True
    return crossing


def _reached(edges: Matrix, target: int) -> NDArray[np.bool_]:
    """Mark the nodes that edges lead to from a target at the uppermost layer, (layers + 1, n)."""
    reached = np.zeros((len(edges) + 1, edges.shape[1]), bool)
    reached[-1, target] = True
    for k in range(len(edges) - 1, -1, -1):
        reached[k] = (edges[k][reached[k + 1]] > 0).any(axis=0)
    return reached


# -- drawing ----------------------------------------------------------------------------------


def _new_graph(stack: _Stack) -> Axes:
    return canvas.new_axes(1.6 + 0.8 * len(stack.tokens), 1.4 + 0.85 * len(stack.numbers))


def _draw_paths(
    axes: Axes, capacities: Matrix, arrows: Matrix, target: int, top: int, *, pipes: bool
) -> str:
    """Draw the paths of one target, and return what their width says."""
    if pipes:
        reached = arrows * _reached(arrows, target)[1:, :, None]
        _draw_arrows(axes, reached, float(capacities.max()), canvas.BLUE)
        return "width: capacity"
    passed = passing(capacities, target)
    mass = passed.sum(axis=1)  # (layers, n): what arrives at each node of the layer below
    for level, position in np.argwhere(mass > _FAINTEST).tolist():
        style: dict[str, Any] = {"color": canvas.BLUE, "alpha": 0.35, "linewidths": 0, "zorder": 2}
        axes.scatter([position], [level], s=900 * float(mass[level, position]), **style)
    _draw_arrows(axes, _strongest(passed, top), 1.0, canvas.BLUE, widest=_WIDEST_SHARE, weakest=0.6)
    return "width, dots: share of the target that passes"


def _draw_arrows(
    axes: Axes,
    strengths: Matrix,
    strongest: float,
    colour: str,
    *,
    faint: float = 1.0,
    weakest: float = 0.25,
    least: float = _FAINTEST,
    widest: float = _WIDEST,
    floor: float = 0.0,
) -> None:
    """Draw arrows as wide as their strength, and the stronger the less they let through.

    faint: how strong the strongest is drawn; weakest: the weakest beside it; least: the share of
    the strongest below which none is drawn; floor: points that are added to every width.
    """
    shares = strengths / (strongest or 1.0)
    places = np.argwhere(shares > least)
    if len(places) > _MOST_ARROWS:
        raise InputError(
            f"A graph of {len(places)} arrows cannot be read; draw fewer layers (layers=), fewer "
            f"arrows for each node (top=) or a shorter text: at most {_MOST_ARROWS}."
        )
    for level, target, source in places.tolist():
        share = float(shares[level, target, source])
        arrow = canvas.matplotlib("patches").FancyArrowPatch(
            (target, level + 1),
            (source, level),
            arrowstyle="-|>",
            mutation_scale=4 + 6 * share,
            linewidth=floor + widest * share,
            color=colour,
            alpha=1.0 if floor else faint * (weakest + (1 - weakest) * share),
            shrinkA=4,
            shrinkB=4,
        )
        arrow.set_gid(f"edge-{level + 1}-{target}-{source}")
        axes.add_patch(arrow)


def _draw_nodes(axes: Axes, stack: _Stack, target: int | None) -> None:
    levels, n = len(stack.numbers), len(stack.tokens)
    places = np.indices((levels + 1, n)).reshape(2, -1)
    axes.scatter(places[1], places[0], s=14, color="black", zorder=3, linewidths=0)
    axes.set_xlim(-0.6, n - 0.4)
    axes.set_ylim(-0.4, levels + 0.5)
    canvas.name_ticks(axes, "x", stack.tokens)
    names = ["input" if stack.below == 0 else f"layer {stack.below}"]
    names += [f"layer {number}" for number in stack.numbers]
    canvas.name_ticks(axes, "y", names)
    if target is not None:
        axes.scatter([target], [levels], s=60, color=canvas.BLUE, zorder=4, linewidths=0)
        axes.annotate(
            canvas.label(stack.tokens[target]),
            (target, levels),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            fontweight="bold",
            color=canvas.BLUE,
            **canvas.plain(),
        )
    canvas.bare(axes)


def _shade(axes: Axes, side: NDArray[np.bool_], colour: str) -> None:
    """Draw a cell behind each node of a side, so that a side is seen as an area."""
    for level, position in np.argwhere(side).tolist():
        corner, style = (position - 0.5, level - 0.5), {"color": colour, "alpha": 0.35}
        cell = canvas.matplotlib("patches").Rectangle(corner, 1, 1, linewidth=0, zorder=0, **style)
        axes.add_patch(cell)


def _draw_cut_legend(axes: Axes, cut: Cut) -> None:
    patch = canvas.matplotlib("patches").Patch
    entries = [
        patch(color=_TARGET_SIDE, alpha=0.35, label="the target's side"),
        patch(color=_SOURCE_SIDE, alpha=0.35, label="the source's side"),
        patch(color=canvas.VERMILION, label=f"cut: {len(cut.edges)} arrows"),
    ]
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3}
    axes.legend(handles=entries, fontsize=canvas.SMALL, frameon=False, **place)
    ends = f"{canvas.label(cut.target)} at layer {cut.layer} to {canvas.label(cut.source)}"
    canvas.heading(axes, f"{ends}: flow {cut.value:.3f}\n{cut.place}", pad=24)
