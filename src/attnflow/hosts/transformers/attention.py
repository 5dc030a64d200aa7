"""The one attention function through which a transformers model is watched or changed.

transformers looks its attention function up by name at every forward pass. We register one under
a name of ours; for a while every config of a model points to that name (`handle_attention`). The
function finds which module calls and gives the call to the handler that has the model, which
returns the output. There are handlers that show weights to an observer and change them by an
intervention (here), that take the gradients of single rows (`row_gradients`) and that keep factors
(`factors`). The mask function is registered under the same name: without it transformers would
drop the mask in silence.

A pass that another thread makes meanwhile takes no part: it attends as if nothing were changed.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError
from attnflow.hosts.recorder import AttentionObserver, Intervention, RecordedLayer, Session, Stage
from attnflow.hosts.restore import Changes, exclusive
from attnflow.hosts.transformers.answers import is_encoder_decoder
from attnflow.hosts.transformers.shards import Shards
from attnflow.hosts.transformers_classes import is_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "attnflow"
_SINK_SHARE = 1e-3  # a row that lacks more than this has left it to its sink
_ROWS_OF_WEIGHTS = 2**20  # weights in memory at a time for one example, over all heads
_CROSS = ("encoder_attn", "EncDecAttention", "encoder_attention")  # and all names with "cross"


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention while its model runs: all that its output is computed from.

    query: (batch, heads, queries, width), after its rotary embedding. key, value: (batch, key
    heads, keys, width). mask: as the handler's `make_mask` made it. options: what else the model's
    file passes on, such as scaling and dropout. stage: which attention of the model it is.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: Mapping[str, Any]
    stage: Stage = "self"

    @property
    def scaling(self) -> float:
        """The factor of all scores."""
        scale = self.options.get("scaling")
        scale = getattr(self.module, "scaling", None) if scale is None else scale
        return float(self.query.shape[-1] ** -0.5 if scale is None else scale)

    @property
    def softcap(self) -> float | None:
        """The value c of scores that are capped by c·tanh(s/c)."""
        cap = self.options.get("softcap")
        return getattr(self.module, "attn_logit_softcapping", None) if cap is None else cap

    @property
    def sink(self) -> Tensor | None:
        """The learned score, one for each head, that takes part in the softmax without a key."""
        sink = self.options.get("s_aux")
        return getattr(self.module, "sinks", None) if sink is None else sink

    @property
    def groups(self) -> int:
        """The number of query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def number(self) -> int | None:
        """The model's own number of the layer, from 1, where it tells."""
        index = getattr(self.module, "layer_idx", None)
        return None if index is None else int(index) + 1

    @property
    def layer(self) -> RecordedLayer:
        """The layer as observers are told of it."""
        sink = getattr(self.module, "sinks", None) is not None
        length = self.query.shape[-2]
        return RecordedLayer(self.module, self.value, length, self.stage, self.number, sink)

    def run_eager(self, name: str | None = None) -> tuple[Tensor, Any]:
        """Run the eager attention of the file that defines the module's class.

        Returns the output, (batch, queries, heads, width), and the weights, (batch, heads, queries,
        keys), or None. name: that of another attention function, which is run instead.
        """
        function = sys.modules[type(self.module).__module__].eager_attention_forward
        if name is not None:
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

            function = ALL_ATTENTION_FUNCTIONS.get_interface(name, function)
        result: tuple[Tensor, Any] = function(
            self.module, self.query, self.key, self.value, self.mask, **dict(self.options)
        )
        return result

    def run_eager_with_weights(self) -> tuple[Tensor, Tensor]:
        """Do the same where the weights are needed."""
        output, weights = self.run_eager()
        if weights is None:
            raise CaptureError(
                f"{type(self.module).__name__} returned no attention weights: quantised or fused "
                "attention cannot be seen. Load the model without it."
            )
        if self.sink is None or bool((weights.sum(dim=-1) < 1 - _SINK_SHARE).any()):
            return output, weights
        return self._beside_sink(self.sink, output)

    def _beside_sink(self, sink: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return both where a file scales the output by what its sink leaves, not the weights."""
        scores = self.scores()
        column = sink.float()[:, None, None].expand(*scores.shape[:-1], 1)
        shares = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
        weights = shares.to(output.dtype)
        value = self.value.repeat_interleave(self.groups, dim=1)
        expected = (weights @ value).transpose(1, 2)
        if not agree(expected, output):
            raise CaptureError(
                f"The output of {type(self.module).__name__} is not its weights times its values, "
                "with or without its learned sink, so the weights do not say what it read."
            )
        return expected, weights

    def scores(self) -> Tensor:
        """Return the scores before the softmax, (batch, heads, queries, keys) in float32."""
        key = self.key.repeat_interleave(self.groups, dim=1)
        scores = (self.query @ key.transpose(2, 3)).float() * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores if self.mask is None else scores + self.mask[..., : key.shape[-2]].float()

    def run_as_loaded(self) -> tuple[Tensor, Any]:
        """Run what the module attends with when nothing is changed.

        A pass of another thread may have made its mask before the config was pointed at us: none
        at all, where its function needs none, and eager attention would then look ahead.
        """
        config = getattr(self.module, "config", None)
        name = _NAMED_BEFORE.get(id(config)) or getattr(config, "_attn_implementation", None)
        return self.run_eager(name)

    def rows(self, rows: slice) -> AttentionCall:
        """Return the same call of some of its queries, masks and biases cut to them."""
        length = self.query.shape[-2]

        def cut(option: Any) -> Any:
            over_queries = isinstance(option, Tensor) and option.ndim == 4
            return option[..., rows, :] if over_queries and option.shape[-2] == length else option

        options = {name: cut(option) for name, option in self.options.items()}
        return replace(self, query=self.query[..., rows, :], mask=cut(self.mask), options=options)


def agree(expected: Tensor, output: Tensor) -> bool:
    """Return whether two ways to compute an output differ by no more than rounding."""
    off = (expected.float() - output.float()).abs().amax()
    share = 1e-3 if output.dtype == torch.float32 else 5e-2
    return not bool(off > share * expected.float().abs().amax())


def has_special_softmax(module: nn.Module, options: Mapping[str, Any]) -> bool:
    """Return whether scores are capped, biased, or a learned sink takes part.

    No fused kernel computes such attention.
    """
    caps = (options.get("softcap"), getattr(module, "attn_logit_softcapping", None))
    sinks = (options.get("s_aux"), getattr(module, "sinks", None))
    return any(one is not None for one in (*caps, *sinks, options.get("position_bias")))


class AttentionHandler(ABC):
    """Whatever computes the attention of a model's modules while it has the model.

    `attend` may run the model file's own function on the call or on a copy of it with other
    queries, keys, values or another mask (`dataclasses.replace`), or compute the output otherwise.
    A handler that changes gradients alone gives the copy tensors of the same values.

    any_thread: whether calls from other threads are for it too.
    """

    any_thread: bool = False

    @abstractmethod
    def attend(self, call: AttentionCall) -> Tensor:
        """Return the output, (batch, queries, heads, width)."""

    def make_mask(self, **arguments: Any) -> Any:
        """Return the mask that calls get; the arguments are those of transformers' functions."""
        return _eager_mask(**arguments)


@dataclass(frozen=True)
class _Post:
    """Where a module stands in its model, and who has it: a handler, in one thread."""

    handler: AttentionHandler
    stage: Stage
    thread: int
    shards: Shards | None = None


_POSTS: WeakKeyDictionary[nn.Module, _Post] = WeakKeyDictionary()
# By thread: the handler that makes the masks of what runs there.
_HANDLERS: dict[int, AttentionHandler] = {}
# By the id of a config: what it named before it was pointed at a function of ours.
_NAMED_BEFORE: dict[int, str] = {}


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,  # by the library's name: some vision towers pass it so
    **options: Any,
) -> tuple[Tensor, Any]:
    post = _POSTS.get(module)
    call = AttentionCall(module, query, key, value, attention_mask, options)
    if post is None or not (post.handler.any_thread or post.thread == threading.get_ident()):
        return call.run_as_loaded()
    call = replace(call, stage=post.stage)
    if post.shards is None:
        return post.handler.attend(call), None
    if call.sink is not None:
        raise CaptureError(
            f"{type(module).__name__} has a learned sink for each head, and its heads are spread "
            "over several processes; load the model without tp_plan."
        )
    query, key, value = map(post.shards.whole, (query, key, value))
    output = post.handler.attend(replace(call, query=query, key=key, value=value))
    return post.shards.own(output), None


