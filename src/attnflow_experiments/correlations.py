"""Correlations that only the experiments need: the paper's own formula, and a partial one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.evaluation.metrics import check_pair, pearson, rank_values

Floats = NDArray[np.float64]
_NOTHING_LEFT = 1e-9  # share of a ranking's variance below which the rest is rounding


def dense_rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Return the paper's code's "Spearman": 1 − 6 Σ d² / (n (n² − 1)) over dense ranks.

    The formula holds only without ties. With ties it is biased, and where a side is constant and
    the correlation does not exist it gives a number: −.40 for 4 tokens, −.86 for 20. Kept to
    reproduce the paper; use `spearman`.
    """
    a, b = check_pair(one, other)
    n = len(a)
    if n < 2:
        return float("nan")
    apart = _dense_ranks(a) - _dense_ranks(b)
    return float(1 - 6 * np.sum(apart**2) / (n * (n**2 - 1)))


def partial_spearman(one: ArrayLike, other: ArrayLike, third: ArrayLike) -> float:
    """Return Spearman's correlation of what is left of two rankings once a third is taken out.

    Each ranking is regressed on that of `third` and the residuals are correlated; nan where
    nothing is left of one, that is where `third` decides it.
    """
    a, b = check_pair(one, other)
    a, c = check_pair(a, third)
    if len(a) < 3:
        return float("nan")
    ranks = rank_values(c)
    return pearson(_residual(rank_values(a), ranks), _residual(rank_values(b), ranks))


def _dense_ranks(values: Floats) -> NDArray[np.intp]:
    return np.unique(values, return_inverse=True)[1] + 1


def _residual(values: Floats, predictor: Floats) -> Floats:
    centred, other = values - values.mean(), predictor - predictor.mean()
    size = other @ other
    left = centred - other * ((centred @ other) / size) if size > 0 else centred
    return left if left @ left > _NOTHING_LEFT * (centred @ centred) else np.zeros_like(left)
