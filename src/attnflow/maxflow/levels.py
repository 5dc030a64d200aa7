"""The level graph of one phase of a search: who is how far from where flow enters.

A *slot* is the set of nodes of one layer that lie at one distance.  A shortest path steps from a
slot to the slot below or above it at the next distance, so two slot numbers per slot, `BELOW` and
`ABOVE`, are the whole level graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.maxflow.compiled import NONE, ONE, bit, compiled, inlined, natural, trailing_zeros
from attnflow.maxflow.lanes import (
    LANES,
    add,
    both,
    in_use,
    load,
    members,
    store,
    union,
    without,
)
from attnflow.maxflow.state import (
    ABOVE,
    BELOW,
    EXCESS,
    LAYER,
    SOURCE,
    SURPLUS,
    TARGET,
    Integers,
    Words,
)

_FEW_WORDS = 2


@inlined
def word_count(arcs: Words) -> int:
    """How many words hold all nodes; sets have some more, so that eight can be taken at a time."""
    return (arcs.shape[1] + 63) >> 6


@inlined
def reach(
    arcs: Words, unseen: Words, slot_nodes: Words, slots: Integers, newest: Integers,
    at: int, slot: int, layer: int, free: int,
) -> int:  # fmt: skip
    """Add all unseen nodes of `layer` that `arcs[at]` reach from `slot` to the next distance.

    Returns the slot that holds them, -1 when there are none; `free` is the next unused slot.
    """
    words = word_count(arcs)
    into = newest[layer]
    if into < 0:
        into = free
        for w in range(words):
            slot_nodes[into, w] = NONE
    reached = NONE
    # Flow that could be taken back is on few edges, so that most words of unseen nodes are never
    # used up: eight of them cost as much as one.
    for x in range(0, words, LANES):
        before = load(unseen[layer], x)
        left = before
        for w in range(words):
            members = slot_nodes[slot, w]
            if members != NONE and union(left) == NONE:
                break
            while members != NONE:
                u = (w << 6) + trailing_zeros(members)
                members &= members - ONE
                left = without(left, load(arcs[at, u], x))
        store(unseen[layer], x, left)
        store(slot_nodes[into], x, add(load(slot_nodes[into], x), without(before, left)))
        reached |= union(load(slot_nodes[into], x))
    if into == free:
        if reached == NONE:
            return -1
        slots[into, LAYER] = layer
        newest[layer] = into
    return into


@inlined
def find_distances(
    forward: Words, backward: Words, open_ends: Words, unseen: Words, slot_nodes: Words,
    slots: Integers, newest: Integers, layer: int,
) -> tuple[int, int]:  # fmt: skip
    """Breadth-first search from where flow enters: slots 0 (`TARGET`) and 1 (`SURPLUS`).

    Returns (distance of the last slots, first slot beyond them); distance -1 when no end can be
    reached where flow leaves, and then `unseen` is the sink side of a minimum cut.
    """
    words = word_count(forward)
    for k in range(1, layer):
        for w in range(words):
            unseen[k, w] = unseen[0, w]
    for w in range(words):
        slot_nodes[0, w] = open_ends[TARGET, w]
        unseen[layer - 1, w] &= ~open_ends[TARGET, w]
        slot_nodes[1, w] = open_ends[SURPLUS, w]
        unseen[1, w] &= ~open_ends[SURPLUS, w]
    slots[0, LAYER] = layer - 1
    slots[1, LAYER] = 1
    begin, end, distance = 0, natural(2), 0
    while begin < end:
        arrived = NONE
        for s in range(begin, end):
            slots[s, BELOW] = -1
            slots[s, ABOVE] = -1
            leave = SOURCE if slots[s, LAYER] == 1 else EXCESS
            if slots[s, LAYER] == 1 or slots[s, LAYER] == layer - 1:
                for w in range(words):
                    arrived |= slot_nodes[s, w] & open_ends[leave, w]
        if arrived != NONE:
            return distance, end
        free = end
        for s in range(begin, end):
            k = slots[s, LAYER]
            if k > 1:
                into = reach(forward, unseen, slot_nodes, slots, newest, k, s, k - 1, free)
                slots[s, BELOW] = into
                free = max(free, into + 1)
            if k < layer - 1:
                into = reach(backward, unseen, slot_nodes, slots, newest, k + 1, s, k + 1, free)
                slots[s, ABOVE] = into
                free = max(free, into + 1)
        for s in range(end, free):
            newest[slots[s, LAYER]] = -1
        begin, end = end, free
        distance += 1
    return -1, end


@inlined
def common_words(arcs: Words, at: int, node: int, slot_nodes: Words, slot: int, x: int) -> Any:
    """Which of eight words from `x` on may have nodes of `slot` that `node` has an arc to, as bits.

    Most have none: to look at each of them in turn is what a processor foresees worst. Of one or
    two words each is looked at: what was just written to one is slow to read as eight.
    """
    count = word_count(arcs)
    if count <= _FEW_WORDS:
        return bit(count) - ONE
    return in_use(both(load(arcs[at, node], x), load(slot_nodes[slot], x)))


@inlined
def first_common(arcs: Words, at: int, node: int, slot_nodes: Words, slot: int) -> int:
    """The first node of `slot` that `node` has an arc to, or -1."""
    for x in range(0, slot_nodes.shape[1], LANES):
        words = common_words(arcs, at, node, slot_nodes, slot, x)
        while words != NONE:
            w = natural(x + trailing_zeros(words))
            words &= words - ONE
            common = arcs[at, node, w] & slot_nodes[slot, w]
            if common != NONE:
                return (w << 6) + trailing_zeros(common)
    return -1


@compiled
def leave_dead_ends(
    forward: Words, backward: Words, slot_nodes: Words, slots: Integers, end: int
) -> None:
    """Take all nodes out of their slots from which no shortest path leads to an end.

    From the last distance to the first, so that one look at each node is enough.  A search would
    find out too, node by node, but it walks there and back where this reads a row of bits.
    """
    for s in range(end - 1, -1, -1):
        k, below, above = natural(slots[s, LAYER]), slots[s, BELOW], slots[s, ABOVE]
        if below < 0 and above < 0:
            continue
        for w in range(word_count(forward)):
            members = slot_nodes[s, w]
            while members != NONE:
                v = trailing_zeros(members)
                members &= members - ONE
                u = (w << 6) + v
                if below >= 0 and first_common(forward, k, u, slot_nodes, below) >= 0:
                    continue
                if above < 0 or first_common(backward, k + 1, u, slot_nodes, above) < 0:
                    slot_nodes[s, w] &= ~bit(v)


@inlined
def mark_open(ends: Integers, open_ends: Words) -> None:
    """Bits of the ends where flow can enter or leave, from how much can."""
    for end in range(ends.shape[0]):
        for w in range(open_ends.shape[1]):
            open_ends[end, w] = NONE
        for k in range(0, ends.shape[1], LANES):
            open_ends[end, k >> 6] |= members(load(ends[end], k), 1) << np.uint64(k & 63)
