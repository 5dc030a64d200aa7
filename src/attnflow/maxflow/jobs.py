"""A query cut into jobs: some pairs of one layer, or one source token with all its targets.

With all targets of a source token at hand, the flows of one layer bound those of the next
(`bounds`), and only pairs that stay open are solved.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.maxflow.bounds import (
    ceiling,
    end_ceilings,
    from_layer_below,
    one_layer,
    reachable_ceiling,
    two_layers,
)
from attnflow.maxflow.columns import HIGHEST, SortedColumn
from attnflow.maxflow.kernel import SEARCHED, plan_run, solve_run
from attnflow.maxflow.results import Decided, FlowResult
from attnflow.maxflow.scaling import Scaled
from attnflow.maxflow.state import Graph, Integers, Work, build_graph, new_work, squeezed
from attnflow.maxflow.workers import Job

EXACT = 1e-6
"""The default tolerance: every pair is solved to the end; a larger one lets pairs stop early."""

FIRM = 6
"""The layer from which bounds alone are climbed: most flows are saturated there."""
MANY = 192
"""Among so many positions there are more ways down: flows are saturated a layer earlier."""
DEEP = 9
"""From this layer on the middle of the graph is squeezed, or climbed over by bounds."""
FEW_TARGETS = 4
"""Of all positions, one in so many must be a target before it pays to sort them all."""
ENDS, CAUSAL_ENDS = 3, 8
"""How many layers a squeezed graph keeps at either end; a causal mask leaves fewer ways down."""

CLOSED_FORM, BOUNDS = 0, 1  # the kernel reports 2 and 3; order of the fields of `Decided`


@dataclass(frozen=True, eq=False)
class Query:
    """One query, which all its jobs share; each job writes its own part of the three arrays."""

    scaled: Scaled
    tolerance: float
    layers: list[int]
    lower: Integers  # [layer asked, ...]
    upper: Integers
    how: NDArray[np.int8]
    by_column: bool = False  # all targets of a source token are solved together, from the bottom up
    lock: Lock = field(default_factory=Lock)

    @cached_property
    def _graph(self) -> Graph:
        causal = bool(self.scaled.causal[-1])
        return build_graph(self.scaled.integers, causal=causal, columns=self.by_column)

    @property
    def graph(self) -> Graph:
        """The graph of all layers, made when the first pair needs it."""
        with self.lock:
            return self._graph

    @property
    def length(self) -> int:
        """How many positions there are."""
        return int(self.scaled.integers.shape[1])

    def slack(self, layer: int) -> int:
        """The integer gap at which a pair counts as decided: none unless asked for."""
        return self.scaled.units(self.tolerance, layer) if self.tolerance > EXACT else 0

    def result(self, targets: Integers, sources: Integers) -> FlowResult:
        """Back to floats; `targets` and `sources` broadcast to the shape of one layer."""
        lower, upper = self.scaled.lower(self.lower), np.empty(self.upper.shape)
        saturated, at_source, at_target = (np.empty(self.lower.shape, np.bool_) for _ in range(3))
        pairs = np.broadcast_arrays(targets, sources)
        for place, layer in enumerate(self.layers):
            upper[place] = self.scaled.upper(self.upper[place], layer)
            most = ceiling(self.scaled, layer, targets, sources)
            least = self.lower[place] + self.slack(layer)
            saturated[place] = least >= most
            sent, received = end_ceilings(self.scaled, layer, *(p.ravel() for p in pairs))
            at_target[place] = least >= sent.reshape(least.shape)
            at_source[place] = least >= received.reshape(least.shape)
        decided = Decided(*np.bincount(self.how.ravel(), minlength=4).tolist())
        return FlowResult(lower, upper, saturated, at_source, at_target, decided)


class Scratch:
    """One thread's memory: for the whole graph, and for one layer's squeezed one, when needed."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.squeezed_layer = 0

    @cached_property
    def work(self) -> Work:
        """Memory for the whole graph."""
        return new_work(self.query.graph)

    @cached_property
    def column(self) -> SortedColumn:
        """The lowest layers, sorted for one source token at a time."""
        return SortedColumn(self.query.graph)

    def squeeze(self, layer: int, ends: int) -> tuple[Graph, Work]:
        """The squeezed graph below `layer` and memory for it."""
        if self.squeezed_layer != layer:
            scaled = self.query.scaled
            self.squeezed_graph = build_graph(
                squeezed(scaled.integers, layer, ends),
                barren=ends + 1,
                causal=bool(scaled.causal[layer]),
            )
            self.squeezed_work = new_work(self.squeezed_graph)
            self.squeezed_layer = layer
        return self.squeezed_graph, self.squeezed_work


