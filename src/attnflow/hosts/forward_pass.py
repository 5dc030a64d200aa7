"""From what was recorded in one forward pass to a trace for each of its examples.

An encoder–decoder becomes one layered graph. Three attentions alternate: the encoder over its
inputs, the decoder over its own tokens, and the decoder over the encoder's output. Put both sides'
positions into one row, encoder first, and each sub-layer becomes an ordinary square layer over all
of them: the positions it works on attend as recorded, all others only to themselves. The residual
`(1 - r) W + r I` then does the right thing at every sub-layer: an idle position stays the identity,
and a decoder position that looks at the encoder keeps the share r of itself. Rollout and flow need
to know nothing of it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attnflow.errors import CaptureError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.inputs import join_tokens
from attnflow.hosts.model import Model
from attnflow.hosts.recorder import Recorder, Stage
from attnflow.hosts.scores import Explained, Scores
from attnflow.models import WRITER
from attnflow.models.smollm2 import prepared_folder
from attnflow.tokens import Tokens
from attnflow.trace import ROW_TOLERANCE, AttentionTrace, Prediction
from attnflow.trace.extras import (
    ANSWER_ROWS,
    BALANCED,
    BALANCED_INPUTS,
    BALANCED_ROWS,
    BALANCED_SCORES,
    GRADIENT_ATTENTION,
)

Weights = NDArray[np.floating[Any]]


def compose(
    layers: Sequence[tuple[str, Weights]], first: int, second: int, *, idle: float, sides: str
) -> Weights:
    """Return one square stack of layers, (stage, (heads, queries, keys)) in the order they ran.

    first, second: how many positions each of the two sides has; sides: what people call them.
    `idle` is what a position that a sub-layer does not touch gives to itself: all of its attention,
    but 0 where the arrays are gradients, since nothing there can change the score.
    """
    heads = {weights.shape[0] for _, weights in layers}
    if len(heads) != 1:
        raise CaptureError(
            f"{sides} have different numbers of heads ({sorted(heads)}), so they cannot be kept "
            "apart in one graph; capture with heads='mean'."
        )
    lower, upper, everything = slice(0, first), slice(first, None), slice(None)
    places = {
        **dict.fromkeys(("encoder", "vision"), (lower, lower)),
        **dict.fromkeys(("decoder", "language"), (upper, upper)),
        "cross": (upper, lower),
        "connector": (everything, everything),
    }
    identity = idle * np.eye(first + second, dtype=layers[0][1].dtype)
    stack = np.broadcast_to(identity, (len(layers), heads.pop(), *identity.shape)).copy()
    for square, (stage, weights) in zip(stack, layers, strict=True):
        rows, columns = places[stage]
        square[:, rows] = 0
        square[:, rows, columns] = weights
    return stack


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass: what ran, on what, and what was recorded."""

    model: Model
    batch: Batch
    recorder: Recorder
    scores: Sequence[Scores | None]
    explained: Explained | None = None
    gradients: Sequence[NDArray[np.float32]] | None = None
    uncovered: tuple[str, ...] = ()

    def traces(self) -> list[AttentionTrace]:
        """Return one trace for each example."""
        composed = self.recorder.layers[0].stage == "encoder"
        build = self._composed_trace if composed else self._trace
        return [build(example) for example in range(self.batch.size)]

    def _trace(self, example: int) -> AttentionTrace:
        """One example's trace; its rows are checked here, at the cost of one sum."""
        layers = self.recorder.layers
        if len(sizes := {layer.weights.shape[-2:] for layer in layers}) > 1:
            raise CaptureError(
                f"The layers of {type(self.model.module).__name__} attend over different numbers "
                f"of positions ({', '.join(f'{q} × {k}' for q, k in sorted(sizes))}), so they do "
                "not share one set of tokens and are no layer-by-layer graph."
            )
        length = layers[0].weights.shape[-1]
        positions = np.array(self.batch.positions_of(example, length))
        weights = self.recorder.stacked()[:, example]
        if len(positions) < length:
            weights = weights[:, :, positions[:, None], positions]
        gradients = None
        if self.gradients is not None:
            squares = [array[example][:, positions[:, None], positions] for array in self.gradients]
            gradients = np.stack(squares)
        return AttentionTrace.from_arrays(
            weights,
            self.input_tokens(example, length),
            layers=layer_numbers([layer.number for layer in layers]),
            sinks=lacking_rows(weights, [layer.sink for layer in layers]),
            prediction=self.prediction(example),
            gradients=gradients,
            measured=self._measured(example, positions),
            **self.about(example),
        )

    def _measured(
        self, example: int, positions: NDArray[np.intp]
    ) -> dict[str, NDArray[np.float32]] | None:
        """Every measurement of every layer, padding trimmed."""
        measured: dict[str, NDArray[np.float32]] = {}
        for name, layers in self.recorder.measured.items():
            if len(layers) != len(self.recorder.layers):
                raise CaptureError(
                    f"{name!r} was measured on {len(layers)} of {len(self.recorder.layers)} layers "
                    f"of {type(self.model.module).__name__}; a result over the rest would be wrong."
                )
            array = np.stack([layer[example] for layer in layers])
            measured[name] = (
                array[:, positions] if array.ndim == 2 else array[:, positions[:, None], positions]
            )
        return measured

    def _composed_trace(self, example: int) -> AttentionTrace:
        """An encoder–decoder: its three attentions as one graph over both sides' tokens."""
        lengths = {layer.stage: layer.weights.shape[-2] for layer in self.recorder.layers}
        encoder = np.array(self.batch.positions_of(example, lengths["encoder"]))
        decoder = np.array(self.batch.positions_of(example, lengths["decoder"], decoder=True))
        for layer in self.recorder.layers:
            keys_seen = layer.weights.shape[-1]
            side: Stage = "encoder" if layer.stage == "cross" else layer.stage
            if keys_seen != lengths[side]:
                raise CaptureError(
                    f"A layer of {type(self.model.module).__name__} attends to {keys_seen} keys "
                    f"where its {side} has {lengths[side]} positions, as if both sides were in one "
                    "softmax; such layers are not known here."
                )
        queries = {"encoder": encoder, "decoder": decoder, "cross": decoder}
        keys = {"encoder": encoder, "decoder": decoder, "cross": encoder}
        layers = self.recorder.layers

        def squares(arrays: Sequence[Weights], idle: float) -> Weights:
            parts = [
                (x.stage, array[example][:, queries[x.stage][:, None], keys[x.stage]])
                for x, array in zip(layers, arrays, strict=True)
            ]
            sides = "Encoder and decoder"
            return compose(parts, len(encoder), len(decoder), idle=idle, sides=sides)

        gradients = None if self.gradients is None else squares(self.gradients, 0.0)
        measured = {
            name: squares([array[:, None] for array in arrays], 0.0)[:, 0]
            for name, arrays in self.recorder.measured.items()
            if name in (GRADIENT_ATTENTION, BALANCED, BALANCED_ROWS, BALANCED_SCORES)
        }
        if (inputs := self.recorder.measured.get(BALANCED_INPUTS)) is not None:
            sides = [*encoder, *(lengths["encoder"] + decoder)]
            measured[BALANCED_INPUTS] = np.stack([layer[example][sides] for layer in inputs])
        outputs = self.model.adapter.name_decoder_positions(
            self.model.module, self.model.tokenizer, self.batch, example, lengths["decoder"]
        )
        return AttentionTrace.from_arrays(
            squares([layer.weights for layer in layers], 1.0),
            join_tokens(self.input_tokens(example, lengths["encoder"]), outputs),
            kind="cross",
            stages=tuple(layer.stage for layer in layers),
            encoder_length=len(encoder),
            prediction=self.prediction(example, shift=len(encoder)),
            gradients=gradients,
            measured=measured,
            **self.about(example, shift=len(encoder)),
        )

    def prediction(self, example: int, shift: int = 0) -> Prediction | None:
        """Return an example's prediction, its position behind `shift` others."""
        scores = self.scores[example]
        if scores is None:
            return None
        prediction = scores.prediction()
        return replace(prediction, position=prediction.position + shift)

    def input_tokens(self, example: int, length: int) -> Tokens:
        """Return the names of an example's positions."""
        module, tokenizer = self.model
        return self.model.adapter.name_positions(module, tokenizer, self.batch, example, length)

    def about(self, example: int, shift: int = 0) -> dict[str, Any]:
        """Return what every trace says; `shift` positions stand before those that predict."""
        heads = self.recorder.heads
        about = provenance_of(self.model.module, self.recorder.dtype)
        if self.explained is not None:
            about["gradients_of"] = self.explained.labels()[example]
        if self.uncovered:
            about["plain_gradients"] = list(self.uncovered)
        scores = self.scores[example]
        if scores is not None and scores.phrase:
            about[ANSWER_ROWS] = [row + shift for row, _ in scores.phrase]
        if scores is not None and scores.each is not None:
            about["predictions"] = scores.names(scores.each.argmax(dim=-1).tolist())
        return {
            "mixed_heads": None if heads is None else str(heads),
            "row_tolerance": ROW_TOLERANCE.get(self.recorder.dtype),
            "copy": False,  # nobody else holds what was recorded
            "provenance": about,
        }


