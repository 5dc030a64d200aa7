"""The two towers of a vision-language model, and prompts for it by the model's own processor.

Nothing here is a list of families: transformers itself says which part encodes images and which
part writes. What stands between the two is the connector, and if that attends, it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import (
    CaptureError,
    InputError,
    ModelError,
    TokensError,
    UnsupportedModelError,
    shorten,
)
from attnflow.hosts.adapter import device_of
from attnflow.hosts.images import Photo, read_photo
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.model import processor_of
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer
from attnflow.hosts.restore import Changes, exclusive
from attnflow.hosts.transformers.attention import uses_the_interface, watch_attention
from attnflow.hosts.transformers_classes import is_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    if not is_pretrained(model) or not model.can_generate():
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
    from transformers.utils.generic import ModelOutput

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


# -- the connector as a matrix, and where each patch lies in its image -----------------------------
#
# One pass through the vision tower and the connector alone, which stops where the language model
# begins, tells both: which vision positions feed which image token, and which pixels feed which
# vision position. For images of the same shape the answer is kept. It is found by asking the
# gradient, not by knowing the family.
#
# Between the last attention of the vision tower and the language model's input every step treats
# positions apart: projections, norms, merging of neighbours, pooling, reordering. So each vision
# position feeds one image token (or none, such as a dropped class token), and the map between them
# is found exactly in log2(tokens) backward passes through the connector alone. Pass k weighs token
# t by +1 or -1 according to bit k of t; the gradient at a vision position then keeps or changes its
# sign according to the number of the token that it feeds. Where the gradients do not agree with any
# such map, the token takes from several overlapping sets (an interpolation), and one backward pass
# for each token gives how strongly each position feeds it.

_NOWHERE = -1
_SIGN_TOLERANCE = 0.05  # a sign is +1 or -1; half precision leaves some percent
_MOST_TOKENS = 4096  # one backward pass for each, where positions overlap


def fed_by(outputs: Tensor, leaves: Sequence[Tensor]) -> NDArray[np.intp] | None:
    """Return for each position of the leaves the number of the output that it feeds, -1 for none.

    outputs: (tokens, width). leaves: tensors (..., width) whose last axis belongs to one position;
    their positions are numbered one after the other. None where a position feeds several outputs.
    """
    base = _gradients(outputs, leaves, torch.ones(len(outputs)))
    size = (base * base).sum(dim=-1)
    connected = size > 0
    numbers = torch.zeros(len(base), dtype=torch.long, device=base.device)
    for bit in range(max(1, (len(outputs) - 1).bit_length())):
        signs = 1.0 - 2.0 * ((torch.arange(len(outputs)) >> bit) & 1).float()
        gradient = _gradients(outputs, leaves, signs)
        ratio = (gradient * base).sum(dim=-1) / size.clamp_min(torch.finfo(size.dtype).tiny)
        rest = (gradient - ratio[:, None] * base).pow(2).sum(dim=-1)
        off = ((ratio.abs() - 1).abs() > _SIGN_TOLERANCE) | (rest > _SIGN_TOLERANCE * size)
        if bool((off & connected).any()):
            return None
        numbers += (ratio < 0).long() << bit
    numbers[~connected] = _NOWHERE
    if bool((numbers >= len(outputs)).any()):
        return None
    return numbers.cpu().numpy()


def feeding_matrix(outputs: Tensor, leaves: Sequence[Tensor], name: str) -> NDArray[np.float64]:
    """Return (tokens, positions): the mean of those that feed each token, or gradients' lengths."""
    numbers = fed_by(outputs, leaves)
    if numbers is not None:
        matrix = np.zeros((len(outputs), len(numbers)))
        positions = np.flatnonzero(numbers >= 0)
        matrix[numbers[positions], positions] = 1.0
    elif len(outputs) > _MOST_TOKENS:
        raise UnsupportedModelError(
            f"{name} mixes overlapping patches into {len(outputs)} image tokens; up to "
            f"{_MOST_TOKENS} of them can be told apart. Use a smaller image."
        )
    else:
        each = (_gradients(outputs, leaves, token) for token in torch.eye(len(outputs)))
        matrix = np.stack([part.norm(dim=-1).cpu().numpy() for part in each]).astype(np.float64)
    total = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)


