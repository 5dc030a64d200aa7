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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from attnflow.errors import CaptureError
from attnflow.hosts.intervention import Intervention, Session
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer, Stage
from attnflow.hosts.restore import Changes, exclusive
from attnflow.hosts.transformers.facts import is_encoder_decoder

__all__ = [
    "attending",
    "eager",
    "eager_function",
    "own_attention",
    "point_at",
    "uses_the_interface",
]

_NAME = "attnflow_recording"
_ROWS_OF_WEIGHTS = 2**20  # weights in memory at a time for one example, over all heads
_CROSS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "encoder_attention")


@dataclass(frozen=True)
class _Post:
    """Where a module stands in its model, and the session it takes part in.

    Another thread that runs the model meanwhile takes no part in it.
    """

    session: Session
    stage: Stage
    thread: int


_POSTS: WeakKeyDictionary[nn.Module, _Post] = WeakKeyDictionary()
# By the id of a config: what it named before it was pointed at a function of ours.
_NAMED_BEFORE: dict[int, str] = {}


def eager_function(module: nn.Module) -> Any:
    """The eager attention of the file that defines the module's class."""
    return sys.modules[type(module).__module__].eager_attention_forward


def own_attention(module: nn.Module) -> Any:
    """What a module attends with when nobody watches: for passes of other threads.

    Such a pass may have made its mask before the config was pointed at us: none at all, where its
    own function needs none, and eager attention would then look ahead.
    """
    config = getattr(module, "config", None)
    name = _NAMED_BEFORE.get(id(config)) or getattr(config, "_attn_implementation", None)
    eager = eager_function(module)
    return eager if name is None else ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The model file's own eager attention, under the session's intervention and observer.

    The mask has the library's name for it: some vision towers pass it so.
    """
    mask = attention_mask
    post = _POSTS.get(module)
    if post is None or post.thread != threading.get_ident():
        return own_attention(module)(module, query, key, value, mask, **options)
    attend = eager_function(module)
    session, change = post.session, post.session.intervention
    if change is not None:
        query, value = change.queries(query), change.values(value, post.stage)
    layer = _recorded_layer(module, value, query.shape[-2], post.stage)
    keys, length = key.shape[-2], layer.length
    step = max(1, _ROWS_OF_WEIGHTS // (keys * query.shape[1])) if session.observer else length
    outputs: list[Tensor] = []
    for start in range(0, length, step):
        rows = slice(start, min(start + step, length))
        queries, row_mask = query[..., rows, :], _rows_of(mask, rows, length)
        if change is not None:
            row_mask = change.mask(row_mask, queries, keys, post.stage, start, length)
        row_options = {name: _rows_of(option, rows, length) for name, option in options.items()}
        output, weights = attend(module, queries, key, value, row_mask, **row_options)
        outputs.append(output)
        if session.observer is not None:
            session.observer.see_rows(layer, _checked(weights, module), rows)
    if session.observer is not None:
        session.observer.end_layer(layer)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _recorded_layer(module: nn.Module, value: Tensor, length: int, stage: Stage) -> RecordedLayer:
    index = getattr(module, "layer_idx", None)
    return RecordedLayer(
        module,
        value,
        length,
        stage,
        number=None if index is None else int(index) + 1,
        sink=getattr(module, "sinks", None) is not None,
    )


def _checked(weights: Tensor | None, module: nn.Module) -> Tensor:
    if weights is None:
        raise CaptureError(
            f"{type(module).__name__} returned no attention weights: quantised or fused "
            "attention cannot be seen. Load the model without it."
        )
    return weights


def _rows_of(option: Any, rows: slice, length: int) -> Any:
    """The rows' part of a mask or bias over (..., queries, keys); anything else as it is."""
    if isinstance(option, Tensor) and option.ndim == 4 and option.shape[-2] == length:
        return option[..., rows, :]
    return option


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, eager_mask)


@contextmanager
def attending(
    model: PreTrainedModel,
    *,
    observer: AttentionObserver | None = None,
    intervention: Intervention | None = None,
) -> Iterator[Session]:
    """Show the model's attention to an observer, change it by an intervention, or both.

    Every config of the model points at our function until the block ends, however it ends.
    """
    with exclusive(model) as changes:
        session = Session(observer, intervention)
        posts = {
            module: _Post(session, _stage(model, name), threading.get_ident())
            for name, module in model.named_modules()
        }
        if any(module in _POSTS for module in posts):
            raise CaptureError(
                f"This {type(model).__name__} is being captured already, further up in the same "
                "thread; end that first."
            )
        changes.add(lambda: [_POSTS.pop(module, None) for module in posts])
        _POSTS.update(posts)
        point_at(model, _NAME, changes)
        yield session


def uses_the_interface(model: PreTrainedModel) -> bool:
    """Whether all of the model's attention is looked up by name, and so can be seen."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(part._can_set_attn_implementation() for part in parts)


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """Eager attention for the models whose files do not use the attention interface."""
    with exclusive(model) as changes:
        point_at(model, "eager", changes)
        yield


def point_at(model: PreTrainedModel, name: str, changes: Changes) -> None:
    """Every config of the model points at the attention function of this name, until the end."""
    for config in _configs(model):
        if id(config) not in _NAMED_BEFORE:
            changes.add(partial(_NAMED_BEFORE.pop, id(config), None))
            _NAMED_BEFORE[id(config)] = str(config._attn_implementation)
        changes.set(config, "_attn_implementation_internal", name)


def _configs(model: PreTrainedModel) -> list[Any]:
    """The configs of the model and of every sub-model, each once."""
    configs: dict[int, Any] = {}
    waiting: list[Any] = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in configs:
            configs[id(config)] = config
            waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    return list(configs.values())


def _stage(model: PreTrainedModel, name: str) -> Stage:
    """Which of the three attentions of an encoder–decoder a module computes, by its name."""
    if not is_encoder_decoder(model):
        return "self"
    if any(part in _CROSS for part in name.split(".")):
        return "cross"
    return "decoder" if "decoder" in name.split(".") else "encoder"
