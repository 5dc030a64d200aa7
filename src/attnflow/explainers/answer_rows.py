"""Which rows of a result are the model's answer, and a method applied so that they are right.

An answer is read from one position, from the mean of all of them (pooled), or from each of them (a
token classifier). A model without a head that is known has no answer: every position is explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from attnflow.attribution import Attribution
from attnflow.hosts.capture import capture
from attnflow.hosts.model import Model
from attnflow.methods import BalancedGradient, GradientAttention, GradientRollout, Method
from attnflow.methods.products import image_sources
from attnflow.tokens import TokenRef, Tokens
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENTS, OF_AN_ANSWER

ALL = "all"
"""The name of every position as a target."""

ALL_POSITIONS = "[all positions]"
"""The target of an answer that is read from the mean of all positions."""

Targets = Sequence[TokenRef] | TokenRef | Literal["all"] | None
"""Positions or tokens that occur once; "all"; None for those that the answer is read from."""


def answer_rows(
    method: Method,
    trace: AttentionTrace,
    targets: Targets = None,
    layers: Sequence[int] | int | None = None,
    **execution: Any,
) -> Attribution:
    """Apply a method to a trace, at the rows that are asked for or that the answer is read from."""
    if targets is None and trace.prediction is not None:
        targets = answer_position(trace)  # the rows of others answer other questions
        if targets is None:
            return pooled_row(method(trace, layers=layers, **execution))
    rows = None if isinstance(targets, str) and targets == ALL else targets
    return method(trace, targets=rows, layers=layers, sources=image_sources(trace), **execution)


def answer_position(trace: AttentionTrace) -> int | None:
    """Return the single position that the answer is read from, if there is one."""
    prediction = trace.prediction
    return None if prediction is None or prediction.pooled else prediction.position


def needs_own_gradients(model: Model, method: Method, targets: Targets) -> bool:
    """Return whether each target has an answer, and so a gradient, of its own.

    A token classifier has one score for each token; gradient rollout differentiates anyhow.
    """
    record = set(method.requires.record)
    differentiates = GRADIENTS in record or (targets is not None and bool(record & OF_AN_ANSWER))
    for_each = differentiates and model.facts.answer == "each"
    return for_each or _has_other_rows(model, method, targets)


def _has_other_rows(model: Model, method: Method, targets: Targets) -> bool:
    """Return whether rows beside the answer's are asked for that have answers of their own."""
    writes = model.adapter.supports_row_gradients(model.module)
    return isinstance(method, BalancedGradient) and targets is not None and writes


def apply_method(
    method: Method,
    model: Model,
    text: Any,
    *,
    targets: Targets = None,
    layers: Sequence[int] | int | None = None,
    **options: Any,
) -> Attribution:
    """Capture what a method requires of a model and apply it; `options` are those of `capture`."""
    if not needs_own_gradients(model, method, targets):
        trace = capture(model, text, methods=[method], **options)
        return answer_rows(method, trace, targets, layers)
    if isinstance(method, BalancedGradient) and _has_other_rows(model, method, targets):
        return _beside_others(method, model, text, targets, layers, options)
    tokens = capture(model, text, heads="mean").tokens
    rows = tokens.indices_of(None if isinstance(targets, str) and targets == ALL else targets)
    traces = (capture(model, text, methods=[method], position=row, **options) for row in rows)
    results = [
        method(trace, targets=[row], layers=layers) for row, trace in zip(rows, traces, strict=True)
    ]
    return join_targets(results, tokens.select(rows))


def _beside_others(
    method: BalancedGradient,
    model: Model,
    text: Any,
    targets: Targets,
    layers: Sequence[int] | int | None,
    options: Mapping[str, Any],
) -> Attribution:
    """Return a causal model's answer row, and others' own next tokens by one more balanced pass."""
    own = GradientAttention(balanced=True, score=method.score, drop_sink=method.drop_sink)
    rows = answer_rows(own, capture(model, text, methods=[own], **options), targets)
    answer = answer_rows(method, capture(model, text, methods=[method], **options), None, layers)
    sums = rows.values[-1].sum(axis=-1)
    sums = np.where(sums > 0, sums, 1.0)[None, :]
    levels = [rows.layers.index(number) for number in answer.layers]
    values = rows.values[levels] / sums[..., None]
    elsewhere = np.zeros(values.shape[:2])
    if rows.elsewhere is not None:
        elsewhere = rows.elsewhere[levels] / sums
    (position,) = answer.targets.positions
    if position in rows.targets.positions:
        place = rows.targets.positions.index(position)
        values[:, place] = answer.values[:, 0]
        elsewhere[:, place] = 0.0 if answer.elsewhere is None else answer.elsewhere[:, 0]
    return replace(answer, values=values, elsewhere=elsewhere, targets=rows.targets)


def join_targets(results: Sequence[Attribution], targets: Tokens) -> Attribution:
    """Return results of single targets as one; each has a prediction of its own, so it has none."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(result, name) for result in results], axis=1)
        for name in results[0].arrays()
    }
    answers = [result.provenance.get("gradients_of") for result in results]
    provenance = {**results[0].provenance, "gradients_of": answers}
    return replace(results[0], **arrays, targets=targets, prediction=None, provenance=provenance)


def rows_of(result: Attribution, tokens: Sequence[int]) -> Attribution:
    """Return these rows only."""
    rows = list(tokens)
    arrays: dict[str, Any] = {name: array[:, rows] for name, array in result.arrays().items()}
    return replace(result, **arrays, targets=result.targets.select(rows))


def as_one(result: Attribution) -> Attribution:
    """Return all rows as those of one target.

    The gradient of a sum is the sum of gradients, so the rows of gradient attention and gradient
    rollout are added. Rows that are shares are averaged: a phrase draws as its tokens do.
    """
    if len(result.targets) == 1:
        return result
    added = isinstance(result.method, BalancedGradient | GradientAttention | GradientRollout)
    arrays: dict[str, Any] = {}
    for name, array in result.arrays().items():
        summed = added and name in ("values", "elsewhere")
        arrays[name] = (array.sum if summed else array.mean)(axis=1, keepdims=True)
    arrays["saturated"] = None  # a property of one flow
    return replace(result, **arrays, targets=result.targets.select([0]))


def less_identity(result: Attribution, rows: Sequence[int]) -> Attribution:
    """Take away the identity that gradient rollout starts from: to be itself explains nothing."""
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
    """Return the one row of an answer that a model reads from the mean of all its positions."""
    return replace(as_one(result), targets=Tokens((ALL_POSITIONS,), (0,)))


def answer_row(result: Attribution, model: Model) -> Attribution | None:
    """Return the row that explains the answer: where it is read, or of all positions together."""
    prediction, targets = result.prediction, result.targets
    if prediction is None:  # a token classifier answers for each
        return result if model.facts.answer == "each" and len(targets) == 1 else None
    if prediction.pooled:
        if targets.texts == (ALL_POSITIONS,):
            return result
        return pooled_row(result) if len(targets) == len(result.sources) else None
    return result.row(prediction.position) if prediction.position in targets.positions else None
