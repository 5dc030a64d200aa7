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

from attnflow.maxflow.compiled import NONE, ONE, bit, compiled, inlined, natural, trailing_zeros
from attnflow.maxflow.construct import commit, drop_plan, plan_pair
from attnflow.maxflow.edges import clean, send_down, take_back
from attnflow.maxflow.search import search
from attnflow.maxflow.state import (
    EXCESS,
    SOURCE,
    SURPLUS,
    TARGET,
    UNBOUNDED,
    Draft,
    Graph,
    Integers,
    Words,
    Work,
)

CONSTRUCTED, SEARCHED = 2, 3
PATIENCE = 3
"""How many plans of one end may fail, with none before that did not, until no more are drawn."""


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
def swap_targets(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, layer: int, taker: int, giver: int,
) -> int:  # fmt: skip
    """Flow that `giver` sends beyond its end is sent by `taker` instead: down its own channel to
    some layer, and from there to the same nodes; returns how much.

    Half of what a target sends falls down its own channel.  So when the target changes, this is
    most of what has to change, and needs no search.  The lowest layer comes first: a search has to
    go a long way to change something there.
    """
    value = 0
    for m in range(2, layer):
        most = min(ends[TARGET, taker], ends[EXCESS, giver])
        for k in range(m + 1, layer):
            most = min(most, residual[k, taker, taker])
            most = min(most, flow[k, giver, giver])
        left = most
        if left <= 0:
            continue
        for w in range(ends.shape[1]):
            amount = min(min(residual[m, taker, w], flow[m, giver, w]), left)
            if amount > 0:
                send_down(residual, flow, forward, backward, touched, counts, m, taker, w, amount)
                take_back(residual, flow, forward, backward, m, giver, w, amount)
                left -= amount
                if left == 0:
                    break
        amount = most - left
        if amount > 0:
            for k in range(m + 1, layer):
                send_down(
                    residual, flow, forward, backward, touched, counts, k, taker, taker, amount
                )
                take_back(residual, flow, forward, backward, k, giver, giver, amount)
            ends[TARGET, taker] -= amount
            ends[EXCESS, giver] -= amount
            value += amount
    return value


@inlined
def swap_sources(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, layer: int, taker: int, giver: int,
) -> int:  # fmt: skip
    """The mirror of `swap_targets`: what `giver` passes on beyond its end, `taker` passes on."""
    value = 0
    for m in range(layer - 1, 1, -1):
        most = min(ends[SOURCE, taker], ends[SURPLUS, giver])
        for k in range(2, m):
            most = min(most, residual[k, taker, taker])
            most = min(most, flow[k, giver, giver])
        left = most
        if left <= 0:
            continue
        for x in range(backward.shape[2]):
            nodes = backward[m, giver, x]
            while nodes != NONE and left > 0:
                w = (x << 6) + trailing_zeros(nodes)
                nodes &= nodes - ONE
                amount = min(min(residual[m, w, taker], flow[m, w, giver]), left)
                if amount > 0:
                    send_down(
                        residual, flow, forward, backward, touched, counts, m, w, taker, amount
                    )
                    take_back(residual, flow, forward, backward, m, w, giver, amount)
                    left -= amount
        amount = most - left
        if amount > 0:
            for k in range(2, m):
                send_down(
                    residual, flow, forward, backward, touched, counts, k, taker, taker, amount
                )
                take_back(residual, flow, forward, backward, k, giver, giver, amount)
            ends[SOURCE, taker] -= amount
            ends[SURPLUS, giver] -= amount
            value += amount
    return value


@inlined
def hide_before(position: int, length: int, unseen: Words) -> None:
    """Searches leave out earlier positions: from there no edge leads back to the source token."""
    for w in range(unseen.shape[1]):
        unseen[0, w] = NONE
    for v in range(position, length):
        unseen[0, v >> 6] |= bit(v)