def _gradients(outputs: Tensor, leaves: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return (positions, width): gradients of the outputs' sum along one random direction."""
    noise = torch.Generator().manual_seed(0)
    direction = torch.randn(outputs.shape[-1], generator=noise).to(outputs)
    score = ((outputs @ direction) * weights.to(outputs)).sum()
    gradients = torch.autograd.grad(score, list(leaves), retain_graph=True, allow_unused=True)
    parts = [
        torch.zeros_like(leaf) if part is None else part
        for leaf, part in zip(leaves, gradients, strict=True)
    ]
    return torch.cat([part.reshape(-1, part.shape[-1]).float() for part in parts])


FLAT = 2  # axes of pixels that come as one row for each patch


@dataclass(frozen=True, eq=False)
class Connector:
    """`matrix[t, p]`: the share of vision position p in the image token at `places[t]`.

    Rows sum to 1, or to 0 for a token that stands for no patch, such as the end of a row of tiles.
    `layers` counts the layers of the vision tower that the language model reads: a tower whose
    second to last layer is read has one that does not count. `blocks` are the lengths of the parts
    of the vision positions that attend to themselves only, in the first layer. `pixels` has by
    their name the vision position that each pixel feeds, -1 for none: of images (..., height,
    width), of patches that the processor has cut (patches,).
    """

    matrix: NDArray[np.float64]
    places: tuple[int, ...]
    layers: int
    blocks: tuple[int, ...]
    pixels: Mapping[str, NDArray[np.intp]]


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Connector]] = WeakKeyDictionary()


def connector_of(
    model: PreTrainedModel, towers: Towers, inputs: Mapping[str, Tensor], places: list[int]
) -> Connector:
    """Return the connector for these inputs; found once for images of the same shape."""
    key = (tuple(places), *((name, _shape(tensor)) for name, tensor in sorted(inputs.items())))
    known = _KNOWN.setdefault(model, {})
    if key not in known:
        with torch.enable_grad():
            known[key] = _Probe(model, towers, inputs, places).run()
    return known[key]


def _shape(tensor: Tensor) -> Any:
    """Sizes of images count by value (grids, image sizes); pixels and words by their shape."""
    small = not tensor.is_floating_point() and tensor.numel() <= 64 and tensor.ndim != 2
    grid = tensor.ndim == 2 and tensor.shape[-1] in (2, 3) and not tensor.is_floating_point()
    return tuple(tensor.flatten().tolist()) if small or grid else tuple(tensor.shape)


class _LanguageModelReached(Exception):  # noqa: N818 - no error: it ends the pass
    """The language model's input is there; the rest of the pass is not needed."""


