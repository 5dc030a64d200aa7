"""Attention by the fused kernels that torch would take, and what is made with it.

A fused kernel sums every row's exponentials anyway, and hands the sums on for its backward pass.
Taking them costs nothing, while computing them again costs half an attention (`attend`).

The gradient of each row's own answer needs the keys and values of *other* positions held constant,
but not a query's own. Its own come back as terms that are zero in value and right in gradient
(`own_terms`), so that the rest is left to whatever computes attention: a fused kernel over a whole
text (`constant_others`) or over the latest rows of one, or a model file's own eager function
(`row_gradients`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnflow.kernels.dispatch import products_of, way_for
from attnflow.kernels.factors import Band, Factors

_FLASH, _CUDNN = 1, 3  # numbers of torch's own choice among its fused kernels
_ROWS = 1024  # queries at a time where a window needs a mask


def attend(layer: Factors, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `(heads, n, value width)` and, where the kernel gives it, `(heads, n)` in float32.

    layer: queries and keys of one example; gradients run through all three of them.
    """
    special = layer.softcap is not None or layer.sink is not None
    if special or layer.band not in (Band.causal(), Band()):
        return _by_rows(layer, value), None
    query, key, causal = layer.query[None], layer.key[None], layer.band.after == 0
    values = value[None]
    choose: Any = torch._fused_sdp_choice  # which fused kernel torch itself would take
    options: dict[str, Any] = {"scale": layer.scale, "enable_gqa": layer.groups > 1}
    choice = int(choose(query, key, values, None, 0.0, causal, **options))
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
            query, key, values, is_causal=causal, **options
        )
        return output[0], None
    return output[0], sums.detach().float().reshape(layer.heads, -1)[:, : layer.length]


def _by_rows(layer: Factors, value: Tensor) -> Tensor:
    """Some queries at a time over the keys they see, each with a small mask."""
    special = layer.softcap is not None or layer.sink is not None
    step = max(1, 2**24 // (layer.heads * layer.length)) if special else _ROWS
    parts = []
    places = torch.arange(layer.length, device=value.device)
    for first in range(0, layer.length, step):
        last = min(first + step, layer.length)
        begin, end = layer.band.keys_of(first, last, layer.length)
        query = layer.query[:, first:last]
        keys, values = (
            x[:, begin:end].repeat_interleave(layer.groups, dim=0) for x in (layer.key, value)
        )
        visible = visible_keys(layer.band, places[first:last], places[begin:end])
        if special:
            parts.append(_special_rows(layer, query, keys, visible).to(value.dtype) @ values)
        else:
            parts.append(
                functional.scaled_dot_product_attention(
                    query[None], keys[None], values[None], attn_mask=visible, scale=layer.scale
                )[0]
            )
    return torch.cat(parts, dim=1)


def _special_rows(layer: Factors, query: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
    """Return weights of capped scores, or beside a sink, which no fused kernel computes."""
    scores = query @ keys.transpose(1, 2) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    scores = scores.float().masked_fill(~visible, torch.finfo(torch.float32).min)
    if layer.sink is not None:
        column = layer.sink.float()[:, None, None].expand(-1, query.shape[1], 1)
        scores = torch.cat([scores, column], dim=-1)
    return scores.softmax(dim=-1)[..., : keys.shape[1]]


def visible_keys(band: Band, queries: Tensor, keys: Tensor) -> Tensor:
    """Return True (queries, keys) where a query at one place sees a key at another."""
    distance = keys[None] - queries[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if band.before is not None:
        visible &= distance >= -band.before
    if band.after is not None:
        visible &= distance <= band.after
    return visible


def own_terms(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    output: Tensor,
    weight: Tensor,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Return what lets the gradient run through each query's own key and value; its value is zero.

    A change δ of the score on the diagonal moves the output by `P_ii (v_i - o_i) δ`, and a change
    of the own value moves it by `P_ii (v_i - v̄_i)`; a bar means detached. A soft cap c·tanh(s/c)
    passes the share 1 - tanh²(s/c) of δ on. A learned sink is in P already.

    query, key, value, output: (..., heads, rows, width), key and value those of the queries' own
    positions. weight: (..., heads, rows), the diagonal of P. The result is in float32.
    """
    change = (query.detach() * (key - key.detach())).sum(dim=-1).float() * scaling
    if softcap is not None:
        score = (query.detach().float() * key.detach().float()).sum(dim=-1) * scaling
        change = change * (1 - torch.tanh(score / softcap) ** 2)
    shift = (value.detach() - output.detach()).float() * change[..., None]
    return weight[..., None] * (shift + (value - value.detach()).float())


def constant_others(layer: Factors, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attend over a whole text with other positions as constants.

    Returns the output, `(heads, n, value width)`, and each row's log-sum-exp, `(heads, n)`.
    """
    constant = replace(layer, key=layer.key.detach())
    output, sums = attend(constant, value.detach())
    plain = replace(constant, query=layer.query.detach())
    if sums is None:
        sums = products_of(way_for(value.device)).log_sum_exp(plain)
    keys, values = (x.repeat_interleave(layer.groups, dim=0) for x in (layer.key, value))
    scores = (plain.query.float() * keys.detach().float()).sum(dim=-1) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    terms = own_terms(
        layer.query,
        keys,
        values,
        output=output,
        weight=(scores - sums).exp(),
        scaling=layer.scale,
        softcap=layer.softcap,
    )
    return output + terms.to(output.dtype), sums
