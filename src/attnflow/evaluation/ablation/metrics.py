"""How well scores of sources agree with ablations: pure functions over arrays.

Ties count against a method: a true source that shares its score with others is ranked behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError
from attnflow.evaluation.metrics import spearman
from attnflow.explainers.sources import strongest

__all__ = [
    "bootstrap_ratio",
    "curve_sets",
    "group_sums",
    "linear_datamodeling_score",
    "rank_of",
]

Floats = NDArray[np.float64]
Choice = NDArray[np.bool_]
_DRAWS = 2_000


def linear_datamodeling_score(scores: ArrayLike, hidden: Choice, response: ArrayLike) -> float:
    """LDS: Spearman's correlation, over ablations, of the kept sources' summed scores and the
    response; nan if either side is constant.

    hidden: (ablations, sources), True where a source was taken away.

    >>> hidden = np.array([[True, False], [False, True], [False, False]])
    >>> round(linear_datamodeling_score([2.0, 1.0], hidden, [-5.0, -3.0, -1.0]), 6)
    1.0
    """
    values = np.asarray(scores, dtype=np.float64)
    if hidden.shape[1:] != values.shape:
        raise InputError(f"{values.shape} scores for ablations of shape {hidden.shape}.")
    return spearman((~hidden).astype(np.float64) @ values, response)


def rank_of(scores: ArrayLike, true: Collection[int]) -> int:
    """The rank of the best true source, from 1; sources with the same score stand before it.

    >>> rank_of([0.1, 0.5, 0.5], [1])
    2
    """
    values = np.asarray(scores, dtype=np.float64)
    members = sorted(true)
    if not members:
        raise InputError("A rank needs at least one true source.")
    others = np.delete(values, members)
    return int(1 + (others >= values[members].max()).sum())


def group_sums(scores: ArrayLike, groups: Sequence[int]) -> Floats:
    """Scores of coarser units: sums of their sources'; sources in no unit (-1) are left out.

    >>> group_sums([1.0, 2.0, 4.0], [0, 0, 1]).tolist()
    [3.0, 4.0]
    """
    members = np.asarray(groups)
    inside = members >= 0
    if not inside.any():
        raise InputError("No source lies in a unit of this level.")
    values = np.asarray(scores, dtype=np.float64)[inside]
    sums = np.bincount(members[inside], weights=values, minlength=int(members.max()) + 1)
    return np.asarray(sums, dtype=np.float64)


def curve_sets(scores: ArrayLike, *, steps: int = 10) -> tuple[Choice, Choice]:
    """What deletion and insertion take away at each of `steps` equal steps, none and all included.

    Deletion takes away the strongest first; insertion has only the strongest left.

    >>> deletion, insertion = curve_sets([3.0, 1.0, 2.0], steps=3)
    >>> deletion.astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1]]
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.array(strongest(values, len(values)))
    counts = [-(-step * len(values) // steps) for step in range(steps + 1)]
    deletion = np.zeros((steps + 1, len(values)), dtype=bool)
    for row, count in zip(deletion, counts, strict=True):
        row[order[:count]] = True
    return deletion, ~deletion


def bootstrap_ratio(
    values: ArrayLike, others: ArrayLike, *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """mean(values) / mean(others) over the same examples, with its percentile interval.

    The mean of ratios would be ruled by examples whose denominator is near zero. Examples where
    either side is undefined are left out.

    >>> bootstrap_ratio([1.0, 1.0], [2.0, 2.0])
    (0.5, 0.5, 0.5)
    """
    pair = np.stack([np.asarray(values, float), np.asarray(others, float)])
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    count = pair.shape[1]
    if not count:
        return (float("nan"),) * 3
    draws = np.random.default_rng(seed).integers(count, size=(_DRAWS, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = pair[0][draws].mean(axis=1) / pair[1][draws].mean(axis=1)
        ratio = float(pair[0].mean() / pair[1].mean())
    tail = (1 - confidence) / 2 * 100
    low, high = np.nanpercentile(ratios, [tail, 100 - tail])
    return ratio, float(low), float(high)
