"""timm's vision transformers: attention as it is dropped out, fused kernels off for one pass.

timm is not imported: its modules are recognised by where their classes live. Each attention module
passes its weights through `attn_drop` after the softmax, unless `fused_attn` is set; so for one
forward pass that flag is cleared on each module and `attn_drop` is watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError
from attnflow.hosts.adapter import Adapter, Batch, Scores, device_of, on_device
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.refusals import REFUSED, refuse_by_name
from attnflow.hosts.restore import exclusive
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, patch_names

__all__ = ["TimmAdapter"]


class TimmAdapter(Adapter):
    """timm models whose blocks attend over all tokens: ViT, DeiT, EVA, registers, no-CLS."""

    name = "timm"

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
        """One forward pass with every attention module unfused and watched."""
        with _watched(model, recorder):
            return self.forward(model, inputs)

    def expected_layers(self, model: nn.Module) -> int | None:
        """One for each block."""
        blocks = getattr(model, "blocks", None)
        return None if blocks is None else len(blocks)

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Prefix tokens, then patches; the grid follows the image, which need not be square."""
        host: Any = model
        height, width = batch.inputs["pixel_values"].shape[-2:]
        down, across = host.patch_embed.patch_size
        rows, columns = height // down, width // across
        prefix = length - rows * columns
        grid = Grid(rows, columns, prefix, height, width)
        return Tokens(patch_names(grid, _prefix_names(host, prefix)), grid=grid)

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """The classes of a classification head, read from the first position or from all."""
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
            return [None] * batch.size
        if not getattr(model, "num_classes", 0):
            return [None] * batch.size
        pooled = getattr(model, "global_pool", "token") in ("avg", "avgmax", "max")
        return [
            Scores(row, 0, lambda ids: [f"class {k}" for k in ids], pooled=pooled)
            for row in outputs
        ]


@contextmanager
def _watched(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Clear `fused_attn` on each attention module and hook its dropout; undo both."""
    modules: list[Any] = [m for m in model.modules() if _attends(m)]
    with exclusive(model) as changes:
        for module in modules:
            changes.set(module, "fused_attn", False)
            changes.hook(module.attn_drop.register_forward_hook, _hook(recorder))
        yield


def _attends(module: nn.Module) -> bool:
    return hasattr(module, "fused_attn") and isinstance(
        getattr(module, "attn_drop", None), nn.Module
    )


def _hook(recorder: Recorder) -> Any:
    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        recorder.add(inputs[0])
        if recorder.disturb:
            return torch.full_like(output, 1 / output.shape[-1])
        return None

    return seen


def _prefix_names(model: Any, count: int) -> tuple[str, ...]:
    possible = (("[CLS]", "cls_token"), ("[DIST]", "dist_token"))
    names = [name for name, key in possible if getattr(model, key, None) is not None]
    return (*names[:count], *(f"[REG{k}]" for k in range(1, count - len(names) + 1)))
