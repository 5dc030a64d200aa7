"""Attention in which other positions are constants, by fused kernels.

The gradient of each row's own answer needs the keys and values of other positions held constant,
but not a query's own. Its own come back as two terms that are zero in value and right in gradient:
a change δ of the score on the diagonal moves the output by `P_ii (v_i - o_i) δ`, and a change of
the own value moves it by `P_ii (v_i - v̄_i)`; a bar means detached. Only the diagonal of P is needed
for them, so the rest is left to the fused kernel.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnflow.hosts.transformers.fused import attend
from attnflow.kernels.dispatch import products_of, way_for
from attnflow.kernels.factors import Factors

__all__ = ["constant_others"]


def constant_others(layer: Factors, value: Tensor) -> tuple[Tensor, Tensor]:
    """`(heads, n, value width)` and `(heads, n)`: the output and each row's log-sum-exp."""
    constant = replace(layer, key=layer.key.detach())
    output, sums = attend(constant, value.detach())
    if sums is None:
        plain = replace(constant, query=layer.query.detach())
        sums = products_of(way_for(value.device)).log_sum_exp(plain)
    keys, values = (x.repeat_interleave(layer.groups, dim=0) for x in (layer.key, value))
    with torch.no_grad():
        own, passed = _own_scores(layer, keys)
        weight = (own - sums).exp()[..., None]
    change = (layer.query.detach() * (keys - keys.detach())).sum(dim=-1) * layer.scale * passed
    shift = weight * (values.detach() - output.detach()).float() * change.float()[..., None]
    shift = shift + weight * (values - values.detach()).float()
    return output + shift.to(output.dtype), sums


def _own_scores(layer: Factors, keys: Tensor) -> tuple[Tensor, Tensor]:
    """`(heads, n)`: the scores on the diagonal, and how much of a change a soft cap passes on."""
    scores = (layer.query.float() * keys.float()).sum(dim=-1) * layer.scale
    if layer.softcap is None:
        return scores, torch.ones_like(scores)
    tanh = torch.tanh(scores / layer.softcap)
    return layer.softcap * tanh, 1 - tanh**2
