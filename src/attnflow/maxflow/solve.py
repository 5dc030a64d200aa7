"""The solver's front: many maximum flows, each with its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import index
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, TargetError
from attnflow.errors.progress import tell
from attnflow.maxflow.jobs import (
    EXACT,
    FIRM,
    Query,
    Scratch,
    all_jobs,
    in_columns,
    pair_jobs,
    solve_open,
)
from attnflow.maxflow.results import FlowResult
from attnflow.maxflow.scaling import scale
from attnflow.maxflow.state import Integers
from attnflow.maxflow.workers import Job, run_jobs, thread_count


def solve(
    capacities: NDArray[Any],
    *,
    layers: Sequence[int],
    targets: Sequence[int],
    sources: Sequence[int],
    tolerance: float = EXACT,
    threads: int | None = None,
) -> FlowResult:
    """Maximum flow from (layer, target) down to (0, source) for all layers, targets and sources.

    `capacities[l - 1][i, j]` belongs to the edge from (l, i) down to (l - 1, j).  `threads` is the
    number of threads, all cores when None.  The listener is told of pairs (stage "flow"),
    from the calling thread.

    >>> capacities = np.array([[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]])
    >>> solve(capacities, layers=[2], targets=[0], sources=[0, 1]).lower.tolist()
    [[[1.0, 0.75]]]
    """
    rows, columns = _positions(targets), _positions(sources)
    query = _query(capacities, layers, (len(rows), len(columns)), rows, columns, tolerance)
    jobs = list(all_jobs(query, rows, columns))
    _run(query, jobs, threads)
    return query.result(rows[:, None], columns[None, :])


def solve_pairs(
    capacities: NDArray[Any],
    *,
    layer: int,
    pairs: Sequence[tuple[int, int]],
    tolerance: float = EXACT,
    threads: int | None = None,
) -> FlowResult:
    """Maximum flow for each pair (target, source) of one layer; arrays have one axis.

    >>> capacities = np.array([[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]])
    >>> solve_pairs(capacities, layer=2, pairs=[(0, 0), (0, 1)]).lower.tolist()
    [1.0, 0.75]
    """
    targets, sources = _ends(pairs)
    query = _query(capacities, [layer], (len(targets),), targets, sources, tolerance)
    # Neighbours that share a source token start from each other's flow; see `all_jobs`.
    order = np.lexsort((targets, -sources))
    jobs = pair_jobs(query, 0, targets[order], sources[order], (order,))
    _run(query, list(jobs), threads)
    result = query.result(targets, sources)
    return FlowResult(
        lower=result.lower[0],
        upper=result.upper[0],
        saturated=result.saturated[0],
        at_source=result.at_source[0],
        at_target=result.at_target[0],
        decided=result.decided,
    )


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

    >>> layers, every = range(1, 4), range(6)
    >>> estimate_seconds(np.ones((3, 6, 6)) / 6, layers=layers, targets=every, sources=every) >= 0
    True
    """
    rows, columns = _positions(targets), _positions(sources)
    query = _query(capacities, layers, (len(rows), len(columns)), rows, columns, EXACT)
    if query.lower.size == 0:
        return 0.0
    random = np.random.default_rng(0)
    scratch = Scratch(query)
    seconds = 0.0
    pairs_per_layer = len(rows) * len(columns)
    known: dict[int, float] = {}
    for layer in query.layers:
        kind = min(layer, FIRM) if query.by_column else min(layer, 12)
        if layer > 2 and kind not in known:
            pairs = random.choice(rows, sample), random.choice(columns, sample)
            solve_open(query, scratch, layer, *(p[:1] for p in pairs))  # compiled, caches warm
            begin = perf_counter()
            solve_open(query, scratch, layer, *pairs)
            known[kind] = (perf_counter() - begin) / sample
        share = 0.1 if query.by_column and layer >= FIRM else 1.0
        seconds += share * known.get(kind, 0.0) * pairs_per_layer
    return seconds / thread_count(threads)


def _positions(positions: Iterable[int]) -> Integers:
    try:
        return np.fromiter(map(index, positions), np.int64)
    except TypeError as error:
        raise InputError(f"Positions must be whole numbers: {error}.") from None


def _ends(pairs: Sequence[tuple[int, int]]) -> tuple[Integers, Integers]:
    """Targets and sources of pairs; several times as fast as an array of tuples."""
    try:
        uneven = set(map(len, pairs)) - {2}
    except TypeError:
        uneven = {0}
    if uneven:
        wrong = next(pair for pair in pairs if np.shape(pair) != (2,))
        raise InputError(f"A pair must be (target, source); got {wrong!r}.")
    ends = _positions(chain.from_iterable(pairs))
    return ends[::2].copy(), ends[1::2].copy()


def _query(
    capacities: NDArray[Any],
    layers: Sequence[int],
    shape: tuple[int, ...],
    targets: Integers,
    sources: Integers,
    tolerance: float,
) -> Query:
    """Check everything, scale, and allot the arrays the jobs will fill."""
    if not tolerance > 0:
        raise InputError(f"tolerance must be above 0; got {tolerance}.")
    scaled = scale(capacities, tolerance)
    depth, n = scaled.integers.shape[0] - 1, scaled.integers.shape[1]
    levels = [int(layer) for layer in layers]
    for name, values, first, last in (
        ("Layer", np.asarray(levels, np.int64), 1, depth),
        ("Target", targets, 0, n - 1),
        ("Source", sources, 0, n - 1),
    ):
        wrong = values[(values < first) | (values > last)]
        if len(wrong):
            raise TargetError(f"{name} {wrong[0]} is not there: {first} to {last} are.")
    lower, upper = (np.zeros((len(levels), *shape), np.int64) for _ in range(2))
    by_column = len(shape) == 2 and in_columns(n, set(levels), targets)
    return Query(scaled, tolerance, levels, lower, upper, lower.astype(np.int8), by_column)


def _run(query: Query, jobs: list[Job[Scratch]], threads: int | None) -> None:
    total = query.lower.size
    run_jobs(
        jobs, lambda: Scratch(query), threads=threads, report=lambda done: tell("flow", done, total)
    )
