"""The model's own fused attention, with the log-sum-exp that the kernel computes beside it.

A fused kernel sums every row's exponentials anyway, and hands the sums on for its backward pass.
Taking them costs nothing, while computing them again costs half an attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnflow.kernels.factors import Band, Factors

__all__ = ["attend"]

_FLASH, _CUDNN = 1, 3  # numbers of torch's own choice among its fused kernels
_ROWS = 1024  # queries at a time where a window needs a mask


def attend(layer: Factors, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """`(heads, n, value width)` and, where the kernel gives it, `(heads, n)` in float32.

    layer: queries and keys of one example; gradients run through all three of them.
    """
    if layer.softcap is not None or layer.sink is not None or layer.hidden is not None:
        return _by_rows(layer, value), None
    if layer.band not in (Band.causal(), Band()):
        return _windowed(layer, value), None
    query, key, causal = layer.query[None], layer.key[None], layer.band.after == 0
    values = value[None]
    choice = _choice(query, key, values, causal, layer.scale)
    if query.device.type == "cpu" and choice == _FLASH:
        key, values = (x.repeat_interleave(layer.groups, dim=1) for x in (key, values))
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, values, 0.0, causal, scale=layer.scale
        )
    elif query.device.type == "cuda" and choice == _FLASH:
        output, sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, values, 0.0, causal, False, scale=layer.scale
        )
    elif query.device.type == "cuda" and choice == _CUDNN:
        output, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, values, None, True, 0.0, causal, False, scale=layer.scale
        )
    else:
        output = functional.scaled_dot_product_attention(
            query, key, values, is_causal=causal, scale=layer.scale, enable_gqa=layer.groups > 1
        )
        return output[0], None
    return output[0], sums.detach().float().reshape(layer.heads, -1)[:, : layer.length]


def _choice(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> int:
    """The fused kernel that torch itself would take for these."""
    choose: Any = torch._fused_sdp_choice
    return int(
        choose(
            query,
            key,
            value,
            None,
            0.0,
            causal,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    )


def _windowed(layer: Factors, value: Tensor) -> Tensor:
    """Some queries at a time over the keys they see, each with a small mask."""
    parts = []
    for first in range(0, layer.length, _ROWS):
        last = min(first + _ROWS, layer.length)
        begin, end = layer.band.keys_of(first, last, layer.length)
        output = functional.scaled_dot_product_attention(
            layer.query[None, :, first:last],
            layer.key[None, :, begin:end].repeat_interleave(layer.groups, dim=1),
            value[None, :, begin:end].repeat_interleave(layer.groups, dim=1),
            attn_mask=_visible(layer.band, first, last, begin, end, value.device),
            scale=layer.scale,
        )
        parts.append(output[0])
    return torch.cat(parts, dim=1)


def _by_rows(layer: Factors, value: Tensor) -> Tensor:
    """Where scores are capped or a sink takes part no fused kernel fits: some queries at a time."""
    parts = []
    step = max(1, 2**24 // (layer.heads * layer.length))
    for first in range(0, layer.length, step):
        last = min(first + step, layer.length)
        begin, end = layer.band.keys_of(first, last, layer.length)
        parts.append(_rows(layer, value, first, last, begin, end))
    return torch.cat(parts, dim=1)


def _rows(layer: Factors, value: Tensor, first: int, last: int, begin: int, end: int) -> Tensor:
    keys = layer.key[:, begin:end].repeat_interleave(layer.groups, dim=0)
    values = value[:, begin:end].repeat_interleave(layer.groups, dim=0)
    scores = layer.query[:, first:last] @ keys.transpose(1, 2) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    visible = _visible(layer.band, first, last, begin, end, value.device)
    if layer.hidden is not None:
        visible = visible & ~layer.hidden[None, begin:end]
    scores = scores.float().masked_fill(~visible, torch.finfo(torch.float32).min)
    if layer.sink is not None:
        column = layer.sink.float()[:, None, None].expand(-1, last - first, 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : end - begin]
    return weights.to(value.dtype) @ values


def _visible(
    band: Band, first: int, last: int, begin: int, end: int, device: torch.device
) -> Tensor:
    """True (queries, keys) where a query sees a key."""
    distance = (
        torch.arange(begin, end, device=device)[None]
        - torch.arange(first, last, device=device)[:, None]
    )
    visible = torch.ones_like(distance, dtype=torch.bool)
    if band.before is not None:
        visible &= distance >= -band.before
    if band.after is not None:
        visible &= distance <= band.after
    return visible
