"""The compiled solver: a plan from vectors, the exact search, and changes of ends between pairs.

The first pair of a run starts from a plan.  Every next pair that shares its source token or its
target with the one before keeps that pair's flow, and only its ends change:

* *another target, same source token.*  What lies below the top layer is a flow into the token,
  whoever sends it; let x_k be what node k of the top layer passes on.  The new target has capacity
  a_k to node k, so min(x_k, a_k) of it stays, a_k - x_k may still enter, and x_k - a_k is *excess*.
  The search brings flow from where it may enter to where there is excess, and takes the excess back
  along the way; or to the token, where that has room.
* *another source token, same target*: the same, upside down.  What reaches layer 1 and cannot go on
  to the new token is *surplus*, and looks for a way to nodes from which it can.

Excess that nobody replaced is left where it is: the value is the sum of min(x_k, a_k).  That is the
maximum once the search fails.  Proof: let R be the nodes the failing search reached.  No node of R
has excess or an open edge to the token.  Excess of a node outside R can be cancelled along the flow
it passes on, and that flow never enters R: an edge from outside R into R that carries flow could be
taken back, so its upper end would be in R.  After cancelling there is a flow of the stated value,
every edge out of R is full and none into R carries flow, so R is the target's side of a cut of the
same value.  (For surplus, turn the graph upside down.)
"""

from __future__ import annotations

from attnflow.maxflow.compiled import NONE, bit, compiled, inlined
from attnflow.maxflow.construct import commit, draw_plan, drop_plan, undo_moves
from attnflow.maxflow.search import clean, search
from attnflow.maxflow.state import (
    EXCESS,
    SOURCE,
    SURPLUS,
    TARGET,
    UNBOUNDED,
    Graph,
    Integers,
    Words,
    Work,
)

__all__ = ["solve_open", "solve_run"]

CONSTRUCTED, SEARCHED = 2, 3


@inlined
def change_ends(
    capacities: Integers, following: Integers, ends: Integers, room: int, over: int
) -> int:
    """Replace the capacities of one end by the `following` ones; returns what flows through them.

    `ends[room]` is what is left of the capacities, `ends[over]` what flows beyond them.
    """
    total = 0
    for v in range(capacities.shape[0]):
        flow = capacities[v] - ends[room, v] + ends[over, v]
        ends[room, v] = max(0, following[v] - flow)
        ends[over, v] = max(0, flow - following[v])
        total += min(flow, following[v])
    return total


@inlined
def hide_before(position: int, length: int, unseen: Words) -> None:
    """Searches leave out earlier positions: from there no edge leads back to the source token."""
    for w in range(unseen.shape[1]):
        unseen[0, w] = NONE
    for v in range(position, length):
        unseen[0, v >> 6] |= bit(v)


@compiled
def solve_run(
    graph: Graph, work: Work, layer: int, targets: Integers, sources: Integers,
    ceilings: Integers, slack: int, warm: bool, lower: Integers, upper: Integers, how: Integers,
) -> None:  # fmt: skip
    """Maximum flows of many pairs at one layer >= 3.

    With `warm`, a pair keeps the flow of the one before where they share an end: this pays where
    plans rarely reach their ceilings.

    `ceilings` are known upper bounds; a flow within `slack` of its ceiling is accepted.
    """
    capacity, transposed, positive, channel, barren, causal = graph
    (
        residual, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest, path,
        touched, rows, counts, plan, channels, vectors,
    ) = work  # fmt: skip
    count = targets.shape[0]
    target, source, loaded = -1, -1, False  # the pair whose flow is loaded
    floor = 0  # no loaded flow has passed an earlier position
    way = SOURCE  # the end that all pairs since the last plan share
    for t in range(count):
        enough = ceilings[t] - slack
        upper[t] = ceilings[t]
        if loaded and warm and sources[t] == source and way == SOURCE:
            value = change_ends(
                capacity[layer, target], capacity[layer, targets[t]], ends, TARGET, EXCESS
            )
        elif loaded and warm and targets[t] == target and way == TARGET:
            value = change_ends(
                transposed[1, source], transposed[1, sources[t]], ends, SOURCE, SURPLUS
            )
        else:
            if loaded:
                clean(capacity, positive, residual, forward, backward, touched, counts, layer)
                undo_moves(capacity, residual, rows, touched, counts)
            target, source = targets[t], sources[t]
            value = draw_plan(
                capacity, transposed, channel, residual, plan, vectors, channels, rows,
                touched, counts, barren, layer, target, source, enough,
            )  # fmt: skip
            way = SOURCE if t + 1 < count and sources[t + 1] == source else TARGET
            next_shares = t + 1 < count and (sources[t + 1] == source or targets[t + 1] == target)
            loaded = value < enough or (warm and next_shares)
            if loaded:
                commit(
                    capacity, transposed, residual, forward, backward, touched, counts, ends, plan,
                    vectors, channels, rows, layer, target, source,
                )  # fmt: skip
            else:
                undo_moves(capacity, residual, rows, touched, counts)
            drop_plan(plan, layer)
            floor = source
        target, source = targets[t], sources[t]
        if causal:
            floor = min(floor, source)
            hide_before(floor, ends.shape[1], unseen)
        how[t] = CONSTRUCTED
        if value < enough:
            how[t] = SEARCHED
            value, optimal = search(
                capacity, residual, forward, backward, touched, counts, ends, open_ends, unseen,
                slot_nodes, slots, newest, path, layer, value, enough,
            )  # fmt: skip
            if optimal:
                upper[t] = value
        lower[t] = value
    if loaded:
        clean(capacity, positive, residual, forward, backward, touched, counts, layer)
        undo_moves(capacity, residual, rows, touched, counts)


def solve_open(graph: Graph, work: Work, layer: int, target: int, source: int) -> int:
    """Solve one pair at layer >= 2 to its minimum cut and leave flow and cut in `work`."""
    value = draw_plan(
        graph.capacity, graph.transposed, graph.channel, work.residual, work.plan, work.vectors,
        work.channels, work.rows, work.touched, work.counts, graph.barren, layer, target, source,
        UNBOUNDED,
    )  # fmt: skip
    commit(
        graph.capacity, graph.transposed, work.residual, work.forward, work.backward,
        work.touched, work.counts, work.ends, work.plan, work.vectors, work.channels, work.rows,
        layer, target, source,
    )  # fmt: skip
    value, _ = search(
        graph.capacity, work.residual, work.forward, work.backward, work.touched, work.counts,
        work.ends, work.open_ends, work.unseen, work.slot_nodes, work.slots, work.newest,
        work.path, layer, value, UNBOUNDED,
    )  # fmt: skip
    return int(value)
