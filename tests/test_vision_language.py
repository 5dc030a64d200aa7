"""Vision-language models: both towers as one graph, held against plain loops for every family."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow import GradientRollout, Rollout
from attnflow.hosts.capture import capture
from attnflow.methods.towers import image_sources
from vision_families import VISION_FAMILIES, VisionFamily

Matrix = NDArray[np.float64]
FAMILIES = pytest.mark.parametrize("family", VISION_FAMILIES, ids=lambda family: family.name)


# --- the reference: every attention of the model as its own file computes it ----------------------


@contextmanager
def recorded_attention(model: Any) -> Iterator[list[tuple[Any, Tensor]]]:
    """(module, weights) of every call of the model files' own eager functions."""
    calls: list[tuple[Any, Tensor]] = []
    files = {type(part).__module__ for part in model.modules()}
    changed = []
    for name in files:
        file = sys.modules[name]
        own = getattr(file, "eager_attention_forward", None)
        if own is None:
            continue

        def eager(module: Any, *args: Any, own: Any = own, **kwargs: Any) -> Any:
            output, weights = own(module, *args, **kwargs)
            weights.retain_grad()
            calls.append((module, weights))
            return output, weights

        changed.append((file, own))
        file.eager_attention_forward = eager  # type: ignore[attr-defined]
    model.set_attn_implementation("eager")
    try:
        yield calls
    finally:
        for file, own in changed:
            file.eager_attention_forward = own  # type: ignore[attr-defined]
        model.set_attn_implementation("sdpa")


class Reference:
    """One eager pass with a backward pass, and loops over what it left."""

    def __init__(self, family: VisionFamily) -> None:
        self.family = family
        model, inputs = family.build()
        with recorded_attention(model) as calls:
            logits = model(**inputs).logits[0, -1].float()
            logits.log_softmax(dim=-1).max().backward()
        vision = {id(part) for part in model.get_encoder(modality="image").modules()}
        self.vision = self._layers([c for c in calls if id(c[0]) in vision])[: family.layers]
        self.language = self._layers([c for c in calls if id(c[0]) not in vision])
        places = (inputs["input_ids"][0] == 39).nonzero()[:, 0].tolist()
        self.places = dict(zip(places, family.tokens, strict=True))

    @staticmethod
    def _layers(calls: list[tuple[Any, Tensor]]) -> list[tuple[Matrix, Matrix]]:
        """For each layer the mean weights and the mean of relu(A * dA), parts on the diagonal."""
        by_module: dict[int, list[Tensor]] = {}
        for module, weights in calls:
            by_module.setdefault(id(module), []).append(weights)
        layers = []
        for several in by_module.values():
            parts = []
            for weights in several:
                gradient = torch.zeros_like(weights) if weights.grad is None else weights.grad
                for a, g in zip(weights.detach().double(), gradient.double(), strict=True):
                    parts.append((a.mean(0).numpy(), (a * g).clamp_min(0).mean(0).numpy()))
            n = sum(len(part[0]) for part in parts)
            pair = (np.zeros((n, n)), np.zeros((n, n)))
            start = 0
            for part in parts:
                end = start + len(part[0])
                for square, values in zip(pair, part, strict=True):
                    square[start:end, start:end] = values
                start = end
            layers.append(pair)
        return layers

    def columns(self) -> list[int]:
        """The vision positions image by image, class tokens first, patches in reading order."""
        order = []
        for image, (rows, columns, prefix) in enumerate(self.family.grids):
            first = self.family.position((image, 0, 0))
            order += [first - prefix + k for k in range(prefix)]
            order += [
                self.family.position((image, r, c)) for r in range(rows) for c in range(columns)
            ]
        return order

    def row(self, towers: tuple[Matrix, Matrix]) -> list[float]:
        """The last row of the language model, its image tokens handed on, then the words."""
        seen, read = towers
        last = read[-1]
        patches = [0.0] * len(seen)
        words = []
        for position, value in enumerate(last.tolist()):
            feeding = self.places.get(position, [])
            if not feeding:
                words.append(value)
            for patch in feeding:
                for source, share in enumerate(seen[self.family.position(patch)].tolist()):
                    patches[source] += value / len(feeding) * share
        return [patches[k] for k in self.columns()] + words

    def rollout(self) -> list[float]:
        return self.row(
            (rolled([a for a, _ in self.vision]), rolled([a for a, _ in self.language]))
        )

    def gradient_rollout(self) -> list[float]:
        return self.row((grown([g for _, g in self.vision]), grown([g for _, g in self.language])))


def times(a: Matrix, b: Matrix) -> Matrix:
    n = len(a)
    product = np.zeros((n, n))
    for i in range(n):
        for k in range(n):
            if a[i, k]:
                product[i] += a[i, k] * b[k]
    return product


def rolled(layers: list[Matrix]) -> Matrix:
    product = np.eye(len(layers[0]))
    for layer in layers:
        product = times(0.5 * layer + 0.5 * np.eye(len(layer)), product)
    return product


def grown(layers: list[Matrix]) -> Matrix:
    relevance = np.eye(len(layers[0]))
    for layer in layers:
        relevance = relevance + times(layer, relevance)
    return relevance


@FAMILIES
def test_rollout_through_both_towers_equals_loops(family: VisionFamily) -> None:
    model, inputs = family.build()
    trace = capture(model, inputs, methods=[Rollout()])
    result = Rollout()(trace, targets=-1, layers=-1, sources=image_sources(trace))
    expected = Reference(family).rollout()
    assert result.values.shape[-1] == len(expected)
    np.testing.assert_allclose(result.values[0, 0], expected, atol=1e-5)
    assert math.isclose(float(result.values.sum()), 1.0, abs_tol=1e-4)


@FAMILIES
def test_gradient_rollout_through_both_towers_equals_loops(family: VisionFamily) -> None:
    model, inputs = family.build()
    trace = capture(model, inputs, methods=[GradientRollout()])
    result = GradientRollout()(trace, targets=-1, layers=-1, sources=image_sources(trace))
    expected = np.array(Reference(family).gradient_rollout())
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(result.values[0, 0] / scale, expected / scale, atol=1e-5)
    assert expected[: -len(expected) // 2].any()
