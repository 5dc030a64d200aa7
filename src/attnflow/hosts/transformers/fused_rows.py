"""Rows of gradient attention by fused kernels: weights are formed twice and never kept.

The forward pass needs of the weights only each query's own, for the terms that carry the gradient
of its own key and value. The backward pass forms the weights of one layer again, one key head at a
time, beside the gradient that has just come down to it. So what a layer leaves behind grows with
the rows, not with rows × keys, and many rows run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["FusedRows", "LayerRows"]


class LayerRows(NamedTuple):
    """One layer's part: (batch, rows, keys) each, the mean over heads."""

    contributions: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class FusedRows:
    """The latest rows of one layer: queries (batch, heads, rows, width) at the end of the keys.

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
        """How many query heads share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def attend(self) -> Tensor:
        """`(batch, heads, rows, width)`, other positions' keys and values being constants."""
        batch, heads, rows, width = self.query.shape
        grouped = self.query.reshape(batch, self.key.shape[1], self.groups * rows, width)
        mask = self.mask
        if mask is not None:
            mask = mask.expand(batch, 1, *mask.shape[2:]).repeat(1, 1, self.groups, 1)
        output = functional.scaled_dot_product_attention(
            grouped, self.key.detach(), self.value.detach(), attn_mask=mask, scale=self.scale
        )
        output = output.reshape(batch, heads, rows, -1)
        return output + self._own_terms(output.detach()).to(output.dtype)

    def _own_terms(self, output: Tensor) -> Tensor:
        """Zero in value, with the gradient that runs through each query's own key and value."""
        rows, keys = self.query.shape[2], self.key.shape[2]
        own = torch.arange(keys - rows, keys, device=self.key.device)
        key, value = (
            part[:, :, own].repeat_interleave(self.groups, dim=1) for part in (self.key, self.value)
        )
        weight = torch.cat([w[..., torch.arange(rows), own] for w in self._weights()], dim=1)
        change = (self.query.detach() * (key - key.detach())).sum(dim=-1).float() * self.scale
        shift = (value.detach() - output).float() * change[..., None]
        return weight[..., None] * (shift + (value - value.detach()).float())

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
        """What the layer adds, from its output's gradient (batch, rows, heads, width)."""
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
