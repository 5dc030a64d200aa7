"""The layered graph: node numbers, the other libraries' forms of it, and the certificate check."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from attnflow import AttentionTrace, Flow, LayeredGraph
from attnflow.errors import InputError, WeightsError
from attnflow.graph import Cut, CutEdge
from attnflow.testing import Shape, check_flow, random_attention, random_trace
from reference_flow import solve_pair

GRAPH = Flow().graph(random_trace(layers=3, length=4, seed=2))


def test_nodes_are_numbered_by_layer_and_position() -> None:
    assert GRAPH.node(0, 0) == 0
    assert GRAPH.node(3, 2) == 14
    assert GRAPH.place(14) == (3, 2)
    with pytest.raises(InputError, match="No node at layer 4, position 0: layers are 0 to 3"):
        GRAPH.node(4, 0)


def test_edges_run_from_the_target_down_to_the_source() -> None:
    graph = GRAPH.to_networkx()
    assert graph.number_of_nodes() == 16
    edge = graph.edges[GRAPH.node(2, 1), GRAPH.node(1, 3)]
    assert edge["capacity"] == GRAPH.capacities[1, 1, 3]
    assert nx.is_directed_acyclic_graph(graph)


def test_csr_holds_the_same_edges() -> None:
    matrix = GRAPH.to_csr()
    assert matrix.shape == (16, 16)
    assert matrix[GRAPH.node(3, 0), GRAPH.node(2, 1)] == GRAPH.capacities[2, 0, 1]
    assert matrix.nnz == np.count_nonzero(GRAPH.capacities)


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros((2, 3, 4)), np.zeros((0, 3, 3))])
def test_bad_shapes_are_named(bad: np.ndarray) -> None:
    with pytest.raises(WeightsError, match=r"shape \(layers, n, n\)"):
        LayeredGraph.from_capacities(bad)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_capacities_are_named(bad: float) -> None:
    with pytest.raises(WeightsError, match="finite and not negative"):
        LayeredGraph.from_capacities(np.full((1, 2, 2), bad))


@pytest.mark.parametrize("shape", ["dense", "causal", "peaked", "identity"])
def test_the_reference_solver_passes_the_certificate_check(shape: Shape) -> None:
    graph = Flow().graph(random_trace(layers=4, length=5, seed=4, shape=shape))
    for target, source in ((0, 0), (4, 0), (0, 4), (3, 1)):
        found = solve_pair(graph, layer=4, target=target, source=source)
        check_flow(
            graph,
            found.flow,
            found.side,
            layer=4,
            target=target,
            source=source,
            lower=found.lower,
            upper=found.upper,
        )


def test_the_certificate_check_catches_a_wrong_flow() -> None:
    found = solve_pair(GRAPH, layer=3, target=0, source=1)
    place = {"layer": 3, "target": 0, "source": 1}
    values = {"lower": found.lower, "upper": found.upper}
    too_much = found.flow.copy()
    too_much[1, 2, 2] += 0.9
    with pytest.raises(AssertionError, match="more than its capacity"):
        check_flow(GRAPH, too_much, found.side, **place, **values)  # type: ignore[arg-type]
    leaking = found.flow.copy()
    leaking[0, :, 1] = 0
    with pytest.raises(AssertionError, match="does not conserve flow"):
        check_flow(GRAPH, leaking, found.side, **place, **values)  # type: ignore[arg-type]
    smaller = found.flow * 0.5
    with pytest.raises(AssertionError, match="apart"):
        check_flow(
            GRAPH,
            smaller,
            found.side,
            **place,  # type: ignore[arg-type]
            lower=found.lower * 0.5,
            upper=found.upper,
        )
    no_cut = np.zeros_like(found.side)
    no_cut[3, 0] = True
    with pytest.raises(AssertionError, match="the cut's value"):
        check_flow(
            GRAPH,
            found.flow,
            no_cut,
            **place,  # type: ignore[arg-type]
            lower=found.lower,
            upper=found.lower,
        )


def test_wrong_nodes_and_capacities_are_named() -> None:
    for node in (-1, 16, "x", 1.5):
        with pytest.raises(InputError, match="No node"):
            GRAPH.place(node)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="No node at layer 'x'"):
        GRAPH.node("x", 0)  # type: ignore[arg-type]
    assert GRAPH.place(GRAPH.node(np.int64(2), np.int64(1))) == (2, 1)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="cannot be read as one array"):
        LayeredGraph.from_capacities("x")


def hybrid_trace() -> AttentionTrace:
    """Layers 2, 5 and 6 of a model; the middle one passes everything."""
    weights = np.stack([random_attention(1, 1, 4, seed=s)[0, 0] for s in (1, 2, 3)])
    return AttentionTrace.from_arrays(weights, list("abcd"), layers=[2, 5, 6])


def test_a_cut_of_one_layer_is_one_edge() -> None:
    cut = Flow().minimum_cut(random_trace(layers=3, length=4), target=1, source=2, layer=1)
    assert cut.place == "the one edge from 't1' to 't2', in layer 1"
    started = Flow(start_layer=2).minimum_cut(random_trace(length=4), target=1, source=2, layer=2)
    assert started.place == "the one edge from 't1' to 't2', in layer 2"


def test_a_cut_names_the_models_own_layers() -> None:
    """By the model's numbers, the source is at layer 2 and the target at layer 6."""
    trace, places = hybrid_trace(), set()
    for target in range(4):
        for source in range(4):
            cut = Flow(residual=None).minimum_cut(trace, target=target, source=source)
            assert cut.lowest_layer == 2
            assert set(cut.by_layer()) <= {2, 5, 6}
            everything = cut.by_layer().get(2) == pytest.approx(
                trace.weights[0, 0, :, source].sum()
            )
            assert ("everything" in cut.place and "at the source" in cut.place) == (
                everything and set(cut.by_layer()) == {2}
            )
            places.add(cut.place.split(":")[0])
    assert "at the source" in places
    assert not any("layer 1" in place for place in places)


def test_a_cut_at_the_source_may_be_a_part_of_what_it_passes_on() -> None:
    edge = CutEdge(1, 0, "a", 2, "c", 0.25)
    some = Cut(2, "a", "c", 0.25, (edge,), passed_on=0.5, taken=1.0)
    assert some.place == "at the source: 50 %, over 1 edges, of what 'c' passes on in layer 1"
    every = Cut(2, "a", "c", 0.25, (edge,), passed_on=0.25, taken=1.0)
    assert every.place == "at the source: everything 'c' passes on in layer 1"
    above = CutEdge(2, 0, "a", 2, "c", 1.0)
    assert Cut(2, "a", "c", 1.0, (above,), taken=1.0).place == (
        "at the target: everything 'a' takes in layer 2"
    )
