"""One pass through both towers of a vision-language model, as one square stack, vision first.

A layer of the vision tower leaves the positions of the language model with themselves, and the
other way round. The connector is a layer of its own: each image token gives all it has to the
vision positions that feed it. So a row of the whole product is a distribution over patches and
words together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import CaptureError, InputError, TokensError, UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.forward_pass import join_tokens
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer, Recorder
from attnflow.hosts.restore import at_rest
from attnflow.hosts.scores import weight_gradients
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.hosts.vision_language.connector import Connector, connector_of
from attnflow.hosts.vision_language.towers import Towers, checked_towers, placeholders, reads_images
from attnflow.hosts.vision_language.views import View, name_views, views_of
from attnflow.tokens import Tokens

__all__ = [
    "AttendingModule",
    "Composition",
    "TowerRecorder",
    "compose_towers",
    "reads_images",
    "run_both_towers",
]

Array = NDArray[np.float32]


@dataclass(eq=False)
class AttendingModule:
    """One attention module with all its calls of the pass.

    `calls[k]` is (batch, heads, queries, keys). A vision tower may be called once for each image,
    and a tower with windows calls its attention once for each window.
    """

    module: nn.Module
    sink: bool
    calls: list[Array] = field(default_factory=list)
    in_graph: list[list[Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The number of positions that attend in all calls together."""
        return sum(call.shape[0] * call.shape[2] for call in self.calls)


class TowerRecorder(AttentionObserver):
    """Keeps every module's weights as they are shown, heads mixed by `recorder` if it mixes them.

    The same rules as for one tower hold, so its `Recorder` reduces the weights and names the dtype.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.modules: list[AttendingModule] = []
        self._by_id: dict[int, AttendingModule] = {}
        self._rows: list[Array] = []
        self._in_graph: list[Tensor] = []

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Keep these rows of one call."""
        if rows.start == 0:
            self._rows, self._in_graph = [], []
        self._rows.append(np.array(self.recorder.reduce(weights)))
        if self.recorder.wants_gradients:
            self._in_graph.append(weights)

    def end_layer(self, layer: RecordedLayer) -> None:
        """Keep the call with those of its module."""
        module = self._by_id.get(id(layer.module))
        if module is None:
            module = AttendingModule(layer.module, layer.sink)
            self._by_id[id(layer.module)] = module
            self.modules.append(module)
        module.calls.append(np.concatenate(self._rows, axis=2))
        module.in_graph.append(self._in_graph)
        self._rows, self._in_graph = [], []


@dataclass(frozen=True, eq=False)
class Composition:
    """The attention of both towers in one pass, and how they are joined."""

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
        """Return the recorded modules by tower; those that the language model does not read left
        out.
        """
        inside = {id(part) for part in towers.vision.modules()}
        vision = [module for module in recorder.modules if id(module.module) in inside]
        language = [module for module in recorder.modules if id(module.module) not in inside]
        composition = cls(model, vision[: connector.layers], language, connector, views)
        composition.check()
        return composition

    def check(self) -> None:
        """Check that every layer is over the same positions."""
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
        """The number of vision positions."""
        return sum(self.connector.blocks)

    @property
    def length(self) -> int:
        """The number of positions in all."""
        return self.seen + int(self.language[0].calls[0].shape[-1])

    @property
    def stages(self) -> tuple[str, ...]:
        """The tower of each layer."""
        return ("vision",) * len(self.vision) + ("connector",) + ("language",) * len(self.language)

    def tokens(self, words: Tokens) -> Tokens:
        """Patches, then the language model's tokens."""
        patches = name_views(self.views)
        joined = join_tokens(patches, words)
        return Tokens(joined.texts, words=joined.words, images=patches.images)

    def stack(self, arrays: Sequence[Sequence[Array]] | None = None, *, idle: float = 1.0) -> Array:
        """Return `(layers, heads, n, n)`: the recorded weights, or arrays in the shape of their
        calls.

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
        """Return what the rows of layers with a learned sink lack."""
        declared = [module.sink for module in self.language]
        if not any(declared):
            return None
        flags = np.array([*[False] * (len(self.stages) - len(declared)), *declared])
        return np.clip(1 - weights.sum(axis=-1), 0, 1) * flags[:, None, None]

    def gradient_weighted(self, total: Tensor) -> Array:
        """Return `(layers, n, n)`: Ā, the mean over heads of relu(A ⊙ ∇A), of one backward pass."""
        modules = [*self.vision, *self.language]
        weights = [call for module in modules for call in module.in_graph]
        gradients = iter(weight_gradients(total, weights, self.model))
        arrays: list[list[Array]] = []
        for module in modules:
            calls = []
            for call in module.in_graph:
                products = [_raising(part, next(gradients)) for part in call]
                calls.append(torch.cat(products, dim=2).float().cpu().numpy())
            arrays.append(calls)
        return np.asarray(self.stack(arrays, idle=0.0)[:, 0])


def _raising(weights: Tensor, gradient: Tensor) -> Tensor:
    return (weights.detach() * gradient).clamp_min(0).mean(dim=1, keepdim=True)


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


def run_both_towers(
    model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder
) -> tuple[Any, TowerRecorder]:
    """Run one forward pass; return its outputs and what both towers attended to."""
    host = cast(PreTrainedModel, model)
    checked_towers(host)
    if recorder.measured or any(name != "gradients" for name in recorder.record):
        raise UnsupportedModelError(
            f"{type(model).__name__} has two towers, which are not measured inside: rollout, flow, "
            "raw attention and the gradient methods work on it."
        )
    towers = TowerRecorder(recorder)
    with watch_attention(host, observer=towers):
        outputs = host(**inputs)
    return outputs, towers


def compose_towers(model: nn.Module, batch: Batch, recorded: TowerRecorder) -> Composition:
    """Return what was recorded as one stack over patches and words."""
    host = cast(PreTrainedModel, model)
    if batch.size != 1:
        raise InputError(
            f"{type(model).__name__} was given {batch.size} prompts with images; one at a time is "
            "explained."
        )
    ids = batch.inputs.get("input_ids")
    if ids is None:
        raise TokensError("A prompt with images needs 'input_ids' beside the pixels.")
    towers = checked_towers(host)
    places = placeholders(host, ids[0].tolist())
    with at_rest(model):
        connector = connector_of(host, towers, batch.inputs, places)
    views = views_of(host, connector, batch.inputs)
    return Composition.of(model, towers, recorded, connector, views)
