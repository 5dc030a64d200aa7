"""An image with some of its patches hidden: what takes their place."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from attnflow.tokens import Grid

Hiding = Literal["mean", "blur", "zero"]
_BLURRED = 4  # patches that a blurred pixel is the mean of, along each side


def filling_of(pixels: Tensor, grid: Grid, by: Hiding = "mean") -> Tensor:
    """Return what takes a patch's place: the image's mean colour, the image much blurred, or zero,
    the middle of the range that the model was trained on.
    """
    if by == "zero":
        return torch.zeros_like(pixels)
    if by == "mean":
        return pixels.mean(dim=(-2, -1), keepdim=True).expand_as(pixels)
    height, width = pixels.shape[-2:]
    sides = (max(1, grid.rows // _BLURRED), max(1, grid.columns // _BLURRED))
    small = functional.adaptive_avg_pool2d(pixels.float(), sides)
    blurred = functional.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    return blurred.to(pixels.dtype)


def cover_patches(pixels: Tensor, grid: Grid, patches: Collection[int], filling: Tensor) -> Tensor:
    """Return the pixels (..., height, width) with patches filled; what no patch covers stays."""
    height, width = pixels.shape[-2:]
    mask = torch.zeros(grid.rows * grid.columns, dtype=torch.bool, device=pixels.device)
    mask[list(patches)] = True
    mask = mask.reshape(grid.rows, grid.columns)
    mask = mask.repeat_interleave(height // grid.rows, 0)
    mask = mask.repeat_interleave(width // grid.columns, 1)
    mask = functional.pad(mask, (0, width - mask.shape[1], 0, height - mask.shape[0]))
    return torch.where(mask, filling, pixels)
