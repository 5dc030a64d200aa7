"""capture(): run a model once, see its attention, check it, give the model back unchanged."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.adapters import Adapter, adapter_for
from attnflow.adapters.host import Batch, Recorder
from attnflow.composition import compose, join_tokens
from attnflow.errors import CaptureError, TokensError
from attnflow.mixing import Heads
from attnflow.tokens import Tokens
from attnflow.trace import ROW_TOLERANCE, AttentionTrace, Prediction

__all__ = ["at_rest", "capture", "capture_batch", "provenance_of"]


def capture(
    model: nn.Module,
    text: str | Mapping[str, Tensor],
    *,
    tokenizer: Any = None,
    decoder_text: str | None = None,
    heads: Heads | None = None,
) -> AttentionTrace:
    """The attention of one forward pass over a text or over prepared inputs of one example.

    `heads=None` keeps every head; with "mean" and the like each layer is reduced as it is seen,
    which needs far less memory. `decoder_text` is what the decoder of an encoder–decoder has
    written so far. Padding is trimmed.
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
    return _traces(model, tokenizer, adapter, batch, heads)[0]


def capture_batch(
    model: nn.Module,
    texts: Sequence[str] | Mapping[str, Tensor],
    *,
    tokenizer: Any = None,
    decoder_texts: Sequence[str] | None = None,
    heads: Heads | None = None,
) -> list[AttentionTrace]:
    """Several examples in one forward pass; each trace is as if its example had been alone."""
    adapter = adapter_for(model)
    if isinstance(texts, Mapping):
        batch = adapter.wrap(model, texts)
    elif isinstance(texts, str) or not texts:
        raise TokensError(f"capture_batch() takes a list of texts; got {texts!r}.")
    else:
        checked = [_checked_text(text) for text in texts]
        batch = adapter.encode(model, tokenizer, checked, decoder_texts)
    return _traces(model, tokenizer, adapter, batch, heads)


def _checked_text(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TokensError(f"There is nothing to explain: the text is {text!r}.")
    return text


def _traces(
    model: nn.Module, tokenizer: Any, adapter: Adapter, batch: Batch, heads: Heads | None
) -> list[AttentionTrace]:
    recorder = Recorder(heads, expected=adapter.expected_layers(model))
    with at_rest(model), torch.no_grad():
        outputs = adapter.run(model, batch.inputs, recorder)
    _check_layers(adapter, model, recorder)
    scores = adapter.scores(model, tokenizer, outputs, batch)
    said = [None if found is None else found.prediction() for found in scores]
    seen = _Pass(model, tokenizer, adapter, batch, recorder)
    build = seen.composed_trace if recorder.layers[0].stage == "encoder" else seen.trace
    return [build(example, said[example]) for example in range(batch.size)]


@dataclass(frozen=True, eq=False)
class _Pass:
    """One forward pass: what ran, on what, and what was recorded."""

    model: nn.Module
    tokenizer: Any
    adapter: Adapter
    batch: Batch
    recorder: Recorder

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
            **self._about(),
        )

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
            **self._about(),
        )

    def _input_tokens(self, example: int, length: int) -> Tokens:
        return self.adapter.name_positions(self.model, self.tokenizer, self.batch, example, length)

    def _about(self) -> dict[str, Any]:
        heads = self.recorder.heads
        return {
            "mixed_heads": None if heads is None else str(heads),
            "row_tolerance": ROW_TOLERANCE.get(self.recorder.dtype),
            "copy": False,  # nobody else holds what was recorded
            "provenance": provenance_of(self.model, self.recorder.dtype),
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


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for one forward pass; each module gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
