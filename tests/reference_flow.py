"""One maximum flow with scipy, certified: the oracle every other solver is held against.

Capacities are scaled to integers and rounded down, so the integer flow is a feasible flow of the
original graph and its value a rigorous lower bound. The nodes that the residual graph still
reaches from the target form a minimum cut of the integer graph; the same cut summed in the
original capacities is a rigorous upper bound. The two differ by at most the number of cut edges
divided by the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from attnflow.graph import LayeredGraph

_LARGEST = 2**30  # scipy silently wraps integers above int32; half of it leaves room for sums


@dataclass(frozen=True, eq=False)
class CertifiedFlow:
    """A feasible flow on every edge, and the target's side of a cut of the same value."""

    lower: float
    upper: float
    flow: NDArray[np.float64]  # (layer, target, source), layers 1 to the target's
    side: NDArray[np.bool_]  # (layer + 1, position): True where the target's side of the cut is


def solve_pair(graph: LayeredGraph, *, layer: int, target: int, source: int) -> CertifiedFlow:
    """The maximum flow from (layer, target) down to (0, source)."""
    capacities = graph.capacities[:layer]
    n = graph.length
    scale = _LARGEST / max(capacities.sum(axis=2).max(), 1.0)
    integers = np.floor(capacities * scale).astype(np.int32)
    above, upper_end, lower_end = np.nonzero(integers)
    rows, columns = (above + 1) * n + upper_end, above * n + lower_end
    size = (layer + 1) * n
    edges = sparse.csr_array((integers[above, upper_end, lower_end], (rows, columns)), (size, size))
    result = csgraph.maximum_flow(edges, layer * n + target, source)
    flow = np.zeros(integers.shape, dtype=np.int64)
    flow[above, upper_end, lower_end] = np.maximum(result.flow.toarray()[rows, columns], 0)
    side = _reached(integers, flow, layer, target)
    crossing = side[1:, :, None] & ~side[:-1, None, :]
    return CertifiedFlow(
        lower=float(result.flow_value / scale),
        upper=float(capacities[crossing].sum()),
        flow=flow / scale,
        side=side,
    )


def _reached(
    capacities: NDArray[np.int32], flow: NDArray[np.int64], layer: int, target: int
) -> NDArray[np.bool_]:
    """Nodes reachable from the target through what is left of the edges, and back along flow."""
    spare = capacities > flow
    side = np.zeros((layer + 1, capacities.shape[1]), dtype=bool)
    side[layer, target] = True
    while True:
        before = int(side.sum())
        for level in range(layer, 0, -1):
            side[level - 1] |= spare[level - 1][side[level]].any(axis=0)
        for level in range(1, layer + 1):
            side[level] |= (flow[level - 1][:, side[level - 1]] > 0).any(axis=1)
        if int(side.sum()) == before:
            return side
