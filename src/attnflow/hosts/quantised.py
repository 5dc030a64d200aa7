"""Quantised layers: whether gradients run through them, which is found by trying."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.adapter import device_of
from attnflow.hosts.restore import at_rest


def gradient_barrier(model: nn.Module) -> str | None:
    """Return the name of a layer that no gradient runs through; None where all let it pass."""
    kinds = {(type(m), type(getattr(m, "weight", None))): m for m in _quantised_layers(model)}
    if not kinds:
        return None
    with at_rest(model):
        barriers = (_name(layer) for layer in kinds.values() if not _passes_gradients(layer, model))
        return next(barriers, None)


def refuse_gradients(model: nn.Module) -> None:
    """Raise where gradients are asked of a model that has a layer which lets none pass."""
    layer = gradient_barrier(model)
    if layer is not None:
        raise UnsupportedModelError(
            f"No gradient runs through the quantised layers of this {type(model).__name__} "
            f"({layer}), so gradient methods cannot explain it. 'rollout', 'flow', 'alti' and "
            "'leave-one-out' do; or load the model without quantisation, or in 4 or 8 bit with "
            "bitsandbytes. Some layers let gradients pass until a first pass without them packs "
            "their weights: load such a model again, and explain it before it runs."
        )


def _quantised_layers(model: nn.Module) -> list[nn.Module]:
    """Linear layers whose weights are no floating parameters of torch's own kind."""
    linear = [module for module in model.modules() if hasattr(module, "in_features")]
    # What holds another such layer, an adapter or a head, computes by that one.
    layers = [m for m in linear if not any(hasattr(p, "in_features") for p in m.children())]
    weights = [getattr(layer, "weight", None) for layer in layers]
    return [
        layer
        for layer, weight in zip(layers, weights, strict=True)
        if not (type(weight) is nn.Parameter and weight.is_floating_point())
        and not hasattr(weight, "device_mesh")  # a shard of plain weights
    ]


def _passes_gradients(layer: Any, model: nn.Module) -> bool:
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    inputs = torch.ones(1, layer.in_features, device=device_of(model))
    inputs = inputs.to(next(floats, torch.float32)).requires_grad_()
    try:
        with torch.enable_grad():
            output = layer.forward(inputs)
            (gradient,) = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
    except RuntimeError:  # the output is in no graph, or its operation has no way back
        return False
    return gradient is not None


def _name(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    kind = type(weight).__name__ if isinstance(weight, torch.Tensor) else "packed weights"
    return f"{type(layer).__module__}.{type(layer).__qualname__} with {kind}"
