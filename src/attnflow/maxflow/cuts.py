"""One pair in full: its minimum cut and a maximum flow on every edge."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import TargetError
from attnflow.maxflow.kernel import solve_open
from attnflow.maxflow.scaling import Floats, scale
from attnflow.maxflow.state import SOURCE, TARGET, Integers, Work, build_graph, new_work


@dataclass(frozen=True, eq=False)
class MinimumCut:
    """The edges that hold one flow back: together they carry all of it, and each is full.

    Of several minimum cuts this is the one nearest to the target.

    >>> cut = minimum_cut(np.ones((1, 2, 2)), layer=1, target=0, source=1)
    >>> type(cut).__name__, cut.value, cut.lower
    ('MinimumCut', 1.0, 1.0)
    """

    edges: Integers  # (edges, 3): layer, target (upper end), source (lower end)
    capacities: Floats  # as given
    value: float  # their sum, an upper bound of the flow
    lower: float  # the value of `flow`, a lower bound
    flow: Floats  # (layers, targets, sources): a maximum flow on every edge
    side: NDArray[np.bool_]  # (layers + 1, positions): True on the target's side of the cut


def minimum_cut(capacities: NDArray[Any], *, layer: int, target: int, source: int) -> MinimumCut:
    """Solve one pair and read its minimum cut off the last, failing search.

    >>> capacities = np.array([[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]])
    >>> cut = minimum_cut(capacities, layer=2, target=0, source=1)
    >>> cut.value, cut.edges.tolist()
    (0.75, [[1, 0, 1], [2, 0, 1]])
    """
    scaled = scale(capacities, np.inf)
    depth, n, _ = scaled.integers.shape
    if not (1 <= layer < depth and 0 <= target < n and 0 <= source < n):
        raise TargetError(
            f"Layer {layer}, target {target}, source {source} is not there: "
            f"layers are 1 to {depth - 1}, positions 0 to {n - 1}."
        )
    integers, side = _solve(scaled.integers[: layer + 1], layer, target, source)
    floats = np.asarray(capacities, np.float64)[:layer]
    crossing = side[1:, :, None] & ~side[:-1, None, :] & (floats > 0)
    edges = np.argwhere(crossing) + np.array([1, 0, 0])
    return MinimumCut(
        edges=edges,
        capacities=floats[crossing],
        value=fsum(floats[crossing]),
        lower=float(scaled.lower(integers[-1, target].sum(keepdims=True))[0]),
        flow=np.ldexp(integers.astype(np.float64), -scaled.exponent),
        side=side,
    )


def flow_edges(capacities: NDArray[Any], *, layer: int, target: int, source: int) -> Floats:
    """A maximum flow on every edge, `(layer, targets, sources)`; index 0 is layer 1.

    >>> capacities = np.array([[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]])
    >>> flow_edges(capacities, layer=2, target=0, source=1)[1].tolist()
    [[0.25, 0.5], [0.0, 0.0]]
    """
    return minimum_cut(capacities, layer=layer, target=target, source=source).flow


def _solve(
    integers: Integers, layer: int, target: int, source: int
) -> tuple[Integers, NDArray[np.bool_]]:
    """An integer maximum flow and the target's side of a minimum cut."""
    n = integers.shape[1]
    flow = np.zeros((layer, n, n), np.int64)
    side = np.zeros((layer + 1, n), np.bool_)
    side[layer, target] = True
    side[0] = np.arange(n) != source
    if layer == 1:
        flow[0, target, source] = integers[1, target, source]
        return flow, side
    graph = build_graph(integers)
    work = new_work(graph)
    solve_open(graph, work, layer, target, source)
    flow[1:-1] = integers[2:layer] - work.residual[2:layer, :n, :n]
    flow[-1, target] = integers[layer, target] - work.ends[TARGET, :n]
    flow[0, :, source] = integers[1, :, source] - work.ends[SOURCE, :n]
    side[1:layer] = ~_members(work, layer, n)
    return flow, side


def _members(work: Work, layer: int, n: int) -> NDArray[np.bool_]:
    """The nodes of layers 1 .. layer-1 that the last search did not reach."""
    octets = work.unseen[1:layer].astype("<u8").view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little")[:, :n].astype(np.bool_)
