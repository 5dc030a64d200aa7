"""Both towers as one square stack over the positions of both, vision first.

A layer of the vision tower leaves the positions of the language model with themselves, and the
other way round. The connector is a layer of its own: each image token gives all it has to the
vision positions that feed it. So a row of the whole product is a distribution over patches and
words together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.encoder_decoder import join_tokens
from attnflow.hosts.vision_language.connector import Connector
from attnflow.hosts.vision_language.recording import AttendingModule, TowerRecorder
from attnflow.hosts.vision_language.towers import Towers
from attnflow.hosts.vision_language.views import View, name_views
from attnflow.tokens import Tokens

__all__ = ["Composition"]

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Composition:
    """What both towers did in one pass, and how they are joined."""

    model: nn.Module
    vision: Sequence[AttendingModule]
    language: Sequence[AttendingModule]
    connector: Connector
    views: Sequence[View]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        towers: Towers,
        recorder: TowerRecorder,
        connector: Connector,
        views: Sequence[View],
    ) -> Composition:
        """The recorded modules by tower; those that the language model does not read left out."""
        inside = {id(part) for part in towers.vision.modules()}
        vision = [module for module in recorder.modules if id(module.module) in inside]
        language = [module for module in recorder.modules if id(module.module) not in inside]
        composition = cls(model, vision[: connector.layers], language, connector, views)
        composition.check()
        return composition

    def check(self) -> None:
        """That every layer is over the same positions."""
        name = type(self.model).__name__
        lengths = {module.length for module in self.vision}
        if len(lengths) != 1 or lengths != {sum(self.connector.blocks)}:
            raise UnsupportedModelError(
                f"The layers of the vision tower of {name} are over {sorted(lengths)} positions: "
                "a tower that merges its patches from layer to layer cannot be followed."
            )
        shapes = {call.shape[-2:] for module in self.language for call in module.calls}
        if len(shapes) != 1 or any(len(module.calls) != 1 for module in self.language):
            raise UnsupportedModelError(
                f"The language model of {name} attends over {sorted(shapes)}: one that reads the "
                "image through cross attention cannot be followed."
            )

    @property
    def seen(self) -> int:
        """How many vision positions there are."""
        return sum(self.connector.blocks)

    @property
    def length(self) -> int:
        """How many positions in all."""
        return self.seen + int(self.language[0].calls[0].shape[-1])

    @property
    def stages(self) -> tuple[str, ...]:
        """Which tower each layer belongs to."""
        return ("vision",) * len(self.vision) + ("connector",) + ("language",) * len(self.language)

    def tokens(self, words: Tokens) -> Tokens:
        """Patches, then the language model's tokens."""
        patches = name_views(self.views)
        joined = join_tokens(patches, words)
        return Tokens(joined.texts, words=joined.words, images=patches.images)

    def stack(self, arrays: Sequence[Sequence[Array]] | None = None, *, idle: float = 1.0) -> Array:
        """`(layers, heads, n, n)`: the recorded weights, or arrays in the shape of their calls.

        idle: what a position that a layer does not touch gives to itself.
        """
        modules = [*self.vision, *self.language]
        calls = [module.calls for module in modules] if arrays is None else list(arrays)
        heads = {int(call.shape[1]) for several in calls for call in several}
        if len(heads) != 1:
            raise CaptureError(
                f"The towers have different numbers of heads ({sorted(heads)}), so they cannot be "
                "kept apart in one graph; capture with heads='mean'."
            )
        stack = np.zeros((len(self.stages), heads.pop(), self.length, self.length), np.float32)
        order = np.array([position for view in self.views for position in view.positions])
        for layer, several in enumerate(calls):
            square = stack[layer + (layer >= len(self.vision))]
            if layer < len(self.vision):
                square[:, : self.seen, : self.seen] = _diagonal(several)[:, order[:, None], order]
                _stay(square, slice(self.seen, None), idle)
            else:
                square[:, self.seen :, self.seen :] = several[0][0]
                _stay(square, slice(0, self.seen), idle)
        stack[len(self.vision)] = self._joint(order) if idle else 0.0
        return stack

    def _joint(self, order: NDArray[np.intp]) -> NDArray[np.float64]:
        """The connector over all positions; what stands for no patch stays with itself."""
        joint = np.eye(self.length)
        for place, row in zip(self.connector.places, self.connector.matrix, strict=True):
            if row.any():
                joint[self.seen + place] = 0.0
                joint[self.seen + place, : self.seen] = row[order]
        return joint

    def sinks(self, weights: Array) -> Array | None:
        """What the rows of layers with a learned sink lack."""
        declared = [module.sink for module in self.language]
        if not any(declared):
            return None
        flags = np.array([*[False] * (len(self.stages) - len(declared)), *declared])
        return np.clip(1 - weights.sum(axis=-1), 0, 1) * flags[:, None, None]

    def gradient_weighted(self, total: Tensor) -> Array:
        """`(layers, n, n)`: Ā, the mean over heads of relu(A ⊙ ∇A), of one backward pass."""
        modules = [*self.vision, *self.language]
        tensors = [part for module in modules for call in module.in_graph for part in call]
        if not total.requires_grad or not all(tensor.requires_grad for tensor in tensors):
            raise _not_in_graph(self.model)
        gradients = iter(torch.autograd.grad(total, tensors, allow_unused=True))
        arrays: list[list[Array]] = []
        for module in modules:
            calls = []
            for call in module.in_graph:
                products = [_product(part, next(gradients), self.model) for part in call]
                calls.append(torch.cat(products, dim=2).float().cpu().numpy())
            arrays.append(calls)
        return np.asarray(self.stack(arrays, idle=0.0)[:, 0])


def _product(weights: Tensor, gradient: Tensor | None, model: nn.Module) -> Tensor:
    if gradient is None:
        raise _not_in_graph(model)
    return (weights.detach() * gradient).clamp_min(0).mean(dim=1, keepdim=True)


def _not_in_graph(model: Any) -> CaptureError:
    return CaptureError(
        f"The attention weights that {type(model).__name__} shows are not part of the graph its "
        "score is computed from, so there are no gradients of them. Methods without gradients work."
    )


def _diagonal(calls: Sequence[Array]) -> Array:
    """(heads, n, n): parts that attend to themselves only, one after the other."""
    blocks = [block for call in calls for block in call]
    length = sum(block.shape[-1] for block in blocks)
    square = np.zeros((blocks[0].shape[0], length, length), np.float32)
    start = 0
    for block in blocks:
        end = start + block.shape[-1]
        square[:, start:end, start:end] = block
        start = end
    return square


def _stay(square: Array, positions: slice, share: float) -> None:
    """These positions give this share to themselves."""
    numbers = np.arange(square.shape[-1])[positions]
    square[:, numbers, numbers] = share
