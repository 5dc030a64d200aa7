"""Raw, rollout and flow: by hand, against references we did not write, and by their invariants."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow
from attnflow import (
    AttentionTrace,
    Attribution,
    Flow,
    GradientRollout,
    Raw,
    Rollout,
)
from attnflow.errors import InputError, MethodError, TargetError
from attnflow.errors.progress import Progress, listening
from attnflow.methods import (
    METHODS,
    Execution,
    Method,
    Selection,
    attribution_of,
    describe_options,
    make_method,
)
from attnflow.testing import Shape, check_method, random_attention, random_trace, tiny_encoder

# What these tests are about is not what a deep result says; tests/test_collapse.py is.

SHAPES: list[Shape] = ["dense", "causal", "window", "peaked", "uniform", "identity"]


def trace_of(*layers: list[list[float]]) -> AttentionTrace:
    n = len(layers[0])
    return AttentionTrace.from_arrays(np.array(layers), [f"t{k}" for k in range(n)])


# -- by hand ------------------------------------------------------------------------------------

# W_1 and W_2; with the residual A = W/2 + I/2:
#   A_1 = [.75 .25 0; .25 .5 .25; 0 .5 .5]     A_2 = [.5 .5 0; 0 .5 .5; .25 .25 .5]
HAND = trace_of(
    [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]],
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]],
)


def test_two_layers_three_tokens_by_hand() -> None:
    raw, rollout, flow = Raw()(HAND), Rollout()(HAND), Flow()(HAND)
    assert np.allclose(raw.values[1, 0], [0, 1, 0])
    assert np.allclose(rollout.values[0, 1], [0.25, 0.5, 0.25])
    # row 0 of A_2 A_1 = .5 (.75 .25 0) + .5 (.25 .5 .25)
    assert np.allclose(rollout.values[1, 0], [0.5, 0.375, 0.125])
    # row 0: sum over k of min(A_2[0,k], A_1[k,j]), for j = 0: min(.5,.75) + min(.5,.25) = .75
    assert np.allclose(flow.values[1, 0], [0.75, 0.75, 0.25])
    # row 2, j = 1: min(.25,.25) + min(.25,.5) + min(.5,.5) = 1
    assert np.allclose(flow.values[1, 2], [0.5, 1.0, 0.75])


def test_identity_attention_stays_where_it_is() -> None:
    trace = random_trace(layers=4, length=3, shape="identity")
    for method in (Raw(), Rollout(), Flow()):
        assert np.allclose(method(trace).values, np.eye(3))


def test_uniform_attention_by_hand() -> None:
    """A = I/2 + 1/(2n): rollout after l layers is 2^-l I + (1 - 2^-l)/n everywhere."""
    n = 4
    trace = random_trace(layers=3, length=n, shape="uniform")
    rollout = Rollout()(trace).values
    for k in range(3):
        share = 0.5 ** (k + 1)
        assert np.allclose(rollout[k], share * np.eye(n) + (1 - share) / n)
    # A is 5/8 on the diagonal, 1/8 off it. Two layers, i ≠ j: 1/8 through each of the 4 channels.
    # Three layers: node i of layer 2 is offered 5/8 but can pass on only 1/8 to j itself, 1/8 to
    # each of two others and 1/8 down its own channel, 4/8; with 1/8 from 3 other channels: 7/8.
    flow = Flow()(trace).values
    off = ~np.eye(n, dtype=bool)
    assert np.allclose(flow[1][off], 1 / 2)
    assert np.allclose(flow[2][off], 7 / 8)
    assert np.allclose(flow[1:, ~off], 1)


# -- against references -------------------------------------------------------------------------


def rollout_by_loops(matrices: np.ndarray) -> np.ndarray:
    """The formula with three plain loops over numbers."""
    layers, n, _ = matrices.shape
    result = np.zeros_like(matrices)
    result[0] = matrices[0]
    for k in range(1, layers):
        for i in range(n):
            for j in range(n):
                result[k, i, j] = sum(matrices[k, i, m] * result[k - 1, m, j] for m in range(n))
    return result


def flow_by_networkx(graph: nx.DiGraph[int], source: int, sink: int) -> float:
    search = nx.algorithms.flow.shortest_augmenting_path
    return float(nx.maximum_flow_value(graph, source, sink, flow_func=search))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_rollout_equals_plain_loops(shape: Shape, seed: int) -> None:
    trace = random_trace(layers=6, heads=3, length=12, seed=seed, shape=shape)
    matrices = 0.5 * trace.weights.mean(axis=1) + 0.5 * np.eye(12)
    assert np.allclose(Rollout()(trace).values, rollout_by_loops(matrices), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_flow_equals_networkx_up_to_six_layers_of_twelve_tokens(shape: Shape) -> None:
    trace = random_trace(layers=6, heads=3, length=12, seed=5, shape=shape)
    targets = [0, 6, 11]
    flow = Flow()(trace, targets=targets)
    assert flow.lower is not None
    assert flow.upper is not None
    assert (flow.upper - flow.lower).max() <= 1e-6
    graph = Flow().graph(trace)
    whole = graph.to_networkx()
    for layer in range(1, 7):
        for row, target in enumerate(targets):
            for source in (0, 5, 11):
                ends = graph.node(layer, target), graph.node(0, source)
                expected = flow_by_networkx(whole, *ends)
                assert abs(flow.values[layer - 1, row, source] - expected) <= 1e-6
                assert flow.lower[layer - 1, row, source] <= expected + 1e-12
                assert flow.upper[layer - 1, row, source] >= expected - 1e-12


# -- invariants ---------------------------------------------------------------------------------

traces = st.builds(
    random_trace,
    layers=st.integers(1, 5),
    heads=st.integers(1, 3),
    length=st.integers(1, 7),
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(SHAPES),
)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_rollout_is_a_lower_and_the_first_column_an_upper_bound_of_flow(
    trace: AttentionTrace,
) -> None:
    flow, rollout = Flow()(trace), Rollout()(trace)
    first_columns = Flow().graph(trace).capacities[0].sum(axis=0)
    assert flow.upper is not None
    assert flow.lower is not None
    assert (rollout.values <= flow.upper + 1e-9).all()
    assert (flow.lower <= np.minimum(1, first_columns) + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(traces)
def test_layer_one_of_rollout_and_flow_is_attention_with_residual(trace: AttentionTrace) -> None:
    expected = Raw(residual=0.5)(trace, layers=1).values
    assert np.allclose(Rollout()(trace, layers=1).values, expected, rtol=0, atol=1e-12)
    assert np.allclose(Flow()(trace, layers=1).values, expected, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_rows_of_rollout_sum_to_one(trace: AttentionTrace) -> None:
    assert np.allclose(Rollout()(trace).values.sum(axis=-1), 1)


@settings(max_examples=60, deadline=None)
@given(traces.filter(lambda trace: len(trace.layers) >= 2))
def test_two_layers_of_flow_have_a_closed_form(trace: AttentionTrace) -> None:
    lower, upper = Flow().graph(trace).capacities[:2]
    closed = np.minimum(upper[:, :, None], lower[None]).sum(axis=1)
    assert np.allclose(Flow()(trace, layers=2).values[0], closed, rtol=0, atol=1e-6)


# -- options ------------------------------------------------------------------------------------

TRACE = random_trace(layers=3, heads=4, length=5, seed=3)
W = TRACE.weights


@pytest.mark.parametrize(
    "method",
    [
        Raw(),
        Rollout(),
        Flow(),
        Flow(normalized=True),
        Rollout(heads="max", residual=0.3, discard=0.4, start_layer=2),
        Rollout(top_head=1),
        Flow(heads=(1.0, 3.0), residual=None, start_layer=2),
        Raw(heads=1, residual=(0.1, 0.2, 0.3)),
    ],
)
def test_every_method_keeps_its_promises(method: Method) -> None:
    check_method(method)


def test_heads() -> None:
    def raw(heads: Any) -> np.ndarray:
        return Raw(heads=heads)(TRACE).values

    assert np.allclose(raw("mean"), W.mean(axis=1))
    assert np.allclose(raw(2), W[:, 2])
    assert np.allclose(raw([1, 0, 0, 3]), 0.25 * W[:, 0] + 0.75 * W[:, 3])
    for name, reduce in (("max", np.max), ("min", np.min)):
        expected = reduce(W, axis=1)
        expected = expected / expected.sum(axis=-1, keepdims=True)
        assert np.allclose(raw(name), expected)


def test_rows_are_renormalised_along_the_sources() -> None:
    for method in (Raw(heads="max"), Raw(heads="min"), Raw(discard=0.5), Rollout(discard=0.5)):
        assert np.allclose(method(TRACE).values.sum(axis=-1), 1)


def test_residual() -> None:
    mean = W.mean(axis=1)
    assert np.allclose(Raw(residual=0.2)(TRACE).values, 0.8 * mean + 0.2 * np.eye(5))
    per_layer = Raw(residual=[0.0, 0.5, 1.0])(TRACE).values
    assert np.allclose(per_layer[0], mean[0])
    assert np.allclose(per_layer[2], np.eye(5))
    no_residual = Rollout(residual=None)(TRACE).values
    assert np.allclose(no_residual, rollout_by_loops(mean))


def test_sinks_leave_rows_below_one() -> None:
    sinks = np.full((3, 4, 5), 0.25)
    trace = AttentionTrace.from_arrays(W * 0.75, TRACE.tokens, sinks=sinks)
    assert np.allclose(Raw()(trace).values.sum(axis=-1), 0.75)
    assert np.allclose(Raw(heads="max")(trace).values.sum(axis=-1), 0.75)
    assert np.allclose(Rollout()(trace, layers=1).values.sum(axis=-1), 0.875)


def test_discard_drops_the_weakest_of_each_row() -> None:
    values = Raw(discard=0.4)(TRACE).values
    assert (np.count_nonzero(values, axis=-1) == 3).all()
    mean = W.mean(axis=1)
    assert (values.argmax(axis=-1) == mean.argmax(axis=-1)).all()


def test_start_layer() -> None:
    later = Rollout(start_layer=2)(TRACE)
    assert later.layers == (2, 3)
    matrices = 0.5 * W.mean(axis=1) + 0.5 * np.eye(5)
    assert np.allclose(later.values, rollout_by_loops(matrices[1:]))
    flow = Flow(start_layer=3)(TRACE)
    assert flow.layers == (3,)
    assert np.allclose(flow.values[0], matrices[2], atol=1e-6)


def test_single_head_rollout_is_one_head_on_the_rollout_of_all() -> None:
    matrices = 0.5 * W.mean(axis=1) + 0.5 * np.eye(5)
    below = rollout_by_loops(matrices)
    top = 0.5 * W[:, 3] + 0.5 * np.eye(5)
    values = Rollout(top_head=3)(TRACE).values
    assert np.allclose(values[0], top[0])
    assert np.allclose(values[2], top[2] @ below[1])


def test_flow_normalised_as_the_authors_code_does() -> None:
    plain = Flow()(TRACE)
    expected = plain.values / plain.values.sum(axis=-1, keepdims=True)
    assert np.allclose(Flow(normalized=True)(TRACE).values, expected)
    assert np.allclose(plain.normalize("sum").values, expected)


def test_layers_without_attention_stay_visible() -> None:
    trace = AttentionTrace.from_arrays(W, TRACE.tokens, layers=[2, 5, 9])
    assert Rollout()(trace).layers == (2, 5, 9)
    assert Rollout()(trace, layers=5).layers == (5,)
    assert Flow()(trace, layers=-1).layers == (9,)


# -- bad options --------------------------------------------------------------------------------

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"heads": "maen"}, "heads='maen': Did you mean 'mean'?"),
    ({"heads": -1}, "heads=-1: Allowed"),
    ({"heads": []}, "heads=[]: Allowed"),
    ({"heads": [0, 0]}, "heads=[0, 0]: Allowed"),
    ({"heads": [1, -1]}, "heads=[1, -1]: Allowed"),
    ({"heads": None}, "heads=None: Allowed"),
    ({"residual": 1.5}, "residual=1.5"),
    ({"residual": -0.1}, "from 0 to 1"),
    ({"residual": "half"}, "residual='half'"),
    ({"residual": [0.5, float("nan")]}, "from 0 to 1"),
    ({"discard": 1.0}, "at least 0 and below 1; got 1.0"),
    ({"discard": "x"}, "got 'x'"),
]


@pytest.mark.parametrize(("options", "said"), BAD_OPTIONS)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(MethodError, match=re.escape(said)):
        Rollout(**options)


def test_options_that_do_not_fit_the_trace() -> None:
    for method, said in (
        (Rollout(heads=4), "There is no head 4; this trace has 4, numbered from 0"),
        (Rollout(heads=[1, 2]), "2 weights for 4 heads"),
        (Rollout(residual=[0.5]), "residual has 1 numbers, the trace 3 layers"),
        (Rollout(start_layer=4), "start_layer=4: the layers with attention are 1, 2, 3"),
        (Flow(start_layer=0), "start_layer=0: the layers with attention are 1, 2, 3"),
    ):
        with pytest.raises(MethodError, match=said):
            method(TRACE)
    with pytest.raises(InputError, match="choose from 1, 2, 3"):
        Rollout()(TRACE, layers=[4])
    with pytest.raises(InputError, match="choose from 2, 3"):
        Rollout(start_layer=2)(TRACE, layers=[1])


def test_heads_mixed_at_capture_cannot_be_unmixed() -> None:
    mixed = AttentionTrace.from_arrays(W.mean(axis=1), TRACE.tokens, mixed_heads="mean")
    assert np.allclose(Rollout()(mixed).values, Rollout()(TRACE).values)
    with pytest.raises(MethodError, match="already mixed by 'mean'"):
        Rollout(heads="max")(mixed)


def test_methods_by_name() -> None:
    assert make_method("flow", {"tolerance": 0.1}) == Flow(tolerance=0.1)
    assert make_method(Raw()) == Raw()
    with pytest.raises(MethodError, match=r"Unknown method 'rolout'\. Did you mean 'rollout'"):
        make_method("rolout")
    with pytest.raises(
        MethodError, match=r"'flow' has no option 'tolerence'\. Did you mean 'tolerance'"
    ):
        make_method("flow", {"tolerence": 2})
    with pytest.raises(MethodError, match="already has its options"):
        make_method(Raw(), {"heads": 1})


def test_every_option_is_documented() -> None:
    for name in METHODS:
        for option in describe_options(name):
            assert option.help, f"{name}'s {option.name} has no sentence in a docstring"


def test_random_attention_has_the_shape_it_says() -> None:
    assert np.triu(random_attention(1, 1, 4, seed=0, shape="causal")[0, 0], 1).sum() == 0


# -- what flow says beside its values -----------------------------------------------------------


def test_saturation_is_where_the_value_equals_its_ceiling() -> None:
    trace = random_trace(layers=6, heads=2, length=8, seed=1)
    flow = Flow()(trace)
    ceiling = np.minimum(1, Flow().graph(trace).capacities[0].sum(axis=0))
    assert flow.saturated is not None
    assert np.array_equal(flow.saturated, flow.values >= ceiling - 1e-9)
    assert flow.saturated[-1].mean() > 0.5
    assert not flow.saturated[0].any()


def test_every_pair_was_decided_somehow() -> None:
    trace = random_trace(layers=5, heads=2, length=8, seed=1)
    decided = Flow()(trace).provenance["decided"]
    assert sum(decided.values()) == 5 * 8 * 8
    assert decided["closed_form"] == 2 * 8 * 8


def test_a_minimum_cut_holds_exactly_the_flow_back() -> None:
    trace = random_trace(layers=4, heads=2, length=6, seed=3)
    flow = Flow()(trace)
    graph = Flow().graph(trace).to_networkx()
    for target, source, layer in ((0, 5, 4), (2, 2, 3), (5, 0, 2), (1, 4, 1)):
        cut = Flow().minimum_cut(trace, target=target, source=source, layer=layer)
        assert cut.value == pytest.approx(flow.values[layer - 1, target, source], abs=1e-9)
        assert sum(edge.capacity for edge in cut.edges) == pytest.approx(cut.value, abs=1e-12)
        assert sum(cut.by_layer().values()) == pytest.approx(cut.value, abs=1e-12)
        without = graph.copy()
        without.remove_edges_from(
            (e.layer * 6 + e.target, (e.layer - 1) * 6 + e.source) for e in cut.edges
        )
        assert not nx.has_path(without, layer * 6 + target, source)


def test_a_cut_says_where_it_lies() -> None:
    saturated = Flow().minimum_cut(random_trace(6, 2, 8, seed=1), target=0, source=3)
    assert saturated.place in (
        "at the source: everything 't3' passes on in layer 1",
        "at the target: everything 't0' takes in layer 6",
    )
    apart = Flow().minimum_cut(random_trace(2, 1, 3, shape="identity"), target=0, source=2)
    assert apart.value == 0
    assert apart.place == "no path leads from 't0' at layer 2 to 't2'"
    assert repr(apart).startswith("<Cut 't0' at layer 2 to 't2': 0.000000 over 0 edges")


def test_progress_is_reported_and_estimates_are_times() -> None:
    trace = random_trace(layers=4, heads=1, length=16)
    calls: list[Progress] = []
    with listening(calls.append):
        Flow()(trace)
    assert calls[-1] == Progress("flow", 4 * 16 * 16, 4 * 16 * 16)
    assert 0 < Flow().estimate(trace) < 60


def test_a_larger_tolerance_is_kept() -> None:
    trace = random_trace(layers=4, heads=1, length=16)
    rough, exact = Flow(tolerance=0.05)(trace), Flow()(trace)
    assert rough.lower is not None
    assert rough.upper is not None
    assert (rough.upper - rough.lower).max() <= 0.05
    assert (rough.lower <= exact.values + 1e-9).all()
    assert (exact.values <= rough.upper + 1e-9).all()


def test_flow_to_some_sources_only() -> None:
    trace = random_trace(layers=4, heads=1, length=8)
    whole = Flow()(trace)
    part = Flow()(trace, targets=[2], sources=["t5", 0])
    assert part.sources.texts == ("t5", "t0")
    assert part.sources.positions == (5, 0)
    assert np.allclose(part.values[:, 0], whole.values[:, 2][:, [5, 0]], rtol=0, atol=1e-9)
    assert sum(part.provenance["decided"].values()) == 4 * 1 * 2
    with pytest.raises(MethodError, match="needs all sources"):
        Flow(normalized=True)(trace, sources=[0])


def causal(layers: int = 3, length: int = 5) -> AttentionTrace:
    return random_trace(layers=layers, heads=2, length=length, seed=3, shape="causal")


def test_one_step_leaves_one_step_of_attention_on_average() -> None:
    matrices = Rollout(residual="one-step").layer_matrices(causal(layers=4))
    mean = causal(layers=4).weights.mean(axis=1)
    np.testing.assert_allclose(matrices, 0.25 * mean + 0.75 * np.eye(5))


@pytest.mark.parametrize("name", ["column", "element"])
def test_receptive_fields_by_loops(name: str) -> None:
    trace = causal()
    found = Raw(receptive_field=name)(trace).values
    for layer, heads in enumerate(trace.weights):
        for i in range(5):
            row = [heads[:, i, j].mean() for j in range(5)]
            seen_by = [5 - j if name == "column" else max(i - j + 1, 1) for j in range(5)]
            row = [weight / size for weight, size in zip(row, seen_by, strict=True)]
            expected = [weight / sum(row) for weight in row]
            np.testing.assert_allclose(found[layer, i], expected)


def test_uniform_baseline_is_one_for_uniform_attention() -> None:
    weights = np.tril(np.ones((3, 5, 5))) / np.arange(1, 6)[:, None]
    trace = AttentionTrace.from_arrays(weights, list("abcde"))
    found = Rollout(receptive_field="uniform-baseline")(trace).values
    np.testing.assert_allclose(found[:, np.tril_indices(5)[0], np.tril_indices(5)[1]], 1)


def test_receptive_fields_are_for_causal_attention() -> None:
    with pytest.raises(MethodError, match=r"causal attention.*this trace is bidirectional"):
        Rollout(receptive_field="column")(random_trace())
    with pytest.raises(MethodError, match="Did you mean 'column'"):
        Rollout(receptive_field="colum")
    with pytest.raises(MethodError, match="receptive_field='uniform-baseline'"):
        Flow(receptive_field="uniform-baseline")


def test_nobody_draws_on_what_is_dropped_but_itself() -> None:
    trace = causal()
    found = Raw(drop=("t0", 2))(trace).values
    for layer, heads in enumerate(trace.weights):
        for i in range(5):
            row = [heads[:, i, j].mean() if j not in (0, 2) or j == i else 0.0 for j in range(5)]
            np.testing.assert_allclose(found[layer, i], np.array(row) / sum(row))
    alone = AttentionTrace.from_arrays(np.array([[[1.0, 0.0], [1.0, 0.0]]]), ["a", "b"])
    np.testing.assert_array_equal(Raw(drop=(0,))(alone).values[0], np.eye(2))  # keeps itself
    with pytest.raises(TargetError, match="No position 9"):
        Raw(drop=(9,))(trace)
    with pytest.raises(MethodError, match=r"drop=1\.5 is not a list"):
        Raw(drop=1.5)  # type: ignore[arg-type]


def test_threads_belong_to_the_call() -> None:
    assert np.array_equal(Flow()(TRACE, threads=1).values, Flow()(TRACE, threads=2).values)
    with pytest.raises(MethodError, match="threads is a whole number of at least 1"):
        Flow()(TRACE, threads=0)


def test_every_method_takes_sources() -> None:
    everything = Rollout()(TRACE)
    some = Rollout()(TRACE, sources=[2, 0])
    assert some.sources.positions == (2, 0)
    assert np.array_equal(some.values, everything.values[:, :, [2, 0]])
    backwards = list(range(TRACE.length))[::-1]
    assert np.array_equal(Raw()(TRACE, sources=backwards).values, Raw()(TRACE).values[:, :, ::-1])


@dataclass(frozen=True, kw_only=True)
class LastLayer(Method):
    """Only the weights of the highest layer, for every layer.

    scale: what each weight is multiplied with.
    """

    name: ClassVar[str] = "last-layer"
    scale: float = 1.0

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        weights = self.scale * trace.weights[-1].mean(axis=0)[list(selection.rows)]
        values = np.stack([weights] * len(selection.layers)).astype(np.float64)
        return attribution_of(self, trace, values, selection)


def test_a_users_method_is_whole(tmp_path: Path) -> None:
    METHODS.register(LastLayer)
    METHODS.register(LastLayer)  # a notebook's cell that runs twice
    check_method(LastLayer(scale=0.5))
    assert make_method("last-layer:scale=0.5") == LastLayer(scale=0.5)
    result = LastLayer()(TRACE, targets=[0])
    result.save(tmp_path / "own.json")
    assert Attribution.load(tmp_path / "own.json").method == LastLayer()
    told = attnflow.explain(None, "the key to the cabinets", "last-layer", targets="[CLS]")
    assert told.method == LastLayer()
    judged = attnflow.evaluate(None, ["the key to the cabinets"], ["last-layer"])
    assert "last-layer" in judged.records[0].scores


def test_what_cannot_be_registered_is_said() -> None:
    class Bare(Method):
        name: ClassVar[str] = "bare"

    @dataclass(frozen=True, kw_only=True)
    class Badly(LastLayer):
        name: ClassVar[str] = "Bad name"

    @dataclass(frozen=True, kw_only=True)
    class Second(LastLayer):
        name: ClassVar[str] = "rollout"

    for wrong, sentence in [
        (Bare, "is not a complete method: decorate it"),
        (Badly, "a method's name is made of small letters"),
        (Second, "There is a method 'rollout' already"),
        (3, "A method is a subclass of attnflow.Method"),
    ]:
        with pytest.raises(MethodError, match=sentence):
            METHODS.register(wrong)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="abstract"):
        Method()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("rollout", Rollout()),
        ("rollout:residual=0.4,heads=max", Rollout(residual=0.4, heads="max")),
        ("rollout:drop=0,the,residual=none", Rollout(drop=(0, "the"), residual=None)),
        ("flow: start-layer=2", Flow(start_layer=2)),
    ],
)
def test_options_follow_the_name(text: str, method: Method) -> None:
    assert make_method(text) == method


def test_options_that_cannot_be_read_are_named() -> None:
    with pytest.raises(MethodError, match="NAME:key=value,key=value"):
        make_method("rollout:0.4")
    with pytest.raises(MethodError, match="'rollout' has no option 'residul'"):
        make_method("rollout:residul=0.4")


def test_capture_records_what_methods_require() -> None:
    loaded = tiny_encoder()
    methods = [Rollout(), attnflow.Rollout(matrices="alti"), attnflow.GradientRollout()]
    trace = attnflow.capture(loaded, "one [MASK] three", methods=methods)
    assert trace.gradients is not None
    assert set(trace.measured) == {"alti"}
    assert trace.mixed_heads is None
    mean = attnflow.capture(loaded, "one", methods=[Rollout()])
    assert mean.mixed_heads == "mean"
    with pytest.raises(InputError, match="give either"):
        attnflow.capture(loaded, "one", methods=[Raw()], heads="max")


# -- rows from the top ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Rollout(),
        Rollout(residual=None, heads="max"),
        Rollout(residual="one-step", drop=(0, "t3"), discard=0.3),
        Rollout(heads=[1, 3], residual=[0.1 * k for k in range(1, 7)], start_layer=2),
        Rollout(top_head=1, heads=0),
        Rollout(receptive_field="column"),
        Rollout(receptive_field="element", drop=0),
        Rollout(receptive_field="uniform-baseline"),
        Raw(heads="min", drop=(0,)),
        Rollout(matrices="measured-residual"),
        Rollout(matrices="measured-residual-others", heads="max"),
        Rollout(matrices="norms"),
        Rollout(matrices="alti", start_layer=3),
    ],
    ids=repr,
)
def test_few_rows_from_the_top_are_the_rows_of_whole_matrices(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnflow.methods.products._BLOCK", 16)
    trace = random_trace(
        layers=6, heads=2, length=40, seed=3, shape="causal", record=method.requires.record
    )
    every = method(trace)
    for rows, layers in (([39], -1), ([0, 17], [3, 6]), ([20], None)):
        few = method(trace, targets=rows, layers=layers)
        indices = [every.layers.index(number) for number in few.layers]
        assert np.allclose(few.values, every.values[indices][:, rows], rtol=1e-12, atol=1e-15)
        assert few.dependence is not None
        assert every.dependence is not None
        assert np.allclose(few.dependence, every.dependence[indices][:, rows], atol=1e-12)


def test_what_a_causal_trace_is_allowed_to_give_to_later_positions_is_not_left_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnflow.methods.products._BLOCK", 8)
    weights = np.tril(np.random.default_rng(0).random((5, 40, 40)))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights[:, 3, 30] = 5e-5
    trace = AttentionTrace.from_arrays(weights, [f"t{k}" for k in range(40)], kind="causal")
    product = np.eye(40)
    for layer in weights:
        product = (layer + np.eye(40)) / 2 @ product
    row = Rollout()(trace, targets=20, layers=-1).values[0, 0]
    assert np.allclose(row, product[20], rtol=1e-12)
    assert row[30] > 0


def test_rows_are_read_by_the_block_and_no_further_than_vectors_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnflow.methods.products._BLOCK", 16)
    read: dict[int, list[tuple[int, int]]] = {}
    attended = Rollout.attended_rows

    def watched(
        self: Rollout, trace: AttentionTrace, index: int, places: Any, room: Any = None
    ) -> Any:
        rows = attended(self, trace, index, places, room)
        if room is not None:
            read.setdefault(index, []).append((int(places[0]), int(places[-1]) + 1))
            assert rows.shape[1] == places[-1] + 1
            assert np.shares_memory(rows, room)
        return rows

    monkeypatch.setattr(Rollout, "attended_rows", watched)
    weights = np.tril(np.random.default_rng(0).random((6, 80, 80)))
    weights /= weights.sum(axis=-1, keepdims=True)
    names = [f"t{k}" for k in range(80)]
    trace = AttentionTrace.from_arrays(weights, names, mixed_heads="mean")
    row = Rollout()(trace, targets=64, layers=-1).values[0, 0]  # held against 10, 30, 50 and 70
    blocks = [(0, 11), (11, 27), (27, 43), (43, 51), (51, 65), (65, 71)]
    assert read == dict.fromkeys(range(5), blocks)
    product = np.eye(80)
    for layer in weights:
        product = (layer + np.eye(80)) / 2 @ product
    assert np.allclose(row, product[64], rtol=1e-12)


def test_one_row_does_not_multiply_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise AssertionError("a whole matrix was made")

    monkeypatch.setattr("attnflow.methods.products._whole_matrices", refuses)
    monkeypatch.setattr(Rollout, "matrices", refuses)
    trace = random_trace(layers=6, heads=2, length=40, seed=3)
    assert Rollout()(trace, targets=[39], layers=-1).values.shape == (1, 1, 40)


# -- options and arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Flow(tolerance="x"), "tolerance is a number"),
        (lambda: Flow(tolerance=True), "tolerance is a number"),
        (lambda: Flow(normalized="x"), "normalized is true or false"),
        (lambda: Flow(start_layer=True), "start_layer=True"),
        (lambda: Rollout(start_layer="2"), "start_layer='2'"),
        (lambda: GradientRollout(start_layer=True), "start_layer=True"),
        (lambda: Rollout(matrices="alti", start_layer=True), "start_layer=True"),
        (
            lambda: Rollout(matrices="alti", residual=0.4),
            "residual=0.4 is for matrices",
        ),
        (lambda: Rollout(top_head="x"), "top_head is a whole number"),
        (lambda: Rollout(top_head=-1), "top_head is a whole number"),
        (lambda: Rollout(heads=float("nan")), "heads=nan: Allowed"),
        (lambda: Rollout(heads={}), "heads={}: Allowed"),
        (lambda: Rollout(residual={}), "residual={}"),
        (lambda: Rollout(heads=np.array(1.5)), "heads="),
        (lambda: Rollout(residual=np.array("x")), "residual="),
        (lambda: Rollout(receptive_field=np.zeros(2)), "receptive_field"),
        (lambda: Rollout(matrices=np.zeros(2)), "matrices="),
        (lambda: Rollout(drop=[None]), r"drop=\[None\] is not a list"),
        (lambda: Rollout(drop={"a"}), "is not a list of positions"),
        (lambda: make_method("rollout", {1: 2}), "Options are values by name"),
        (lambda: make_method("rollout", "x"), "Options are values by name"),
        (lambda: make_method("x" * 100_000), "Unknown method"),
        (lambda: Rollout(heads="x" * 100_000), "heads="),
        (lambda: Rollout(residual="x" * 100_000), "residual="),
    ],
)
def test_wrong_options_are_named_briefly(make: Callable[[], Method], said: str) -> None:
    with pytest.raises(MethodError, match=said) as caught:
        make()
    assert len(str(caught.value)) < 800


def test_a_token_that_is_not_there_cannot_be_dropped() -> None:
    with pytest.raises(TargetError, match="No token 'foo' here"):
        Rollout(drop=("foo",))(random_trace())


@pytest.mark.parametrize("layers", [np.int64(3), np.array([3]), np.array(3), [np.int64(3)], (-1,)])
def test_layers_of_other_kinds(layers: Any) -> None:
    assert Rollout()(random_trace(), layers=layers).layers == (3,)


@pytest.mark.parametrize("layers", ["3", 1.5, [True], [[1]], {}, np.array([0.5]), object(), []])
def test_wrong_layers_are_named(layers: Any) -> None:
    with pytest.raises(InputError, match="choose from 1, 2, 3"):
        Rollout()(random_trace(), layers=layers)


def test_wrong_arguments_of_a_call_are_named() -> None:
    trace = random_trace()
    for threads in ("x", 0, True, 1.5):
        with pytest.raises(MethodError, match="threads is a whole number of at least 1"):
            Rollout()(trace, threads=threads)  # type: ignore[arg-type]
    assert Rollout()(trace, targets=np.array([0, 1]), threads=np.int64(1)).values.shape[1] == 2  # type: ignore[arg-type]


# -- methods of others ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Backwards(Method):
    """The weights of each layer, the strongest sources made the weakest."""

    name: ClassVar[str] = "backwards"

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        weights = 1 - trace.weights.mean(axis=1)
        indices = [trace.layers.index(number) for number in selection.layers]
        values = weights[indices][:, list(selection.rows)]
        return attribution_of(self, trace, values, selection)


def test_a_method_of_a_user_passes_the_public_check() -> None:
    check_method(Backwards())  # not registered, and without options
    assert "backwards" not in METHODS


def test_a_user_method_that_breaks_its_word_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(Backwards):
        factor: float = 1.0

        def to_dict(self) -> dict[str, Any]:
            return {"name": self.name, "options": {}}

    with pytest.raises(AssertionError, match="to_dict does not give the method back"):
        check_method(Forgetful(factor=2.0))
