"""capture(): run a model once, see its attention, check it, give the model back unchanged."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnflow.adapters import Adapter, adapter_for
from attnflow.adapters.host import Batch, Recorder
from attnflow.errors import CaptureError, TokensError
from attnflow.mixing import Heads
from attnflow.trace import ROW_TOLERANCE, AttentionTrace, Prediction

__all__ = ["capture", "capture_batch"]


def capture(
    model: nn.Module,
    text: str | Mapping[str, Tensor],
    *,
    tokenizer: Any = None,
    heads: Heads | None = None,
) -> AttentionTrace:
    """The attention of one forward pass over a text or over prepared inputs of one example.

    `heads=None` keeps every head; with "mean" and the like each layer is reduced as it is seen,
    which needs far less memory. Padding is trimmed.
    """
    adapter = adapter_for(model)
    if isinstance(text, str):
        batch = adapter.encode(model, tokenizer, [_checked_text(text)])
    else:
        batch = adapter.wrap(model, tokenizer, text)
        if len(batch.tokens) != 1:
            raise TokensError(
                f"capture() takes one example and got a batch of {len(batch.tokens)}; use "
                "capture_batch() for texts, or pass one row of the inputs."
            )
    return _traces(model, tokenizer, adapter, batch, heads)[0]


def capture_batch(
    model: nn.Module, texts: Sequence[str], *, tokenizer: Any = None, heads: Heads | None = None
) -> list[AttentionTrace]:
    """Several texts in one forward pass; each trace is as if its text had been alone."""
    if isinstance(texts, str) or not texts:
        raise TokensError(f"capture_batch() takes a list of texts; got {texts!r}.")
    adapter = adapter_for(model)
    batch = adapter.encode(model, tokenizer, [_checked_text(text) for text in texts])
    return _traces(model, tokenizer, adapter, batch, heads)


def _checked_text(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TokensError(f"There is nothing to explain: the text is {text!r}.")
    return text


def _traces(
    model: nn.Module, tokenizer: Any, adapter: Adapter, batch: Batch, heads: Heads | None
) -> list[AttentionTrace]:
    recorder = Recorder(heads)
    with _at_rest(model), torch.no_grad():
        outputs = adapter.run(model, batch.inputs, recorder)
    _check_layers(adapter, model, recorder)
    said = adapter.predictions(model, tokenizer, outputs, batch)
    return [_trace(model, batch, recorder, b, said[b]) for b in range(len(batch.tokens))]


def _trace(
    model: nn.Module, batch: Batch, recorder: Recorder, example: int, said: Prediction | None
) -> AttentionTrace:
    """One example's trace; its rows are checked here, at the cost of one sum."""
    kept = np.array(batch.kept[example])
    weights = np.stack([layer[example][:, kept[:, None], kept] for layer in recorder.layers])
    return AttentionTrace.from_arrays(
        weights,
        batch.tokens[example],
        mixed_heads=None if recorder.heads is None else str(recorder.heads),
        prediction=said,
        row_tolerance=ROW_TOLERANCE.get(recorder.dtype),
        provenance=_provenance(model, recorder),
    )


def _check_layers(adapter: Adapter, model: nn.Module, recorder: Recorder) -> None:
    expected = adapter.layer_count(model)
    seen = len(recorder.layers)
    if seen == 0 or (expected is not None and seen != expected):
        raise CaptureError(
            f"{type(model).__name__} has {expected or 'some'} layers and attention was seen in "
            f"{seen}. Nothing is returned, because a result over missing layers would be wrong."
        )


def _provenance(model: nn.Module, recorder: Recorder) -> dict[str, Any]:
    config = getattr(model, "config", None)
    return {
        "model": getattr(config, "name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "dtype": recorder.dtype,
        "torch": str(torch.__version__),
        "transformers": _version_of("transformers"),
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for one forward pass; each module gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
