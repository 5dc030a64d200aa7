"""One attention block as a sum: the vector each source adds to each target.

The output of attention at position i is `Σ_j Σ_h A^h_ij v^h_j W^h_O + b_O`, so source j adds the
vector `F_i(j) = Σ_h A^h_ij v^h_j W^h_O`, where `v^h_j = x_j W^h_V + b^h_V` is its value. The
residual adds x_i to what i has from itself. A LayerNorm that follows is, once the spread of its
input is known, a linear map apart from its bias: it takes the mean off each vector, divides it by
that spread and multiplies it by gamma. So all these vectors, and the biases, sum to the output.

In a pre-norm block the LayerNorm stands before attention and acts on each position alone: it is
inside the values already, exactly, and nothing that follows would have to be folded in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["FixedNorm", "BlockState", "measure_block"]

_NUMBERS_AT_ONCE = 2**22  # of the vectors of some targets: targets × sources × width


@dataclass(frozen=True, eq=False)
class FixedNorm:
    """A LayerNorm with the spread that its input had in this pass: a linear map but for its bias.

    `spread` (n,) is the root of the variance plus epsilon; `output` (n, width) is what it gave.
    """

    spread: Tensor
    scale: Tensor
    output: Tensor

    @classmethod
    def of(cls, norm: nn.LayerNorm, inputs: Tensor, output: Tensor) -> FixedNorm:
        """From what the module was given and gave, (n, width) each."""
        spread = (inputs.float().var(dim=-1, unbiased=False) + norm.eps).sqrt()
        return cls(spread, norm.weight.float(), output.float())

    def __call__(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """The linear part, on (targets, sources, width)."""
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        return centred / self.spread[rows, None, None] * self.scale


@dataclass(frozen=True, eq=False)
class BlockState:
    """What one block did to one example: everything its vectors are made of.

    `norms` are the LayerNorms that follow attention and that end the block, of a post-norm block;
    a pre-norm block has none.
    """

    inputs: Tensor  # (n, width): the block's input, which the residual carries on
    weights: Tensor  # (heads, n, n)
    projected: Tensor  # (heads, n, width): each head's values through its part of W_O
    bias: Tensor  # (width,): b_O
    norms: tuple[FixedNorm, ...] = ()

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        weights: Tensor,
        values: Tensor,
        projection: Tensor,
        bias: Tensor | None,
        norms: tuple[FixedNorm, ...],
    ) -> BlockState:
        """From values (heads that have their own, n, head width) and W_O (heads × width, width).

        With grouped queries several heads share one value; each gets its own copy.
        """
        heads = len(weights)
        shared = values.float().repeat_interleave(heads // len(values), dim=0)
        by_head = projection.float().reshape(heads, shared.shape[-1], -1)
        offset = torch.zeros_like(inputs[0]) if bias is None else bias
        return cls(inputs.float(), weights.float(), shared @ by_head, offset.float(), norms)

    def attended(self, rows: Tensor) -> Tensor:
        """F: (targets, sources, width)."""
        return torch.einsum("hqk,hkd->qkd", self.weights[:, rows], self.projected)

    def add_residual(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """The target's own input, added in place to what it has from itself."""
        vectors[torch.arange(len(rows), device=rows.device), rows] += self.inputs[rows]
        return vectors


def measure_block(inside: BlockState, names: Collection[str]) -> dict[str, Tensor]:
    """The measurements of these names, (n, n) each, "residual-share" (n,); some targets at a time.

    The vectors are those with the residual, "norms" excepted, which has neither residual nor norm.
    The last LayerNorm is folded in as GlobEnc (Modarressi et al. 2022) does: the feed-forward part
    is left out as a path, since it acts on each position alone, but it is in the spread of that
    LayerNorm's input. `residual-share` is measured on the vectors that leave the block.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for rows in _rows(inside):
        for name, values in _measured_rows(inside, rows).items():
            if name in parts:
                parts[name].append(values)
    return {name: torch.cat(values) for name, values in parts.items()}


def _rows(inside: BlockState) -> Iterator[Tensor]:
    length, width = inside.inputs.shape
    everyone = torch.arange(length, device=inside.inputs.device)
    yield from everyone.split(max(1, _NUMBERS_AT_ONCE // (length * width)))


def _measured_rows(inside: BlockState, rows: Tensor) -> dict[str, Tensor]:
    vectors = inside.attended(rows)
    measurements = {"norms": vectors.norm(dim=-1)}
    vectors = inside.add_residual(vectors, rows)
    measurements["norms-residual"] = vectors.norm(dim=-1)
    if inside.norms:
        first, last = inside.norms
        vectors = first(vectors, rows)
        measurements["norms-layernorm"] = vectors.norm(dim=-1)
        measurements["alti"] = _nearer(vectors, first.output[rows])
        vectors = last(vectors, rows)
        measurements["norms-encoder"] = vectors.norm(dim=-1)
    else:
        measurements["alti"] = _nearer(vectors, vectors.sum(dim=1) + inside.bias)
    measurements["residual-share"] = _own_share(vectors, rows)
    return measurements


def _nearer(vectors: Tensor, output: Tensor) -> Tensor:
    """How much less is missing to the output, in the L1 norm, once a source's vector is there."""
    missing = (output[:, None] - vectors).abs().sum(dim=-1)
    return (output.abs().sum(dim=-1, keepdim=True) - missing).clamp(min=0)


def _own_share(vectors: Tensor, rows: Tensor) -> Tensor:
    """‖own‖ / (‖own‖ + ‖sum of all others‖); a position without any vector is its own."""
    own = vectors[torch.arange(len(rows), device=rows.device), rows]
    others = (vectors.sum(dim=1) - own).norm(dim=-1)
    own_norm = own.norm(dim=-1)
    total = own_norm + others
    return torch.where(total > 0, own_norm / total.clamp(min=torch.finfo(total.dtype).tiny), 1.0)