@compiled
def plan_run(
    graph: Graph, draft: Draft, layer: int, targets: Integers, sources: Integers,
    ceilings: Integers, slack: int, misses: Integers, lower: Integers, how: Integers,
) -> None:  # fmt: skip
    """Plans for many pairs at one layer >= 3: the flow of those that are proven to come within
    `slack` of their known upper bounds, `ceilings`; `how` becomes `SEARCHED` for the others.

    Where plans fail they mostly fail for all pairs of a target, or of a source token.  So after
    some that failed, with no other in between, the other pairs of that end are not planned.
    misses: [TARGET | SOURCE, v], zeros; -1 once a plan of that end was enough.
    """
    capacity, transposed, _, _, coarse = graph
    for t in range(targets.shape[0]):
        target, source = targets[t], sources[t]
        how[t] = SEARCHED
        if max(misses[TARGET, target], misses[SOURCE, source]) >= PATIENCE:
            continue
        value, proof = plan_pair(
            capacity, transposed, coarse, draft, layer, target, source, ceilings[t], slack,
            natural(1),
        )  # fmt: skip
        drop_plan(draft)
        if value >= proof:
            lower[t] = ceilings[t] - slack + ((value - proof) << coarse.shift)
            how[t] = CONSTRUCTED
            misses[TARGET, target] = -1
            misses[SOURCE, source] = -1
        else:
            misses[TARGET, target] += misses[TARGET, target] >= 0
            misses[SOURCE, source] += misses[SOURCE, source] >= 0


@compiled
def solve_run(
    graph: Graph, work: Work, layer: int, targets: Integers, sources: Integers,
    ceilings: Integers, slack: int, lower: Integers, upper: Integers,
) -> None:  # fmt: skip
    """Maximum flows of many pairs at one layer >= 3.

    A pair keeps the flow of the one before where they share an end.

    `ceilings` are known upper bounds; a flow within `slack` of its ceiling is accepted.
    """
    capacity, transposed, positive, causal, _ = graph
    (
        residual, flow, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest,
        path, touched, counts, _,
    ) = work  # fmt: skip
    count = targets.shape[0]
    target, source, loaded = natural(0), natural(0), False  # the pair whose flow is loaded
    floor = 0  # no loaded flow has passed an earlier position
    way = SOURCE  # the end that all pairs since the last plan share
    for t in range(count):
        enough = ceilings[t] - slack
        upper[t] = ceilings[t]
        if loaded and sources[t] == source and way == SOURCE:
            value = change_ends(
                capacity[layer, target], capacity[layer, targets[t]], ends, TARGET, EXCESS
            )
            value += swap_targets(
                residual, flow, forward, backward, touched, counts, ends, layer, targets[t], target,
            )  # fmt: skip
        elif loaded and targets[t] == target and way == TARGET:
            value = change_ends(
                transposed[1, source], transposed[1, sources[t]], ends, SOURCE, SURPLUS
            )
            value += swap_sources(
                residual, flow, forward, backward, touched, counts, ends, layer, sources[t], source,
            )  # fmt: skip
        else:
            if loaded:
                clean(positive, residual, flow, forward, backward, touched, counts, layer)
            loaded = True
            value = begin(graph, work, layer, targets[t], sources[t], ceilings[t])
            way = SOURCE if t + 1 < count and sources[t + 1] == sources[t] else TARGET
            floor = sources[t]
        target, source = targets[t], sources[t]
        if causal:
            floor = min(floor, source)
            hide_before(floor, ends.shape[1], unseen)
        if value < enough:
            value, optimal = search(
                residual, flow, forward, backward, touched, counts, ends, open_ends, unseen,
                slot_nodes, slots, newest, path, layer, value, enough,
            )  # fmt: skip
            if optimal:
                upper[t] = value
        lower[t] = value
    if loaded:
        clean(positive, residual, flow, forward, backward, touched, counts, layer)


@inlined
def begin(graph: Graph, work: Work, layer: int, target: int, source: int, ceiling: int) -> int:
    """Load the plan of a pair; returns its value."""
    capacity, transposed, _, _, coarse = graph
    plan_pair(
        capacity, transposed, coarse, work.draft, layer, target, source, ceiling, natural(0),
        natural(0),
    )  # fmt: skip
    value = commit(
        capacity, transposed, work.residual, work.flow, work.forward, work.backward, work.touched,
        work.counts, work.ends, coarse, work.draft, layer, target, source,
    )  # fmt: skip
    drop_plan(work.draft)
    return value


@compiled
def solve_open(graph: Graph, work: Work, layer: int, target: int, source: int) -> int:
    """Solve one pair at layer >= 2 to its minimum cut and leave flow and cut in `work`."""
    (
        residual, flow, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest,
        path, touched, counts, _,
    ) = work  # fmt: skip
    value = begin(graph, work, layer, target, source, UNBOUNDED)
    value, _ = search(
        residual, flow, forward, backward, touched, counts, ends, open_ends, unseen,
        slot_nodes, slots, newest, path, layer, value, UNBOUNDED,
    )  # fmt: skip
    return value
