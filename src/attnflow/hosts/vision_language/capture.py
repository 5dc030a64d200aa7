"""One pass through both towers of a vision-language model, recorded and joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import InputError, TokensError, UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.hosts.vision_language.composition import Composition
from attnflow.hosts.vision_language.connector import connector_of
from attnflow.hosts.vision_language.recording import TowerRecorder
from attnflow.hosts.vision_language.towers import checked_towers, placeholders, reads_images
from attnflow.hosts.vision_language.views import views_of

__all__ = ["compose_towers", "reads_images", "run_both_towers"]


def run_both_towers(
    model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder
) -> tuple[Any, TowerRecorder]:
    """One forward pass; what it returns, and what both towers attended to."""
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
    """What was recorded as one stack over patches and words."""
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
