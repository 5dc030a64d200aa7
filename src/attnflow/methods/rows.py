"""Rows of single tokens as one row: of a phrase, or of an answer that all positions give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnflow.attribution import Attribution
from attnflow.methods.gradients import GradientAttention, GradientRollout
from attnflow.tokens import Tokens

ALL_POSITIONS = "[all positions]"
"""The target of an answer that is read from the mean of all positions."""


def rows_of(result: Attribution, tokens: Sequence[int]) -> Attribution:
    """These rows only."""
    rows = list(tokens)
    arrays: dict[str, Any] = {name: array[:, rows] for name, array in result.arrays().items()}
    return replace(result, **arrays, targets=result.targets.select(rows))


def as_one(result: Attribution) -> Attribution:
    """All rows as those of one target.

    The gradient of a sum is the sum of gradients, so the rows of gradient attention and gradient
    rollout are added. Rows that are shares are averaged: a phrase draws as its tokens do.
    """
    if len(result.targets) == 1:
        return result
    added = isinstance(result.method, GradientAttention | GradientRollout)
    arrays: dict[str, Any] = {}
    for name, array in result.arrays().items():
        summed = added and name in ("values", "elsewhere")
        arrays[name] = (array.sum if summed else array.mean)(axis=1, keepdims=True)
    arrays["saturated"] = None  # a property of one flow
    return replace(result, **arrays, targets=result.targets.select([0]))


def less_identity(result: Attribution, rows: Sequence[int]) -> Attribution:
    """Gradient rollout starts from the identity: that a position is itself explains nothing."""
    if not isinstance(result.method, GradientRollout):
        return result
    values = result.values.copy()
    elsewhere = None if result.elsewhere is None else result.elsewhere.copy()
    for k, row in enumerate(rows):
        if row < values.shape[-1]:
            values[:, k, row] -= 1
        elif elsewhere is not None:
            elsewhere[:, k] -= 1
    return replace(result, values=values, elsewhere=elsewhere, steps=(*result.steps, "less itself"))


def pooled_row(result: Attribution) -> Attribution:
    """The one row of an answer that a model reads from the mean of all its positions."""
    return replace(as_one(result), targets=Tokens((ALL_POSITIONS,), (0,)))
