"""Plain torch: every `nn.MultiheadAttention` of a module, `nn.TransformerEncoder` among them.

A hook before each one asks for its weights, head by head, and a hook after it reads them. Hooks
also keep torch's fused encoder path away, which would compute attention without either. Models
whose `forward` takes other things than tensors by name are for an adapter of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.adapter import Adapter, Batch
from attnflow.hosts.inputs import kept_positions
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import exclusive


class TorchAdapter(Adapter):
    """Any module built from `nn.MultiheadAttention` used as self-attention."""

    name = "torch's nn.MultiheadAttention"

    def recognises(self, model: nn.Module) -> bool:
        """There is one inside."""
        return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Vectors go in as (batch, positions, width), by torch's default as (positions, batch,
        width), or as (positions, width) of one example.
        """
        batch = super().wrap(model, inputs)
        modules = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
        vectors = next(iter(batch.inputs.values()))
        if not vectors.is_floating_point() or vectors.shape[-1] != modules[0].embed_dim:
            return batch
        if vectors.ndim == 2:
            return replace(batch, size=1)
        first = all(module.batch_first for module in modules)
        return batch if first or vectors.ndim != 3 else replace(batch, size=vectors.shape[1])

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Run one forward pass with the inputs passed by name."""
        with _watched(model, recorder):
            return self.forward(model, inputs)

    def expected_layers(self, model: nn.Module) -> int | None:
        """Each attention module once."""
        return sum(isinstance(module, nn.MultiheadAttention) for module in model.modules())


@contextmanager
def _watched(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    with exclusive(model) as changes:
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                changes.hook(
                    module.register_forward_pre_hook, _ask(recorder), with_kwargs=True, prepend=True
                )
                changes.hook(module.register_forward_hook, _read(recorder))
        yield


def _ask(recorder: Recorder) -> Any:
    def ask(
        module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = inspect.signature(module.forward).bind(*inputs, **options).arguments
        _refuse_cross_attention(arguments["query"], arguments["key"])
        if arguments.get("key_padding_mask") is not None:
            recorder.positions = _positions(arguments["key_padding_mask"])
        if recorder.disturb:  # a query of zeros scores every key alike, whatever its bias adds
            zeros = torch.zeros_like(arguments["query"])
            options = {**options, "query": zeros} if "query" in options else options
            inputs = (zeros, *inputs[1:]) if inputs else inputs
        return inputs, {**options, "need_weights": True, "average_attn_weights": False}

    return ask


def _refuse_cross_attention(query: Tensor, key: Tensor) -> None:
    """Self-attention asks and answers with the same positions; shapes may agree by chance."""
    if query is key or (query.shape == key.shape and torch.equal(query, key)):
        return
    raise UnsupportedModelError(
        f"An nn.MultiheadAttention attends from {query.shape[-2]} queries to {key.shape[-2]} keys "
        "that are not the same positions; only self-attention makes one stack of layers. For cross "
        "attention write an adapter that records each stage."
    )


def _positions(mask: Tensor) -> tuple[tuple[int, ...], ...]:
    """Positions that are no padding: torch marks those that are by True, or by minus infinity."""
    padding = mask if mask.dtype == torch.bool else mask == -torch.inf
    return kept_positions(~padding.reshape(-1, padding.shape[-1])) or ()


def _read(recorder: Recorder) -> Any:
    def read(module: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        weights = output[1]
        weights = weights if weights.ndim == 4 else weights[None]
        # What is handed out is a view made for the caller; the model goes on with its base.
        recorder.add(weights, in_graph=weights._base)

    return read
