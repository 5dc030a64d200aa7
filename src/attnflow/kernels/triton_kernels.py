"""The products, and attention itself, as Triton kernels, for CUDA.

All of them walk over tiles of scores and never store one. A program holds the tiles of several
query heads that share a key head: it sums their weights in registers, and multiplies the sum with
the vectors or spans once. A head's share is added to its log-sum-exp, so that weighing heads costs
nothing, and a learned sink is in the log-sum-exp already. Every program writes its own part of the
result and the parts are added afterwards, so results do not depend on the order of programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

from attnflow.kernels.blocks import Factors
from attnflow.kernels.triton_code import (
    attend_back_kernel,
    attend_kernel,
    rows_down_kernel,
    spans_up_kernel,
)

Result = TypeVar("Result")

_LOG2E = 1.4426950408889634
_NOTHING = 1e30  # subtracted from a score in place of a log-sum-exp: the weight is then 0
_WIDEST = 128  # spans, or 64 targets, of one launch
_TARGETS = 64


@dataclass(frozen=True)
class Tiles:
    """The shape of a program's work.

    stationary, moving: positions of the tile that stays and of those that pass. heads: query heads
    whose weights one program sums, at most. warps, stages: as Triton names them.
    """

    stationary: int = 64
    moving: int = 64
    heads: int = 4
    warps: int = 4
    stages: int = 2


# Fastest of some forty shapes on an H200 with eight key heads of four query heads, width 128.
SPANS_UP = Tiles(128, 64, heads=4, warps=8, stages=3)
ROWS_DOWN = Tiles(128, 64, heads=4, warps=8, stages=2)
GRADIENT_ROWS_DOWN = Tiles(128, 64, heads=2, warps=8, stages=2)
ATTEND = Tiles(128, 64, warps=8, stages=3)
ATTEND_BACK = Tiles(64, 64, warps=4, stages=2)
# For wider heads, smaller chips and float32, whose tiles take more memory.
_SMALLER = (Tiles(64, 64, heads=2, warps=4, stages=2), Tiles(64, 32, heads=1, warps=4, stages=1))
_SMALLEST = Tiles(32, 32, heads=1, warps=4, stages=1)


def attend(layer: Factors, value: Tensor, tiles: Tiles | None = None) -> tuple[Tensor, Tensor]:
    """`(heads, n, value width)` and `(heads, n)`: the output, and each row's log-sum-exp."""
    return _fitting(tiles, ATTEND, layer, partial(_attend, layer, value))


def _attend(layer: Factors, value: Tensor, tiles: Tiles) -> tuple[Tensor, Tensor]:
    n, width, value_width = *layer.query.shape[1:], value.shape[2]
    out = value.new_empty(layer.heads, n, value_width)
    sums = torch.empty(layer.heads, n, device=value.device, dtype=torch.float32)
    sink = sums if layer.sink is None else (layer.sink.float() * _LOG2E).to(value.device)
    attend_kernel[(triton.cdiv(n, tiles.stationary), layer.heads)](
        layer.query, layer.key, value, sink, _hidden(layer), out, sums, n, width, value_width,
        *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(), *value.stride(),
        GROUPS=layer.groups, D=_padded(width), V=_padded(value_width), M=tiles.stationary,
        N=tiles.moving, SINK=layer.sink is not None, STAGES=tiles.stages, num_warps=tiles.warps,
        **_flags(layer),
    )  # fmt: skip
    return out, sums.div_(_LOG2E)