@dataclass(eq=False)
class _Probe(AttentionObserver):
    """One pass that stops before the language model, every vision attention's output cut free."""

    model: PreTrainedModel
    towers: Towers
    inputs: Mapping[str, Tensor]
    places: list[int]
    entrances: list[Tensor] = field(default_factory=list)
    leaves: dict[nn.Module, list[Tensor]] = field(default_factory=dict)
    blocks: dict[nn.Module, list[int]] = field(default_factory=dict)
    stream: Tensor | None = None

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Return the lengths of what attends together, as the first rows of a call show it."""
        if rows.start == 0:
            lengths = self.blocks.setdefault(layer.module, [])
            lengths.extend([layer.length] * len(weights))

    def end_layer(self, layer: RecordedLayer) -> None:
        """Nothing is kept."""

    def run(self) -> Connector:
        """Return the pass, and what its gradients say."""
        pixels, inputs = {}, dict(self.inputs)
        for name, tensor in pixels_of(inputs).items():
            flat = tensor.ndim == FLAT
            leaf = (tensor if flat else tensor.movedim(-3, -1)).detach().clone().requires_grad_()
            pixels[name], inputs[name] = leaf, leaf if flat else leaf.movedim(-1, -3)
        modules = self._attending_modules(inputs)
        with exclusive(self.model) as changes:
            self._hook(modules, changes)
            with suppress(_LanguageModelReached):
                self.model(**inputs, use_cache=False)
        return self._connector(modules, pixels)

    def _attending_modules(self, inputs: Mapping[str, Tensor]) -> list[nn.Module]:
        """Modules of the vision tower that attend, in the order in which they ran."""
        with exclusive(self.model) as changes, torch.no_grad():
            self._stop_at_language(changes)
            with suppress(_LanguageModelReached), watch_attention(self.model, observer=self):
                self.model(**inputs, use_cache=False)
        self.stream = None
        vision = set(self.towers.vision.modules())
        return [module for module in self.blocks if module in vision]

    def _stop_at_language(self, changes: Changes) -> None:
        def stop(module: nn.Module, arguments: Any, by_name: Mapping[str, Any]) -> None:
            self.stream = by_name.get("inputs_embeds")
            raise _LanguageModelReached

        changes.hook(self.towers.language.register_forward_pre_hook, stop, with_kwargs=True)

    def _hook(self, modules: list[nn.Module], changes: Changes) -> None:
        def enter(module: nn.Module, arguments: Any, by_name: Mapping[str, Any]) -> None:
            hidden = arguments[0] if arguments else by_name["hidden_states"]
            self.entrances.append(hidden.reshape(-1, hidden.shape[-1]))

        def leave(module: nn.Module, arguments: Any, output: Any) -> Any:
            mixed = output[0] if isinstance(output, tuple) else output
            leaf = mixed.detach().requires_grad_()
            self.leaves.setdefault(module, []).append(leaf)
            return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

        self._stop_at_language(changes)
        for module in modules:
            changes.hook(module.register_forward_hook, leave)
        if modules:
            changes.hook(modules[0].register_forward_pre_hook, enter, with_kwargs=True)

    def _connector(self, modules: list[nn.Module], pixels: Mapping[str, Tensor]) -> Connector:
        name = type(self.model).__name__
        if self.stream is None or not modules:
            raise UnsupportedModelError(
                f"{name} hands no embeddings to its language model, or its vision tower does not "
                "attend, so its images cannot be followed. A model that reads the image through "
                "cross attention (Mllama) is of this kind."
            )
        tokens = self.stream[0, self.places]
        sources = [module for module in modules if _reach(self.leaves[module], tokens)]
        if not sources:
            raise CaptureError(f"No layer of the vision tower of {name} reaches its image tokens.")
        matrix = feeding_matrix(tokens, self.leaves[sources[-1]], name)
        if not matrix.any():
            raise CaptureError(
                f"No patch changes what the language model of {name} reads: its connector gives "
                "zeros, as that of a model that was never trained may do."
            )
        return Connector(
            matrix,
            tuple(self.places),
            modules.index(sources[-1]) + 1,
            tuple(self.blocks[modules[0]]),
            {name: self._fed_positions(leaf) for name, leaf in pixels.items()},
        )

    def _fed_positions(self, leaf: Tensor) -> NDArray[np.intp]:
        numbers = fed_by(torch.cat(self.entrances), [leaf])
        if numbers is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} cuts its images into patches that overlap, so a "
                "pixel belongs to several; its maps could not be drawn."
            )
        return numbers.reshape(leaf.shape[:-1])


def _reach(leaves: Sequence[Tensor], tokens: Tensor) -> bool:
    if not tokens.requires_grad:
        return False
    parts = torch.autograd.grad(tokens.sum(), leaves, retain_graph=True, allow_unused=True)
    return any(part is not None for part in parts)
