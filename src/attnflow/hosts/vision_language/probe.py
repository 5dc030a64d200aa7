"""Which position comes from which: found by asking the gradient, not by knowing the family.

Between the last attention of the vision tower and the language model's input every step treats
positions apart: projections, norms, merging of neighbours, pooling, reordering. So each vision
position feeds one image token (or none, such as a dropped class token), and the map between them
is found exactly in log2(tokens) backward passes through the connector alone. Pass k weighs token t
by +1 or -1 according to bit k of t; the gradient at a vision position then keeps or changes its
sign according to the number of the token that it feeds. Where the gradients do not agree with any
such map, the token takes from several overlapping sets (an interpolation), and one backward pass
for each token gives how strongly each position feeds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.errors import UnsupportedModelError

__all__ = ["feeding_matrix", "fed_by"]

_NOWHERE = -1
_SIGN_TOLERANCE = 0.05  # a sign is +1 or -1; half precision leaves some percent
_MOST_TOKENS = 4096  # one backward pass for each, where positions overlap


def fed_by(outputs: Tensor, leaves: Sequence[Tensor]) -> NDArray[np.intp] | None:
    """For each position of the leaves the number of the output that it feeds, -1 for none.

    outputs: (tokens, width). leaves: tensors (..., width) whose last axis belongs to one position;
    their positions are numbered one after the other. None where a position feeds several outputs.
    """
    direction = _direction(outputs)
    base = _gradients(outputs, leaves, direction, torch.ones(len(outputs)))
    size = (base * base).sum(dim=-1)
    connected = size > 0
    numbers = torch.zeros(len(base), dtype=torch.long, device=base.device)
    for bit in range(max(1, (len(outputs) - 1).bit_length())):
        signs = 1.0 - 2.0 * ((torch.arange(len(outputs)) >> bit) & 1).float()
        gradient = _gradients(outputs, leaves, direction, signs)
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
    """(tokens, positions): the share of each position in each output; rows sum to 1, or to 0 for
    an output that no position feeds.

    A token is the mean of the positions that feed it, each of which feeds it alone; where they
    overlap the shares are those of the gradients' lengths.
    """
    numbers = fed_by(outputs, leaves)
    if numbers is None:
        matrix = _by_gradient_lengths(outputs, leaves, name)
    else:
        matrix = np.zeros((len(outputs), len(numbers)))
        positions = np.flatnonzero(numbers >= 0)
        matrix[numbers[positions], positions] = 1.0
    total = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)


def _by_gradient_lengths(
    outputs: Tensor, leaves: Sequence[Tensor], name: str
) -> NDArray[np.float64]:
    if len(outputs) > _MOST_TOKENS:
        raise UnsupportedModelError(
            f"{name} mixes overlapping patches into {len(outputs)} image tokens; up to "
            f"{_MOST_TOKENS} of them can be told apart. Use a smaller image."
        )
    direction = _direction(outputs)
    rows = [
        _gradients(outputs, leaves, direction, token).norm(dim=-1).cpu().numpy()
        for token in torch.eye(len(outputs))
    ]
    return np.stack(rows).astype(np.float64)


def _direction(outputs: Tensor) -> Tensor:
    """One direction for all tokens, by chance: nothing of a model is at right angles to it."""
    noise = torch.Generator().manual_seed(0)
    return torch.randn(outputs.shape[-1], generator=noise).to(outputs)


def _gradients(
    outputs: Tensor, leaves: Sequence[Tensor], direction: Tensor, weights: Tensor
) -> Tensor:
    """(positions, width) in float32: of the weighted sum of the outputs along the direction."""
    score = ((outputs @ direction) * weights.to(outputs)).sum()
    gradients = torch.autograd.grad(score, list(leaves), retain_graph=True, allow_unused=True)
    parts = [
        torch.zeros_like(leaf) if part is None else part
        for leaf, part in zip(leaves, gradients, strict=True)
    ]
    return torch.cat([part.reshape(-1, part.shape[-1]).float() for part in parts])
