"""What the compiled solver reads (`Graph`) and what it scribbles on (`Work`).

Layers of edges are numbered as in the paper: edges of layer ``m`` run from node ``(m, u)`` down to
node ``(m - 1, v)``; index 0 of every per-layer array is unused so that the numbers in the code are
the numbers on the page.

The compiled functions take the arrays themselves, not these tuples: a tuple of arrays is copied
and reference-counted on every call, which costs more than the work of the inner functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.maxflow.compiled import bit, compiled

__all__ = [
    "Graph",
    "Integers",
    "Work",
    "Words",
    "build_graph",
    "fill_positive",
    "new_work",
    "squeezed",
]

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

UNBOUNDED = 1 << 61

TARGET, SOURCE = 0, 1  # first index of `ends`, `open_ends`, `channels`
EXCESS, SURPLUS = 2, 3  # first index of `ends` and `open_ends` too: see `search`
ROW, COLUMN, MOVED_OUT, MOVED_IN, NOTED = 0, 1, 2, 3, 4  # first index of `plan`
ROOM, SUPPLY, DEMAND, OPEN, HELD = 0, 1, 2, 3, 4  # first index of `vectors`
LAYER, BELOW, ABOVE = 0, 1, 2  # second index of `slots`
NODE, SLOT, ASKED, LEFT = 0, 1, 2, 3  # second index of `path`
TOUCHED, ROWS, PHASES, PUSHES = 0, 1, 2, 3  # index of `counts`


class Graph(NamedTuple):
    """Integer capacities of a layered graph, read-only and shared by all threads."""

    capacity: Integers  # [m, u, v]
    transposed: Integers  # [m, v, u]: columns made contiguous; of the lowest layers only, or of all
    positive: Words  # [m, u, word]: which edges exist
    channel: Integers  # [l, v]: narrowest straight edge v -> v over layers 2 .. l-1
    barren: int  # a layer of straight edges only, of no use for moves; 0 when there is none
    causal: bool  # no edge leads to a later position


class Work(NamedTuple):
    """Scratch memory of one thread; clean (no flow anywhere) between two pairs."""

    residual: Integers  # [m, u, v]: capacity left, layers 2 .. l-1
    forward: Words  # [m, u, word over v]: residual > 0
    backward: Words  # [m, v, word over u]: flow u -> v is > 0
    ends: Integers  # [TARGET, u]: left on the target's edges; [SOURCE, v]: on those into the token;
    #               # [EXCESS, u] and [SURPLUS, v]: flow that has to go after a change of ends
    open_ends: Words  # [the same, word]: which of them are > 0
    unseen: Words  # [k, word]: nodes of layer k the search has not reached; [0]: all nodes
    slot_nodes: Words  # [slot, word]: nodes of one layer first reached at one distance
    slots: Integers  # [slot, LAYER | BELOW | ABOVE]
    newest: Integers  # [k]: slot of layer k at the distance being explored, else -1
    path: Integers  # [step, NODE | SLOT | ASKED | LEFT]
    touched: Integers  # edges to clean up, packed
    rows: Integers  # rows to clean up, packed
    counts: Integers  # [TOUCHED | ROWS | PHASES | PUSHES]
    plan: Integers  # [ROW: target -> v | COLUMN: v -> source | MOVED_OUT | MOVED_IN | NOTED, m, v]
    channels: Integers  # [TARGET | SOURCE, m]: left of the straight edges of these two channels
    vectors: Integers  # [ROOM | SUPPLY | DEMAND | OPEN | HELD, v]


@compiled
def fill_positive(capacity: Integers, positive: Words) -> None:
    """Set the bit of every edge with capacity."""
    for m in range(1, capacity.shape[0]):
        for u in range(capacity.shape[1]):
            for v in range(capacity.shape[2]):
                if capacity[m, u, v] > 0:
                    positive[m, u, v >> 6] |= bit(v)


LOWEST = 6
"""How many layers have their columns made contiguous for plans (`construct.NEAR` + 2)."""


def build_graph(
    capacity: Integers, *, barren: int = 0, causal: bool = False, columns: bool = False
) -> Graph:
    """Everything that is the same for all pairs.  `capacity[m]` for m = 1 .. L, `[0]` unused.

    columns: bounds from the layer below will be asked for, and need the columns of every layer.
    """
    depth, n, _ = capacity.shape
    positive = np.zeros((depth, n, (n + 63) >> 6), np.uint64)
    fill_positive(capacity, positive)
    straight = np.einsum("mvv->mv", capacity)
    channel = np.full((depth, n), UNBOUNDED, np.int64)
    for layer in range(3, depth):
        channel[layer] = np.minimum(channel[layer - 1], straight[layer - 1])
    return Graph(
        capacity=capacity,
        transposed=np.ascontiguousarray(
            capacity[: depth if columns else LOWEST].transpose(0, 2, 1)
        ),
        positive=positive,
        channel=channel,
        barren=barren,
        causal=causal,
    )


def squeezed(capacity: Integers, layer: int, ends: int) -> Integers:
    """The graph below `layer` with all but `ends` layers at either end squeezed into one layer.

    That layer has straight edges only.  Every flow of the result is a flow of the original: what
    passes a straight edge of the middle layer falls down that channel through all the layers it
    stands for.  So its flows are lower bounds, and enough wherever they reach an upper bound, as
    they nearly always do at depth.
    """
    bottom, top = capacity[: ends + 1], capacity[layer - ends + 1 : layer + 1]
    straight = np.einsum("mvv->mv", capacity[ends + 1 : layer - ends + 1])
    return np.concatenate([bottom, np.diag(straight.min(axis=0))[None], top])


def new_work(graph: Graph) -> Work:
    """Scratch memory for one thread: a little over 8 bytes per edge of the graph."""
    depth, n, words = graph.positive.shape
    nodes = depth * n + 2
    unseen = np.zeros((depth + 1, words), np.uint64)
    for v in range(n):
        unseen[0, v >> 6] |= np.uint64(1 << (v & 63))
    return Work(
        residual=graph.capacity.copy(),
        forward=graph.positive.copy(),
        backward=np.zeros((depth, n, words), np.uint64),
        ends=np.zeros((4, n), np.int64),
        open_ends=np.zeros((4, words), np.uint64),
        unseen=unseen,
        slot_nodes=np.zeros((nodes, words), np.uint64),
        slots=np.zeros((nodes, 3), np.int64),
        newest=np.full(depth + 1, -1, np.int64),
        path=np.zeros((nodes, 4), np.int64),
        touched=np.zeros(16 * nodes, np.int64),
        rows=np.zeros(nodes, np.int64),
        counts=np.zeros(4, np.int64),
        plan=np.zeros((5, depth, n), np.int64),
        channels=np.zeros((2, depth), np.int64),
        vectors=np.zeros((5, n), np.int64),
    )
