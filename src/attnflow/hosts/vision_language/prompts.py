"""A question and images to what a vision-language model takes, by the model's own processor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attnflow.errors import InputError, ModelError, TokensError, shorten
from attnflow.hosts.images.reading import Photo, read_photo
from attnflow.hosts.texts import checked_text
from attnflow.hosts.vision_language.towers import PIXELS, towers_of

__all__ = ["after_prompt", "has_images", "image_prompt", "processor_of", "read_photos"]


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
    """The images of a prompt, each the right way up and in colour."""
    if isinstance(images, (str, bytes, os.PathLike, Mapping)) or not isinstance(images, Sequence):
        raise InputError(f"images is a list of images; got {shorten(images)}.")
    if not images:
        raise InputError("images is empty: a question about images needs at least one.")
    return [read_photo(image) for image in images]


def processor_of(model: nn.Module, processor: Any = None) -> Any:
    """The processor that was handed in, or that which was saved with the model."""
    if processor is not None:
        if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
            return processor
        raise TokensError(
            f"processor={shorten(processor)} prepares no text and images together; pass "
            "processor=AutoProcessor.from_pretrained(...)."
        )
    config: Any = model.config
    name = getattr(config, "name_or_path", "")
    if not name:
        raise TokensError(
            "Text and images need the model's processor: pass "
            "processor=AutoProcessor.from_pretrained(...), or the model's name or path."
        )
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(name)
    except Exception as error:  # the library raises many unrelated types
        raise ModelError(
            f"The processor of {shorten(name)} could not be loaded ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300] if str(error) else ''}). Pass processor=..."
        ) from error


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
    """Prompt and completion as one input, with the prompt's images.

    What the prompt has for each token goes on over the completion as the model's own generate()
    carries it on.
    """
    text = torch.tensor([[*prompt, *ids]], device=model.device)
    carried: dict[str, Any] = {
        **extra,
        "attention_mask": torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
    }
    carry_on: Any = model._update_model_kwargs_for_generation
    for _ in ids:
        carried = carry_on(ModelOutput(), carried)
    return {"input_ids": text, **carried}


def has_images(extra: Mapping[str, Any]) -> bool:
    """Whether a prompt comes with images."""
    return any(name in extra for name in PIXELS)
