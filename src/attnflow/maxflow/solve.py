"""The solver's front: many maximum flows, each with its certificate.

A query is cut into jobs.  A job is either some pairs of one layer, or a source token with all its
targets on every layer asked for: then the flows of one layer bound those of the next (`bounds`),
and only pairs that stay open are solved.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, TargetError
from attnflow.maxflow.bounds import ceiling, from_layer_below, one_layer, two_layers
from attnflow.maxflow.kernel import solve_run
from attnflow.maxflow.results import Decided, FlowResult
from attnflow.maxflow.scaling import Scaled, scale
from attnflow.maxflow.state import KEPT, Graph, Integers, Work, build_graph, new_work, squeezed
from attnflow.maxflow.workers import Job, Progress, run_jobs, thread_count

__all__ = ["estimate_seconds", "solve", "solve_pairs"]

EXACT = 1e-6
"""The default tolerance: every pair is solved to the end; a larger one lets pairs stop early."""

FIRM = 6
"""The layer from which bounds alone are climbed: most flows are saturated there."""
DEEP = 2 * KEPT + 3
"""From this layer on the middle of the graph is squeezed, or climbed over by bounds."""

CLOSED_FORM, BOUNDS = 0, 1  # the kernel reports 2 and 3; order of the fields of `Decided`


@dataclass(frozen=True, eq=False)
class _Query:
    """What all jobs of one query share; each job writes its own part of the three arrays."""

    graph: Graph
    scaled: Scaled
    tolerance: float
    layers: list[int]
    lower: Integers  # [layer asked, ...]
    upper: Integers
    how: NDArray[np.int8]

    def slack(self, layer: int) -> int:
        """The integer gap at which a pair counts as decided: none unless asked for."""
        return self.scaled.units(self.tolerance, layer) if self.tolerance > EXACT else 0

    def result(self, targets: Integers, sources: Integers) -> FlowResult:
        """Back to floats; `targets` and `sources` broadcast to the shape of one layer."""
        lower, upper = self.scaled.lower(self.lower), np.empty(self.upper.shape)
        saturated = np.empty(self.lower.shape, np.bool_)
        for place, layer in enumerate(self.layers):
            upper[place] = self.scaled.upper(self.upper[place], layer)
            most = ceiling(self.graph, layer, targets, sources)
            saturated[place] = self.lower[place] >= most - self.slack(layer)
        decided = Decided(*np.bincount(self.how.ravel(), minlength=4).tolist())
        return FlowResult(lower, upper, saturated, decided)


def solve(
    capacities: NDArray[Any],
    *,
    layers: Sequence[int],
    targets: Sequence[int],
    sources: Sequence[int],
    tolerance: float = EXACT,
    threads: int | None = None,
    progress: Progress | None = None,
) -> FlowResult:
    """Maximum flow from (layer, target) down to (0, source) for all layers, targets and sources.

    `capacities[l - 1][i, j]` belongs to the edge from (l, i) down to (l - 1, j).  `threads` is the
    number of threads, all cores when None.  `progress(done, total)` counts pairs and is called
    from the calling thread.
    """
    rows, columns = _positions(targets), _positions(sources)
    query = _query(capacities, layers, (len(rows), len(columns)), rows, columns, tolerance)
    jobs = list(_jobs(query, rows, columns))
    _run(query, jobs, threads, progress)
    return query.result(rows[:, None], columns[None, :])


def solve_pairs(
    capacities: NDArray[Any],
    *,
    layer: int,
    pairs: Sequence[tuple[int, int]],
    tolerance: float = EXACT,
    threads: int | None = None,
    progress: Progress | None = None,
) -> FlowResult:
    """Maximum flow for each pair (target, source) of one layer; arrays have one axis."""
    both = np.asarray(pairs, np.int64).reshape(-1, 2)
    targets, sources = both.T.copy()
    query = _query(capacities, [layer], (len(both),), targets, sources, tolerance)
    _run(query, list(_pair_jobs(query, 0, targets, sources)), threads, progress)
    result = query.result(targets, sources)
    return FlowResult(result.lower[0], result.upper[0], result.saturated[0], result.decided)


def estimate_seconds(
    capacities: NDArray[Any],
    *,
    layers: Sequence[int],
    targets: Sequence[int],
    sources: Sequence[int],
    threads: int | None = None,
    sample: int = 8,
) -> float:
    """About how long `solve` would take: a few pairs of some layers are solved and timed.

    With all targets and consecutive layers the bounds will decide most deep pairs, so the cost of
    layers from 6 on is taken as a tenth of a solved pair.
    """
    rows, columns = _positions(targets), _positions(sources)
    query = _query(capacities, layers, (len(rows), len(columns)), rows, columns, EXACT)
    if query.lower.size == 0:
        return 0.0
    random = np.random.default_rng(0)
    scratch = _Scratch(query.graph)
    seconds = 0.0
    pairs_per_layer = len(rows) * len(columns)
    in_columns = _in_columns(query, rows)
    known: dict[int, float] = {}
    for layer in query.layers:
        kind = min(layer, 6) if in_columns else min(layer, 12)
        if layer > 2 and kind not in known:
            picked = random.choice(rows, sample), random.choice(columns, sample)
            _solve_open(query, scratch, layer, *(p[:1] for p in picked))  # compiled, caches warm
            begin = perf_counter()
            _solve_open(query, scratch, layer, *picked)
            known[kind] = (perf_counter() - begin) / sample
        share = 0.1 if in_columns and layer >= 6 else 1.0
        seconds += share * known.get(kind, 0.0) * pairs_per_layer
    return seconds / thread_count(threads)


def _positions(positions: Sequence[int]) -> Integers:
    return np.asarray(list(positions), np.int64).reshape(-1)


def _query(
    capacities: NDArray[Any],
    layers: Sequence[int],
    shape: tuple[int, ...],
    targets: Integers,
    sources: Integers,
    tolerance: float,
) -> _Query:
    """Check everything, scale, and allot the arrays the jobs will fill."""
    if not tolerance > 0:
        raise InputError(f"tolerance must be above 0; got {tolerance}.")
    scaled = scale(capacities, tolerance)
    depth, n = scaled.integers.shape[0] - 1, scaled.integers.shape[1]
    levels = [int(layer) for layer in layers]
    for name, values, first, last in (
        ("Layer", levels, 1, depth),
        ("Target", targets.tolist(), 0, n - 1),
        ("Source", sources.tolist(), 0, n - 1),
    ):
        wrong = [value for value in values if not first <= value <= last]
        if wrong:
            raise TargetError(f"{name} {wrong[0]} is not there: {first} to {last} are.")
    graph = build_graph(scaled.integers)
    lower, upper = (np.zeros((len(levels), *shape), np.int64) for _ in range(2))
    return _Query(graph, scaled, tolerance, levels, lower, upper, lower.astype(np.int8))


class _Scratch:
    """One thread's memory: for the whole graph, and for one layer's squeezed one, when needed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.squeezed_layer = 0

    @cached_property
    def work(self) -> Work:
        return new_work(self.graph)

    def squeeze(self, layer: int) -> tuple[Graph, Work]:
        if self.squeezed_layer != layer:
            self.squeezed_graph = build_graph(squeezed(self.graph.capacity, layer), KEPT + 1)
            self.squeezed_work = new_work(self.squeezed_graph)
            self.squeezed_layer = layer
        return self.squeezed_graph, self.squeezed_work


