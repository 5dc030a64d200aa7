"""The two towers of a vision-language model, and prompts for it by the model's own processor.

Nothing here is a list of families: transformers itself says which part encodes images and which
part writes. What stands between the two is the connector, and if that attends, it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attnflow.errors import InputError, ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.hosts.adapter import device_of
from attnflow.hosts.images import Photo, read_photo
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.model import processor_of
from attnflow.hosts.transformers.attention import uses_the_interface

PIXELS = ("pixel_values", "pixel_values_videos")
"""The names under which transformers models take images and videos."""
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


@dataclass(frozen=True, eq=False)
class Towers:
    """The part that sees and the part that writes."""

    vision: nn.Module
    language: nn.Module


def towers_of(model: nn.Module) -> Towers | None:
    """Return both towers of a model that writes about images; None for every other model."""
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        return None
    vision, language = model.get_encoder(modality="image"), model.get_decoder()
    outer = (model, model.base_model)
    if any(one is part for one in outer for part in (vision, language)) or vision is language:
        return None
    return Towers(vision, language)


def reads_images(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Return whether these inputs go through both towers."""
    return has_images(inputs) and towers_of(model) is not None


def checked_towers(model: PreTrainedModel) -> Towers:
    """Return the towers, or an error that names what cannot be read and why."""
    towers = towers_of(model)
    name = type(model).__name__
    if towers is None:
        raise UnsupportedModelError(f"{name} is not a vision-language model with two towers.")
    between = _attention_between(model, towers)
    if between is not None:
        raise UnsupportedModelError(
            f"{name} joins its towers by {between}, which mixes all patches by attention of its "
            "own: that attention is not followed, and without it no patch could be told from "
            "another. Models whose connector is a projection, a merging of neighbours or a "
            "pooling are read (LLaVA, Qwen-VL, PaliGemma, Idefics3, InternVL, Gemma 3)."
        )
    if not uses_the_interface(model):
        raise UnsupportedModelError(
            f"{name} computes attention outside transformers' attention interface in one of its "
            "towers, so it cannot be seen there."
        )
    return towers


def _attention_between(model: PreTrainedModel, towers: Towers) -> str | None:
    """The class of a module that attends and belongs to neither tower."""
    inside = {id(part) for tower in (towers.vision, towers.language) for part in tower.modules()}
    names = (type(part).__name__ for part in model.modules() if id(part) not in inside)
    signs = ("Attention", "Resampler", "QFormer")
    return next((name for name in names if any(sign in name for sign in signs)), None)


def pixels_of(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the images and videos among the inputs."""
    return {name: inputs[name] for name in PIXELS if name in inputs}


def placeholders(model: PreTrainedModel, ids: Iterable[int]) -> list[int]:
    """Return the positions of the language model that stand for parts of an image."""
    config: Any = model.config
    numbers = [getattr(config, name, None) for name in _IMAGE_TOKENS]
    tokens = {int(number) for number in numbers if number is not None}
    places = [place for place, token in enumerate(ids) if token in tokens]
    if places:
        return places
    raise TokensError(
        f"The prompt of {type(model).__name__} has no place for its image: the processor puts "
        f"the token {sorted(tokens)} there. Prepare text and images together: "
        "processor(text=..., images=...)."
    )


def image_prompt(
    model: nn.Module, text: object, images: Sequence[Any], processor: Any = None
) -> dict[str, Tensor]:
    """Tensors by the names of the model's forward arguments, one example.

    A chat template puts the images before the question where the processor has one; else the
    processor's image token is put there, unless the text holds it already.
    """
    if towers_of(model) is None:
        raise ModelError(
            f"{type(model).__name__} takes no images beside a text: it is no vision-language "
            "model. A vision model is explained by its image alone."
        )
    question = checked_text(text)
    pictures = [photo.image for photo in read_photos(images)]
    own = processor_of(model, processor)
    encoded = own(
        text=[_with_places(own, question, len(pictures))], images=pictures, return_tensors="pt"
    )
    return {name: value for name, value in encoded.items() if isinstance(value, Tensor)}


def read_photos(images: Sequence[Any]) -> list[Photo]:
    """Return the images of a prompt, each the right way up and in colour."""
    if isinstance(images, (str, bytes, os.PathLike, Mapping)) or not isinstance(images, Sequence):
        raise InputError(f"images is a list of images; got {shorten(images)}.")
    if not images:
        raise InputError("images is empty: a question about images needs at least one.")
    return [read_photo(image) for image in images]


def _with_places(processor: Any, question: str, count: int) -> str:
    """The question as the model was trained to read it, with a place for each image."""
    token = getattr(processor, "image_token", None)
    if isinstance(token, str) and token in question:
        if question.count(token) != count:
            raise InputError(
                f"The text has {question.count(token)} places {token!r} for {count} images."
            )
        return question
    if getattr(processor, "chat_template", None):
        content: list[dict[str, str]] = [{"type": "image"}] * count
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]
        prompt: str = processor.apply_chat_template(messages, add_generation_prompt=True)
        return prompt
    if not isinstance(token, str):
        raise TokensError(
            f"{type(processor).__name__} names no token for an image and has no chat template; "
            "write its image token into the text."
        )
    return token * count + question


def after_prompt(
    model: PreTrainedModel, extra: Mapping[str, Tensor], prompt: Sequence[int], ids: Sequence[int]
) -> dict[str, Tensor]:
    """Return prompt and completion as one input, carried on with images as generate() does."""
    text = torch.tensor([[*prompt, *ids]], device=device_of(model))
    carried: dict[str, Any] = {
        **extra,
        "attention_mask": torch.ones(1, len(prompt), dtype=torch.long, device=device_of(model)),
    }
    carry_on: Any = model._update_model_kwargs_for_generation
    for _ in ids:
        carried = carry_on(ModelOutput(), carried)
    return {"input_ids": text, **carried}


def has_images(extra: Mapping[str, Any]) -> bool:
    """Return whether a prompt comes with images."""
    return any(name in extra for name in PIXELS)
