"""Metrics against scipy, against numbers worked out by hand, and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from attnflow.errors import InputError
from attnflow.evaluation import metrics
from attnflow_experiments.correlations import dense_rank_correlation, partial_spearman


def rows(seed: int, n: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if ties:
        return tuple(rng.integers(0, 4, size=n).astype(float) for _ in range(3))  # type: ignore[return-value]
    return tuple(rng.normal(size=n) for _ in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("ties", [False, True])
def test_spearman_and_kendall_are_scipys(seed: int, ties: bool) -> None:
    a, b, _ = rows(seed, 5 + seed, ties=ties)
    assert metrics.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert metrics.kendall(a, b) == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize("one", [[1.0], [2.0, 2.0, 2.0], []])
def test_an_undefined_correlation_is_nan(one: list[float]) -> None:
    other = list(range(len(one)))
    assert math.isnan(metrics.spearman(one, other))
    assert math.isnan(metrics.kendall(one, other))
    assert math.isnan(partial_spearman(one, other, other))


def test_the_papers_formula_and_where_it_goes_wrong() -> None:
    """Uniform attention: Spearman does not exist, the dense-rank formula gives a number."""
    assert dense_rank_correlation(np.ones(4), [1, 2, 3, 4]) == pytest.approx(-0.40)
    assert dense_rank_correlation(np.ones(20), range(20)) == pytest.approx(-6 / 7)
    assert f"{dense_rank_correlation(np.ones(20), range(20)):.2f}" == "-0.86"
    a, b, _ = rows(3, 12, ties=False)
    assert dense_rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert math.isnan(dense_rank_correlation([1.0], [1.0]))


@pytest.mark.parametrize("seed", range(10))
def test_partial_spearman_is_the_textbook_formula(seed: int) -> None:
    a, b, c = rows(seed, 15, ties=seed % 2 == 0)
    ab, ac, bc = (stats.spearmanr(x, y).statistic for x, y in ((a, b), (a, c), (b, c)))
    expected = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    assert partial_spearman(a, b, c) == pytest.approx(expected, abs=1e-9)


def test_nothing_is_left_of_what_the_third_decides() -> None:
    a, b, _ = rows(1, 9, ties=False)
    assert math.isnan(partial_spearman(np.exp(a), b, a))
    constant = np.ones(9)
    expected = stats.spearmanr(a, b).statistic
    assert partial_spearman(a, b, constant) == pytest.approx(expected)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"equal length are compared; got \(2,\) and \(3,\)"):
        metrics.spearman([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="nan or infinite"):
        metrics.spearman([1, float("nan")], [1, 2])


def test_comprehensiveness_sufficiency_and_area_by_hand() -> None:
    assert metrics.comprehensiveness(0.9, [0.5, 0.3]) == pytest.approx(0.5)
    assert metrics.sufficiency(0.9, [0.8, 1.0]) == pytest.approx(0.0)
    curve = [1.0, 0.5, 0.25, 0.0]
    assert metrics.area(curve) == pytest.approx(np.trapezoid(curve, dx=1 / 3))
    assert metrics.area([0.2, 0.2, 0.2]) == pytest.approx(0.2)
    with pytest.raises(InputError, match="at least two points"):
        metrics.area([1.0])


def test_a_summary_counts_what_is_undefined() -> None:
    found = metrics.summarize([1.0, 2.0, float("nan"), 3.0])
    assert (found.mean, found.n, found.undefined) == (2.0, 3, 1)
    assert found.std == pytest.approx(np.std([1, 2, 3]))
    nothing = metrics.summarize([float("nan")] * 2)
    assert math.isnan(nothing.mean)
    assert (nothing.n, nothing.undefined) == (0, 2)


def test_the_bootstrap_interval_is_that_of_scipy_and_repeats() -> None:
    values = np.random.default_rng(0).normal(size=200)
    low, high = metrics.bootstrap_interval(values)
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert low == pytest.approx(expected.low, abs=0.01)
    assert high == pytest.approx(expected.high, abs=0.01)
    assert metrics.bootstrap_interval(values) == (low, high)
    assert metrics.bootstrap_interval(values, seed=1) != (low, high)
    wider = metrics.bootstrap_interval(values, confidence=0.99)
    assert wider[0] < low < high < wider[1]
    for wrong in ({"confidence": 1.0}, {"draws": 0}):
        with pytest.raises(InputError, match="between 0 and 1"):
            metrics.bootstrap_interval(values, **wrong)  # type: ignore[arg-type]


def test_the_paired_test_is_the_exact_one_up_to_sampling() -> None:
    """All 2^9 choices of signs, counted by hand, against the sampled ones."""
    rng = np.random.default_rng(4)
    one, other = rng.normal(0.5, 1, size=9), rng.normal(size=9)
    apart = one - other
    sums = [abs(np.dot(signs, apart)) for signs in itertools.product((1, -1), repeat=9)]
    exact = np.mean(np.array(sums) >= abs(apart.sum()) - 1e-12)
    found = metrics.compare_paired(one, other)
    assert found.p == pytest.approx(exact, abs=0.015)
    assert found.difference == pytest.approx(apart.mean())
    assert found.low < found.difference < found.high


def test_the_paired_test_leaves_undefined_pairs_out_and_counts_them() -> None:
    found = metrics.compare_paired([1.0, float("nan"), 2.0], [0.0, 1.0, float("nan")])
    assert (found.difference, found.n, found.undefined) == (1.0, 1, 2)
    same = metrics.compare_paired([1.0, 2.0], [1.0, 2.0])
    assert (same.difference, same.p) == (0.0, 1.0)
    assert math.isnan(metrics.compare_paired([float("nan")], [1.0]).p)
    with pytest.raises(InputError, match="equal length"):
        metrics.compare_paired([1.0], [1.0, 2.0])


@pytest.mark.parametrize("n", [2, 7, 400])
def test_intervals_are_those_of_scipys_bootstrap(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    result = stats.bootstrap(
        (values,), np.mean, n_resamples=2_000, method="percentile", vectorized=True,
        random_state=np.random.default_rng(0),
    )  # fmt: skip
    assert metrics.bootstrap_interval(values) == pytest.approx(result.confidence_interval)
