"""Short digests of what a run's numbers depend on: weights, tokenizer, texts, settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors.progress import tell

_DIGITS = 16


def digest_bytes(pieces: Iterable[bytes]) -> str:
    """Return what is the same for the same bytes, on any machine."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()[:_DIGITS]


def digest_settings(settings: Mapping[str, Any]) -> str:
    """Return what is the same for the same settings, in any order and on any machine."""
    return digest_bytes([json.dumps(settings, sort_keys=True).encode()])


def digest_weights(model: nn.Module) -> str | None:
    """Digest every byte of every weight and buffer, with its name, dtype and shape.

    None where some of them are not in memory (offloaded: on the meta device), so that nothing can
    be said of them. It is computed once for each run and takes about two seconds for each GB.
    """
    tensors = {
        f"{name} {k}": tensor
        for name, value in model.state_dict().items()
        for k, tensor in enumerate(_plain_tensors(value))
    }
    if any(tensor.is_meta for tensor in tensors.values()):
        return None
    total = hashlib.sha256()
    for k, (name, tensor) in enumerate(tensors.items(), start=1):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        content: Any = flat.view(torch.uint8).numpy()
        total.update(content)
        tell("fingerprint of the weights", k, len(tensors))
    return total.hexdigest()[:_DIGITS]


def _plain_tensors(value: Any) -> Iterable[Tensor]:
    """The tensors that a weight is made of, where it is quantised, or the weight itself."""
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _plain_tensors(part)]
    if not isinstance(value, Tensor):
        return []
    if value.is_quantized:  # torch's own: each row has a scale
        return [value.int_repr(), value.dequantize()]
    if hasattr(value, "__tensor_flatten__"):
        names, _ = value.__tensor_flatten__()
        return [tensor for name in names for tensor in _plain_tensors(getattr(value, name))]
    return [value]


def digest_tokenizer(tokenizer: Any) -> str:
    """Digest everything that decides which ids a text becomes."""
    facts = {"class": type(tokenizer).__name__, **_vocabulary(tokenizer)}
    for name in ("special_tokens_map", "model_max_length", "padding_side", "max_length"):
        facts[name] = getattr(tokenizer, name, None)
    return digest_bytes([json.dumps(facts, sort_keys=True, default=str).encode()])


def _vocabulary(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        # How the last call padded and cut is kept there too; it is not the tokenizer's own.
        return {name: rules[name] for name in rules if name not in ("padding", "truncation")}
    if hasattr(tokenizer, "get_vocab"):
        return {"vocabulary": tokenizer.get_vocab()}
    return {"vocabulary": getattr(tokenizer, "tokens", None)}
