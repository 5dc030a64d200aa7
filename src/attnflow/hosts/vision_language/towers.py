"""The two towers of a vision-language model, and the models that cannot be followed through both.

Nothing here is a list of families: transformers itself says which part encodes images and which
part writes. What stands between the two is the connector, and if that attends, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import TokensError, UnsupportedModelError
from attnflow.hosts.transformers.attention import uses_the_interface

__all__ = ["PIXELS", "Towers", "pixels_of", "placeholders", "reads_images", "towers_of"]

PIXELS = ("pixel_values", "pixel_values_videos")
"""The names under which transformers models take images and videos."""
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


@dataclass(frozen=True, eq=False)
class Towers:
    """The part that sees and the part that writes."""

    vision: nn.Module
    language: nn.Module


def towers_of(model: nn.Module) -> Towers | None:
    """Both towers of a model that writes about images; None for every other model."""
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        return None
    vision, language = model.get_encoder(modality="image"), model.get_decoder()
    outer = (model, model.base_model)
    if any(one is part for one in outer for part in (vision, language)) or vision is language:
        return None
    return Towers(vision, language)


def reads_images(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Whether these inputs go through both towers."""
    return any(name in inputs for name in PIXELS) and towers_of(model) is not None


def checked_towers(model: PreTrainedModel) -> Towers:
    """The towers, or an error that names what cannot be read and why."""
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
    """The images and videos among the inputs."""
    return {name: inputs[name] for name in PIXELS if name in inputs}


def placeholders(model: PreTrainedModel, ids: Iterable[int]) -> list[int]:
    """The positions of the language model that stand for parts of an image."""
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
