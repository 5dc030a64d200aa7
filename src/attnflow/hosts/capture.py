"""capture(): run a model once, see its attention, check it, give the model back unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from attnflow.errors import InputError, TokensError, UnsupportedModelError, shorten
from attnflow.errors.arguments import checked_arguments
from attnflow.hosts.adapter import Batch, Scores
from attnflow.hosts.factored import Form, capture_in_factors, chosen_form, single_example
from attnflow.hosts.forward_pass import (
    Explained,
    ForwardPass,
    check_layers,
    check_size,
    provenance_of,
)
from attnflow.hosts.images import image_of
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.load import load
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.registry import Adapter, adapter_for
from attnflow.hosts.restore import at_rest, ordinary
from attnflow.hosts.scores import (
    Choice,
    TokenAt,
    choose_answers,
    choose_contrasts,
    differentiable,
    gradients_of,
    phrase_scores,
    total_score,
)
from attnflow.hosts.vision_language.composition import (
    compose_towers,
    reads_images,
    run_both_towers,
)
from attnflow.methods import Method, requirements_of
from attnflow.methods.mixing import Heads, checked_heads
from attnflow.tokens.pictures import Picture
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS, LOG_PROB, ScoreName, checked_record

__all__ = ["at_rest", "capture", "capture_batch", "capture_phrase", "provenance_of"]

Model = nn.Module | str | os.PathLike[str] | None


@checked_arguments
def capture(
    model: Model,
    text: str | Mapping[str, Any] | Picture,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    decoder_text: str | None = None,
    methods: Sequence[Method] = (),
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: int | str | None = None,
    contrast: int | str | None = None,
    position: int | None = None,
    score: ScoreName = LOG_PROB,
    form: Form = "auto",
) -> AttentionTrace:
    """The attention of one forward pass over a text or over prepared inputs of one example.

    model: a loaded model (then pass its `tokenizer` too), a Hugging Face name, a path, or None
        for the model that ships with attnflow.
    text: a text; for a vision model an image (a path, a PIL image, an array, a tensor, the bytes
        of a file); or prepared inputs: tensors by the names of the model's forward arguments.
    processor: what turns an image into the model's pixels; by default the model's own.
    methods: record just what these methods require: how heads may be mixed, gradients,
        measurements.
    heads: None keeps every head; with "mean" and the like each layer is reduced as it is seen,
        which takes far less memory.
    record: what is recorded beside the weights: "gradients", and names of measurements.
    answer: the choice whose score gradients are taken of, a class or token by number or by name;
        by default the model's own answer.
    contrast: another choice, which the answer's score is held against: why this rather than that?
    position: where the answer is read, for a model that has one for each token; by default the
        surest one that differs from the usual label.
    score: what gradients are taken of, the answer's "log-prob" or its "logit".
    form: "weights" keeps n × n weights, "factors" each layer's queries and keys instead (a
        `FactoredTrace`), while the model's own fused attention runs. "auto" takes factors where
        the weights would take more than a quarter of the free memory, or 4 GB.
    decoder_text: what the decoder of an encoder–decoder has written so far.

    Padding is trimmed.

    >>> trace = capture(None, "the keys to the cabinet")
    >>> trace.weights.shape  # layers, heads, targets, sources
    (6, 8, 7, 7)
    """
    host, tokenizer = load(model, tokenizer=tokenizer)
    adapter = adapter_for(host)
    image = None if isinstance(text, Mapping) else image_of(host, text, processor)
    text = text if image is None else image.inputs
    if isinstance(text, Mapping):
        batch = adapter.wrap(host, text)
        if batch.size != 1:
            raise TokensError(
                f"capture() takes one example and got a batch of {batch.size}; use capture_batch()."
            )
    else:
        decoder_texts = None if decoder_text is None else [checked_text(decoder_text)]
        batch = adapter.encode(host, tokenizer, [checked_text(text)], decoder_texts)
    request = _Request.checked(methods, heads, record, answer, contrast, position, score)
    request = replace(request, form=form, methods=tuple(methods))
    trace = _traces(host, tokenizer, adapter, batch, request)[0]
    if image is None:
        return trace
    return replace(trace, provenance={**trace.provenance, **image.provenance})


def capture_phrase(
    model: nn.Module,
    inputs: Mapping[str, Any],
    phrase: Sequence[TokenAt],
    *,
    method: Method,
    tokenizer: Any = None,
    contrast: int | None = None,
) -> AttentionTrace:
    """What a method requires to explain some tokens of a finished text together.

    phrase: the position that predicts each of them, and its id. contrast: the id of another token,
    for a phrase of one.
    """
    adapter = adapter_for(model)
    request = _Request.checked([method], None, (), None, contrast, None, LOG_PROB)
    request = replace(request, phrase=tuple(phrase))
    return _traces(model, tokenizer, adapter, adapter.wrap(model, inputs), request)[0]


@checked_arguments
def capture_batch(
    model: Model,
    texts: Sequence[str] | Mapping[str, Any],
    *,
    tokenizer: Any = None,
    decoder_texts: Sequence[str] | None = None,
    methods: Sequence[Method] = (),
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: int | str | Sequence[int | str] | None = None,
    score: ScoreName = LOG_PROB,
    form: Form = "auto",
) -> list[AttentionTrace]:
    """Several examples in one forward pass; each trace is as if its example had been alone.

    `answer` may name one choice for all examples, or one for each; the rest is as in `capture`.

    >>> traces = capture_batch(None, ["the key is", "the keys to the cabinet are"])
    >>> [trace.length for trace in traces]
    [5, 8]
    """
    host, tokenizer = load(model, tokenizer=tokenizer)
    adapter = adapter_for(host)
    if isinstance(texts, Mapping):
        batch = adapter.wrap(host, texts)
    elif isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise TokensError(f"capture_batch() takes a list of texts; got {shorten(texts)}.")
    else:
        batch = adapter.encode(
            host,
            tokenizer,
            [checked_text(text) for text in texts],
            None if decoder_texts is None else [checked_text(text) for text in decoder_texts],
        )
    request = _Request.checked(methods, heads, record, answer, None, None, score)
    request = replace(request, form=form, methods=tuple(methods))
    return _traces(host, tokenizer, adapter, batch, request)


@dataclass(frozen=True)
class _Request:
    """What shall be recorded of a forward pass."""

    heads: Heads | None
    record: tuple[str, ...]
    answer: Choice
    contrast: int | str | None
    position: int | None
    score: ScoreName = LOG_PROB
    phrase: tuple[TokenAt, ...] = ()
    form: Form = "weights"
    methods: tuple[Method, ...] = ()

    @classmethod
    def checked(
        cls,
        methods: Sequence[Method],
        heads: Heads | None,
        record: Sequence[str],
        answer: Choice,
        contrast: int | str | None,
        position: int | None,
        score: ScoreName,
    ) -> _Request:
        names = checked_record(record)
        heads = None if heads is None else checked_heads(heads)
        if len(methods):
            if heads is not None:
                raise InputError(
                    f"heads={heads!r}: the methods say how heads may be mixed; give either."
                )
            requirements = requirements_of(methods)
            heads, names = requirements.heads, checked_record((*names, *requirements.record))
            heads = None if GRADIENTS in names else heads
            score = requirements.score or score
        if GRADIENTS in names and heads is not None:
            raise InputError(
                f"A gradient belongs to one head, so heads={heads!r} cannot be mixed at capture; "
                "leave heads=None with record=('gradients',)."
            )
        for name, value in (("answer", answer), ("contrast", contrast)):
            if value is not None and not {GRADIENTS, GRADIENT_ATTENTION} & set(names):
                raise InputError(
                    f"{name}={shorten(value)} chooses what gradients are taken of; ask for them "
                    "with record=('gradients',)."
                )
        return cls(heads, names, answer, contrast, position, score)

    def with_full_gradients(self) -> _Request:
        """The same where gradient attention must be read off the gradients of all weights."""
        if GRADIENT_ATTENTION not in self.record:
            return self
        record = tuple(dict.fromkeys((*self.record, GRADIENTS)))
        return replace(self, heads=None, record=record)

    def answer_of(self, example: int) -> Choice:
        """The answer that gradients of one example are taken of."""
        several = isinstance(self.answer, Sequence) and not isinstance(self.answer, str)
        return self.answer[example] if several else self.answer  # type: ignore[index]

    def scores_read(
        self, scores: Sequence[Scores | None], model: nn.Module
    ) -> Sequence[Scores | None]:
        """The scores where they are asked for: at a position, or of a phrase."""
        if self.position is not None:
            scores = [_scores_at(one, self.position, model) for one in scores]
        if self.phrase:
            scores = [phrase_scores(one, self.phrase, model) for one in scores]
        return scores

    def explained(self, scores: Sequence[Scores | None], model: nn.Module) -> Explained | None:
        """What gradients are taken of, where any are asked for."""
        if not {GRADIENTS, GRADIENT_ATTENTION} & set(self.record):
            return None
        choices = choose_answers(scores, self.answer, model)
        contrasts = choose_contrasts(scores, self.contrast, model)
        for choice, other in zip(choices, contrasts, strict=True):
            if choice == other:
                raise InputError(
                    f"contrast={shorten(self.contrast)} is the answer itself; name another one, "
                    "which the answer is held against."
                )
        return Explained(scores, choices, contrasts)

    @property
    def recorded(self) -> tuple[str, ...]:
        """What the forward pass itself must record."""
        return tuple(name for name in self.record if name != GRADIENT_ATTENTION)

    @property
    def measurements(self) -> tuple[str, ...]:
        """What the adapter must be able to measure inside the model."""
        return tuple(name for name in self.recorded if name != GRADIENTS)


def _traces(
    model: nn.Module,
    tokenizer: Any,
    adapter: Adapter,
    batch: Batch,
    request: _Request,
) -> list[AttentionTrace]:
    if reads_images(model, batch.inputs):
        return [_two_tower_trace(model, tokenizer, adapter, batch, request)]
    if _form(adapter, model, batch, request) == "factors":
        kinds = [name for name in request.record if name in (GRADIENTS, GRADIENT_ATTENTION)]
        return [
            capture_in_factors(
                adapter,
                model,
                tokenizer,
                single_example(batch, example),
                gradient_kind=kinds[0] if kinds else None,
                answer=request.answer_of(example),
                score=request.score,
            )
            for example in range(batch.size)
        ]
    by_rows = (
        GRADIENT_ATTENTION in request.record
        and not request.phrase
        and adapter.supports_row_gradients(model)
    )
    request = request if by_rows else request.with_full_gradients()
    _refuse_unmeasured(adapter, model, request.measurements)
    expected = adapter.expected_layers(model)
    recorder = Recorder(request.heads, expected=expected, record=request.recorded)
    with at_rest(model), differentiable(model, recorder.wants_gradients):
        inputs = {name: ordinary(tensor) for name, tensor in batch.inputs.items()}
        outputs = adapter.run(model, inputs, recorder)
        check_layers(adapter, model, recorder)
        check_size(model, batch.size, recorder)
        batch = (
            batch if batch.positions is not None else replace(batch, positions=recorder.positions)
        )
        scores = request.scores_read(adapter.scores(model, tokenizer, outputs, batch), model)
        explained = request.explained(scores, model)
        gradients = None
        if explained is not None and recorder.wants_gradients:
            gradients = gradients_of(*explained, request.score, recorder, model)
    if by_rows and explained is not None:
        choices = explained.choices, explained.contrasts
        with at_rest(model):
            rows = adapter.gradient_rows(model, batch, *choices, request.score)
        recorder.measured[GRADIENT_ATTENTION] = [layer.cpu().numpy() for layer in rows]
    elif GRADIENT_ATTENTION in request.record and gradients is not None:
        recorder.measured[GRADIENT_ATTENTION] = [
            np.maximum(layer.weights * gradient, 0).mean(axis=1)
            for layer, gradient in zip(recorder.layers, gradients, strict=True)
        ]
    watched = ForwardPass(model, tokenizer, adapter, batch, recorder, scores, gradients, explained)
    return watched.traces()


def _two_tower_trace(
    model: nn.Module, tokenizer: Any, adapter: Adapter, batch: Batch, request: _Request
) -> AttentionTrace:
    """A vision-language model: one pass and, for gradients, one backward pass through both towers.

    The towers may have different numbers of heads, so where gradients are taken the heads are
    mixed: `weights` are their mean, and `gradients` what makes the product of both
    `mean over heads of relu(A ⊙ ∇A)`.
    """
    differentiates = bool({GRADIENTS, GRADIENT_ATTENTION} & set(request.record))
    _refuse_unmeasured(adapter, model, request.measurements)
    record = (*request.measurements, *([GRADIENTS] if differentiates else []))
    recorder = Recorder("mean" if differentiates else request.heads, record=record)
    with at_rest(model), differentiable(model, differentiates):
        inputs = {name: ordinary(tensor) for name, tensor in batch.inputs.items()}
        outputs, recorded = run_both_towers(model, inputs, recorder)
        scores = request.scores_read(adapter.scores(model, tokenizer, outputs, batch), model)
        explained = request.explained(scores, model)
        composition = compose_towers(model, batch, recorded)
        weighted = None
        if explained is not None:
            weighted = composition.gradient_weighted(total_score(*explained, request.score))
    watched = ForwardPass(model, tokenizer, adapter, batch, recorder, scores, None, explained)
    return watched.two_tower_trace(composition, weighted)


def _form(adapter: Adapter, model: nn.Module, batch: Batch, request: _Request) -> Form:
    """Weights or factors; what is measured inside a layer has a number for each pair, and what is
    asked beside a single answer's probability is followed through the weights.
    """
    kinds = {GRADIENTS, GRADIENT_ATTENTION} & set(request.record)
    rows_of_others = GRADIENT_ATTENTION in kinds and (
        request.score != LOG_PROB or not adapter.supports_row_gradients(model)
    )
    special = (request.contrast, request.position, request.phrase or None)
    return chosen_form(
        adapter,
        model,
        batch,
        request.form,
        needs_matrix=(bool(request.methods) and requirements_of(request.methods).needs_matrix)
        or bool(request.measurements)
        or len(kinds) > 1
        or rows_of_others
        or any(one is not None for one in special),
        arrays=1 + len(kinds),
        mixed=request.heads is not None,
    )


def _scores_at(scores: Scores | None, position: int, model: nn.Module) -> Scores:
    if scores is None:
        raise InputError(
            f"position={position!r} says where the answer is read, and {type(model).__name__} "
            "gives none for this input."
        )
    return scores.at(position)


def _refuse_unmeasured(adapter: Adapter, model: nn.Module, record: Sequence[str]) -> None:
    missing = [name for name in record if name not in adapter.measures]
    if missing:
        raise UnsupportedModelError(
            f"{type(model).__name__} is seen by the adapter for {adapter.name}, which does not "
            f"measure {', '.join(map(repr, missing))}. Rollout and flow work, and the gradient "
            "methods where the model has a head."
        )
