"""capture(): run a model once, see its attention, check it, give the model back unchanged."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow._renamed import renamed_arguments
from attnflow.errors import CaptureError, InputError, TokensError, UnsupportedModelError
from attnflow.extras import GRADIENT_ATTENTION, GRADIENTS, LOG_PROB, ScoreName, checked_record
from attnflow.hosts.adapter import Batch, Scores
from attnflow.hosts.encoder_decoder import compose, join_tokens
from attnflow.hosts.measure.gradients import Choice, choose_answers, differentiable, gradients_of
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.registry import Adapter, adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.methods import Method, requirements_of
from attnflow.methods.mixing import Heads
from attnflow.tokens import Tokens
from attnflow.trace import ROW_TOLERANCE, AttentionTrace, Prediction

__all__ = ["at_rest", "capture", "capture_batch", "provenance_of"]


@renamed_arguments(also="record", of="answer")
def capture(
    model: nn.Module,
    text: str | Mapping[str, Tensor],
    *,
    tokenizer: Any = None,
    decoder_text: str | None = None,
    methods: Sequence[Method] = (),
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: int | None = None,
    score: ScoreName = LOG_PROB,
) -> AttentionTrace:
    """The attention of one forward pass over a text or over prepared inputs of one example.

    methods: record just what these methods require: how heads may be mixed, gradients,
        measurements.
    heads: None keeps every head; with "mean" and the like each layer is reduced as it is seen,
        which takes far less memory.
    record: what is recorded beside the weights: "gradients", and names of measurements.
    answer: the choice whose score gradients are taken of, a class or token id; by default the
        model's own answer.
    score: what gradients are taken of, the answer's "log-prob" or its "logit".
    decoder_text: what the decoder of an encoder–decoder has written so far.

    Padding is trimmed.
    """
    adapter = adapter_for(model)
    if isinstance(text, str):
        decoder_texts = None if decoder_text is None else [decoder_text]
        batch = adapter.encode(model, tokenizer, [_checked_text(text)], decoder_texts)
    elif not isinstance(text, Mapping):
        raise TokensError(
            f"A text or a mapping of prepared inputs is needed; got {type(text).__name__}."
        )
    else:
        batch = adapter.wrap(model, text)
        if batch.size != 1:
            raise TokensError(
                f"capture() takes one example and got a batch of {batch.size}; use capture_batch()."
            )
    return _traces(
        model, tokenizer, adapter, batch, _Request.checked(methods, heads, record, answer, score)
    )[0]


@renamed_arguments(also="record", of="answer")
def capture_batch(
    model: nn.Module,
    texts: Sequence[str] | Mapping[str, Tensor],
    *,
    tokenizer: Any = None,
    decoder_texts: Sequence[str] | None = None,
    methods: Sequence[Method] = (),
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: int | Sequence[int] | None = None,
    score: ScoreName = LOG_PROB,
) -> list[AttentionTrace]:
    """Several examples in one forward pass; each trace is as if its example had been alone.

    `answer` may name one choice for all examples, or one for each; the rest is as in `capture`.
    """
    adapter = adapter_for(model)
    if isinstance(texts, Mapping):
        batch = adapter.wrap(model, texts)
    elif isinstance(texts, str) or not texts:
        raise TokensError(f"capture_batch() takes a list of texts; got {texts!r}.")
    else:
        checked = [_checked_text(text) for text in texts]
        batch = adapter.encode(model, tokenizer, checked, decoder_texts)
    return _traces(
        model, tokenizer, adapter, batch, _Request.checked(methods, heads, record, answer, score)
    )


def _checked_text(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TokensError(f"There is nothing to explain: the text is {text!r}.")
    return text


@dataclass(frozen=True)
class _Request:
    """What shall be kept of a forward pass."""

    heads: Heads | None
    record: tuple[str, ...]
    answer: Choice
    score: ScoreName = LOG_PROB

    @classmethod
    def checked(
        cls,
        methods: Sequence[Method],
        heads: Heads | None,
        record: Sequence[str],
        answer: Choice,
        score: ScoreName,
    ) -> _Request:
        names = checked_record(record)
        if methods:
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
        if answer is not None and not {GRADIENTS, GRADIENT_ATTENTION} & set(names):
            raise InputError(
                f"answer={answer!r} chooses what gradients are taken of; ask for them with "
                "record=('gradients',)."
            )
        return cls(heads, names, answer, score)

    def with_full_gradients(self) -> _Request:
        """The same where gradient attention must be read off the gradients of all weights."""
        if GRADIENT_ATTENTION not in self.record:
            return self
        record = tuple(dict.fromkeys((*self.record, GRADIENTS)))
        return replace(self, heads=None, record=record)

    @property
    def recorded(self) -> tuple[str, ...]:
        """What the forward pass itself must record."""
        return tuple(name for name in self.record if name != GRADIENT_ATTENTION)

    @property
    def measurements(self) -> tuple[str, ...]:
        """What the adapter must be able to measure inside the model."""
        return tuple(name for name in self.recorded if name != GRADIENTS)


def _traces(
    model: nn.Module, tokenizer: Any, adapter: Adapter, batch: Batch, request: _Request
) -> list[AttentionTrace]:
    by_rows = GRADIENT_ATTENTION in request.record and adapter.explains_rows(model)
    request = request if by_rows else request.with_full_gradients()
    _refuse_unmeasured(adapter, model, request.measurements)
    expected = adapter.expected_layers(model)
    recorder = Recorder(request.heads, expected=expected, record=request.recorded)
    with at_rest(model), differentiable(model, recorder.wants_gradients):
        outputs = adapter.run(model, batch.inputs, recorder)
        _check_layers(adapter, model, recorder)
        scores = adapter.scores(model, tokenizer, outputs, batch)
        gradients = _Gradients.of(scores, request, recorder, model)
    if by_rows:
        choices = choose_answers(scores, request.answer, model)
        with at_rest(model):
            rows = adapter.gradient_rows(model, batch, choices)
        recorder.measured[GRADIENT_ATTENTION] = [layer.cpu().numpy() for layer in rows]
    elif GRADIENT_ATTENTION in request.record and gradients is not None:
        recorder.measured[GRADIENT_ATTENTION] = [
            np.maximum(layer.weights * gradient, 0).mean(axis=1)
            for layer, gradient in zip(recorder.layers, gradients.layers, strict=True)
        ]
    said = [None if found is None else found.prediction() for found in scores]
    seen = _Pass(model, tokenizer, adapter, batch, recorder, gradients)
    build = seen.composed_trace if recorder.layers[0].stage == "encoder" else seen.trace
    return [build(example, said[example]) for example in range(batch.size)]


def _refuse_unmeasured(adapter: Adapter, model: nn.Module, record: Sequence[str]) -> None:
    missing = [name for name in record if name not in adapter.measures]
    if missing:
        raise UnsupportedModelError(
            f"{type(model).__name__} is seen by the adapter for {adapter.name}, which does not "
            f"measure {', '.join(map(repr, missing))}. Rollout and flow work, and the gradient "
            "methods where the model has a head."
        )


@dataclass(frozen=True, eq=False)
class _Gradients:
    """Gradients of all layers, and for each example the name of what they are of."""

    layers: list[NDArray[np.float32]]
    names: list[str]

    @classmethod
    def of(
        cls, scores: list[Scores | None], request: _Request, recorder: Recorder, model: nn.Module
    ) -> _Gradients | None:
        if not recorder.wants_gradients:
            return None
        choices = choose_answers(scores, request.answer, model)
        named = zip(scores, choices, strict=True)
        return cls(
            gradients_of(scores, choices, recorder, model, request.score),
            [found.names([k])[0] for found, k in named if found is not None],
        )


@dataclass(frozen=True, eq=False)
class _Pass:
    """One forward pass: what ran, on what, and what was recorded."""

    model: nn.Module
    tokenizer: Any
    adapter: Adapter
    batch: Batch
    recorder: Recorder
    gradients: _Gradients | None = None

    def trace(self, example: int, said: Prediction | None) -> AttentionTrace:
        """One example's trace; its rows are checked here, at the cost of one sum."""
        layers = self.recorder.layers
        length = layers[0].weights.shape[-1]
        kept = _kept(self.batch.kept, example, length)
        weights = self.recorder.stacked()[:, example]
        if len(kept) < length:
            weights = weights[:, :, kept[:, None], kept]
        numbers = [layer.number for layer in layers if layer.number is not None]
        told = len(numbers) == len(layers) and numbers == sorted(set(numbers))
        return AttentionTrace.from_arrays(
            weights,
            self._input_tokens(example, length),
            layers=numbers if told else None,
            sinks=_sinks(self.recorder, weights),
            prediction=said,
            gradients=self._gradients(example, kept),
            measured=self._measured(example, kept),
            **self._about(example),
        )

    def _gradients(self, example: int, kept: NDArray[np.intp]) -> NDArray[np.float32] | None:
        if self.gradients is None:
            return None
        return np.stack([x[example][:, kept[:, None], kept] for x in self.gradients.layers])

    def _measured(
        self, example: int, kept: NDArray[np.intp]
    ) -> dict[str, NDArray[np.float32]] | None:
        """Every measurement of every layer, padding trimmed."""
        found: dict[str, NDArray[np.float32]] = {}
        for name, layers in self.recorder.measured.items():
            if len(layers) != len(self.recorder.layers):
                raise CaptureError(
                    f"{name!r} was measured on {len(layers)} of {len(self.recorder.layers)} layers "
                    f"of {type(self.model).__name__}; a result over the rest would be wrong."
                )
            whole = np.stack([layer[example] for layer in layers])
            found[name] = whole[:, kept] if whole.ndim == 2 else whole[:, kept[:, None], kept]
        return found

    def composed_trace(self, example: int, said: Prediction | None) -> AttentionTrace:
        """An encoder–decoder: its three attentions as one graph over both sides' tokens."""
        lengths = {layer.stage: layer.weights.shape[-2] for layer in self.recorder.layers}
        encoder = _kept(self.batch.kept, example, lengths["encoder"])
        decoder = _kept(self.batch.decoder_kept, example, lengths["decoder"])
        queries = {"encoder": encoder, "decoder": decoder, "cross": decoder}
        keys = {"encoder": encoder, "decoder": decoder, "cross": encoder}
        layers = [
            (x.stage, x.weights[example][:, queries[x.stage][:, None], keys[x.stage]])
            for x in self.recorder.layers
        ]
        composed = compose(layers, len(encoder), len(decoder))
        gradients = None
        if self.gradients is not None:
            found = [
                (x.stage, g[example][:, queries[x.stage][:, None], keys[x.stage]])
                for x, g in zip(self.recorder.layers, self.gradients.layers, strict=True)
            ]
            gradients = compose(found, len(encoder), len(decoder), idle=0.0).weights
        outputs = self.adapter.name_decoder_positions(
            self.model, self.tokenizer, self.batch, example, lengths["decoder"]
        )
        return AttentionTrace.from_arrays(
            composed.weights,
            join_tokens(self._input_tokens(example, lengths["encoder"]), outputs),
            kind="cross",
            stages=composed.stages,
            encoder_length=len(encoder),
            prediction=said and replace(said, position=said.position + len(encoder)),
            gradients=gradients,
            **self._about(example),
        )

    def _input_tokens(self, example: int, length: int) -> Tokens:
        return self.adapter.name_positions(self.model, self.tokenizer, self.batch, example, length)

    def _about(self, example: int) -> dict[str, Any]:
        heads = self.recorder.heads
        of = {} if self.gradients is None else {"gradients_of": self.gradients.names[example]}
        return {
            "mixed_heads": None if heads is None else str(heads),
            "row_tolerance": ROW_TOLERANCE.get(self.recorder.dtype),
            "copy": False,  # nobody else holds what was recorded
            "provenance": {**provenance_of(self.model, self.recorder.dtype), **of},
        }


