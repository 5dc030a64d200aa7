"""timm's vision transformers: attention as it is dropped out, fused kernels off for one pass.

timm is not imported: its modules are recognised by where their classes live. Each attention module
passes its weights through `attn_drop` after the softmax, unless `fused_attn` is set; so for one
forward pass that flag is cleared on each module and `attn_drop` is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError, UnsupportedModelError, optional_import
from attnflow.hosts.adapter import Adapter, Batch, ModelFacts, Scores, device_of, on_device
from attnflow.hosts.blocks import BLOCK_MEASURES, Parts, watched_blocks
from attnflow.hosts.inputs import REFUSED, name_patches, refuse_by_name
from attnflow.hosts.intervention import ProjectionHooks, Session
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import exclusive
from attnflow.tokens import Tokens


class TimmAdapter(Adapter):
    """timm models whose blocks attend over all tokens: ViT, DeiT, EVA, registers, no-CLS."""

    name = "timm"
    measures = BLOCK_MEASURES

    def recognises(self, model: nn.Module) -> bool:
        """Classes defined in timm."""
        return type(model).__module__.split(".")[0] == "timm"

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Pixels of shape (batch, channels, height, width), by any name."""
        kind = type(model).__name__.lower()
        refuse_by_name(next((k for k in REFUSED if kind.startswith(k)), ""), type(model).__name__)
        pixels = next(iter(on_device(inputs, device_of(model)).values()), None)
        if pixels is None or pixels.ndim != 4:
            raise TokensError("A timm model takes one tensor (batch, channels, height, width).")
        return Batch({"pixel_values": pixels}, len(pixels))

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """timm takes the pixels by position."""
        return model(inputs["pixel_values"])

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Run one forward pass with every attention module unfused and watched."""
        parts = _parts_of(model) if set(recorder.record) & set(BLOCK_MEASURES) else []
        with _watched(model, recorder), watched_blocks(parts, recorder, type(model).__name__):
            return self.forward(model, inputs)

    def expected_layers(self, model: nn.Module) -> int | None:
        """Count the blocks."""
        blocks = getattr(model, "blocks", None)
        return None if blocks is None else len(blocks)

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Prefix tokens, then patches; the grid follows the image, which need not be square."""
        host: Any = model
        possible = (("[CLS]", "cls_token"), ("[DIST]", "dist_token"))
        special = [name for name, key in possible if getattr(host, key, None) is not None]
        pixels = batch.inputs["pixel_values"]
        return name_patches(pixels, host.patch_embed.patch_size, length, special)

    def facts(self, model: nn.Module) -> ModelFacts:
        """Return where the class is read, if there are classes."""
        if not getattr(model, "num_classes", 0):
            return ModelFacts()
        return ModelFacts(answer="mean" if _is_pooled(model) else "first")

    def reads_images(self, model: nn.Module) -> bool:
        """Return True: all of timm's models read images."""
        return True

    def image_processor(self, model: nn.Module) -> Any:
        """timm's own transform, by what the model's configuration says of its data."""
        return TimmTransform.of(model)

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Return the classes of a classification head, read from the first position or from all."""
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
            return [None] * batch.size
        if not getattr(model, "num_classes", 0):
            return [None] * batch.size
        return [
            Scores(row, 0, lambda ids: [f"class {k}" for k in ids], pooled=_is_pooled(model))
            for row in outputs
        ]


@dataclass(frozen=True)
class TimmTransform:
    """timm's transform of an image to pixels, and what undoes its last step."""

    transform: Callable[[Any], Tensor]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]

    @classmethod
    def of(cls, model: Any) -> TimmTransform:
        """As the model's `pretrained_cfg` says, at the size its patches were made for."""
        data = optional_import("timm.data", extra="models", purpose="Preparing an image for timm")
        height, width = model.patch_embed.img_size or model.pretrained_cfg["input_size"][1:]
        config = data.resolve_data_config({"input_size": (3, height, width)}, model=model)
        return cls(data.create_transform(**config), config["mean"], config["std"])

    def __call__(self, image: Any) -> Tensor:
        """Return the pixels of one image, (channels, height, width)."""
        return self.transform(image)


@contextmanager
def _watched(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Clear `fused_attn` on each attention module and hook its dropout; undo both."""
    modules: list[Any] = [m for m in model.modules() if _attends(m)]
    with exclusive(model) as changes:
        for module in modules:
            hooks = ProjectionHooks(module, module.num_heads, Session(recorder))
            changes.set(module, "fused_attn", False)
            changes.hook(
                module.attn_drop.register_forward_hook, partial(_attended, hooks, recorder)
            )
            if isinstance(getattr(module, "qkv", None), nn.Module):
                changes.hook(module.qkv.register_forward_hook, hooks.project)
        yield


def _attended(
    hooks: ProjectionHooks,
    recorder: Recorder,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    output: Tensor,
) -> Tensor | None:
    hooks.show(inputs[0])
    return torch.full_like(output, 1 / output.shape[-1]) if recorder.disturb else None


def _is_pooled(model: nn.Module) -> bool:
    """Return whether the class is read from all positions together."""
    return getattr(model, "global_pool", "token") in ("avg", "avgmax", "max")


def _attends(module: nn.Module) -> bool:
    return hasattr(module, "fused_attn") and isinstance(
        getattr(module, "attn_drop", None), nn.Module
    )


def _parts_of(model: nn.Module) -> list[Parts]:
    """The blocks of a plain pre-norm transformer; other kinds of blocks are refused by name."""
    parts = []
    for block in getattr(model, "blocks", ()):
        attention: Any = getattr(block, "attn", None)
        kind = type(block).__name__
        if kind != "Block" or not _is_plain(attention):
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be taken apart: its {kind} with "
                f"{type(attention).__name__} is not the plain one (qkv, softmax, proj). Rollout, "
                "flow and the gradient methods work."
            )
        scale = getattr(getattr(block, "ls1", None), "gamma", None)
        parts.append(Parts(block, attention.proj, scale=scale))
    return parts


def _is_plain(attention: Any) -> bool:
    """Return whether values go straight from `qkv` through the weights to `proj`."""
    return (
        isinstance(getattr(attention, "qkv", None), nn.Linear)
        and isinstance(getattr(attention, "proj", None), nn.Linear)
        and isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity)
        and getattr(attention, "gate", None) is None
    )
