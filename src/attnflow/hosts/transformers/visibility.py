"""Visibility: how much an answer depends on each key being seen, in linear memory.

Every key j gets a bias b_j that all layers and heads share; its weight before the softmax is
`m_j = exp(b_j)`, 1 where the key is as it was and 0 where it is hidden. The gradient of the
answer's log-probability with respect to b_j, summed along a path on which the keys fade, says what
hiding j does. The path is even in b: near m = 1 the gradient says almost nothing of what happens
when a key is gone, and most of the change comes at small m.

No n × n matrix is needed. One more column of queries, constant 1/scale, and one more column of
keys, b_j, add b_j to every score, so that the ordinary fused attention gives the scores their bias
and its backward pass returns the bias's gradient. Models whose scores are capped, or whose softmax
has a learned sink, cannot be written so: there the bias goes through the mask of their eager
attention.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from attnflow.hosts.restore import exclusive, ordinary
from attnflow.hosts.transformers.attention import eager_function, own_attention, point_at
from attnflow.hosts.transformers.row_gradients import has_own_softmax, log_probability

__all__ = ["biased", "fading_biases", "path_length", "visibility"]

_NAME = "attnflow_visibility"
_FAINTEST = log(256)  # the path ends at a key weight of 1/256: fainter keys count for nothing
_HEAD_MULTIPLE = 8  # fused kernels want head sizes that are a multiple of this
_TOKENS_AT_ONCE = 4096  # positions over all steps of the path that run in one batch

# With the thread they are for: what others do with the model meanwhile stays as it is.
_BIASES: WeakKeyDictionary[nn.Module, tuple[int, Tensor]] = WeakKeyDictionary()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    mask = attention_mask  # by the library's name: some vision towers pass it so
    thread, bias = _BIASES.get(module, (0, None))
    if bias is None or thread != threading.get_ident():
        return own_attention(module)(module, query, key, value, mask, **options)
    if has_own_softmax(module, options):
        eager = eager_function(module)
        return eager(module, query, key, value, _additive(mask, query, key, bias), **options)
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    width = query.shape[-1]
    padding = -(width + 1) % _HEAD_MULTIPLE
    groups = query.shape[1] // key.shape[1]
    constant = query.new_full((*query.shape[:3], 1), 1 / scale)
    column = bias[:, None, :, None].to(key.dtype).expand(*key.shape[:3], 1)
    queries = functional.pad(torch.cat([query, constant], dim=-1), (0, padding))
    keys = functional.pad(torch.cat([key, column], dim=-1), (0, padding))
    values = functional.pad(value, (0, padding + 1))
    output = functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(groups, dim=1),
        values.repeat_interleave(groups, dim=1),
        attn_mask=mask,
        is_causal=mask is None and query.shape[-2] > 1,
        scale=scale,
    )[..., :width]
    return output.transpose(1, 2).contiguous(), None


def _additive(mask: Any, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """What eager attention adds to its scores: the mask as numbers, and the bias of each key."""
    lowest = torch.finfo(query.dtype).min
    if mask is None:
        rows, columns = query.shape[-2], key.shape[-2]
        visible = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        mask = visible.tril(columns - rows)[None, None]
    numbers = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
    numbers = numbers.masked_fill(~mask, lowest) if mask.dtype == torch.bool else mask
    return numbers if bias is None else numbers + bias[:, None, None, :].to(query.dtype)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


def fading_biases(steps: int) -> list[float]:
    """The biases of the path: even in log m, at the middle of each step.

    >>> [round(2.718281828 ** bias, 3) for bias in fading_biases(4)]
    [0.5, 0.125, 0.031, 0.008]
    """
    return [-_FAINTEST * (step + 0.5) / steps for step in range(steps)]


def visibility(
    model: PreTrainedModel,
    ids: Tensor,
    start: int,
    fading: Tensor,
    *,
    steps: int,
    explained: Sequence[int] | None = None,
) -> Tensor:
    """`(length - 1,)`: what the answer loses with each key, in nats of its log odds.

    ids: (length,), prompt and answer; the answer begins at `start`. explained: which of its tokens
    count together, by default all. fading: (length - 1,), true for the keys that fade; the others
    stay as they are and get 0.
    """
    ids, fading = ordinary(ids), ordinary(fading)
    tokens = list(range(len(ids) - start)) if explained is None else list(explained)
    biases = torch.tensor(fading_biases(steps), device=ids.device)
    at_once = max(1, _TOKENS_AT_ONCE // len(ids))
    parts = [_gradients(model, ids, start, fading, tokens, part) for part in biases.split(at_once)]
    return torch.cat(parts).mean(dim=0) * _FAINTEST


def _gradients(
    model: PreTrainedModel,
    ids: Tensor,
    start: int,
    fading: Tensor,
    tokens: list[int],
    biases: Tensor,
) -> Tensor:
    """`(steps, length - 1)`: the gradient of the log odds with respect to each key's bias."""
    keys = (biases[:, None] * fading[None].float()).requires_grad_()
    inputs = ids[None, :-1].expand(len(biases), -1)
    rows = torch.tensor([start - 1 + token for token in tokens], device=ids.device)
    with torch.enable_grad(), biased(model, keys):
        logits = model(input_ids=inputs, use_cache=False).logits[:, rows]
        targets = ids[rows + 1][None].expand(len(biases), -1)
        scores = log_probability(logits, targets).sum(dim=1)
        # d log odds = d log p / (1 - p): near certainty a log-probability hardly moves
        doubt = -torch.expm1(scores.detach()).clamp(max=-1e-6)
        (gradient,) = torch.autograd.grad((scores / doubt).sum(), keys)
    return gradient * fading[None]


def path_length() -> float:
    """How far a key's bias goes from as it was to gone."""
    return _FAINTEST


@contextmanager
def biased(model: PreTrainedModel, biases: Tensor, part: nn.Module | None = None) -> Iterator[None]:
    """Every attention of the model adds these biases to its keys; then all is as it was.

    part: the part of the model whose attention does so, such as one of two towers; default: all.
    """
    with exclusive(model) as changes:
        modules = list((part or model).modules())
        changes.add(lambda: [_BIASES.pop(module, None) for module in modules])
        for module in modules:
            _BIASES[module] = threading.get_ident(), biases
        point_at(model, _NAME, changes)
        yield
