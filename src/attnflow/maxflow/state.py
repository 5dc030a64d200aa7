"""The arrays that the compiled solver reads (`Graph`), and those it scribbles on (`Work`).

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

from attnflow.maxflow.compiled import NONE, compiled
from attnflow.maxflow.lanes import LANES, load, members

Integers = NDArray[np.int64]
Short = NDArray[np.int32]
Words = NDArray[np.uint64]

UNBOUNDED = 1 << 61

TARGET, SOURCE = 0, 1  # first index of `ends`, `open_ends`, `channels`
EXCESS, SURPLUS = 2, 3  # first index of `ends` and `open_ends` too: see `search`
DIRECT = 2  # first index of `channels` too
ROW, COLUMN, MOVED_OUT, MOVED_IN, FREE, DRAWN, NOTED = 0, 1, 2, 3, 4, 5, 6  # first of `plan`
ROOM, SUPPLY, DEMAND, ENTRY, EXIT = 0, 1, 2, 3, 4  # first index of `vectors`
LAYER, BELOW, ABOVE = 0, 1, 2  # second index of `slots`
NODE, SLOT, ASKED, LEFT = 0, 1, 2, 3  # second index of `path`
TOUCHED = 0  # index of `Work.counts`
ROWS, COLUMNS = 0, 1  # index of `Draft.counts`
SUPPLIES, DEMANDS = 0, 1  # first index of `Draft.blocks`


class Coarse(NamedTuple):
    """Capacities of 32 bits, rounded down, which plans are drawn for; see `construct`."""

    capacity: Short  # [m, u, v]
    transposed: Short  # [m, v, u]: columns made contiguous, of the lowest layers
    channel: Short  # [l, v]: narrowest straight edge v -> v over layers 2 .. l-1
    shift: int  # how many bits were dropped
    barren: int  # a layer of straight edges only, of no use for moves; 0 when there is none


class Graph(NamedTuple):
    """Integer capacities of a layered graph, read-only and shared by all threads.

    Positions are padded to a multiple of `LANES`, and so are words of bits; what is beyond the
    last position has no edges.
    """

    capacity: Integers  # [m, u, v]
    transposed: Integers  # [m, v, u]: columns made contiguous, of layer 1 or of all
    positive: Words  # [m, u, word]: which edges exist
    causal: bool  # no edge leads to a later position
    coarse: Coarse


class Draft(NamedTuple):
    """The arrays that a plan is drawn on; see `construct`."""

    left: Short  # [place, v]: capacity left, of rows that are noted
    plan: Short  # [ROW, m, v]: left of target -> v; [COLUMN, m, v]: of v -> source;
    #            # [MOVED_OUT | MOVED_IN, m, v]: flow between channels at layer m;
    #            # [FREE, m, u]: 0 for rows that are noted, else more than any capacity;
    #            # [NOTED, m, u]: place of a row in `rows`, from 1 on;
    #            # [DRAWN, m, v]: that of a column in `columns`
    vectors: Short  # [ROOM | SUPPLY | DEMAND, v];
    #               # [ENTRY | EXIT, v]: the capacities of the target's and the token's edges
    channels: Integers  # [TARGET | SOURCE, m]: left of the straight edges of these two channels;
    #                   # [DIRECT, m]: flow from the one into the other
    rows: Integers  # rows along which the plan moves flow, packed
    columns: Integers  # columns along which it does, packed
    drawn: Short  # [column, u]: how much
    counts: Integers  # [ROWS | COLUMNS]
    blocks: Words  # [SUPPLIES | DEMANDS, word]: which `LANES` of neighbours have any left


class Work(NamedTuple):
    """Scratch memory of one thread; clean (no flow anywhere) between two pairs."""

    residual: Integers  # [m, u, v]: capacity left, layers 2 .. l-1
    flow: Integers  # [m, u, v]: what is not left, beside it in memory
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
    counts: Integers  # [TOUCHED]
    draft: Draft


@compiled
def fill_positive(capacity: Integers, positive: Words) -> None:
    """Set the bit of every edge with capacity, and of no other."""
    for m in range(1, capacity.shape[0]):
        for u in range(capacity.shape[1]):
            positive[m, u] = NONE
            for v in range(0, capacity.shape[2], LANES):
                edges = members(load(capacity[m, u], v), 1)
                positive[m, u, v >> 6] |= edges << np.uint64(v & 63)


@compiled
def _widest(capacity: Integers, sums: Integers) -> int:
    """The largest sum of a row or a column; `sums` is scratch."""
    result = 0
    for m in range(1, capacity.shape[0]):
        sums[:] = 0
        for u in range(capacity.shape[1]):
            row = capacity[m, u]
            total = 0
            for v in range(sums.shape[0]):
                total += row[v]
            for v in range(sums.shape[0]):
                sums[v] += row[v]
            result = max(result, total)
        for v in range(sums.shape[0]):
            result = max(result, sums[v])
    return result


@compiled
def _round_down(capacity: Integers, shift: int, short: Short) -> None:
    """Drop some bits of every capacity."""
    for m in range(capacity.shape[0]):
        for u in range(capacity.shape[1]):
            row, into = capacity[m, u], short[m, u]
            for v in range(row.shape[0]):
                into[v] = row[v] >> shift


_LINE = 4  # edges
LOWEST = 8
"""How many layers have their columns made contiguous for plans (at least `construct.NEAR` + 2)."""
LINES = 96
"""How many columns a plan may move flow along, and half as many as it may rows."""


def padded(capacity: Integers) -> Integers:
    """With positions that have no edges, so that their number is a multiple of `LANES`."""
    rest = -capacity.shape[1] % LANES
    return np.pad(capacity, ((0, 0), (0, rest), (0, rest))) if rest else capacity


def build_graph(
    capacity: Integers, *, barren: int = 0, causal: bool = False, columns: bool = False
) -> Graph:
    """Everything that is the same for all pairs.  `capacity[m]` for m = 1 .. L, `[0]` unused.

    columns: bounds from the layer below will be asked for, and need the columns of every layer.
    """
    capacity = padded(capacity)
    depth, n, _ = capacity.shape
    words = -(-n // (64 * LANES)) * LANES
    positive = np.zeros((depth, n, words), np.uint64)
    fill_positive(capacity, positive)
    return Graph(
        capacity=capacity,
        transposed=np.ascontiguousarray(capacity[: depth if columns else 2].transpose(0, 2, 1)),
        positive=positive,
        causal=causal,
        coarse=coarsened(capacity, barren),
    )


def coarsened(capacity: Integers, barren: int) -> Coarse:
    """In 32 bits, as many as leave every sum of a row or a column below 2**29."""
    widest = int(_widest(capacity, np.zeros(capacity.shape[1], np.int64)))
    shift = max(0, widest.bit_length() - 29)
    short = np.empty(capacity.shape, np.int32)
    _round_down(capacity, shift, short)
    straight = np.einsum("mvv->mv", short)
    channel = np.full(straight.shape, 1 << 30, np.int32)
    for layer in range(3, len(channel)):
        channel[layer] = np.minimum(channel[layer - 1], straight[layer - 1])
    transposed = np.ascontiguousarray(short[:LOWEST].transpose(0, 2, 1))
    return Coarse(short, transposed, channel, shift, barren)


def new_draft(coarse: Coarse) -> Draft:
    """Scratch memory for plans."""
    depth, n, _ = coarse.capacity.shape
    plan = np.zeros((7, depth, n), np.int32)
    plan[FREE] = 1 << 30
    return Draft(
        left=np.zeros((2 * LINES, n), np.int32),
        plan=plan,
        vectors=np.zeros((5, n), np.int32),
        channels=np.zeros((3, depth), np.int64),
        rows=np.zeros(2 * LINES, np.int64),
        columns=np.zeros(LINES, np.int64),
        drawn=np.zeros((LINES, n), np.int32),
        counts=np.zeros(2, np.int64),
        blocks=np.zeros((2, -(-n // (64 * LANES))), np.uint64),
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
    """Scratch memory for one thread: a little over 20 bytes per edge of the graph."""
    depth, n, words = graph.positive.shape
    nodes = depth * n + 2
    # What is left of an edge and what flows share a line of memory: steps of a search jump from
    # edge to edge, and each line has to come from far.
    # One line more than a row needs, or all edges into a node would go to the same few places of a
    # cache.
    edges = np.zeros((depth, n, n + _LINE, 2), np.int64)[:, :, :n]
    edges[..., 0] = graph.capacity
    unseen = np.zeros((depth + 1, words), np.uint64)
    for v in range(n):
        unseen[0, v >> 6] |= np.uint64(1 << (v & 63))
    return Work(
        residual=edges[..., 0],
        flow=edges[..., 1],
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
        counts=np.zeros(1, np.int64),
        draft=new_draft(graph.coarse),
    )
