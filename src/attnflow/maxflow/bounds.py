"""Answers that are known without solving: closed forms for shallow layers, bounds for deep ones.

Write ``f_k`` for the flow of (l-1, k) to source token j, and ``g(S)`` for the most that a set S of
nodes of layer l-1 can send to j together.  By max-flow min-cut

    flow_l(i, j) = min over S of  A_l(i, not S) + g(S),

and ``max of f_k over S  <=  g(S)  <=  sum of f_k over S``.  The left bound makes the minimum run
over thresholds only, because a set that contains k with f_k = t contains, at no extra cost, every
k' with f_k' <= t; the right one makes it separate into one minimum per k:

    min over t of  A_l(i, {k: f_k > t}) + t   <=   flow_l(i, j)
                                              <=   sum over k of min(A_l[i, k], f_k).

Where the two meet, the pair is decided.  All of it is integer arithmetic on the integer graph, so
"meet" means equal.
"""

from __future__ import annotations

import numpy as np

from attnflow.maxflow.compiled import compiled
from attnflow.maxflow.scaling import Scaled
from attnflow.maxflow.state import Graph, Integers


def one_layer(capacity: Integers, targets: Integers, sources: Integers) -> Integers:
    """Layer 1: the single edge of each pair."""
    return capacity[1, targets, sources]


def two_layers(capacity: Integers, targets: Integers, sources: Integers) -> Integers:
    """Layer 2: one path per middle node, and no two of them share an edge."""
    values = np.empty(len(targets), np.int64)
    columns, place = np.unique(sources, return_inverse=True)
    column = np.ascontiguousarray(capacity[1][:, columns].T)
    _two_layers(capacity[2], column, targets, place, values)
    return values


def ceiling(scaled: Scaled, layer: int, targets: Integers, sources: Integers) -> Integers:
    """All a target can send or all an input token can receive, whichever is less."""
    return np.minimum(scaled.row_sum[layer, targets], scaled.column_sum[sources])


def reachable_ceiling(scaled: Scaled, layer: int, targets: Integers, sources: Integers) -> Integers:
    """The lesser of `end_ceilings`."""
    return np.minimum(*end_ceilings(scaled, layer, targets, sources))


def end_ceilings(
    scaled: Scaled, layer: int, targets: Integers, sources: Integers
) -> tuple[Integers, Integers]:
    """For flat lists of pairs: all a target can send to its source, and the source receive of it.

    Where no edge leads to the right, what a target sends to positions before the source can never
    come back to it, and what the source passes on to positions after the target never came from
    there.  Decoders send much of their attention to their first token, so this is what holds most
    deep causal flows back.
    """
    if not scaled.causal[layer]:
        return scaled.row_sum[layer, targets], scaled.column_sum[sources]
    rows, row = np.unique(targets, return_inverse=True)
    columns, column = np.unique(sources, return_inverse=True)
    sent = scaled.integers[layer][rows, ::-1].cumsum(axis=1)[:, ::-1]
    received = scaled.integers[1][:, columns].cumsum(axis=0)
    return sent[row, sources], received[targets, column]


def from_layer_below(
    graph: Graph,
    scaled: Scaled,
    layer: int,
    source: int,
    below_lower: Integers,
    below_upper: Integers,
) -> tuple[Integers, Integers]:
    """Lower and upper bounds at `layer` for every target, from all the flows one layer below."""
    n = len(below_lower)
    order = np.argsort(-below_lower, kind="stable")
    columns = graph.transposed[layer]
    above, lower, upper = (np.zeros(columns.shape[1], np.int64) for _ in range(3))
    _recursion(columns, order, below_lower[order], below_upper[order], above, lower, upper)
    upper = np.minimum(upper[:n], np.minimum(scaled.row_sum[layer], scaled.column_sum[source]))
    return np.minimum(lower[:n], upper), upper


@compiled
def _two_layers(
    rows: Integers, columns: Integers, targets: Integers, sources: Integers, values: Integers
) -> None:
    for t in range(targets.shape[0]):
        row = rows[targets[t]]
        column = columns[sources[t]]
        total = 0
        for v in range(row.shape[0]):
            total += min(row[v], column[v])
        values[t] = total


@compiled
def _recursion(
    columns: Integers, order: Integers, below_lower: Integers, below_upper: Integers,
    above: Integers, lower: Integers, upper: Integers,
) -> None:  # fmt: skip
    """Thresholds from the largest flow down, for all targets at once.

    After step r, `above` is A_l(i, the r nodes with the largest flows); the next threshold is the
    next largest flow, and 0 after the last.
    """
    n, nodes = above.shape[0], order.shape[0]
    for i in range(n):
        lower[i] = below_lower[0]
    for r in range(nodes):
        column = columns[order[r]]
        flow = below_upper[r]
        threshold = below_lower[r + 1] if r + 1 < nodes else 0
        for i in range(n):
            above[i] += column[i]
            lower[i] = min(lower[i], above[i] + threshold)
            upper[i] += min(column[i], flow)
