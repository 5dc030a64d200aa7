"""Sparse linear regression of a response on what was visible: pure functions over arrays.

ContextCite (Cohen-Wang et al. 2024) fits a Lasso to random ablations. It is written out here
because scikit-learn would be a large dependency for one formula; tests hold it to the conditions
that only the optimum satisfies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError

__all__ = ["lasso", "random_ablations"]

Floats = NDArray[np.float64]
_SWEEPS = 10_000
_CONVERGED = 1e-10


def random_ablations(
    count: int, sources: int, *, hidden: float = 0.3, seed: int = 0
) -> NDArray[np.bool_]:
    """(count, sources): True where a source is taken away, the same number in each row.

    >>> random_ablations(2, 10, hidden=0.3).sum(axis=1).tolist()
    [3, 3]
    """
    if count < 1 or sources < 1 or not 0 < hidden < 1:
        raise InputError(
            "count and sources are at least 1, and hidden is a share between 0 and 1; got "
            f"count={count}, sources={sources}, hidden={hidden}."
        )
    rng = np.random.default_rng(seed)
    number = min(max(1, round(hidden * sources)), max(1, sources - 1))
    choice = np.zeros((count, sources), dtype=bool)
    for row in choice:
        row[rng.permutation(sources)[:number]] = True
    return choice


def lasso(features: ArrayLike, response: ArrayLike, *, alpha: float = 0.01) -> Floats:
    """The weights w that make ½·mean((y − Xw − b)²) + alpha·Σ|w| least, in units of the response.

    The response is scaled to a standard deviation of 1 first, so that `alpha` means the same
    whatever its unit; the intercept b is free. Found by coordinate descent, which converges to the
    optimum because the penalty is separable.

    >>> lasso([[0.0], [1.0], [0.0], [1.0]], [0.0, 2.0, 0.0, 2.0], alpha=0.0).round(6).tolist()
    [2.0]
    """
    x, y = np.asarray(features, dtype=np.float64), np.asarray(response, dtype=np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y) or alpha < 0:
        raise InputError(
            "There is one row of features for each response, and alpha is at least 0; got "
            f"features {x.shape}, response {y.shape}, alpha {alpha}."
        )
    x, y = x - x.mean(axis=0), y - y.mean()
    scale = float(y.std())
    if scale == 0:
        return np.zeros(x.shape[1])
    return _descend(x.T @ x / len(y), x.T @ y / (len(y) * scale), alpha) * scale


def _descend(gram: Floats, products: Floats, alpha: float) -> Floats:
    """`slope` is kept equal to X'(y − Xw)/n; a column that never varies gets the weight 0."""
    weights, slope = np.zeros(len(products)), products.copy()
    columns = np.flatnonzero(gram.diagonal() > 0)
    for _ in range(_SWEEPS):
        largest = 0.0
        for j in columns:
            partial = slope[j] + gram[j, j] * weights[j]
            updated = np.sign(partial) * max(abs(partial) - alpha, 0.0) / gram[j, j]
            change = updated - weights[j]
            if change:
                slope -= gram[:, j] * change
                weights[j] = updated
                largest = max(largest, abs(change))
        if largest < _CONVERGED:
            break
    return weights
