"""One pass through both towers of a vision-language model, as one square stack, vision first.

A layer of the vision tower leaves the positions of the language model with themselves, and the
other way round. The connector is a layer of its own: each image token gives all it has to the
vision positions that feed it. So a row of the whole product is a distribution over patches and
words together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import InputError, TokensError, UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.forward_pass import ForwardPass, compose, lacking_rows
from attnflow.hosts.inputs import join_tokens
from attnflow.hosts.recorder import LayerWeights, Recorder
from attnflow.hosts.restore import at_rest
from attnflow.hosts.scores import weight_gradients
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.hosts.vision_language.connector import Connector, connector_of
from attnflow.hosts.vision_language.towers import checked_towers, placeholders
from attnflow.hosts.vision_language.views import View, name_views, views_of
from attnflow.tokens import Tokens
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS, ScoreName

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Composition:
    """The attention of both towers in one pass, and how they are joined.

    vision, language: the calls of every attention module. A vision tower may be called once for
    each image, and a tower with windows calls its attention once for each window.
    """

    model: nn.Module
    vision: Sequence[Sequence[LayerWeights]]
    language: Sequence[Sequence[LayerWeights]]
    connector: Connector
    views: Sequence[View]

    def check(self) -> None:
        """Check that every layer is over the same positions."""
        name = type(self.model).__name__
        lengths = {
            sum(call.weights.shape[0] * call.weights.shape[2] for call in calls)
            for calls in self.vision
        }
        if len(lengths) != 1 or lengths != {sum(self.connector.blocks)}:
            raise UnsupportedModelError(
                f"The layers of the vision tower of {name} are over {sorted(lengths)} positions: "
                "a tower that merges its patches from layer to layer cannot be followed."
            )
        shapes = {call.weights.shape[-2:] for calls in self.language for call in calls}
        if len(shapes) != 1 or any(len(calls) != 1 for calls in self.language):
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
        return self.seen + int(self.language[0][0].weights.shape[-1])

    @property
    def stages(self) -> tuple[str, ...]:
        """The tower of each layer."""
        return ("vision",) * len(self.vision) + ("connector",) + ("language",) * len(self.language)

    def stack(self, arrays: Sequence[Sequence[Array]], *, idle: float) -> Array:
        """Return `(layers, heads, n, n)` of all calls; untouched positions keep `idle`."""
        order = np.array([position for view in self.views for position in view.positions])
        seeing, reading = arrays[: len(self.vision)], arrays[len(self.vision) :]
        squares = [_diagonal(calls)[:, order[:, None], order] for calls in seeing]
        joint = idle * self._joint(order)
        squares.append(np.broadcast_to(joint, (len(squares[0]), *joint.shape)))
        squares += [calls[0][0] for calls in reading]
        layers = list(zip(self.stages, squares, strict=True))
        return compose(layers, self.seen, self.length - self.seen, idle=idle, sides="The towers")

    def _joint(self, order: NDArray[np.intp]) -> NDArray[np.float64]:
        """The connector over all positions; what stands for no patch stays with itself."""
        joint = np.eye(self.length)
        for place, row in zip(self.connector.places, self.connector.matrix, strict=True):
            if row.any():
                joint[self.seen + place] = 0.0
                joint[self.seen + place, : self.seen] = row[order]
        return joint

    def gradient_weighted(self, total: Tensor) -> Array:
        """Return `(layers, n, n)`: Ā, the mean over heads of relu(A ⊙ ∇A), of one backward pass."""
        modules = [*self.vision, *self.language]
        weights = [call.in_graph for calls in modules for call in calls]
        gradients = iter(weight_gradients(total, weights, self.model))

        def raising(parts: Sequence[Tensor]) -> Array:
            products = [(part.detach() * next(gradients)).clamp_min(0) for part in parts]
            means = [product.mean(dim=1, keepdim=True) for product in products]
            return torch.cat(means, dim=2).float().cpu().numpy()

        arrays = [[raising(call.in_graph) for call in calls] for calls in modules]
        return np.asarray(self.stack(arrays, idle=0.0)[:, 0])


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


def run_both_towers(model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
    """Run one forward pass in which the recorder sees both towers; return its outputs."""
    host = cast(PreTrainedModel, model)
    checked_towers(host)
    if set(recorder.record) - {GRADIENTS}:
        raise UnsupportedModelError(
            f"{type(model).__name__} has two towers, which are not measured inside: rollout, flow, "
            "raw attention and the gradient methods work on it."
        )
    with watch_attention(host, observer=recorder):
        return host(**inputs)


def two_tower_trace(watched: ForwardPass, score: ScoreName) -> AttentionTrace:
    """Return both towers of a vision-language model as one graph over patches and tokens.

    The towers may have different numbers of heads, so where gradients are taken the heads are
    mixed: `weights` are their mean, and `gradients` what makes the product of both
    `mean over heads of relu(A ⊙ ∇A)`.
    """
    composition = _compose_towers(watched.model.module, watched.batch, watched.recorder)
    modules, count = [*composition.vision, *composition.language], composition.seen
    weights = composition.stack([[call.weights for call in calls] for calls in modules], idle=1.0)
    gradients, measured = None, None
    if watched.explained is not None:
        weighted = composition.gradient_weighted(watched.explained.total(score))
        share = np.zeros_like(weighted)
        np.divide(weighted, weights[:, 0], out=share, where=weights[:, 0] > 0)
        gradients, measured = share[:, None], {GRADIENT_ATTENTION: weighted}
    patches = name_views(composition.views)
    joined = join_tokens(patches, watched.input_tokens(0, composition.length - count))
    sinks = [calls[0].sink for calls in composition.language]
    return AttentionTrace.from_arrays(
        weights,
        Tokens(joined.texts, words=joined.words, images=patches.images),
        kind="cross",
        stages=composition.stages,
        encoder_length=count,
        sinks=lacking_rows(weights, [*[False] * (len(weights) - len(sinks)), *sinks]),
        prediction=watched.prediction(0, shift=count),
        gradients=gradients,
        measured=measured,
        **watched.about(0),
    )


def _compose_towers(model: nn.Module, batch: Batch, recorder: Recorder) -> Composition:
    """Return what was recorded, without layers that the language model skips."""
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
    modules: dict[nn.Module | None, list[LayerWeights]] = {}
    for call in recorder.layers:
        modules.setdefault(call.module, []).append(call)
    seeing = set(towers.vision.modules())
    vision = [calls for module, calls in modules.items() if module in seeing]
    language = [calls for module, calls in modules.items() if module not in seeing]
    composition = Composition(model, vision[: connector.layers], language, connector, views)
    composition.check()
    return composition