def in_columns(length: int, layers: Collection[int], targets: Integers) -> bool:
    """All targets asked for, deep down or on layers in a row: bounds from below cost nothing."""
    everyone = np.array_equal(np.sort(targets), np.arange(length))
    return everyone and any(layer - 1 in layers or layer >= DEEP for layer in layers if layer > 2)


def all_jobs(query: Query, targets: Integers, sources: Integers) -> Iterator[Job[Scratch]]:
    """Jobs for all targets x all sources on every layer of the query."""
    if query.by_column:
        for column, source in enumerate(sources.tolist()):
            yield partial(_column, query, targets, source, column)
        return
    # Neighbours share an end, so that one starts from the flow of the other; sources come last
    # first, so that under a causal mask every flow only grows to the left.
    backwards = np.argsort(-sources, kind="stable")
    if len(targets) < len(sources):
        rows, columns = np.divmod(np.arange(len(sources) * len(targets)), max(1, len(sources)))
    else:
        columns, rows = np.divmod(np.arange(len(sources) * len(targets)), max(1, len(targets)))
    columns = backwards[columns]
    for place in range(len(query.layers)):
        yield from pair_jobs(query, place, targets[rows], sources[columns], (rows, columns))


def pair_jobs(
    query: Query,
    place: int,
    targets: Integers,
    sources: Integers,
    where: tuple[Integers, ...] | None = None,
) -> Iterator[Job[Scratch]]:
    """Jobs for pairs of the layer at `place`, whose results belong at `where` in its array."""
    index = (np.arange(len(targets)),) if where is None else where
    step = 8 * _pairs_per_step(query, query.layers[place])
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        at = tuple(axis[part] for axis in index)
        yield partial(_pairs, query, place, targets[part], sources[part], at)