def _make_mask(**arguments: Any) -> Any:
    handler = _HANDLERS.get(threading.get_ident())
    return _eager_mask(**arguments) if handler is None else handler.make_mask(**arguments)


def _eager_mask(**arguments: Any) -> Any:
    from transformers.masking_utils import eager_mask

    return eager_mask(**arguments)


@cache
def _register() -> None:
    """Have transformers know our functions by their name."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _make_mask)


@contextmanager
def handle_attention(model: PreTrainedModel, handler: AttentionHandler) -> Iterator[Changes]:
    """Give every attention of the model to a handler until the block ends, however it ends."""
    _register()
    thread, shards = threading.get_ident(), Shards.of(model)
    with exclusive(model) as changes:
        posts = {
            module: _Post(handler, _stage(model, name), thread, shards)
            for name, module in model.named_modules()
        }
        if any(module in _POSTS for module in posts):
            raise CaptureError(
                f"This {type(model).__name__} is being captured already, further up in the same "
                "thread; end that first."
            )
        changes.add(lambda: [_POSTS.pop(module, None) for module in posts])
        _POSTS.update(posts)
        before = {thread: _HANDLERS[thread]} if thread in _HANDLERS else {}
        changes.add(lambda: (_HANDLERS.pop(thread, None), _HANDLERS.update(before)))
        _HANDLERS[thread] = handler
        _point_at(model, _NAME, changes)
        yield changes


@contextmanager
def watch_attention(
    model: PreTrainedModel,
    *,
    observer: AttentionObserver | None = None,
    intervention: Intervention | None = None,
) -> Iterator[Session]:
    """Show the model's attention to an observer, change it by an intervention, or both."""
    session = Session(observer, intervention)
    with handle_attention(model, _Watch(session)):
        yield session


