"""Plans drawn in 32 bits: each is a flow, and what it proves is so to the last unit of 64 bits.

Capacities are not rounded to anything here, and some are so wide that the units of a plan are
coarse: a proof that rounded the wrong way would be wrong by far more than a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import networkx as nx
import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from attnflow.maxflow.bounds import ceiling
from attnflow.maxflow.construct import commit, drop_plan, plan_pair
from attnflow.maxflow.edges import clean
from attnflow.maxflow.kernel import PATIENCE, SEARCHED, plan_run
from attnflow.maxflow.lanes import (
    LANES,
    add,
    first_of,
    least,
    load,
    members,
    most,
    nothing,
    store,
    subtract,
    total,
)
from attnflow.maxflow.scaling import Scaled, scale
from attnflow.maxflow.state import SOURCE, TARGET, Graph, Integers, Work, build_graph, new_work

Array = NDArray[np.float64]


def attention(random: np.random.Generator, depth: int, n: int, sharp: float = 2.0) -> Array:
    scores = np.exp(sharp * random.standard_normal((depth, n, n)))
    return np.asarray(0.5 * scores / scores.sum(axis=-1, keepdims=True) + 0.5 * np.eye(n))


def with_a_wide_edge(random: np.random.Generator, depth: int, n: int) -> Array:
    """One edge is a million times wider: a unit of the plan is then a thousandth of a row."""
    capacities = attention(random, depth, n)
    capacities[1, 0, 0] = 1e6
    return capacities


def with_sinks(random: np.random.Generator, depth: int, n: int) -> Array:
    capacities = attention(random, depth, n)
    capacities[:, :, : max(1, n // 6)] *= 6.0
    return np.asarray(capacities / capacities.sum(axis=-1, keepdims=True))


Kind = Callable[[np.random.Generator, int, int], Array]
KINDS: dict[str, Kind] = {
    "attention": attention,
    "peaky": lambda r, d, n: attention(r, d, n, sharp=6.0),
    "wide edge": with_a_wide_edge,
    "sinks": with_sinks,
    "sparse": lambda r, d, n: attention(r, d, n) * (r.random((d, n, n)) < 0.3),
    "any": lambda r, d, n: r.random((d, n, n)),
    "causal": lambda r, d, n: np.tril(attention(r, d, n)),
}


def prepared(kind: str, seed: int, depth: int, n: int) -> tuple[Scaled, Graph, Work]:
    scaled = scale(KINDS[kind](np.random.default_rng(seed), depth, n), np.inf)
    graph = build_graph(scaled.integers)
    return scaled, graph, new_work(graph)


def exact_flow(capacity: Integers, layer: int, target: int, source: int) -> int:
    """By networkx, on Python's integers of any size."""
    graph = nx.DiGraph()
    graph.add_nodes_from([(layer, target), (0, source)])
    for m in range(1, layer + 1):
        for u, v in np.argwhere(capacity[m]).tolist():
            graph.add_edge((m, u), (m - 1, v), capacity=int(capacity[m, u, v]))
    ends, search = ((layer, target), (0, source)), nx.algorithms.flow.shortest_augmenting_path
    return int(nx.maximum_flow_value(graph, *ends, flow_func=search))


def load_plan(graph: Graph, work: Work, layer: int, target: int, source: int, ceiling: int) -> int:
    plan_pair(
        graph.capacity, graph.transposed, graph.coarse, work.draft, layer, target, source, ceiling,
        0, 0,
    )  # fmt: skip
    value = commit(
        graph.capacity, graph.transposed, work.residual, work.flow, work.forward, work.backward,
        work.touched, work.counts, work.ends, graph.coarse, work.draft, layer, target, source,
    )  # fmt: skip
    drop_plan(work.draft)
    return int(value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "n"), [(2, 5), (3, 9), (4, 16), (6, 7), (6, 33), (9, 12)])