def _run(
    query: _Query, jobs: list[Job[_Scratch]], threads: int | None, progress: Progress | None
) -> None:
    run_jobs(
        jobs,
        lambda: _Scratch(query.graph),
        threads=threads,
        total=query.lower.size,
        progress=progress,
    )


def _in_columns(query: _Query, targets: Integers) -> bool:
    """All targets asked for, deep down or on layers in a row: bounds from below cost nothing."""
    everyone = np.array_equal(np.sort(targets), np.arange(query.graph.capacity.shape[1]))
    asked = set(query.layers)
    return everyone and any(layer - 1 in asked or layer >= DEEP for layer in asked if layer > 2)


def _jobs(query: _Query, targets: Integers, sources: Integers) -> Iterator[Job[_Scratch]]:
    if _in_columns(query, targets):
        for column, source in enumerate(sources.tolist()):
            yield partial(_column, query, targets, source, column)
        return
    # Pairs with the same source token lie together: its columns stay in the cache.
    columns, rows = np.divmod(np.arange(len(sources) * len(targets)), max(1, len(targets)))
    for place in range(len(query.layers)):
        yield from _pair_jobs(query, place, targets[rows], sources[columns], (rows, columns))


def _pair_jobs(
    query: _Query,
    place: int,
    targets: Integers,
    sources: Integers,
    where: tuple[Integers, ...] | None = None,
) -> Iterator[Job[_Scratch]]:
    """Jobs for pairs of the layer at `place`, whose results belong at `where` in its array."""
    index = (np.arange(len(targets)),) if where is None else where
    step = 8 * _pairs_per_step(query, query.layers[place])
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        at = tuple(axis[part] for axis in index)
        yield partial(_pairs, query, place, targets[part], sources[part], at)


