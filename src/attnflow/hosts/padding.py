"""Padding: where it is, and how to move it to the side where it shifts no position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnflow.errors import TokensError

__all__ = ["kept_positions", "padding_to_the_right"]


def kept_positions(mask: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
    """The positions of each example that are not padding; None if there is no mask."""
    if mask is None or mask.ndim != 2:
        return None
    positions = tuple(tuple(torch.nonzero(row)[:, 0].tolist()) for row in mask)
    if not all(positions):
        raise TokensError("An example consists of padding only; nothing is left to explain.")
    return positions


def padding_to_the_right(
    inputs: Mapping[str, Tensor], mask_name: str, prefix: str = ""
) -> dict[str, Tensor]:
    """Roll every (batch, length) input of an example so that its padding comes last.

    A model without explicit positions counts them from the first token, padding included, so a
    left-padded example would not be the example alone. Rolled, it is.
    """
    mask = inputs.get(mask_name)
    aligned = dict(inputs)
    if mask is None or mask.ndim != 2 or bool(mask[:, 0].all()):
        return aligned
    shifts = mask.long().argmax(dim=1)
    for name, value in inputs.items():
        if value.shape == mask.shape and name.startswith("decoder_") == (prefix == "decoder_"):
            rows = [row.roll(-int(k)) for row, k in zip(value, shifts, strict=True)]
            aligned[name] = torch.stack(rows)
    return aligned