def test_a_plan_is_a_flow(kind: str, depth: int, n: int) -> None:
    """What enters a node leaves it, no edge carries more than it can, and the value is right."""
    random = np.random.default_rng(n)
    scaled, graph, work = prepared(kind, depth, depth, n)
    for target, source in [*random.integers(n, size=(25, 2)).tolist(), [1, 1]]:
        most_of_it = int(ceiling(scaled, depth, np.array([target]), np.array([source]))[0])
        value = load_plan(graph, work, depth, target, source, most_of_it)
        flow = graph.capacity - work.residual
        flow[[1, depth]] = 0
        np.testing.assert_array_equal(flow, work.flow)
        flow[depth, target] = graph.capacity[depth, target] - work.ends[TARGET]
        flow[1, :, source] = graph.capacity[1, :, source] - work.ends[SOURCE]
        assert (flow >= 0).all()
        assert (flow <= graph.capacity).all()
        for m in range(2, depth + 1):
            np.testing.assert_array_equal(flow[m].sum(axis=0), flow[m - 1].sum(axis=1))
        assert flow[depth].sum() == flow[1].sum() == value
        assert value <= most_of_it
        clean(
            graph.positive, work.residual, work.flow, work.forward, work.backward, work.touched,
            work.counts, depth,
        )  # fmt: skip
        np.testing.assert_array_equal(work.residual, graph.capacity)
        assert not work.flow.any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_plan_proves_is_so(kind: str) -> None:
    proofs = 0
    for seed, depth, n in [(1, 3, 6), (2, 4, 10), (3, 5, 12), (4, 6, 9), (5, 6, 16), (6, 7, 11)]:
        scaled, graph, work = prepared(kind, seed, depth, n)
        targets, sources = (each.ravel() for each in np.indices((n, n)))
        ceilings = ceiling(scaled, depth, targets, sources)
        lower, how = np.zeros(n * n, np.int64), np.zeros(n * n, np.int64)
        never = np.full((2, graph.capacity.shape[1]), -1)
        plan_run(graph, work.draft, depth, targets, sources, ceilings, 0, never, lower, how)
        proven = np.flatnonzero(how != SEARCHED)
        np.testing.assert_array_equal(lower[proven], ceilings[proven])
        proofs += len(proven)
        for pair in np.random.default_rng(seed).permutation(proven)[:12].tolist():
            value = exact_flow(scaled.integers, depth, int(targets[pair]), int(sources[pair]))
            assert value == ceilings[pair]
    assert proofs >= (100 if kind in {"attention", "wide edge", "sinks"} else 0)


def test_a_wide_edge_makes_units_coarse() -> None:
    """Else the tests above would say little about rounding."""
    _, graph, _ = prepared("wide edge", 1, 4, 10)
    assert graph.coarse.capacity[4].max() < 2000
    dropped = graph.capacity & ((1 << graph.coarse.shift) - 1)
    assert (dropped[1:, :10, :10] > 0).mean() > 0.9


@pytest.mark.parametrize("end", [TARGET, SOURCE])
@pytest.mark.parametrize("enough", [False, True])
def test_a_plan_that_lacks_a_fraction_of_a_unit_proves_nothing(end: int, enough: bool) -> None:
    """Edges in the middle are `enough`, or lack less than what a unit of the plan is."""
    capacity = np.zeros((5, 8, 8), np.int64)
    capacity[1, 7, 6] = 1 << 50  # makes a unit 2**22
    unit, through = 1 << 22, np.arange(2, 6)
    capacity[2:4, through, through] = 9 * unit + (unit if enough else 0)
    capacity[4, 0, through] = 9 * unit + (5 if end == TARGET else 2 * unit)
    capacity[1, through, 1] = 9 * unit + (5 if end == SOURCE else 2 * unit)
    graph = build_graph(capacity)
    assert graph.coarse.shift == 22
    ceilings = np.array([4 * (9 * unit + 5)])
    lower, how, never = np.zeros(1, np.int64), np.zeros(1, np.int64), np.full((2, 8), -1)
    ends = np.array([0]), np.array([1])
    plan_run(graph, new_work(graph).draft, 4, *ends, ceilings, 0, never, lower, how)
    assert (how[0] != SEARCHED) == enough
    assert (exact_flow(capacity, 4, 0, 1) == ceilings[0]) == enough