def _pairs_per_step(query: _Query, layer: int) -> int:
    """How many pairs take some tens of milliseconds when all of them have to be searched."""
    n = query.graph.capacity.shape[1]
    return int(np.clip(2**22 // (n * n * max(1, layer // 6)), 1, 1024))


def _pairs(
    query: _Query,
    place: int,
    targets: Integers,
    sources: Integers,
    where: tuple[Integers, ...],
    scratch: _Scratch,
) -> Iterator[int]:
    layer = query.layers[place]
    step = _pairs_per_step(query, layer)
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        at = tuple(axis[part] for axis in where)
        answer = _solve_open(query, scratch, layer, targets[part], sources[part])
        query.lower[place][at], query.upper[place][at], query.how[place][at] = answer
        yield len(targets[part])


def _solve_open(
    query: _Query,
    scratch: _Scratch,
    layer: int,
    targets: Integers,
    sources: Integers,
    ceilings: Integers | None = None,
) -> tuple[Integers, Integers, Integers]:
    """(lower, upper, how) of pairs of one layer; `ceilings` are upper bounds known already."""
    how = np.full(len(targets), CLOSED_FORM, np.int64)
    if layer <= 2:
        closed_form = one_layer if layer == 1 else two_layers
        values = closed_form(query.graph, targets, sources)
        return values, values, how
    upper = ceiling(query.graph, layer, targets, sources) if ceilings is None else ceilings
    lower = np.zeros_like(upper)
    slack = query.slack(layer)
    if ceilings is None and layer >= DEEP:
        graph, work = scratch.squeeze(layer)
        unused = np.empty_like(upper)
        last = 2 * KEPT + 1
        solve_run(graph, work, last, targets, sources, upper, slack, lower, unused, how)
    short = np.flatnonzero(lower < upper - slack)
    if len(short):
        answer = _solve_run(query, scratch, layer, targets[short], sources[short], upper[short])
        lower[short], upper[short], how[short] = answer
    return lower, upper, how


def _solve_run(
    query: _Query,
    scratch: _Scratch,
    layer: int,
    targets: Integers,
    sources: Integers,
    ceilings: Integers,
) -> tuple[Integers, Integers, Integers]:
    """(lower, upper, how) of pairs of one layer >= 3 from the whole graph."""
    lower, upper, how = (np.empty(len(targets), np.int64) for _ in range(3))
    slack = query.slack(layer)
    solve_run(
        query.graph, scratch.work, layer, targets, sources, ceilings, slack, lower, upper, how
    )
    return lower, upper, how


class _Known(NamedTuple):
    """One source token's flows from all targets at one layer."""

    layer: int
    lower: Integers
    upper: Integers
    how: Integers


def _column(
    query: _Query, targets: Integers, source: int, column: int, scratch: _Scratch
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
                bounds = from_layer_below(query.graph, between, source, known.lower, known.upper)
                known = _Known(between, *bounds, known.how)
        known = yield from _all_targets(query, scratch, layer, source, known, count=True)
        query.lower[place, :, column] = known.lower[targets]
        query.upper[place, :, column] = known.upper[targets]
        query.how[place, :, column] = known.how[targets]


def _all_targets(
    query: _Query, scratch: _Scratch, layer: int, source: int, below: _Known | None, *, count: bool
) -> Generator[int, None, _Known]:
    """Solve all targets of one layer, with bounds from the layer below if that is known."""
    n = query.graph.capacity.shape[1]
    everyone, same = np.arange(n), np.full(n, source)
    bounded = below is not None and below.layer == layer - 1 and layer > 2
    if bounded and below is not None:
        bounds = from_layer_below(query.graph, layer, source, below.lower, below.upper)
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
        answer = _solve_open(query, scratch, layer, part, same[part], ceilings)
        known.lower[part], known.upper[part], known.how[part] = answer
        yield len(part) * count
    return known