def lacking_rows(weights: Weights, declared: Sequence[bool]) -> NDArray[np.float32] | None:
    """Return what the rows of layers with a learned sink lack; all other rows must be whole."""
    if not any(declared):
        return None
    lacking = np.clip(1 - weights.sum(axis=-1), 0, 1)
    return lacking * np.array(declared)[:, None, None]


def layer_numbers(numbers: Sequence[int | None]) -> list[int] | None:
    """Return the host's own numbers of the layers, where each has one and they go up."""
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) and known == sorted(set(known)) else None


def check_layers(model: Model, count: int) -> None:
    """Raise unless every layer with attention was seen."""
    expected = model.adapter.expected_layers(model.module)
    if count and (expected is None or count == expected):
        return
    config: Any = getattr(model.module, "config", None)
    if not count and not expected:
        raise CaptureError(
            f"{type(model.module).__name__} showed no attention: it has none, or computes it where "
            "it cannot be seen. A model without attention weights has nothing to explain here."
        )
    if not expected:
        text = config.get_text_config()
        kinds = getattr(text, "layer_types", None) or text.layers_block_type
        why = f"the kinds of its layers are not known here: {', '.join(sorted(set(kinds)))}"
    elif count > expected:
        why = "a layer of it attends more than once, and its output is made of both in its own way"
    else:
        why = (
            "its other attention is sparse, fused or otherwise out of sight; where it is fused, "
            "load the model with attn_implementation='eager'"
        )
    raise CaptureError(
        f"{type(model.module).__name__} has {expected or 'some'} layers with attention and "
        f"{count} were seen ({why}). Nothing is returned, because a result over missing layers "
        "would be wrong."
    )


def check_size(model: nn.Module, size: int, recorder: Recorder) -> None:
    """Raise unless attention was seen of as many examples as went in."""
    count = recorder.layers[0].weights.shape[0]
    if count != size:
        raise CaptureError(
            f"{type(model).__name__} was given {size} examples, by the first axis of its inputs, "
            f"and attends over {count}. Prepared inputs have the examples along their first axis; "
            "a model that takes them otherwise needs an adapter of its own."
        )


def provenance_of(model: nn.Module, dtype: str) -> dict[str, Any]:
    """Return what a result should say of the model it was made with."""
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    if name == str(prepared_folder()):  # where that is, is nobody's business
        name = WRITER
    return {
        "model": name or type(model).__name__,
        "class": type(model).__name__,
        "dtype": dtype,
        "torch": str(torch.__version__),
        "transformers": _version_of("transformers"),
    }


@cache  # reading a package's metadata takes milliseconds, more than a short text takes to run
def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
