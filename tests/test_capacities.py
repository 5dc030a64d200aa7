"""What flow networks are made of, by one argument; and how much a flow says of its target."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import (
    AttentionTrace,
    Flow,
    GradientRollout,
    Rollout,
    ShapleyFlow,
)
from attnflow.errors import MethodError
from attnflow.maxflow import minimum_cut
from attnflow.methods import make_method, quiet_about_limits
from attnflow.methods.flow import CAPACITIES
from attnflow.methods.matrices import MEASUREMENTS
from attnflow.testing import check_method, random_attention, random_trace

RECORD = ("gradients", *dict.fromkeys(MEASUREMENTS.values()))


@pytest.mark.parametrize("kind", CAPACITIES)
@pytest.mark.parametrize("method", ["flow", "shapley-flow"])
def test_every_flow_method_takes_every_capacity(method: str, kind: str) -> None:
    check_method(make_method(f"{method}:capacities={kind}"))


def test_capacities_are_the_matrices_of_the_rollouts_of_the_same_name() -> None:
    trace = random_trace(length=6, record=RECORD)
    for kind, rollout in (
        ("norms", Rollout(matrices="norms")),
        ("alti", Rollout(matrices="alti")),
        ("measured-residual", Rollout(matrices="measured-residual")),
    ):
        graph = Flow(capacities=kind).graph(trace)  # type: ignore[arg-type]
        np.testing.assert_array_equal(graph.capacities, rollout.layer_matrices(trace))


def test_gradients_with_the_residual_are_what_gradient_rollout_multiplies() -> None:
    trace = random_trace(layers=3, length=6, record=RECORD)
    capacities = Flow(capacities="gradients").graph(trace).capacities
    product = np.eye(6)
    for matrix in capacities:
        product = 2 * matrix @ product
    np.testing.assert_allclose(product, GradientRollout()(trace, layers=-1).values[0], atol=1e-12)


def test_gradients_as_capacities_have_a_name_of_their_own() -> None:
    assert Flow(capacities="gradients", residual=None).name == "gradient-flow"
    assert make_method("gradient-flow").residual is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", CAPACITIES)
def test_the_sink_column_can_be_left_out(kind: str) -> None:
    trace = random_trace(length=6, record=RECORD)
    capacities = Flow(capacities=kind, drop=(0,)).graph(trace).capacities  # type: ignore[arg-type]
    assert not capacities[:, 1:, 0].any()
    assert capacities[:, 0, 0].all()
    full = Flow(capacities=kind).graph(trace).capacities  # type: ignore[arg-type]
    np.testing.assert_allclose(capacities.sum(axis=-1), full.sum(axis=-1))


def test_unknown_capacities_are_refused_with_the_names() -> None:
    with pytest.raises(MethodError, match="gradients"):
        Flow(capacities="gradient")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="score"):
        ShapleyFlow(score="loss")  # type: ignore[arg-type]


def test_where_flows_are_held_back_is_told_and_agrees_with_the_cut() -> None:
    trace = random_trace(layers=6, length=7, seed=3)
    with quiet_about_limits():
        result = Flow()(trace)
    capacities = Flow().graph(trace).capacities
    for layer in (1, 3, 6):
        shares = result.provenance["held"][str(layer)]
        assert sum(shares.values()) == pytest.approx(1)
        ends = capacities[0].sum(axis=0), capacities[layer - 1].sum(axis=1)
        values = result.values[layer - 1]
        assert shares["source"] == pytest.approx(
            np.isclose(values, ends[0][None], atol=1e-9).mean()
        )
        value = minimum_cut(capacities, layer=layer, target=2, source=4).value
        assert value == pytest.approx(values[2, 4])
    assert result.provenance["held"]["6"]["source"] > result.provenance["held"]["3"]["source"]


def test_a_causal_flow_that_ends_in_the_first_token_is_held_at_the_target() -> None:
    weights = random_attention(12, 1, 10, seed=0, shape="causal") * 0.3
    weights[..., 0] += 0.7
    trace = AttentionTrace.from_arrays(weights, [f"t{k}" for k in range(10)])
    with quiet_about_limits():
        result = Flow()(trace, targets=[9], layers=-1)
    assert result.provenance["held"]["12"]["target"] > 0.4


def test_one_row_is_held_against_what_any_target_gets() -> None:
    trace = random_trace(layers=12, length=9, seed=1)
    with quiet_about_limits():
        deep, shallow = (Flow()(trace, targets=[3], layers=k) for k in (12, 2))
        every = Flow()(trace)
    assert deep.dependence is not None
    assert shallow.dependence is not None
    assert every.dependence is not None
    assert deep.dependence[0, 0] == pytest.approx(0, abs=1e-9)
    assert shallow.dependence[0, 0] > 0.05
    assert every.dependence.shape == (12, 9)
    assert every.dependence[-1].max() < 1e-9 < every.dependence[1].min()
    assert Flow()(trace, targets=[3], sources=[1, 2], layers=2).dependence is None
