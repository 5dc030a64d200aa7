"""All targets of one source token on layers where most flows have to be searched.

Positions are sorted by how much they pass on to the token, and the graph is written down in that
order.  A search begins with the first nodes of a set: so it finds large ends first, takes fewer
steps, and what it changes lies together in memory, where each step would jump to a place of its
own.  Measured on 512 tokens, layer 4: a quarter fewer steps, and .6 of the time.
"""

from __future__ import annotations

import numpy as np

from attnflow.maxflow.compiled import NONE, compiled, natural
from attnflow.maxflow.edges import clean
from attnflow.maxflow.kernel import change_ends, swap_targets
from attnflow.maxflow.lanes import LANES, load, members
from attnflow.maxflow.search import search
from attnflow.maxflow.state import (
    EXCESS,
    SOURCE,
    SURPLUS,
    TARGET,
    Graph,
    Integers,
    Words,
    Work,
    new_work,
)

HIGHEST = 4
"""The highest layer to which it pays: further up more of a flow stays from target to target as
long as positions stand as in the text."""


class SortedColumn:
    """One thread's memory for all targets of a source token, on layers up to `HIGHEST`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        searched = graph.capacity[:HIGHEST], graph.positive[:HIGHEST]
        self.work = new_work(graph._replace(capacity=searched[0], positive=searched[1]))
        self.positive = self.work.forward.copy()
        self.entries = np.zeros(graph.capacity.shape[1:], np.int64)
        self.source = -1

    def solve(
        self, layer: int, targets: Integers, sources: Integers, ceilings: Integers
    ) -> tuple[Integers, Integers]:
        """Return (lower, upper) of pairs of one source token at a layer >= 3."""
        if sources[0] != self.source:
            self._sort(int(sources[0]))
        entries = self.entries[: len(targets)]
        _take(self.graph.capacity[layer], targets, self.order, entries)
        lower, upper = np.empty(len(targets), np.int64), np.empty(len(targets), np.int64)
        ends = entries, self.exits
        solve_column(
            self.work, self.positive, layer, *ends, self.places[targets], ceilings, lower, upper
        )
        return lower, upper

    def _sort(self, source: int) -> None:
        capacity = self.graph.capacity
        passed_on = capacity[1:HIGHEST, :, source].sum(axis=0)
        self.order = np.argsort(-passed_on, kind="stable")
        self.places = np.argsort(self.order)
        self.exits = capacity[1, self.order, source]
        _write(capacity, self.order, self.entries[0], self.work.residual, self.positive)
        np.copyto(self.work.forward, self.positive)
        self.source = source


@compiled
def _take(capacity: Integers, targets: Integers, order: Integers, entries: Integers) -> None:
    """The edges of each target, in the order of positions."""
    for t in range(targets.shape[0]):
        row, into = capacity[targets[t]], entries[t]
        for v in range(order.shape[0]):
            into[v] = row[order[v]]


@compiled
def _write(
    capacity: Integers, order: Integers, line: Integers, residual: Integers, positive: Words
) -> None:
    """The edges between searched nodes, layer 2 and up, and which of them there are."""
    for m in range(2, residual.shape[0]):
        for u in range(order.shape[0]):
            row = capacity[m, order[u]]
            for v in range(order.shape[0]):
                line[v] = row[order[v]]
                residual[m, u, v] = line[v]
            positive[m, u] = NONE
            for v in range(0, order.shape[0], LANES):
                positive[m, u, v >> 6] |= members(load(line, v), 1) << np.uint64(v & 63)


@compiled
def solve_column(
    work: Work, positive: Words, layer: int, entries: Integers, exits: Integers,
    targets: Integers, ceilings: Integers, lower: Integers, upper: Integers,
) -> None:  # fmt: skip
    """Maximum flows of many targets into one source token: each begins with the flow of the last.

    entries: the target's edges, a row for each; exits: those into the token.
    """
    (
        residual, flow, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest, path,
        touched, counts, _,
    ) = work  # fmt: skip
    for v in range(exits.shape[0]):
        ends[TARGET, v] = entries[0, v]
        ends[SOURCE, v] = exits[v]
        ends[EXCESS, v] = 0
        ends[SURPLUS, v] = 0
    for t in range(targets.shape[0]):
        value = natural(0)
        if t > 0:
            value = change_ends(entries[t - 1], entries[t], ends, TARGET, EXCESS)
            value += swap_targets(
                residual, flow, forward, backward, touched, counts, ends, layer, targets[t],
                targets[t - 1],
            )  # fmt: skip
        optimal = False
        if value < ceilings[t]:
            value, optimal = search(
                residual, flow, forward, backward, touched, counts, ends, open_ends, unseen,
                slot_nodes, slots, newest, path, layer, value, ceilings[t],
            )  # fmt: skip
        lower[t] = value
        upper[t] = value if optimal else ceilings[t]
    clean(positive, residual, flow, forward, backward, touched, counts, layer)
