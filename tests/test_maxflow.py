"""The solver against solvers written by others, and against its own certificates.

Capacities are multiples of 2**-20 unless a test says otherwise, so networkx and scipy, which work
on the numerators, are exact, and so must ours be: equality here is `==`.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import random_graphs
from attnflow.errors import InputError, TargetError, WeightsError
from attnflow.errors.progress import Progress, listening
from attnflow.maxflow import (
    estimate_seconds,
    flow_edges,
    minimum_cut,
    solve,
    solve_pairs,
)
from attnflow.maxflow.bounds import ceiling, from_layer_below, reachable_ceiling
from attnflow.maxflow.columns import HIGHEST, SortedColumn
from attnflow.maxflow.kernel import solve_run
from attnflow.maxflow.scaling import scale
from attnflow.maxflow.state import DRAWN, FREE, NOTED, build_graph, new_work

Array = NDArray[np.float64]
UNIT = 2**20


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def attention(random: np.random.Generator, depth: int, n: int, sharp: float = 2.0) -> Array:
    return softmax(sharp * random.standard_normal((depth, n, n)))


def with_residual(weights: Array) -> Array:
    return 0.5 * weights + 0.5 * np.eye(weights.shape[-1])


def banded(weights: Array, width: int) -> Array:
    n = weights.shape[-1]
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    kept = np.where((distance >= 0) & (distance < width), weights, 0.0)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def zero_rows(random: np.random.Generator, depth: int, n: int) -> Array:
    capacities = with_residual(attention(random, depth, n))
    capacities[random.random((depth, n)) < 0.3] = 0.0
    return capacities


def sparse(random: np.random.Generator, depth: int, n: int) -> Array:
    return np.where(random.random((depth, n, n)) < 0.4, random.random((depth, n, n)), 0.0)


Kind = Callable[[np.random.Generator, int, int], Array]
KINDS: dict[str, Kind] = {
    "residual": lambda r, d, n: with_residual(attention(r, d, n)),
    "no residual": lambda r, d, n: attention(r, d, n),
    "peaky heads": lambda r, d, n: with_residual(attention(r, d, n, sharp=8.0)),
    "causal": lambda r, d, n: with_residual(banded(attention(r, d, n), n)),
    "causal, no residual": lambda r, d, n: banded(attention(r, d, n), n),
    "sliding window": lambda r, d, n: with_residual(banded(attention(r, d, n), 3)),
    "sinks": lambda r, d, n: with_residual(attention(r, d, n) * r.random((d, n, 1))),
    "zero rows": zero_rows,
    "identity": lambda _, d, n: np.broadcast_to(np.eye(n), (d, n, n)).copy(),
    "uniform": lambda _, d, n: with_residual(np.full((d, n, n), 1.0 / n)),
    "few values, many ties": lambda r, d, n: r.integers(0, 4, (d, n, n)) / 4.0,
    "sparse": sparse,
    "anything up to 1000": lambda r, d, n: 1000.0 * r.random((d, n, n)),
    "weak residual": lambda r, d, n: 0.95 * attention(r, d, n) + 0.05 * np.eye(n),
    "hubs": lambda r, d, n: with_residual(
        softmax(r.standard_normal((d, n, n)) + 4.0 * (r.random((d, 1, n)) < 0.2))
    ),
    "zero": lambda _, d, n: np.zeros((d, n, n)),
}


def dyadic(capacities: Array) -> Array:
    return np.floor(capacities * UNIT) / UNIT


def networkx_flow(capacities: Array, layer: int, target: int, source: int) -> float:
    whole = (capacities * UNIT).astype(np.int64)
    graph = nx.DiGraph()
    graph.add_nodes_from([(layer, target), (0, source)])
    for m in range(1, layer + 1):
        for u, v in np.argwhere(whole[m - 1]).tolist():
            graph.add_edge((m, u), (m - 1, v), capacity=int(whole[m - 1, u, v]))
    ends, search = ((layer, target), (0, source)), nx.algorithms.flow.shortest_augmenting_path
    return float(nx.maximum_flow_value(graph, *ends, flow_func=search)) / UNIT


def scipy_flows(capacities: Array, layer: int, pairs: Iterable[Sequence[int]]) -> list[float]:
    """The flow of each target and source."""
    n = capacities.shape[1]
    whole = (capacities[:layer] * UNIT).astype(np.int32)
    m, u, v = np.nonzero(whole)
    size = (layer + 1) * n
    graph = csr_array((whole[m, u, v], ((m + 1) * n + u, m * n + v)), (size, size))
    return [maximum_flow(graph, layer * n + t, s).flow_value / UNIT for t, s in pairs]


def everything(capacities: Array, **options: Any) -> Any:
    depth, n, _ = capacities.shape
    return solve(
        capacities, layers=range(1, depth + 1), targets=range(n), sources=range(n), **options
    )


def check_certificate(capacities: Array, layer: int, target: int, source: int) -> float:
    """The flow is a flow, the cut is a cut, and they have the same value: both are optimal."""
    found = minimum_cut(capacities, layer=layer, target=target, source=source)
    flow, side = found.flow, found.side
    assert flow.shape == (layer, *capacities.shape[1:])
    assert (flow >= 0).all()
    assert (flow <= capacities[:layer]).all()
    outside = np.ones(capacities.shape[1], bool)
    outside[target] = False
    assert not flow[-1, outside].any()
    assert not np.delete(flow[0], source, axis=1).any()
    for m in range(1, layer):
        np.testing.assert_array_equal(flow[m].sum(axis=0), flow[m - 1].sum(axis=1))
    assert side[layer, target]
    assert not side[0, source]
    crossing = side[1:, :, None] & ~side[:-1, None, :]
    total = float(capacities[:layer][crossing].sum())
    assert found.value == pytest.approx(total, abs=1e-12)
    assert sum(found.capacities) == pytest.approx(total, abs=1e-12)
    np.testing.assert_allclose(flow[crossing], capacities[:layer][crossing], rtol=0, atol=1e-12)
    assert flow[-1].sum() == pytest.approx(found.lower, abs=1e-12)
    assert found.lower == pytest.approx(total, abs=1e-11)
    for (m, u, v), capacity in zip(found.edges.tolist(), found.capacities, strict=True):
        assert capacities[m - 1, u, v] == capacity
    return float(found.lower)


@pytest.mark.parametrize("kind", KINDS)
def test_matches_networkx_and_certifies(kind: str) -> None:
    """Every kind, 80 graphs, all pairs solved, one of them by networkx and by certificate."""
    random = np.random.default_rng(len(kind))
    for _ in range(80):
        depth, n = int(random.integers(1, 8)), int(random.integers(1, 8))
        capacities = dyadic(KINDS[kind](random, depth, n))
        found = everything(capacities, threads=1)
        np.testing.assert_array_equal(found.lower, found.upper)
        layer = int(random.integers(1, depth + 1))
        target, source = (int(p) for p in random.integers(n, size=2))
        value = found.lower[layer - 1, target, source]
        assert value == networkx_flow(capacities, layer, target, source)
        assert value == check_certificate(capacities, layer, target, source)
        top = solve(
            capacities, layers=[layer], targets=[target], sources=[source], threads=1
        )  # without the bounds from below
        assert value == top.lower[0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [20, 63, 64, 65, 130])
def test_matches_scipy_when_a_set_is_several_words(kind: str, n: int) -> None:
    random = np.random.default_rng(n)
    capacities = dyadic(KINDS[kind](random, 5, n))
    for layer in (3, 4, 5):
        pairs = random.integers(n, size=(3, 2)).tolist()
        pairs.append([pairs[0][0]] * 2)
        found = solve_pairs(capacities, layer=layer, pairs=pairs, threads=1)
        assert found.lower.tolist() == scipy_flows(capacities, layer, pairs)
    check_certificate(capacities, 5, *random.integers(n, size=2).tolist())


@pytest.mark.parametrize(
    "kind", ["residual", "peaky heads", "causal", "hubs", "few values, many ties"]
)
def test_matches_scipy_when_a_set_is_more_words_than_lanes(kind: str) -> None:
    """Ten words: eight of them are taken at once, two are left.  The pairs share a source, so that
    all but the first begin with a change of ends and search up and down.
    """
    random = np.random.default_rng(8)
    n = 580
    capacities = dyadic(KINDS[kind](random, 4, n))
    for layer in (3, 4):
        source = int(random.integers(n // 2))
        pairs = [(int(target), source) for target in random.integers(source, n, size=4)]
        flow = solve_pairs(capacities, layer=layer, pairs=pairs, threads=1)
        assert flow.lower.tolist() == scipy_flows(capacities, layer, pairs)


@pytest.mark.parametrize("kind", ["residual", "no residual", "causal", "sinks", "sparse"])
def test_hundreds_of_layers(kind: str) -> None:
    random = np.random.default_rng(5)
    for depth, n in ((120, 3), (300, 2), (60, 5), (14, 9), (25, 12)):
        capacities = dyadic(KINDS[kind](random, depth, n))
        found = everything(capacities, threads=1)
        for layer in (7, depth // 2, depth):
            target, source = (int(p) for p in random.integers(n, size=2))
            value = found.lower[layer - 1, target, source]
            assert [value] == scipy_flows(capacities, layer, [(target, source)])
            pair = solve_pairs(capacities, layer=layer, pairs=[(target, source)], threads=1)
            assert value == pair.lower[0]
        check_certificate(capacities, depth, 0, n - 1)


def test_a_narrow_place_in_the_middle_of_a_deep_graph_counts() -> None:
    """Deep graphs are first solved with their middle squeezed: it must be its narrowest layer."""
    random = np.random.default_rng(15)
    for narrow in range(3, 12):
        capacities = with_residual(attention(random, 14, 4))
        capacities[narrow] *= 0.05
        capacities = dyadic(capacities)
        pairs = [(target, source) for target in range(4) for source in range(4)]
        found = solve_pairs(capacities, layer=14, pairs=pairs, threads=1)
        expected = scipy_flows(capacities, 14, pairs)
        np.testing.assert_array_equal(found.lower, expected)
        np.testing.assert_array_equal(everything(capacities).lower[-1].ravel(), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.integers(1, 5).flatmap(
            lambda depth: arrays(np.int64, (depth, n, n), elements=st.integers(0, 6))
        )
    )
)
def test_small_integers_are_exact_for_every_pair(whole: NDArray[np.int64]) -> None:
    found = everything(whole / 1.0, threads=1)
    depth, n, _ = whole.shape
    np.testing.assert_array_equal(found.lower, found.upper)
    for target in range(n):
        for source in range(n):
            expected = networkx_flow(whole / UNIT, depth, target, source) * UNIT
            assert found.lower[-1, target, source] == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depth", [1, 2, 3, 6, 9])
def test_bounds_hold_on_unrounded_capacities(dtype: type, depth: int) -> None:
    capacities = with_residual(attention(np.random.default_rng(1), depth, 17)).astype(dtype)
    found = everything(capacities)
    assert (found.lower <= found.upper).all()
    assert (found.upper - found.lower).max() <= 1e-6
    rollout = np.eye(17)
    for layer, matrix in enumerate(capacities.astype(np.float64)):
        rollout = matrix @ rollout
        assert (rollout <= found.upper[layer] + 1e-12).all()
    most = np.minimum(capacities[-1].sum(1)[:, None], capacities[0].sum(0)[None])
    assert (found.lower[-1] <= most + 1e-6).all()
    pairs = [(0, 0), (3, 16), (16, 3)]
    for target, source in pairs:
        value = check_certificate(capacities.astype(np.float64), depth, target, source)
        assert value == found.lower[-1, target, source]


def test_one_and_two_layers_are_closed_forms() -> None:
    capacities = with_residual(attention(np.random.default_rng(2), 2, 11))
    found = everything(capacities)
    np.testing.assert_allclose(found.lower[0], capacities[0], atol=1e-9)
    two = np.minimum(capacities[1][:, :, None], capacities[0][None]).sum(axis=1)
    np.testing.assert_allclose(found.lower[1], two, atol=1e-9)
    assert found.decided.closed_form == 2 * 11 * 11


def test_any_subset_equals_the_full_answer() -> None:
    random = np.random.default_rng(3)
    capacities = with_residual(attention(random, 7, 19))
    full = everything(capacities, threads=1)
    assert sum(full.decided.to_dict().values()) == full.lower.size
    assert full.decided.bounds > 0
    assert full.decided.search > 0
    for layers in ([7], [4, 2], [1, 3, 5, 6], [6, 5, 4, 3, 2, 1]):
        for targets in ([5], [9, 0, 9], list(random.permutation(19))):
            for sources in ([18], [3, 3, 1], list(range(19))):
                part = solve(capacities, layers=layers, targets=targets, sources=sources, threads=1)
                where = np.ix_([layer - 1 for layer in layers], targets, sources)
                np.testing.assert_array_equal(part.lower, full.lower[where])
                np.testing.assert_array_equal(part.saturated, full.saturated[where])
                assert part.decided.closed_form == len(targets) * len(sources) * sum(
                    layer <= 2 for layer in layers
                )
    pairs = random.integers(19, size=(40, 2)).tolist()
    some = solve_pairs(capacities, layer=5, pairs=pairs, threads=1)
    np.testing.assert_array_equal(some.lower, [full.lower[4, i, j] for i, j in pairs])


def test_nothing_asked_nothing_answered() -> None:
    capacities = np.ones((3, 4, 4))
    assert solve(capacities, layers=[], targets=[0], sources=[1]).lower.shape == (0, 1, 1)
    assert solve(capacities, layers=[3], targets=[], sources=[1]).lower.shape == (1, 0, 1)
    assert solve_pairs(capacities, layer=3, pairs=[]).lower.shape == (0,)
    assert estimate_seconds(capacities, layers=[3], targets=[], sources=[]) == 0.0


def test_threads_do_not_change_the_answer() -> None:
    capacities = with_residual(attention(np.random.default_rng(4), 5, 40))
    one, two = everything(capacities, threads=1), everything(capacities, threads=2)
    np.testing.assert_array_equal(one.lower, two.lower)
    np.testing.assert_array_equal(one.upper, two.upper)
    assert one.decided == two.decided


def test_tolerance_lets_pairs_stop_early() -> None:
    capacities = with_residual(attention(np.random.default_rng(6), 6, 30))
    exact = everything(capacities)
    for tolerance in (1e-3, 1e-1):
        rough = everything(capacities, tolerance=tolerance)
        assert (rough.upper - rough.lower).max() <= tolerance
        assert (rough.lower <= exact.upper).all()
        assert (rough.upper >= exact.lower).all()
    assert (rough.upper - rough.lower).max() > 1e-6
    assert rough.decided.search < exact.decided.search


def test_saturation_is_exact() -> None:
    capacities = dyadic(with_residual(attention(np.random.default_rng(7), 9, 8)))
    found = everything(capacities)
    for layer in range(9):
        most = np.minimum(capacities[layer].sum(1)[:, None], capacities[0].sum(0)[None])
        np.testing.assert_array_equal(found.saturated[layer], found.lower[layer] == most)
    assert found.saturated[-1].all()


def test_bounds_from_below_hold() -> None:
    for kind in KINDS.values():
        capacities = dyadic(kind(np.random.default_rng(8), 5, 9))
        flows = (everything(capacities).lower * 2.0 ** scale(capacities, 1e-6).exponent).astype(int)
        scaled = scale(capacities, 1e-6)
        graph = build_graph(scaled.integers, columns=True)
        for layer in range(2, 6):
            for source in range(9):
                below = flows[layer - 2, :, source]
                lower, upper = from_layer_below(graph, scaled, layer, source, below, below)
                assert (lower <= flows[layer - 1, :, source]).all()
                assert (flows[layer - 1, :, source] <= upper).all()


@pytest.mark.parametrize("remembered", [10**6, 5])
def test_every_pair_starts_from_a_clean_graph(remembered: int) -> None:
    """Also when more edges were touched than the solver remembers."""
    capacities = scale(with_residual(attention(np.random.default_rng(9), 6, 33)), 1e-6).integers
    graph = build_graph(capacities)
    work = new_work(graph)
    work = work._replace(touched=work.touched[:remembered])
    targets = np.arange(33)
    lower, upper = (np.zeros(33, np.int64) for _ in range(2))
    most = np.full(33, 2**60)
    solve_run(graph, work, 5, targets, targets[::-1].copy(), most, 0, lower, upper)
    np.testing.assert_array_equal(lower, upper)
    np.testing.assert_array_equal(work.residual, graph.capacity)
    np.testing.assert_array_equal(work.forward, graph.positive)
    assert not work.backward.any()
    assert not work.flow.any()
    assert work.draft.plan[FREE].all()
    assert not work.draft.plan[[DRAWN, NOTED]].any()


class Stop(Exception):  # noqa: N818
    pass


@pytest.mark.timing
@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_progress_ends_all_threads(threads: int) -> None:
    capacities = with_residual(attention(np.random.default_rng(10), 6, 150))
    before = threading.active_count()

    def stop(progress: Progress) -> None:
        raise Stop

    begin = time.perf_counter()
    with pytest.raises(Stop), listening(stop):
        everything(capacities, threads=threads)
    assert time.perf_counter() - begin < 3.0
    assert threading.active_count() == before


@pytest.mark.timing
@pytest.mark.parametrize("threads", [1, 2])
def test_interruption_is_prompt_and_leaves_nothing_running(threads: int) -> None:
    capacities = with_residual(attention(np.random.default_rng(11), 6, 250))
    solve_pairs(capacities, layer=3, pairs=[(0, 1)])  # compiled
    before = threading.active_count()
    timer = threading.Timer(0.4, _thread.interrupt_main)
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        begin = time.perf_counter()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            everything(capacities, threads=threads)
        assert time.perf_counter() - begin < 3.0
    finally:
        signal.signal(signal.SIGINT, previous)
    timer.join()
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_counts_every_pair(threads: int) -> None:
    capacities = with_residual(attention(np.random.default_rng(12), 4, 10))
    calls: list[Progress] = []
    with listening(calls.append):
        everything(capacities, threads=threads)
    assert calls[-1] == Progress("flow", 400, 400)
    assert [step.done for step in calls] == sorted(step.done for step in calls)


@pytest.mark.timing
def test_estimate_is_of_the_right_order() -> None:
    capacities = with_residual(attention(np.random.default_rng(13), 6, 48))
    seconds = estimate_seconds(
        capacities, layers=range(1, 7), targets=range(48), sources=range(48), threads=1
    )
    begin = time.perf_counter()
    everything(capacities, threads=1)
    assert 0.05 < seconds / (time.perf_counter() - begin) < 20


def test_refusals() -> None:
    good = np.ones((3, 4, 4))
    for bad in (-good, good * np.nan, good * np.inf, good[0], np.ones((2, 3, 4)), good[:0]):
        with pytest.raises(WeightsError):
            everything(bad) if bad.ndim == 3 else solve(bad, layers=[1], targets=[0], sources=[0])
    for query in (
        {"layers": [0]},
        {"layers": [4]},
        {"targets": [4]},
        {"sources": [-1]},
    ):
        with pytest.raises(TargetError):
            solve(good, **{"layers": [1], "targets": [0], "sources": [0], **query})
    with pytest.raises(TargetError):
        minimum_cut(good, layer=4, target=0, source=0)
    with pytest.raises(InputError):
        solve(good, layers=[1], targets=[0], sources=[0], tolerance=0.0)
    with pytest.raises(InputError):
        solve(good, layers=[3], targets=[0], sources=[0], threads=0)
    with pytest.raises(WeightsError, match="tolerance"):
        everything(1e12 * np.random.default_rng(0).random((3, 4, 4)))


def test_flow_edges_is_the_flow_of_the_cut() -> None:
    capacities = with_residual(attention(np.random.default_rng(14), 4, 6))
    flow = flow_edges(capacities, layer=3, target=2, source=4)
    np.testing.assert_array_equal(flow, minimum_cut(capacities, layer=3, target=2, source=4).flow)


def test_bounds_enclose_the_exact_flow_on_graphs_of_every_kind() -> None:
    tally = random_graphs.check_random_graphs(120, seed=5)
    assert tally.graphs == 120
    assert not tally.wrong


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_ends_keep_every_flow_exact(kind: str) -> None:
    """Any order of pairs, some neighbours sharing an end: each flow equals that of the pair alone,
    and the graph is left clean.
    """
    random = np.random.default_rng(21)
    for depth, n in ((3, 6), (5, 9), (6, 70)):
        scaled = scale(dyadic(KINDS[kind](random, depth, n)), 1e-6)
        graph = build_graph(scaled.integers, causal=bool(scaled.causal[depth]))
        work = new_work(graph)
        targets, sources = random.integers(n, size=(2, 40))
        targets[10:20], sources[20:30] = targets[10], np.sort(sources[20:30])
        targets[30:], sources[30:] = targets[30], np.sort(sources[30:])[::-1]
        most = reachable_ceiling(scaled, depth, targets, sources)
        alone, lower, upper = (np.zeros(40, np.int64) for _ in range(3))
        solve_run(graph, work, depth, targets, sources, most, 0, lower, upper)
        np.testing.assert_array_equal(lower, upper)
        np.testing.assert_array_equal(work.residual[2:depth], graph.capacity[2:depth])
        assert not work.backward.any()
        for k in range(40):
            part = slice(k, k + 1)
            solve_run(
                graph, work, depth, targets[part], sources[part], most[part], 0, alone[part],
                upper[part],
            )  # fmt: skip
        np.testing.assert_array_equal(lower, alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("remembered", [10**6, 5])
def test_sorted_positions_have_the_same_flows(kind: str, remembered: int) -> None:
    """Of one source token after another, all targets and some, and the memory is left clean."""
    random = np.random.default_rng(22)
    for n in (5, 16, 70):
        scaled = scale(dyadic(KINDS[kind](random, HIGHEST, n)), 1e-6)
        graph = build_graph(scaled.integers)
        work, column = new_work(graph), SortedColumn(graph)
        column.work = column.work._replace(touched=column.work.touched[:remembered])
        for source in random.integers(n, size=4).tolist():
            for layer in (3, HIGHEST, 3):
                targets = random.permutation(n)[: random.integers(1, n + 1)]
                pairs = targets, np.full(len(targets), source)
                most = reachable_ceiling(scaled, layer, *pairs)
                lower, upper = (np.zeros(len(targets), np.int64) for _ in range(2))
                solve_run(graph, work, layer, *pairs, most, 0, lower, upper)
                for values in column.solve(layer, *pairs, most):
                    np.testing.assert_array_equal(values, lower)
            sorted_edges = graph.capacity[2:HIGHEST, column.order][:, :, column.order]
            np.testing.assert_array_equal(column.work.residual[2:HIGHEST], sorted_edges)
            np.testing.assert_array_equal(column.work.forward, column.positive)
            assert not column.work.flow.any()
            assert not column.work.backward.any()


def test_what_passes_most_on_to_the_source_token_stands_in_front() -> None:
    capacities = np.zeros((HIGHEST, 4, 4))
    capacities[0, :, 1], capacities[1, :, 1] = (0.1, 0.2, 0.4, 0.3), (0, 0, 0, 0.5)
    graph = build_graph(scale(capacities, 1e-6).integers)
    column = SortedColumn(graph)
    column.solve(3, *(np.array([each]) for each in (0, 1, 0)))
    assert column.order[:4].tolist() == [3, 2, 1, 0]


def test_the_causal_ceiling_holds_and_is_where_deep_decoders_end() -> None:
    """Against scipy; mass on a first token that leads nowhere is not counted."""
    random = np.random.default_rng(22)
    weights = banded(attention(random, 24, 20), 20)
    weights[:, 1:, 0] += 1.0  # a sink
    capacities = dyadic(with_residual(weights / weights.sum(axis=-1, keepdims=True)))
    scaled = scale(capacities, 1e-6)
    assert scaled.causal.all()
    targets, sources = np.full(20, 19), np.arange(20)
    most = reachable_ceiling(scaled, 24, targets, sources) / 2.0**scaled.exponent
    flows = solve(capacities, layers=[24], targets=[19], sources=range(20), threads=1).lower[0, 0]
    assert flows.tolist() == scipy_flows(capacities, 24, [(19, source) for source in range(20)])
    assert (flows <= most).all()
    assert (flows == most).mean() > 0.5
    loose = ceiling(scaled, 24, targets, sources) / 2.0**scaled.exponent
    assert (most[1:] < loose[1:]).mean() > 0.5


def test_a_capacity_that_vanishes_is_counted_as_rounded() -> None:
    """A capacity far below the unit becomes 0; the upper bound must not forget it."""
    capacities = np.array([[[2.0**996, 1e-300], [0.0, 0.0]]])  # the other one is a whole number
    part = solve(capacities, layers=[1], targets=[0], sources=[1], tolerance=1e300)
    assert part.lower[0, 0, 0] <= 1e-300 <= part.upper[0, 0, 0]


def test_a_target_that_is_not_there_is_called_a_target() -> None:
    with pytest.raises(TargetError, match="Target 9 is not there: 0 to 1 are"):
        solve(np.ones((1, 2, 2)), layers=[1], targets=[9], sources=[0])


def test_pairs_and_positions_that_are_none_are_named() -> None:
    capacities = np.ones((3, 2, 2))
    for wrong in ([(0, 1), (0, 1, 1)], [(0, 1, 1)], [(0,)], [0]):
        with pytest.raises(InputError, match=r"A pair must be \(target, source\); got"):
            solve_pairs(capacities, layer=3, pairs=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"whole numbers: 'float'"):
        solve_pairs(capacities, layer=3, pairs=[(0.5, 1)])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"whole numbers: 'str'"):
        solve(capacities, layers=[3], targets=["a"], sources=[0])  # type: ignore[list-item]
