"""One question about one scene: the maps of every method, and what hiding patches does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.evaluation.metrics import area
from attnflow.hosts.capture import capture
from attnflow.hosts.vision_language.towers import image_prompt
from attnflow.methods import Method
from attnflow.methods.products import image_sources
from attnflow.tokens.patches import ImagePatches
from attnflow.trace import AttentionTrace
from attnflow_experiments.scenes.drawn_scenes import SIZE, Question, Scene

Floats = NDArray[np.float64]
RANDOM: Final = "random"
CENTRE: Final = "centre"
LEAVE_ONE_OUT: Final = "leave-one-patch-out"
BASELINES: Final = (RANDOM, CENTRE, LEAVE_ONE_OUT)
METRICS = ("most", "share", "deletion")
_STEPS = 8  # points of a deletion curve after the first


@dataclass(frozen=True, eq=False)
class SceneQuestion:
    """A question about a scene as a model takes it."""

    model: Any
    processor: Any
    scene: Scene
    question: Question

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that the processor makes of image and question."""
        image = np.asarray(self.scene.image())
        return image_prompt(self.model, self.question.text, [image], self.processor)

    @cached_property
    def answer(self) -> int:
        """The id of the answer's first word."""
        word = self.question.answer.split()[0]
        return int(self.processor.tokenizer.convert_tokens_to_ids(word))

    def probabilities(self, pixels: Tensor) -> Floats:
        """(images,): how likely the right answer is with each of these images."""
        size = len(pixels)
        ids = self.inputs["input_ids"].expand(size, -1)
        with torch.no_grad():
            logits = self.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels
            ).logits[:, -1]
        shares: Floats = logits.double().softmax(dim=-1)[:, self.answer].cpu().numpy()
        return shares

    def hidden(self, orders: Sequence[Sequence[int]], image: ImagePatches) -> Tensor:
        """(images, 3, height, width): each with these patches painted over with the ground."""
        pixels = self.inputs["pixel_values"]
        ground = pixels.flatten(2).median(dim=-1).values[0]
        copies = pixels.repeat(len(orders), 1, 1, 1)
        grid = image.grid
        down, across = grid.height // grid.rows, grid.width // grid.columns
        for copy, patches in zip(copies, orders, strict=True):
            for patch in patches:
                top, left = patch // grid.columns * down, patch % grid.columns * across
                copy[:, top : top + down, left : left + across] = ground[:, None, None]
        return copies

    def deletion(self, scores: Floats, image: ImagePatches) -> float:
        """The area under the answer's probability as patches go, the strongest first."""
        order = np.argsort(-scores, kind="stable").tolist()
        counts = np.linspace(0, len(order), _STEPS + 1).round().astype(int).tolist()
        curve = self.probabilities(self.hidden([order[:count] for count in counts], image))
        return area(curve)


def observe(
    case: SceneQuestion, methods: Mapping[str, Method], random: np.random.Generator
) -> dict[str, dict[str, float]] | None:
    """Score every method and baseline on one question; None where the answer is wrong."""
    trace = capture(
        (case.model, case.processor.tokenizer),
        case.inputs,
        methods=list(methods.values()),
        answer=case.answer,
    )
    prediction = trace.prediction
    if prediction is None or prediction.label != case.question.answer.split()[0]:
        return None
    image = trace.tokens.images[0]
    maps = {name: _map(method, trace) for name, method in methods.items()}
    maps |= _baselines(case, image, random)
    return {
        name: {
            "most": float(_points_at(scores, image, case)),
            "share": _share(scores, image, case),
            "deletion": case.deletion(scores, image),
        }
        for name, scores in maps.items()
    }


def _map(method: Method, trace: AttentionTrace) -> Floats:
    """One number for each patch, in reading order."""
    assert trace.prediction is not None
    row = method(trace, targets=trace.prediction.position, layers=-1, sources=image_sources(trace))
    return row.values[0, 0, trace.tokens.images[0].patches]


def _baselines(
    case: SceneQuestion, image: ImagePatches, random: np.random.Generator
) -> dict[str, Floats]:
    grid = image.grid
    count = grid.rows * grid.columns
    rows, columns = np.divmod(np.arange(count), grid.columns)
    away = np.hypot(rows - (grid.rows - 1) / 2, columns - (grid.columns - 1) / 2)
    everything, *single = case.probabilities(
        case.hidden([[], *([patch] for patch in range(count))], image)
    )
    return {
        RANDOM: random.random(count),
        CENTRE: 1 / (1 + away),
        LEAVE_ONE_OUT: np.maximum(np.log(everything) - np.log(single), 0),
    }


def _mass(scores: Floats, image: ImagePatches, box: tuple[int, int, int, int]) -> float:
    """Return what falls on a box, each patch's value spread evenly over its pixels."""
    grid = image.grid
    down, across = SIZE / grid.rows, SIZE / grid.columns
    left, top, right, bottom = box
    rows = _overlap(grid.rows, down, top, bottom)
    columns = _overlap(grid.columns, across, left, right)
    return float(rows @ scores.reshape(grid.rows, grid.columns) @ columns)


def _overlap(count: int, side: float, start: int, end: int) -> Floats:
    """The share of each row (or column) of patches that lies between start and end."""
    edges = np.arange(count) * side
    return np.clip(np.minimum(edges + side, end) - np.maximum(edges, start), 0, None) / side


def _points_at(scores: Floats, image: ImagePatches, case: SceneQuestion) -> bool:
    """Return whether the true object's box gets more mass per area than every other object's."""
    density = [
        _mass(scores, image, item.box) / ((item.box[2] - item.box[0]) * (item.box[3] - item.box[1]))
        for item in case.scene.objects
    ]
    true = case.question.answer_object
    return all(density[true] > other for k, other in enumerate(density) if k != true)


def _share(scores: Floats, image: ImagePatches, case: SceneQuestion) -> float:
    """The share of all mass on patches that falls on the true object's box."""
    total = float(scores.sum())
    box = case.scene.objects[case.question.answer_object].box
    return _mass(scores, image, box) / total if total > 0 else 0.0
