"""Dinic's algorithm on the dense layers: exact, and its last failing search is the proof.

Residual arcs are down-moves ``(k, u) -> (k-1, v)`` where capacity is left and up-moves
``(k, u) -> (k+1, v)`` where flow on ``v -> u`` can be taken back.  Paths run through the slots of
the level graph (`levels`).

Flow enters and leaves the searched layers at four kinds of ends.  It enters at the target's edges
(`TARGET`) and leaves at the edges into the source token (`SOURCE`).  After a change of ends (see
`kernel`) a node of the top layer may hold more than the new target can give it (`EXCESS`): flow
that arrives there replaces flow that has to go.  And a node of layer 1 may hold more than the new
source token takes from it (`SURPLUS`): that flow has to find another way out.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import NONE, ONE, bit, compiled, inlined, natural, trailing_zeros
from attnflow.maxflow.edges import send_down, take_back
from attnflow.maxflow.lanes import LANES
from attnflow.maxflow.levels import (
    common_words,
    find_distances,
    first_common,
    leave_dead_ends,
    mark_open,
    word_count,
)
from attnflow.maxflow.state import (
    ABOVE,
    ASKED,
    BELOW,
    EXCESS,
    LAYER,
    LEFT,
    NODE,
    SLOT,
    SOURCE,
    SURPLUS,
    TARGET,
    Integers,
    Words,
)  # fmt: skip

FAR = 4
"""From this distance on, dead ends cost more than looking for them does."""
LARGE = 9
"""Ends where more than this power of 1/2 of the flow could enter come first: measured, a search
that begins with small ones leaves more to longer paths."""


@inlined
def fan_out(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, open_ends: Words, slot_nodes: Words, u: int, goal: int,
    left: int,
) -> int:  # fmt: skip
    """From node (2, u), hand up to `left` to the source token through all open nodes of layer 1."""
    for x in range(0, slot_nodes.shape[1], LANES):
        words = common_words(forward, 2, u, slot_nodes, goal, x)
        while words != NONE:
            w = natural(x + trailing_zeros(words))
            words &= words - ONE
            nodes = forward[2, u, w] & slot_nodes[goal, w]
            while nodes != NONE:
                v = natural((w << 6) + trailing_zeros(nodes))
                nodes &= nodes - ONE
                below = ends[SOURCE, v]
                amount = min(left, min(residual[2, u, v], below))
                send_down(residual, flow, forward, backward, touched, counts, 2, u, v, amount)
                ends[SOURCE, v] = below - amount
                if below == amount:
                    open_ends[SOURCE, w] &= ~bit(v)
                    slot_nodes[goal, w] &= ~bit(v)
                left -= amount
                if left == 0:
                    return 0
    return left


# The mirror of fan_out. One body for both would branch in the innermost loop of the search.
@inlined
def fan_up(
    residual: Integers, flow: Integers, forward: Words, backward: Words, ends: Integers,
    open_ends: Words, slot_nodes: Words, top: int, u: int, goal: int, left: int,
) -> int:  # fmt: skip
    """From node (top - 1, u), give up to `left` back to nodes of layer `top` with excess."""
    for x in range(0, slot_nodes.shape[1], LANES):
        words = common_words(backward, top, u, slot_nodes, goal, x)
        while words != NONE:
            w = natural(x + trailing_zeros(words))
            words &= words - ONE
            nodes = backward[top, u, w] & slot_nodes[goal, w]
            while nodes != NONE:
                v = natural((w << 6) + trailing_zeros(nodes))
                nodes &= nodes - ONE
                above = ends[EXCESS, v]
                amount = min(left, min(flow[top, v, u], above))
                take_back(residual, flow, forward, backward, top, v, u, amount)
                ends[EXCESS, v] = above - amount
                if above == amount:
                    open_ends[EXCESS, w] &= ~bit(v)
                    slot_nodes[goal, w] &= ~bit(v)
                left -= amount
                if left == 0:
                    return 0
    return left


@inlined
def exits(slots: Integers, s: int, layer: int) -> tuple[int, int]:
    """The slots of ends one step below and one step above slot `s`, -1 where there is none."""
    below = slots[s, BELOW] if slots[s, LAYER] == 2 else -1
    above = slots[s, ABOVE] if slots[s, LAYER] == layer - 2 else -1
    return below, above


@inlined
def deliver(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, open_ends: Words, slot_nodes: Words, layer: int, below: int,
    above: int, u: int, left: int,
) -> int:  # fmt: skip
    """Hand up to `left` from node `u` to ends of its `exits`; returns the rest."""
    if below >= 0:
        left = fan_out(
            residual, flow, forward, backward, touched, counts, ends, open_ends, slot_nodes, u,
            below, left,
        )  # fmt: skip
    if left > 0 and above >= 0:
        left = fan_up(
            residual, flow, forward, backward, ends, open_ends, slot_nodes, layer - 1, u,
            above, left,
        )  # fmt: skip
    return left


@inlined
def deliver_through(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, open_ends: Words, slot_nodes: Words, slots: Integers,
    layer: int, s: int, u: int, left: int,
) -> int:  # fmt: skip
    """Hand up to `left` from node `u` of slot `s` to ends two steps away; returns the rest.

    Most of a search is spent here, so that this step of `push_from` has a loop of its own.
    """
    k = natural(slots[s, LAYER])
    for up in range(2):
        into = slots[s, ABOVE] if up else slots[s, BELOW]
        if into < 0 or left == 0:
            continue
        arcs = backward if up else forward
        below, above = exits(slots, into, layer)
        for x in range(0, slot_nodes.shape[1], LANES):
            words = common_words(arcs, k + up, u, slot_nodes, into, x)
            while words != NONE and left > 0:
                w = natural(x + trailing_zeros(words))
                words &= words - ONE
                nodes = arcs[k + up, u, w] & slot_nodes[into, w]
                while nodes != NONE and left > 0:
                    v = natural((w << 6) + trailing_zeros(nodes))
                    nodes &= nodes - ONE
                    most = min(left, flow[k + 1, v, u] if up else residual[k, u, v])
                    rest = deliver(
                        residual, flow, forward, backward, touched, counts, ends, open_ends,
                        slot_nodes, layer, below, above, v, most,
                    )  # fmt: skip
                    if rest > 0:
                        slot_nodes[into, w] &= ~bit(v)
                    amount = most - rest
                    if amount == 0:
                        continue
                    left -= amount
                    if up:
                        take_back(residual, flow, forward, backward, k + 1, v, u, amount)
                    else:
                        send_down(
                            residual, flow, forward, backward, touched, counts, k, u, v, amount
                        )
    return left


@inlined
def push_from(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, open_ends: Words, slot_nodes: Words, slots: Integers,
    path: Integers, layer: int, first: int, start: int, asked: int, distance: int,
) -> int:  # fmt: skip
    """Push up to `asked` from node `start` of slot `first` along shortest paths; returns how much
    arrived.

    Depth-first with a limit per node: an edge is updated once per visit with all that arrived
    below it, not once per path.  A node that could not place all it was given is dead for this
    phase (every continuation was tried), and leaves its slot, so no arc is tried twice.
    """
    u, s, left = natural(start), natural(first), asked
    layer = natural(layer)
    path[0, NODE] = start
    path[0, SLOT] = first
    path[0, ASKED] = asked
    d = 0
    while True:
        u = natural(u)
        s = natural(s)
        k = natural(slots[s, LAYER])
        if d == distance:  # the target's own node of layer 1, when there is one layer only
            leave = SOURCE if k == 1 else EXCESS
            amount = min(left, ends[leave, u])
            ends[leave, u] -= amount
            if ends[leave, u] == 0:
                open_ends[leave, u >> 6] &= ~bit(u)
            left -= amount
        elif d == distance - 1:
            below, above = exits(slots, s, layer)
            left = deliver(
                residual, flow, forward, backward, touched, counts, ends, open_ends,
                slot_nodes, layer, below, above, u, left,
            )  # fmt: skip
        elif d == distance - 2:
            left = deliver_through(
                residual, flow, forward, backward, touched, counts, ends, open_ends,
                slot_nodes, slots, layer, s, u, left,
            )  # fmt: skip
        else:
            v = -1
            room = left
            below = slots[s, BELOW]
            if below >= 0:
                v = first_common(forward, k, u, slot_nodes, below)
                if v >= 0:
                    room = residual[k, u, v]
                    s = below
            if v < 0 and slots[s, ABOVE] >= 0:
                v = first_common(backward, k + 1, u, slot_nodes, slots[s, ABOVE])
                if v >= 0:
                    room = flow[k + 1, v, u]
                    s = slots[s, ABOVE]
            if v >= 0:
                path[d, LEFT] = left
                d += 1
                u = v
                left = min(left, room)
                path[d, NODE] = u
                path[d, SLOT] = s
                path[d, ASKED] = left
                continue
        # Nothing more to try from here: hand the result up, as far as nodes are satisfied.
        while True:
            if left > 0:
                slot_nodes[s, u >> 6] &= ~bit(u)
            amount = path[d, ASKED] - left
            if d == 0:
                return amount
            d = natural(d - 1)
            parent = natural(path[d, NODE])
            k = natural(slots[s, LAYER])
            s = natural(path[d, SLOT])
            if amount > 0:
                if slots[s, LAYER] > k:
                    send_down(
                        residual, flow, forward, backward, touched, counts, k + 1, parent, u, amount
                    )
                else:  # take back flow from u -> parent
                    take_back(residual, flow, forward, backward, k, u, parent, amount)
            u = parent
            left = path[d, LEFT] - amount
            if left > 0:
                break


@compiled
def search(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, ends: Integers, open_ends: Words, unseen: Words, slot_nodes: Words,
    slots: Integers, newest: Integers, path: Integers, layer: int, value: int, enough: int,
) -> tuple[int, bool]:  # fmt: skip
    """Raise a feasible flow to the maximum, or to `enough`.

    Returns the value and whether a minimum cut was reached (then its sink side is `unseen`).
    Every phase strictly lengthens the shortest path (Dinic), so the loop ends.
    """
    words = word_count(forward)
    mark_open(ends, open_ends)
    while value < enough:
        distance, end = find_distances(
            forward, backward, open_ends, unseen, slot_nodes, slots, newest, layer
        )
        if distance < 0:
            return value, True
        # The last slots matter only where flow leaves.
        for s in range(end):
            if slots[s, BELOW] < 0 and slots[s, ABOVE] < 0:
                k = slots[s, LAYER]
                leave = SOURCE if k == 1 else EXCESS
                for w in range(words):
                    if k == 1 or k == layer - 1:
                        slot_nodes[s, w] &= open_ends[leave, w]
                    else:
                        slot_nodes[s, w] = NONE
        if distance >= FAR:
            leave_dead_ends(forward, backward, slot_nodes, slots, end)
        for turn in range(2):
            for first in range(2):
                enter = TARGET if first == 0 else SURPLUS
                for w in range(words):
                    members = slot_nodes[first, w] & open_ends[enter, w]
                    while members != NONE and value < enough:
                        u = (w << 6) + trailing_zeros(members)
                        members &= members - ONE
                        if turn == 0 and ends[enter, u] < enough >> LARGE:
                            continue
                        amount = push_from(
                            residual, flow, forward, backward, touched, counts, ends,
                            open_ends, slot_nodes, slots, path, layer, first, u,
                            min(ends[enter, u], enough - value), distance,
                        )  # fmt: skip
                        value += amount
                        ends[enter, u] -= amount
                        if ends[enter, u] == 0:
                            open_ends[enter, w] &= ~bit(u)
    return value, False
