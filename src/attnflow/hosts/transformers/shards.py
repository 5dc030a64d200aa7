"""Tensor parallelism: the heads of a model that several processes have between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

_HEADS = 1  # the axis of heads in queries, keys and values
_OUTPUT_HEADS = 2  # that of an output: (batch, queries, heads, width)


@dataclass(frozen=True)
class Shards:
    """The processes that have the heads of a model between them (tensor parallelism).

    Every process gathers the queries, keys and values of all heads, attends with all of them, and
    goes on with its own; on the way back it is the other way round. So whoever watches or changes
    attention sees every head in every process, and results are the same as in one.
    """

    group: Any

    @classmethod
    def of(cls, model: Any) -> Shards | None:
        """Return those of a model that transformers has sharded; None where it has all heads."""
        if (getattr(model, "_tp_size", None) or 1) == 1:
            return None
        mesh = model._device_mesh
        names = mesh.mesh_dim_names or ()
        return cls(mesh.get_group("tp") if "tp" in names else mesh.get_group())

    def whole(self, tensor: Tensor) -> Tensor:
        """Return the queries, keys or values of all heads."""
        gather, cut = (partial(way, axis=_HEADS) for way in (self._gather, self._cut))
        return _Exchange.apply(tensor, gather, cut)  # type: ignore[no-untyped-call]

    def own(self, output: Tensor) -> Tensor:
        """Return the part of an output that the heads of this process made."""
        gather, cut = (partial(way, axis=_OUTPUT_HEADS) for way in (self._gather, self._cut))
        return _Exchange.apply(output, cut, gather)  # type: ignore[no-untyped-call]

    def _gather(self, tensor: Tensor, axis: int) -> Tensor:
        """Join what all processes have."""
        parts = [torch.empty_like(tensor) for _ in range(self.group.size())]
        distributed.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts, dim=axis)

    def _cut(self, tensor: Tensor, axis: int) -> Tensor:
        """Return what is this process's."""
        return tensor.chunk(self.group.size(), dim=axis)[self.group.rank()].contiguous()


class _Exchange(torch.autograd.Function):
    """Heads gathered or cut on the way there, and the other of the two on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, there: Any, back: Any) -> Tensor:
        ctx.back = back
        result: Tensor = there(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None