def _pairs_per_step(query: Query, layer: int) -> int:
    """Return how many pairs take some tens of milliseconds when all of them have to be searched."""
    n = query.length
    return int(np.clip(2**28 // (n * n * max(1, layer // 6)), 4, 2048))


def _pairs(
    query: Query,
    place: int,
    targets: Integers,
    sources: Integers,
    where: tuple[Integers, ...],
    scratch: Scratch,
) -> Iterator[int]:
    layer = query.layers[place]
    step = _pairs_per_step(query, layer)
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        at = tuple(axis[part] for axis in where)
        answer = solve_open(query, scratch, layer, targets[part], sources[part])
        query.lower[place][at], query.upper[place][at], query.how[place][at] = answer
        yield len(targets[part])


def solve_open(
    query: Query,
    scratch: Scratch,
    layer: int,
    targets: Integers,
    sources: Integers,
    ceilings: Integers | None = None,
) -> tuple[Integers, Integers, Integers]:
    """(lower, upper, how) of pairs of one layer; `ceilings` are upper bounds known already."""
    how = np.full(len(targets), CLOSED_FORM, np.int64)
    if layer <= 2:
        closed_form = one_layer if layer == 1 else two_layers
        values = closed_form(query.scaled.integers, targets, sources)
        return values, values, how
    upper = reachable_ceiling(query.scaled, layer, targets, sources)
    upper = upper if ceilings is None else np.minimum(upper, ceilings)
    lower = np.zeros_like(upper)
    slack = query.slack(layer)
    causal = bool(query.scaled.causal[layer])
    ends = CAUSAL_ENDS if causal else ENDS
    if ceilings is None and layer >= max(DEEP, 2 * ends + 3):
        graph, work = scratch.squeeze(layer, ends)
        unused = upper.copy()
        pairs = targets, sources, upper, slack
        _solve_run(graph, work, 2 * ends + 1, *pairs, causal, lower, unused, how)
    short = np.flatnonzero(lower < upper - slack)
    if len(short):
        lows, highs, ways = lower[short], upper[short], how[short]
        # Plans reach the ceiling of most deep flows at once, unless a causal mask is in their way;
        # and of most flows, where coming near is enough.
        firm = FIRM - 1 if query.length >= MANY else FIRM
        stubborn = (layer < firm and slack == 0) or causal
        pairs = targets[short], sources[short], upper[short], slack
        crowded = layer <= HIGHEST and _share_source(pairs[1], query.length)
        if stubborn and crowded and not causal:
            lows, highs = scratch.column.solve(layer, *pairs[:3])
            ways[:] = SEARCHED
        else:
            _solve_run(query.graph, scratch.work, layer, *pairs, stubborn, lows, highs, ways)
        lower[short], upper[short], how[short] = lows, highs, ways
    return lower, upper, how


def _share_source(sources: Integers, length: int) -> bool:
    """Return whether pairs are of one source token, and enough of them to sort positions for it."""
    return len(sources) * FEW_TARGETS >= length and bool((sources == sources[0]).all())


def _solve_run(
    graph: Graph,
    work: Work,
    layer: int,
    targets: Integers,
    sources: Integers,
    ceilings: Integers,
    slack: int,
    stubborn: bool,
    lower: Integers,
    upper: Integers,
    how: Integers,
) -> None:
    """Solve pairs of one layer >= 3; writes into the last three.

    stubborn: few plans would prove anything, so that none is drawn for its own sake.
    """
    how[:] = SEARCHED
    if not stubborn:
        misses = np.zeros((2, graph.capacity.shape[1]), np.int64)
        plan_run(graph, work.draft, layer, targets, sources, ceilings, slack, misses, lower, how)
    rest = np.flatnonzero(how == SEARCHED)
    if not len(rest):
        return
    if not stubborn:
        rest = rest[_in_turn(targets[rest], sources[rest])]
    lows, highs = np.empty(len(rest), np.int64), np.empty(len(rest), np.int64)
    solve_run(graph, work, layer, targets[rest], sources[rest], ceilings[rest], slack, lows, highs)
    lower[rest], upper[rest] = lows, highs


def _in_turn(targets: Integers, sources: Integers) -> Integers:
    """An order in which neighbours share the end that they have in common with more pairs."""
    by_target = np.bincount(targets)[targets] >= np.bincount(sources)[sources]
    one = np.where(by_target, targets, sources)
    other = np.where(by_target, sources, targets)
    return np.lexsort((other, one, by_target))


class _Known(NamedTuple):
    """One source token's flows from all targets at one layer."""

    layer: int
    lower: Integers
    upper: Integers
    how: Integers


def _column(
    query: Query, targets: Integers, source: int, column: int, scratch: Scratch
) -> Iterator[int]:
    """One source token, all targets, every layer asked for, from the bottom up.

    Deep layers are reached from layer `FIRM` by bounds alone: what is saturated there stays so,
    and a pair of layer 6 is cheaper to solve than one of layer 24.
    """
    known: _Known | None = None
    for place in sorted(range(len(query.layers)), key=query.layers.__getitem__):
        layer = query.layers[place]
        if layer >= DEEP and (known is None or known.layer < FIRM):
            known = yield from _all_targets(query, scratch, FIRM, source, known, count=False)
        if known is not None and known.layer >= FIRM:
            for between in range(known.layer + 1, layer):
                bounds = from_layer_below(
                    query.graph, query.scaled, between, source, known.lower, known.upper
                )
                known = _Known(between, *bounds, known.how)
        known = yield from _all_targets(query, scratch, layer, source, known, count=True)
        query.lower[place, :, column] = known.lower[targets]
        query.upper[place, :, column] = known.upper[targets]
        query.how[place, :, column] = known.how[targets]


def _all_targets(
    query: Query, scratch: Scratch, layer: int, source: int, below: _Known | None, *, count: bool
) -> Generator[int, None, _Known]:
    """Solve all targets of one layer, with bounds from the layer below if that is known."""
    n = query.length
    everyone, same = np.arange(n), np.full(n, source)
    bounded = below is not None and below.layer == layer - 1 and layer > 2
    if bounded and below is not None:
        bounds = from_layer_below(
            query.graph, query.scaled, layer, source, below.lower, below.upper
        )
        known = _Known(layer, *bounds, np.full(n, BOUNDS, np.int64))
        unknown = np.flatnonzero(known.upper - known.lower > query.slack(layer))
    else:
        known = _Known(layer, *(np.zeros(n, np.int64) for _ in range(3)))
        unknown = everyone
    yield (n - len(unknown)) * count
    step = _pairs_per_step(query, layer)
    for begin in range(0, len(unknown), step):
        part = unknown[begin : begin + step]
        ceilings = known.upper[part] if bounded else None
        answer = solve_open(query, scratch, layer, part, same[part], ceilings)
        known.lower[part], known.upper[part], known.how[part] = answer
        yield len(part) * count
    return known
