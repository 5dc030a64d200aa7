"""Models of two towers that compare images with texts (CLIP, SigLIP).

Neither tower attends to the other, so each is explained by itself: by what it was given alone, or,
with both, by how similar image and text are. One image and several texts ask why the image is like
this text rather than the others, and the image's patches are the sources; several images and one
text ask it of the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import TokensError
from attnflow.hosts.adapter import Scores

__all__ = ["Side", "compares", "compared_side", "similarity_scores", "tower_of"]

Side = Literal["image", "text"]


def compares(model: nn.Module) -> bool:
    """Whether a model has two towers that do not attend to each other."""
    parts = (getattr(model, name, None) for name in ("vision_model", "text_model"))
    return all(isinstance(part, PreTrainedModel) for part in parts)


def compared_side(model: nn.Module, inputs: Mapping[str, Tensor]) -> Side | None:
    """The tower that is explained by the similarity of images and texts; None if one is alone."""
    if not compares(model) or not {"pixel_values", "input_ids"} <= set(inputs):
        return None
    images, texts = len(inputs["pixel_values"]), len(inputs["input_ids"])
    if images == 1:
        return "image"
    if texts == 1:
        return "text"
    raise TokensError(
        f"{type(model).__name__} compares images with texts, and the similarity of one image with "
        f"several texts, or of one text with several images, is explained; got {images} images "
        f"and {texts} texts."
    )


def tower_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> PreTrainedModel:
    """The tower whose attention is watched: the model itself unless it has two that compare."""
    if not compares(model):
        return model
    side = compared_side(model, inputs)
    by_image = side == "image" if side is not None else "pixel_values" in inputs
    tower: Any = model.vision_model if by_image else model.text_model
    return tower


def similarity_scores(model: Any, outputs: Any, inputs: Mapping[str, Tensor], side: Side) -> Scores:
    """How similar what is explained is to each text, or to each image."""
    logits = outputs.logits_per_image[0] if side == "image" else outputs.logits_per_text[0]
    other = "text" if side == "image" else "image"
    sigmoid = "siglip" in model.config.model_type  # it judges each pair by itself
    pooled = side == "image" and hasattr(model.vision_model, "head")  # attention over all patches
    return Scores(
        logits,
        0 if side == "image" else _text_position(model, inputs["input_ids"][0], sigmoid),
        lambda ids: [f"{other} {k}" for k in ids],
        exclusive=not sigmoid,
        pooled=pooled,
    )


def _text_position(model: Any, ids: Tensor, last: bool) -> int:
    """Where a text tower is read: SigLIP's at the last token, CLIP's at the first end token, or at
    the largest id, which it was before the config named it.
    """
    end = model.config.text_config.eos_token_id
    places = (ids == end).nonzero()[:, 0].tolist()
    if last:
        return len(ids) - 1
    return int(ids.argmax()) if end == 2 or not places else int(places[0])
