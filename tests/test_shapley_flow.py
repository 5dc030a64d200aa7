"""The joint flow against Shapley's formula, all orders, and what must hold of every row."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from attnflow import AttentionTrace, Attribution, Flow, Rollout, ShapleyFlow
from attnflow.errors import InputError, MethodError
from attnflow.maxflow import solve
from attnflow.maxflow.joint import solve_joint, student
from attnflow.methods import METHODS, quiet_about_limits
from attnflow.testing import check_method, random_trace
from joint_games import check_games, joint_flow, random_game, shapley_by_subsets


def test_exact_values_are_shapleys_formula() -> None:
    rng = random.Random(1)
    for number in range(24):
        capacities, layer, target = random_game(3 * number + 1, rng)
        capacities = capacities[:, :5, :5].copy()
        target %= len(capacities[0])
        players = [[j] for j in range(capacities.shape[1])]
        row = solve_joint(capacities, rows=[(layer, target)], players=players)[0]
        expected = shapley_by_subsets(capacities, layer, target, players)
        np.testing.assert_allclose(row.values, expected, atol=1e-9)
        assert row.orders == 0
        assert not row.margins.any()


def test_the_mean_over_all_orders_is_the_same() -> None:
    capacities = random_game(3, random.Random(2))[0][:, :4, :4].copy()
    total = np.zeros(4)
    for order in permutations(range(4)):
        for k, player in enumerate(order):
            total[player] += joint_flow(capacities, 3, 2, order[: k + 1])
            total[player] -= joint_flow(capacities, 3, 2, order[:k])
    row = solve_joint(capacities, rows=[(3, 2)], players=[[0], [1], [2], [3]])[0]
    np.testing.assert_allclose(row.values, total / 24, atol=1e-9)


def test_groups_of_tokens_play_together() -> None:
    capacities = random_game(3, random.Random(3))[0][:, :6, :6].copy()
    players = [[0, 3], [1], [2, 4, 5]]
    row = solve_joint(capacities, rows=[(4, 1)], players=players)[0]
    np.testing.assert_allclose(row.values, shapley_by_subsets(capacities, 4, 1, players), atol=1e-9)


def test_intervals_enclose_as_often_as_they_promise() -> None:
    tally = check_games(150, seed=4)
    assert not tally.wrong
    assert tally.enclosed / tally.values >= 0.95


def test_a_wrong_promise_would_be_seen() -> None:
    """The same check with half-sure intervals fails, so it can fail."""
    tally = check_games(60, seed=5, tolerance=0.5)
    assert tally.enclosed < tally.values


def test_saturated_joint_flow_does_not_know_its_target() -> None:
    """Where flows are at their ceilings, v(S) = min(1, sum of column sums), for any target."""
    trace = random_trace(layers=12, length=8, seed=1)
    with quiet_about_limits():
        assert Flow()(trace, layers=-1).saturated.all()  # type: ignore[union-attr]
        values = ShapleyFlow()(trace, layers=-1).values[0]
    np.testing.assert_allclose(values, np.broadcast_to(values[0], values.shape), atol=1e-9)
    columns = Flow().graph(trace).capacities[0].sum(axis=0)
    expected = _game_of_sums(columns)
    np.testing.assert_allclose(values[0], expected, atol=1e-6)


def _game_of_sums(columns: np.ndarray) -> np.ndarray:
    """Shapley values of v(S) = min(1, sum over S), from all subsets."""
    count = len(columns)
    values = np.zeros(count)
    for order in permutations(range(count)):
        total = 0.0
        for player in order:
            values[player] += min(1.0, total + columns[player]) - min(1.0, total)
            total += columns[player]
            if total >= 1:
                break
    return values / len(list(permutations(range(count))))


def test_rows_add_up_to_what_the_target_sends() -> None:
    trace = random_trace(layers=3, length=14, seed=2)
    with quiet_about_limits():
        result = ShapleyFlow(tolerance=0.02)(trace)
    np.testing.assert_allclose(result.values.sum(axis=-1), 1.0, atol=1e-9)
    assert result.provenance["orders"] > 0
    assert result.lower is not None
    assert result.upper is not None
    assert (result.upper - result.lower).max() <= 2 * 0.02 + 1e-12
    single = solve(
        Flow().graph(trace).capacities, layers=[1, 2, 3], targets=range(14), sources=range(14)
    )
    assert (result.lower <= single.upper).all()  # nobody adds more than it could alone


def test_threads_and_repetition_change_nothing() -> None:
    trace = random_trace(layers=3, length=13, seed=3)
    one, two, other = (
        ShapleyFlow(seed=seed)(trace, targets=[12], layers=3, threads=threads).values
        for seed, threads in ((0, 1), (0, 2), (1, 1))
    )
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


def test_one_layer_is_the_edges_and_rollout_adds_up_too() -> None:
    trace = random_trace(layers=1, length=20)
    np.testing.assert_allclose(ShapleyFlow()(trace).values, Rollout()(trace).values, atol=1e-9)


def test_words_and_sentences_are_sources() -> None:
    tokens = ["<s>", "ĠThe", "Ġun", "lock", ".", "ĠGo", "."]
    weights = random_trace(layers=2, length=7, seed=4).weights
    trace = AttentionTrace.from_arrays(weights, tokens)
    words = ShapleyFlow(level="word")(trace, targets=[6], layers=2)
    assert words.values.shape[-1] == len(words.sources) < 7
    sentences = ShapleyFlow(level="sentence")(trace, targets=[6], layers=2)
    total = sentences.values.sum(axis=-1)
    total = total if sentences.elsewhere is None else total + sentences.elsewhere
    np.testing.assert_allclose(total, 1.0, atol=1e-6)
    with pytest.raises(MethodError, match="sentences"):
        ShapleyFlow(level="sentence")(trace, sources=[1])


def test_it_is_a_method_like_any_other(tmp_path: Path) -> None:
    assert METHODS["shapley-flow"] is ShapleyFlow
    check_method(ShapleyFlow())
    check_method(ShapleyFlow(capacities="gradients", residual=0.5, level="token"))
    result = ShapleyFlow(level="word", tolerance=0.05)(random_trace(length=5), layers=-1)
    result.save(tmp_path / "row.json")
    assert Attribution.load(tmp_path / "row.json").method == result.method


def test_refusals() -> None:
    for options in (
        {"tolerance": 0}, {"tolerance": True}, {"confidence": 1.0}, {"seed": -1}, {"seed": "x"},
    ):  # fmt: skip
        with pytest.raises(MethodError):
            ShapleyFlow(**options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="word"):
        ShapleyFlow(level="words")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        solve_joint(np.ones((1, 2, 2)), rows=[(1, 0)], players=[[0]], tolerance=0.0)
    trace = AttentionTrace.from_arrays(np.ones((1, 1, 1)), [" "])
    with pytest.raises(MethodError, match="no document"):
        ShapleyFlow(level="document")(trace)


@pytest.mark.parametrize(("error", "freedom", "expected"), [(0.05, 15, 2.1314), (0.0083, 31, 2.82)])
def test_students_quantiles(error: float, freedom: int, expected: float) -> None:
    assert student(error, freedom) == pytest.approx(expected, abs=0.01)


def test_single_saturation_does_not_imply_joint_saturation() -> None:
    """Rows sum to 1 and every single flow is at its ceiling, yet two sources share one way down."""
    capacities = np.array(
        [
            [[0.5, 0, 0.5], [0, 0.5, 0.5], [0, 0, 1]],
            [[0.5, 0.5, 0], [0, 0, 1], [0, 0, 1]],
            [[0.5, 0.5, 0], [0, 0, 1], [0, 0, 1]],
        ]
    )
    columns = capacities[0].sum(axis=0)
    single = solve(capacities, layers=[3], targets=[0], sources=[0, 1, 2]).lower[0, 0]
    np.testing.assert_array_equal(single, np.minimum(1, columns))
    assert joint_flow(capacities, 3, 0, (0, 1)) == 0.5 < min(1, columns[0] + columns[1])


def test_a_saturated_set_has_saturated_subsets() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        capacities = rng.dirichlet(np.ones(6), size=(5, 6)) / 2 + np.eye(6) / 2
        capacities[0] /= 4  # so that several columns fit under 1
        columns = capacities[0].sum(axis=0)
        if joint_flow(capacities, 5, 0, (0, 1, 2)) == pytest.approx(columns[:3].sum()):
            for subset in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2)):
                flow = joint_flow(capacities, 5, 0, subset)
                assert flow == pytest.approx(columns[list(subset)].sum())