def attend_back(
    layer: Factors,
    sums: Tensor,
    output: Tensor,
    *,
    secant: bool = False,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, as `blocks.attend_back` derives them."""
    value, gradient = layer.gradient_factors()
    through = (gradient * output).sum(dim=-1, dtype=torch.float32).contiguous()
    sums = (sums * _LOG2E).contiguous()
    query, key, values = (
        torch.empty(part.shape, device=part.device, dtype=part.dtype)
        for part in (layer.query, layer.key, value)
    )
    for_keys = partial(_back, layer, sums, through, secant, (key, values))
    for_queries = partial(_back, layer, sums, through, secant, (query, query))
    for launch in (for_keys, for_queries):
        _fitting(tiles, ATTEND_BACK, layer, launch)
    return query.mul_(layer.scale), key.mul_(layer.scale), values


def _back(
    layer: Factors,
    sums: Tensor,
    through: Tensor,
    secant: bool,
    outs: tuple[Tensor, Tensor],
    tiles: Tiles,
) -> None:
    value, gradient = layer.gradient_factors()
    n, width = layer.query.shape[1:]
    of_keys = outs[0] is not outs[1]
    stay, move = tiles.stationary, tiles.moving
    grid = (triton.cdiv(n, stay), outs[0].shape[0])
    attend_back_kernel[grid](
        layer.query, layer.key, value, gradient, sums, through, _hidden(layer), *outs,
        n, width, value.shape[2], *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(), *value.stride(), *gradient.stride(),
        GROUPS=layer.groups, D=_padded(width), V=_padded(value.shape[2]),
        M=move if of_keys else stay, N=stay if of_keys else move, SECANT=secant, OF_KEYS=of_keys,
        STAGES=tiles.stages, num_warps=tiles.warps, **_flags(layer),
    )  # fmt: skip


def spans_up(
    layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor, tiles: Tiles | None = None
) -> Tensor:
    """`(n, spans)`: the weighted mean of the heads' attention times the spans."""
    parts = [
        _fitting(tiles, SPANS_UP, layer, partial(_spans_up, layer, sums, part, shares))
        for part in spans.split(_WIDEST, dim=1)
    ]
    return torch.cat(parts, dim=1)


def _spans_up(layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor, tiles: Tiles) -> Tensor:
    (n, count), heads = spans.shape, _heads_at_once(layer, tiles)
    columns = _padded(count)
    padded = torch.nn.functional.pad(spans.to(_operand(layer)), (0, columns - count))
    out = spans.new_empty(layer.heads // heads, n, count, dtype=torch.float32)
    grid = (triton.cdiv(n, tiles.stationary), layer.heads // heads)
    width = layer.query.shape[2]
    spans_up_kernel[grid](
        layer.query, layer.key, _weighed(layer, sums, shares), padded.contiguous(), _hidden(layer),
        out, n, width, count, *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(),
        GROUPS=layer.groups, HEADS=heads, M=tiles.stationary, N=tiles.moving, S=columns,
        D=_padded(width), FULL=_padded(width) == width, STAGES=tiles.stages,
        num_warps=tiles.warps, **_flags(layer),
    )  # fmt: skip
    return out.sum(dim=0)


def rows_down(
    layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor, tiles: Tiles | None = None
) -> Tensor:
    """`(targets, n)`: vectors times the weighted mean of the heads' attention."""
    launch, usual = partial(_rows_down, layer, sums, shares, False), ROWS_DOWN
    return torch.cat(
        [_fitting(tiles, usual, layer, partial(launch, part)) for part in vectors.split(_TARGETS)]
    )


def gradient_rows_down(
    layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor, tiles: Tiles | None = None
) -> Tensor:
    """`(targets, n)`: vectors times what each weight adds to the score, where it raises it."""
    launch, usual = partial(_rows_down, layer, sums, shares, True), GRADIENT_ROWS_DOWN
    return torch.cat(
        [_fitting(tiles, usual, layer, partial(launch, part)) for part in vectors.split(_TARGETS)]
    )


def _rows_down(
    layer: Factors, sums: Tensor, shares: Tensor, gradient: bool, vectors: Tensor, tiles: Tiles
) -> Tensor:
    heads, (count, n) = _heads_at_once(layer, tiles), vectors.shape
    targets, width = _padded(count), layer.query.shape[2]
    # the product is linear in its vectors: scaled to at most 1, no number of theirs is too large
    largest = vectors.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
    turned = (vectors / largest).to(_operand(layer)).t()
    padded = torch.nn.functional.pad(turned, (0, targets - count)).contiguous()
    value, change = layer.gradient_factors() if gradient else (layer.key, layer.query)
    out = vectors.new_empty(layer.heads // heads, count, n, dtype=torch.float32)
    grid = (triton.cdiv(n, tiles.stationary), layer.heads // heads)
    rows_down_kernel[grid](
        layer.query, layer.key, value, change, _weighed(layer, sums, shares), padded,
        _hidden(layer), out, n, width, value.shape[2], count, *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(), *value.stride(), *change.stride(),
        GROUPS=layer.groups, HEADS=heads, N=tiles.stationary, M=tiles.moving, T=targets,
        D=_padded(width), V=_padded(value.shape[2]), FULL=_padded(width) == width,
        GRADIENT=gradient, STAGES=tiles.stages, num_warps=tiles.warps, **_flags(layer),
    )  # fmt: skip
    return out.sum(dim=0).mul_(largest)


def _fitting(
    tiles: Tiles | None, usual: Tiles, layer: Factors, launch: Callable[[Tiles], Result]
) -> Result:
    """The product with these tiles; else with the usual or the next smaller that the chip holds."""
    if tiles is not None:
        return launch(tiles)
    exact = layer.query.dtype == torch.float32
    for shape in () if exact else (usual, *_SMALLER):
        try:
            return launch(shape)
        except OutOfResources:
            continue
    return launch(_SMALLEST)


def _heads_at_once(layer: Factors, tiles: Tiles) -> int:
    """The most heads of one group that a program can take together."""
    return max(k for k in range(1, min(tiles.heads, 4) + 1) if layer.groups % k == 0)


def _weighed(layer: Factors, sums: Tensor, shares: Tensor) -> Tensor:
    """`(heads, n)`: what is subtracted from a score, in units of log 2, to weigh its head too."""
    weighed = (sums - layer.log_shares(shares)) * _LOG2E
    return weighed.clamp(max=_NOTHING).contiguous()


def _hidden(layer: Factors) -> Tensor:
    return layer.query if layer.hidden is None else layer.hidden.to(torch.int8)


def _scales(layer: Factors) -> tuple[float, float]:
    """Return the factor of products, and the cap; both in units of log 2."""
    if layer.softcap is None:
        return layer.scale * _LOG2E, 0.0
    return layer.scale * _LOG2E / layer.softcap, layer.softcap * _LOG2E


def _reach(layer: Factors) -> tuple[int, int]:
    return layer.band.before or 0, layer.band.after or 0


def _flags(layer: Factors) -> dict[str, Any]:
    exact = layer.query.dtype == torch.float32
    return {
        "BEFORE": layer.band.before is not None,
        "AFTER": layer.band.after is not None,
        "HIDDEN": layer.hidden is not None,
        "CAPPED": layer.softcap is not None,
        "PRECISION": "ieee" if exact else "tf32",
    }


def _operand(layer: Factors) -> torch.dtype:
    """Return the type that weights and vectors are multiplied in: float16 would lose small ones."""
    return torch.float32 if layer.query.dtype == torch.float32 else torch.bfloat16


def _padded(width: int) -> int:
    """The width of a tile: a power of two, as tensor cores take it."""
    return max(16, triton.next_power_of_2(width))
