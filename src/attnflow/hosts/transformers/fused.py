"""Attention by the fused kernels that torch would take, and what is made with it.

A fused kernel sums every row's exponentials anyway, and hands the sums on for its backward pass.
Taking them costs nothing, while computing them again costs half an attention (`attend`).

The gradient of each row's own answer needs the keys and values of *other* positions held constant,
but not a query's own. Its own come back as terms that are zero in value and right in gradient
(`own_terms`), so that the rest is left to whatever computes attention: a fused kernel over a whole
text (`constant_others`) or over the latest rows of a text (`FusedRows`), or a model file's own
eager function (`row_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    if layer.softcap is not None or layer.sink is not None or layer.hidden is not None:
        step = max(1, 2**24 // (layer.heads * layer.length))
        return _by_rows(layer, value, step, _special_rows), None
    if layer.band not in (Band.causal(), Band()):
        return _by_rows(layer, value, _ROWS, _masked_rows), None
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


_RowsFunction = Callable[[Factors, Tensor, Tensor, Tensor, Tensor], Tensor]


def _by_rows(layer: Factors, value: Tensor, step: int, attend_rows: _RowsFunction) -> Tensor:
    """Some queries at a time over the keys they see, each with a small mask."""
    parts = []
    places = torch.arange(layer.length, device=value.device)
    for first in range(0, layer.length, step):
        last = min(first + step, layer.length)
        begin, end = layer.band.keys_of(first, last, layer.length)
        keys, values = (
            x[:, begin:end].repeat_interleave(layer.groups, dim=0) for x in (layer.key, value)
        )
        visible = visible_keys(layer.band, places[first:last], places[begin:end])
        if layer.hidden is not None:
            visible = visible & ~layer.hidden[None, begin:end]
        parts.append(attend_rows(layer, layer.query[:, first:last], keys, values, visible))
    return torch.cat(parts, dim=1)


def _masked_rows(
    layer: Factors, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor
) -> Tensor:
    """Attend by a fused kernel that takes a mask."""
    return functional.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=visible, scale=layer.scale
    )[0]


def _special_rows(
    layer: Factors, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor
) -> Tensor:
    """Attend where scores are capped or a sink takes part, which no fused kernel does."""
    scores = query @ keys.transpose(1, 2) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    scores = scores.float().masked_fill(~visible, torch.finfo(torch.float32).min)
    if layer.sink is not None:
        column = layer.sink.float()[:, None, None].expand(-1, query.shape[1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
    return weights.to(values.dtype) @ values


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


class LayerRows(NamedTuple):
    """The part of one layer in some rows: (batch, rows, keys) each, the mean over heads."""

    contributions: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class FusedRows:
    """The latest rows of one layer: queries (batch, heads, rows, width) at the end of the keys.

    The forward pass needs of the weights only each query's own. The backward pass forms the
    weights of one layer again, one key head at a time, beside the gradient that has just come down
    to it. So what a layer leaves behind grows with the rows, not with rows × keys.

    key, value: (batch, key heads, keys, width). mask: what is added to scores, (batch, 1, rows,
    keys), or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float

    @property
    def groups(self) -> int:
        """The number of query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def attend(self) -> Tensor:
        """Return `(batch, heads, rows, width)`, with other positions as constants."""
        batch, heads, rows, width = self.query.shape
        grouped = self.query.reshape(batch, self.key.shape[1], self.groups * rows, width)
        mask = self.mask
        if mask is not None:
            mask = mask.expand(batch, 1, *mask.shape[2:]).repeat(1, 1, self.groups, 1)
        output = functional.scaled_dot_product_attention(
            grouped, self.key.detach(), self.value.detach(), attn_mask=mask, scale=self.scale
        )
        output = output.reshape(batch, heads, rows, -1)
        keys, values = (
            part[:, :, -rows:].repeat_interleave(self.groups, dim=1)
            for part in (self.key, self.value)
        )
        places = torch.arange(rows), torch.arange(self.key.shape[2] - rows, self.key.shape[2])
        weight = torch.cat([weights[..., *places] for weights in self._weights()], dim=1)
        terms = own_terms(
            self.query, keys, values, output=output, weight=weight, scaling=self.scale
        )
        return output + terms.to(output.dtype)

    @torch.no_grad()
    def _weights(self) -> Iterator[Tensor]:
        """For each key head, (batch, groups, rows, keys) in float32."""
        mask = None if self.mask is None else self.mask.float()
        for head in range(self.key.shape[1]):
            query = self.query[:, head * self.groups : (head + 1) * self.groups]
            key = self.key[:, head : head + 1].float()
            scores = (query.float() * self.scale) @ key.transpose(2, 3)
            yield (scores if mask is None else scores.add_(mask)).softmax(dim=-1)

    @torch.no_grad()
    def report(self, gradient: Tensor) -> LayerRows:
        """Return what the layer adds, from its output's gradient (batch, rows, heads, width)."""
        batch, heads, rows, _ = self.query.shape
        raised = torch.zeros(batch, rows, self.key.shape[2], device=self.key.device)
        weight = torch.zeros_like(raised)
        upper = gradient.transpose(1, 2).float()
        for head, weights in enumerate(self._weights()):
            weight += weights.sum(dim=1)
            part = upper[:, head * self.groups : (head + 1) * self.groups]
            change = part @ self.value[:, head : head + 1].float().transpose(2, 3)
            raised += weights.mul_(change).relu_().sum(dim=1)
        return LayerRows(raised.div_(heads), weight.div_(heads))