def _kept(kept: tuple[tuple[int, ...], ...] | None, example: int, length: int) -> NDArray[np.intp]:
    return np.arange(length) if kept is None else np.array(kept[example])


def _sinks(recorder: Recorder, weights: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """What the rows of layers with a learned sink lack; all other rows must be whole."""
    declared = [layer.sink for layer in recorder.layers]
    if not any(declared):
        return None
    lacking = np.clip(1 - weights.sum(axis=-1), 0, 1)
    return lacking * np.array(declared)[:, None, None]


def _check_layers(adapter: Adapter, model: nn.Module, recorder: Recorder) -> None:
    expected = adapter.expected_layers(model)
    seen = len(recorder.layers)
    if seen == 0 or (expected is not None and seen != expected):
        raise CaptureError(
            f"{type(model).__name__} has {expected or 'some'} layers with attention and {seen} "
            "were seen. Nothing is returned, because a result over missing layers would be wrong. "
            "Quantised or fused attention that returns no weights cannot be explained; load the "
            "model without it."
        )


def provenance_of(model: nn.Module, dtype: str) -> dict[str, Any]:
    """What a result should say of the model it was made with."""
    config = getattr(model, "config", None)
    return {
        "model": getattr(config, "name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "dtype": dtype,
        "torch": str(torch.__version__),
        "transformers": _version_of("transformers"),
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