@dataclass(frozen=True, eq=False)
class _Watch(AttentionHandler):
    """Runs the model file's own eager attention under a session's observer and intervention.

    Queries are taken some rows at a time. A row of a softmax does not depend on the others, so the
    result is the same, and all heads of all queries never exist at once.
    """

    session: Session

    def attend(self, call: AttentionCall) -> Tensor:
        observer, change = self.session.observer, self.session.intervention
        if change is not None:
            query, value = change.queries(call.query), change.values(call.value, call.stage)
            call = replace(call, query=query, value=value)
        if observer is None:
            return self._changed(call, 0, call.query.shape[-2]).run_eager()[0]
        layer, keys = call.layer, call.key.shape[-2]
        step = max(1, _ROWS_OF_WEIGHTS // (keys * call.query.shape[1]))
        outputs: list[Tensor] = []
        for start in range(0, layer.length, step):
            rows = slice(start, min(start + step, layer.length))
            part = self._changed(call.rows(rows), start, layer.length)
            output, weights = part.run_eager_with_weights()
            outputs.append(output)
            observer.see_rows(layer, weights, rows)
        observer.end_layer(layer)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _changed(self, call: AttentionCall, first: int, total: int) -> AttentionCall:
        """The call of some rows, the first of them at this place, under the intervention's mask."""
        if (change := self.session.intervention) is None:
            return call
        return replace(
            call,
            mask=change.mask(call.mask, call.query, call.key.shape[-2], call.stage, first, total),
        )


def uses_the_interface(model: PreTrainedModel) -> bool:
    """Return whether all of the model's attention is looked up by name, and so can be handled."""
    parts = [part for part in model.modules() if is_pretrained(part)]
    return all(part._can_set_attn_implementation() for part in parts)


@contextmanager
def use_eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use eager attention, for the models whose files do not look their attention up."""
    with exclusive(model) as changes:
        _point_at(model, "eager", changes)
        yield


def _point_at(model: PreTrainedModel, name: str, changes: Changes) -> None:
    """Point every config of the model at the attention function of this name, until the end."""
    waiting: list[Any] = [m.config for m in model.modules() if is_pretrained(m)]
    configs: dict[int, Any] = {}  # of the model and of every sub-model, each once
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in configs:
            configs[id(config)] = config
            waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    for config in configs.values():
        if id(config) not in _NAMED_BEFORE:
            changes.add(partial(_NAMED_BEFORE.pop, id(config), None))
            _NAMED_BEFORE[id(config)] = str(config._attn_implementation)
        changes.set(config, "_attn_implementation_internal", name)


def _stage(model: PreTrainedModel, name: str) -> Stage:
    """Return which of the three attentions of an encoder–decoder a module computes, by its name."""
    if not is_encoder_decoder(model):
        return "self"
    parts = name.split(".")
    if any("cross" in part or part in _CROSS for part in parts):
        return "cross"
    return "decoder" if any(part.endswith("decoder") for part in parts) else "encoder"
