"""The positions of a vision model: what stands before the patches, then the patches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnflow.errors import CaptureError
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, patch_names

__all__ = ["name_patches"]


def name_patches(config: Any, pixels: Tensor, length: int) -> Tokens:
    """Names of `length` positions over pixels (batch, channels, height, width)."""
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", config)
    size = vision.patch_size
    down, across = size if isinstance(size, (tuple, list)) else (size, size)
    height, width = pixels.shape[-2:]
    rows, columns = height // down, width // across
    prefix = length - rows * columns
    if prefix < 0:
        raise CaptureError(f"{length} positions for {rows} × {columns} patches.")
    grid = Grid(rows, columns, prefix, height, width)
    return Tokens(patch_names(grid, _prefix_names(prefix, config.model_type == "deit")), grid=grid)


def _prefix_names(count: int, distilled: bool) -> tuple[str, ...]:
    """Class token, then the distillation token or registers."""
    if distilled:
        return ("[CLS]", "[DIST]")
    return (*["[CLS]"][:count], *(f"[REG{k}]" for k in range(1, count)))
