"""How attention is seen inside a transformers model.

transformers looks its attention function up by name at every forward pass. We register one under
a name of ours that calls the model file's own eager function and hands the weights on; for one
forward pass every config of the model points to that name. The mask function is registered under
the same name: without it transformers would drop the mask in silence.

Queries are taken some rows at a time. A row of a softmax does not depend on the others, so the
result is the same, and all heads of all queries never exist at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from attnflow.errors import CaptureError
from attnflow.hosts.measure.value_zeroing import without
from attnflow.hosts.recorder import AttentionObserver, Stage

__all__ = ["eager", "eager_function", "implementation", "recording", "uses_the_interface"]

_NAME = "attnflow_recording"
_ROWS_OF_WEIGHTS = 2**20  # weights in memory at a time for one example, over all heads
_CROSS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "encoder_attention")


@dataclass(frozen=True)
class _Post:
    """Where a module stands in its model, and whom it reports to."""

    observer: AttentionObserver
    stage: Stage


# Keyed by module, so that two threads that capture two models at once do not mix.
_POSTS: WeakKeyDictionary[nn.Module, _Post] = WeakKeyDictionary()


def eager_function(module: nn.Module) -> Any:
    """The eager attention of the file that defines the module's class."""
    return sys.modules[type(module).__module__].eager_attention_forward


def _attend_and_record(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """The model file's own eager attention, with its weights handed to the module's watcher."""
    attend = eager_function(module)
    post = _POSTS.get(module)
    if post is None:
        return attend(module, query, key, value, mask, **options)
    observer = post.observer
    if observer.zeroed is not None:
        return attend(module, query, key, without(value, observer.zeroed), mask, **options)
    if observer.disturb:
        query = torch.zeros_like(query)
    length = query.shape[-2]
    step = max(1, _ROWS_OF_WEIGHTS // (key.shape[-2] * query.shape[1]))
    outputs: list[Tensor] = []
    for start in range(0, length, step):
        rows = slice(start, start + step)
        output, weights = attend(
            module,
            query[..., rows, :],
            key,
            value,
            _rows_of(mask, rows, length),
            **{name: _rows_of(option, rows, length) for name, option in options.items()},
        )
        if weights is None:
            raise CaptureError(
                f"{type(module).__name__} returned no attention weights: quantised or fused "
                "attention cannot be seen. Load the model without it."
            )
        outputs.append(output)
        observer.see_rows(module, weights, slice(start, min(start + step, length)), length)
    index = getattr(module, "layer_idx", None)
    observer.end_layer(
        module,
        value,
        length,
        stage=post.stage,
        number=None if index is None else int(index) + 1,
        sink=getattr(module, "sinks", None) is not None,
    )
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _rows_of(option: Any, rows: slice, length: int) -> Any:
    """The rows' part of a mask or bias over (..., queries, keys); anything else as it is."""
    if isinstance(option, Tensor) and option.ndim == 4 and option.shape[-2] == length:
        return option[..., rows, :]
    return option


AttentionInterface.register(_NAME, _attend_and_record)
AttentionMaskInterface.register(_NAME, eager_mask)


@contextmanager
def recording(model: PreTrainedModel, observer: AttentionObserver) -> Iterator[None]:
    """Point every config of the model at our function; put everything back, whatever happens."""
    posts = {module: _Post(observer, _stage(model, name)) for name, module in model.named_modules()}
    if any(module in _POSTS for module in posts):
        raise CaptureError("This model is being captured in another thread; capture one at a time.")
    with implementation(model, _NAME):
        try:
            _POSTS.update(posts)
            yield
        finally:
            for module in posts:
                _POSTS.pop(module, None)


def uses_the_interface(model: PreTrainedModel) -> bool:
    """Whether all of the model's attention is looked up by name, and so can be seen."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(part._can_set_attn_implementation() for part in parts)


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """Eager attention for the models whose files do not use the attention interface."""
    with implementation(model, "eager"):
        yield


@contextmanager
def implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Every config of the model points at the attention function of this name; then back."""
    configs = _configs(model)
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def _configs(model: PreTrainedModel) -> list[Any]:
    """The configs of the model and of every sub-model, each once."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    return list(found.values())


def _stage(model: PreTrainedModel, name: str) -> Stage:
    """Which of the three attentions of an encoder–decoder a module computes, by its name."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return "self"
    if any(part in _CROSS for part in name.split(".")):
        return "cross"
    return "decoder" if "decoder" in name.split(".") else "encoder"