def test_a_plan_within_slack_counts_and_says_by_how_much() -> None:
    scaled, graph, work = prepared("attention", 7, 4, 24)
    targets, sources = (each.ravel() for each in np.indices((24, 24)))
    ceilings = ceiling(scaled, 4, targets, sources)
    slack = int(ceilings.max()) // 8
    tallies = []
    for allowed in (0, slack):
        lower, how = np.zeros(576, np.int64), np.zeros(576, np.int64)
        never = np.full((2, graph.capacity.shape[1]), -1)
        plan_run(graph, work.draft, 4, targets, sources, ceilings, allowed, never, lower, how)
        proven = how != SEARCHED
        assert (lower[proven] >= ceilings[proven] - allowed).all()
        assert (lower <= ceilings).all()
        tallies.append(int(proven.sum()))
        for pair in np.flatnonzero(proven)[::97].tolist():
            value = exact_flow(scaled.integers, 4, int(targets[pair]), int(sources[pair]))
            assert lower[pair] <= value
    assert tallies[0] < tallies[1]


def test_ends_whose_plans_fail_are_left_to_the_search() -> None:
    """After some failures of a target, and no success, its other pairs are not planned."""
    random = np.random.default_rng(8)
    capacities = attention(random, 6, 24)
    capacities[5, 3] = 0.0
    capacities[5, 3, 3] = 1.0  # all that this target sends falls into its own channel,
    capacities[1:5, 3] = np.where(np.arange(24) == 3, 1.0, 1e-3)  # which is hard to leave
    scaled = scale(capacities, np.inf)
    graph = build_graph(scaled.integers)
    targets, sources = np.full(24, 3), np.arange(24)
    ceilings = ceiling(scaled, 6, targets, sources)
    misses = np.zeros((2, graph.capacity.shape[1]), np.int64)
    lower, how = np.zeros(24, np.int64), np.zeros(24, np.int64)
    plan_run(graph, new_work(graph).draft, 6, targets, sources, ceilings, 0, misses, lower, how)
    assert (how == SEARCHED).all()
    assert misses[TARGET, 3] == PATIENCE


def several_steps(one: Integers, other: Integers, out: Integers, limit: int) -> tuple[int, int]:
    sums = nothing(one)
    for k in range(0, one.shape[0], LANES):
        lesser = least(load(one, k), load(other, k))
        greater = most(load(one, k), load(other, k))
        store(out[0], k, lesser)
        store(out[1], k, greater)
        store(out[2], k, subtract(greater, lesser))
        store(out[3], k, first_of(load(one, k), limit))
        sums = add(sums, lesser)
    return total(sums), members(load(one, LANES), limit)


# Not kept on disk, as `compiled` would: the copy would not notice that `lanes` has changed.
try_lanes = cast(Callable[..., tuple[int, int]], njit(several_steps))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_lanes_do_what_numpy_does(kind: type) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        one, other = random.integers(0, 1000, size=(2, 3 * LANES)).astype(kind)
        limit = int(random.integers(0, 1200))
        out = np.zeros((4, len(one)), kind)
        summed, large = try_lanes(one, other, out, limit)
        np.testing.assert_array_equal(out[0], np.minimum(one, other))
        np.testing.assert_array_equal(out[1], np.maximum(one, other))
        np.testing.assert_array_equal(out[2], np.abs(one - other))
        before = one.reshape(-1, LANES).cumsum(axis=1) - one.reshape(-1, LANES)
        first = np.clip(limit - before, 0, one.reshape(-1, LANES))
        np.testing.assert_array_equal(out[3], first.ravel())
        assert summed == np.minimum(one, other).sum()
        bits = one[LANES : 2 * LANES] >= limit
        assert large == sum(1 << lane for lane in np.flatnonzero(bits).tolist())
