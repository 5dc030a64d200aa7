"""A method on a model: one trace, or one for each target where each has an answer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from attnflow.attribution import Attribution
from attnflow.errors import ModelError
from attnflow.hosts.capture import capture
from attnflow.hosts.load import load
from attnflow.hosts.registry import adapter_for
from attnflow.methods import Method, make_method
from attnflow.methods.rows import pooled_row
from attnflow.methods.towers import image_sources
from attnflow.tokens import TokenRef, Tokens
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS

__all__ = ["apply_method", "default_method", "explain_answer", "join_targets"]


def default_method(model: nn.Module, options: Mapping[str, Any] | None = None) -> Method:
    """What explains a text when nothing is asked for: what agrees best with ablations.

    >>> from attnflow.testing import tiny_decoder
    >>> default_method(tiny_decoder()[0]).name
    'gradient-attention'
    """
    adapter = adapter_for(model)
    sees = adapter.reads_images(model) and adapter.facts(model).answer is not None
    if sees or adapter.supports_row_gradients(model):
        return make_method("gradient-attention", options)
    return make_method("alti" if adapter.supports_decomposition(model) else "rollout", options)


def apply_method(
    method: Method,
    model: nn.Module,
    text: str | Mapping[str, Any],
    *,
    targets: Sequence[TokenRef] | TokenRef | None = None,
    layers: Sequence[int] | int | None = None,
    **options: Any,
) -> Attribution:
    """Capture what the method requires and apply it; `options` are those of `load` and `capture`.

    Without targets it is the position that the model's answer is read from, where it has one, and
    otherwise every position; "all" is every position.
    A token classifier has one score for each token, so a gradient method runs once for each target.

    >>> from attnflow.hosts.load import load
    >>> from attnflow.methods import Rollout
    >>> model, tokenizer = load()
    >>> apply_method(Rollout(), model, "the keys", tokenizer=tokenizer).values.shape
    (6, 1, 4)
    """
    prepared = {name: options.pop(name, None) for name in ("tokenizer", "processor")}
    loaded = load(model, **prepared)
    predicting = targets is None
    targets = None if isinstance(targets, str) and targets == "all" else targets
    each = adapter_for(model).facts(model).answer == "each"
    record = method.requires.record
    own_gradient = GRADIENTS in record or (GRADIENT_ATTENTION in record and targets is not None)
    if not each or not own_gradient:
        trace = capture(loaded, text, methods=[method], **options)
        if predicting and trace.prediction is not None:
            return explain_answer(method, trace, layers=layers)
        return method(trace, targets=targets, layers=layers, sources=image_sources(trace))
    shared = options.get("decoder_text")
    tokens = capture(loaded, text, heads="mean", decoder_text=shared).tokens
    rows = tokens.indices_of(targets)
    traces = (capture(loaded, text, methods=[method], position=row, **options) for row in rows)
    results = [
        method(trace, targets=[row], layers=layers) for row, trace in zip(rows, traces, strict=True)
    ]
    return join_targets(results, tokens.select(rows))


def explain_answer(
    method: Method, trace: AttentionTrace, *, layers: Sequence[int] | int | None = None
) -> Attribution:
    """Apply a method to the row that the answer of a trace is read from; one pass serves many.

        >>> from attnflow.errors import ModelError
    from attnflow.hosts.capture import capture
        >>> from attnflow.methods import Rollout
        >>> from attnflow.models.verb_number import load_verb_number
        >>> model, vocabulary = load_verb_number()
        >>> trace = capture(model, "the keys", tokenizer=vocabulary)
        >>> explain_answer(Rollout(), trace, layers=-1).values.shape
        (1, 1, 4)
    """
    if trace.prediction is None:
        raise ModelError("The model gives no answer, so there is no position to explain.")
    if trace.prediction.pooled:
        return pooled_row(method(trace, layers=layers))
    position = trace.prediction.position  # the rows of others answer other questions
    return method(trace, targets=position, layers=layers, sources=image_sources(trace))


def join_targets(results: Sequence[Attribution], targets: Tokens) -> Attribution:
    """Results of single targets as one result; each has a prediction of its own, so it has none."""
    arrays: dict[str, Any] = {}
    for name in ("values", "lower", "upper", "saturated", "elsewhere", "dependence"):
        parts = [getattr(result, name) for result in results]
        arrays[name] = None if parts[0] is None else np.concatenate(parts, axis=1)
    answers = [result.provenance.get("gradients_of") for result in results]
    provenance = {**results[0].provenance, "gradients_of": answers}
    return replace(results[0], **arrays, targets=targets, prediction=None, provenance=provenance)
