"""The three products as Triton kernels, for CUDA.

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
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from attnflow.kernels.factors import Factors

__all__ = ["Tiles", "gradient_rows_down", "log_sum_exp", "rows_down", "spans_up"]

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
# For wider heads, smaller chips and float32, whose tiles take more memory.
_SMALLER = (Tiles(64, 64, heads=2, warps=4, stages=2), Tiles(64, 32, heads=1, warps=4, stages=1))
_SMALLEST = Tiles(32, 32, heads=1, warps=4, stages=1)


@triton.jit
def _log2_scores(products, scale2, cap2, CAPPED: tl.constexpr):
    """Scores in units of log 2, capped as cap · tanh(s / cap)."""
    if CAPPED:
        # products · scale2 is s · log2(e) / cap here, and tanh x = 1 - 2 / (exp(2x) + 1)
        return cap2 * (1 - 2 / (tl.exp2(products * scale2 * 2) + 1))
    return products * scale2


@triton.jit
def _seen(
    queries,
    keys,
    n,
    before,
    after,
    hidden,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    """Which of these keys these queries see; both broadcast against each other."""
    seen = (keys < n) & (queries < n)
    if BEFORE:
        seen = seen & (keys >= queries - before)
    if AFTER:
        seen = seen & (keys <= queries + after)
    if HIDDEN:
        seen = seen & (tl.load(hidden + keys, mask=keys < n, other=1) == 0)
    return seen


@triton.jit
def _tile(base, positions, width, stride_n, stride_d, n, D: tl.constexpr, CHECKED: tl.constexpr):
    """`(positions, D)` of one head, zeros where there is nothing."""
    columns = tl.arange(0, D)
    places = base + positions[:, None].to(tl.int64) * stride_n + columns[None, :] * stride_d
    if CHECKED:
        return tl.load(
            places, mask=(positions[:, None] < n) & (columns[None, :] < width), other=0.0
        )
    return tl.load(places)


@triton.jit
def _log_sum_exp_kernel(
    query, key, hidden, out, n, width, scale2, cap2, before, after,
    sqh, sqn, sqd, skh, skn, skd,
    GROUPS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr, CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`(heads, n)`: the logarithm to base 2 of each row's sum; 0 for a row that sees nothing."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    head = tl.program_id(1)
    rows = first + tl.arange(0, M)
    q = _tile(query + head.to(tl.int64) * sqh, rows, width, sqn, sqd, n, D, True)
    largest = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    begin, end = 0, n
    if BEFORE:
        begin = tl.maximum(0, first - before) // N * N
    if AFTER:
        end = tl.minimum(n, first + M + after)
    keys_of_head = key + (head // GROUPS).to(tl.int64) * skh
    for start in range(begin, end, N):
        columns = start + tl.arange(0, N)
        k = _tile(keys_of_head, columns, width, skn, skd, n, D, True)
        s = _log2_scores(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale2, cap2, CAPPED)
        seen = _seen(rows[:, None], columns[None, :], n, before, after, hidden, BEFORE, AFTER,
                     HIDDEN)  # fmt: skip
        s = tl.where(seen, s, -1e30)
        higher = tl.maximum(largest, tl.max(s, 1))
        p = tl.where(seen, tl.exp2(s - higher[:, None]), 0.0)
        total = total * tl.exp2(largest - higher) + tl.sum(p, 1)
        largest = higher
    sums = tl.where(total > 0, largest + tl.log2(tl.where(total > 0, total, 1.0)), 0.0)
    tl.store(out + head.to(tl.int64) * n + rows, sums, mask=rows < n)


@triton.jit
def _spans_up_kernel(
    query, key, sums, spans, hidden, out, n, width, count, scale2, cap2, before, after,
    sqh, sqn, sqd, skh, skn, skd,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    S: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr,
    CAPPED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """`out[part, n, count]`: the weights of HEADS heads, summed, times the spans."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M  # the longest rows begin first
    part = tl.program_id(1).to(tl.int64)
    head = part * HEADS
    rows = first + tl.arange(0, M)
    inside = rows < n
    q0 = _tile(query + head * sqh, rows, width, sqn, sqd, n, D, True)
    l0 = tl.load(sums + head * n + rows, mask=inside, other=1e30)
    if HEADS > 1:
        q1 = _tile(query + (head + 1) * sqh, rows, width, sqn, sqd, n, D, True)
        l1 = tl.load(sums + (head + 1) * n + rows, mask=inside, other=1e30)
    if HEADS > 2:
        q2 = _tile(query + (head + 2) * sqh, rows, width, sqn, sqd, n, D, True)
        l2 = tl.load(sums + (head + 2) * n + rows, mask=inside, other=1e30)
    if HEADS > 3:
        q3 = _tile(query + (head + 3) * sqh, rows, width, sqn, sqd, n, D, True)
        l3 = tl.load(sums + (head + 3) * n + rows, mask=inside, other=1e30)
    keys_of_head = key + (head // GROUPS) * skh
    columns_of_spans = tl.arange(0, S)
    product = tl.zeros((M, S), tl.float32)
    begin, end = 0, n
    if BEFORE:
        begin = tl.maximum(0, first - before) // N * N
    if AFTER:
        end = tl.minimum(n, first + M + after)
    # tiles from `free` up to `bound` are seen by every row: they need no mask
    free, bound = begin, n // N * N
    if BEFORE:
        free = tl.minimum(end, tl.cdiv(tl.maximum(0, first + M - 1 - before), N) * N)
    if AFTER:
        bound = tl.minimum(bound, (first + after + 1) // N * N)
    if HIDDEN:
        bound = free
    bound = tl.maximum(bound, free)
    for phase in tl.static_range(3):
        if phase == 0:
            low, high = begin, free
        elif phase == 1:
            low, high = free, bound
        else:
            low, high = bound, end
        for start in tl.range(low, high, N, num_stages=STAGES if phase == 1 else 1):
            columns = start + tl.arange(0, N)
            if phase == 1:
                k = tl.trans(_tile(keys_of_head, columns, width, skn, skd, n, D, not FULL))
            else:
                k = tl.trans(_tile(keys_of_head, columns, width, skn, skd, n, D, True))
            s = _log2_scores(tl.dot(q0, k, input_precision=PRECISION), scale2, cap2, CAPPED)
            p = tl.exp2(s - l0[:, None])
            if HEADS > 1:
                s = _log2_scores(tl.dot(q1, k, input_precision=PRECISION), scale2, cap2, CAPPED)
                p += tl.exp2(s - l1[:, None])
            if HEADS > 2:
                s = _log2_scores(tl.dot(q2, k, input_precision=PRECISION), scale2, cap2, CAPPED)
                p += tl.exp2(s - l2[:, None])
            if HEADS > 3:
                s = _log2_scores(tl.dot(q3, k, input_precision=PRECISION), scale2, cap2, CAPPED)
                p += tl.exp2(s - l3[:, None])
            if phase != 1:
                seen = _seen(rows[:, None], columns[None, :], n, before, after, hidden, BEFORE,
                             AFTER, HIDDEN)  # fmt: skip
                p = tl.where(seen, p, 0.0)
            places = spans + columns[:, None].to(tl.int64) * S + columns_of_spans[None, :]
            if phase == 1:
                c = tl.load(places)
            else:
                c = tl.load(places, mask=columns[:, None] < n, other=0.0)
            product = tl.dot(p.to(c.dtype), c, product, input_precision=PRECISION)
    places = out + (part * n + rows[:, None]) * count + columns_of_spans[None, :]
    tl.store(places, product, mask=inside[:, None] & (columns_of_spans[None, :] < count))


@triton.jit
def _rows_down_kernel(
    query, key, value, gradient, sums, vectors, hidden, out,
    n, width, value_width, count, scale2, cap2, before, after,
    sqh, sqn, sqd, skh, skn, skd, svh, svn, svd, sgh, sgn, sgd,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr, CAPPED: tl.constexpr,
    GRADIENT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """`out[part, count, n]`: vectors times the weights of HEADS heads, summed.

    N keys stay and M queries pass. Tiles are transposed, keys by queries, so that a tile of weights
    is the left operand of its product with the vectors, which registers can hold. With GRADIENT a
    weight counts as far as it raises the score.
    """
    first = tl.program_id(0) * N  # the earliest keys are seen most, and begin first
    part = tl.program_id(1).to(tl.int64)
    head = part * HEADS
    keys = first + tl.arange(0, N)
    k = _tile(key + (head // GROUPS) * skh, keys, width, skn, skd, n, D, True)
    if GRADIENT:
        v = _tile(value + (head // GROUPS) * svh, keys, value_width, svn, svd, n, V, True)
    targets = tl.arange(0, T)
    product = tl.zeros((N, T), tl.float32)
    begin, end = 0, n
    if AFTER:
        begin = tl.maximum(0, first - after) // M * M
    if BEFORE:
        end = tl.minimum(n, first + N + before)
    free, bound = begin, n // M * M
    if AFTER:
        free = tl.minimum(end, tl.cdiv(tl.maximum(0, first + N - 1 - after), M) * M)
    if BEFORE:
        bound = tl.minimum(bound, (first + before + 1) // M * M)
    if HIDDEN:
        bound = free
    bound = tl.maximum(bound, free)
    for phase in tl.static_range(3):
        if phase == 0:
            low, high = begin, free
        elif phase == 1:
            low, high = free, bound
        else:
            low, high = bound, end
        for start in tl.range(low, high, M, num_stages=STAGES if phase == 1 else 1):
            rows = start + tl.arange(0, M)
            p = tl.zeros((N, M), tl.float32)
            for h in tl.static_range(HEADS):
                if phase == 1:
                    q = _tile(query + (head + h) * sqh, rows, width, sqn, sqd, n, D, not FULL)
                    l = tl.load(sums + (head + h) * n + rows)
                else:
                    q = _tile(query + (head + h) * sqh, rows, width, sqn, sqd, n, D, True)
                    l = tl.load(sums + (head + h) * n + rows, mask=rows < n, other=1e30)
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
                weight = tl.exp2(_log2_scores(s, scale2, cap2, CAPPED) - l[None, :])
                if GRADIENT:
                    g = _tile(gradient + (head + h) * sgh, rows, value_width, sgn, sgd, n, V, True)
                    weight *= tl.dot(v, tl.trans(g), input_precision=PRECISION)
                    weight = tl.maximum(weight, 0.0)
                p += weight
            if phase != 1:
                seen = _seen(rows[None, :], keys[:, None], n, before, after, hidden, BEFORE, AFTER,
                             HIDDEN)  # fmt: skip
                p = tl.where(seen, p, 0.0)
            places = vectors + rows[:, None].to(tl.int64) * T + targets[None, :]
            if phase == 1:
                r = tl.load(places)
            else:
                r = tl.load(places, mask=rows[:, None] < n, other=0.0)
            product = tl.dot(p.to(r.dtype), r, product, input_precision=PRECISION)
    places = out + (part * count + targets[None, :]) * n + keys[:, None]
    tl.store(places, product, mask=(keys[:, None] < n) & (targets[None, :] < count))


def log_sum_exp(layer: Factors) -> Tensor:
    """`(heads, n)` in float32, sinks included, as `blocks.log_sum_exp` gives it."""
    out = torch.empty(layer.heads, layer.length, device=layer.query.device, dtype=torch.float32)
    tile = 32 if layer.query.dtype == torch.float32 else 64
    grid = (triton.cdiv(layer.length, tile), layer.heads)
    _log_sum_exp_kernel[grid](
        layer.query, layer.key, _hidden(layer), out, layer.length, layer.query.shape[2],
        *_scales(layer), *_reach(layer), *layer.query.stride(), *layer.key.stride(),
        GROUPS=layer.groups, M=tile, N=tile, D=_padded(layer.query.shape[2]),
        num_warps=4, **_flags(layer),
    )  # fmt: skip
    sums = out / _LOG2E
    return sums if layer.sink is None else torch.logaddexp(sums, layer.sink.float()[:, None])


def spans_up(
    layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor, tiles: Tiles = SPANS_UP
) -> Tensor:
    """`(n, spans)`: the weighted mean of the heads' attention times the spans."""
    parts = [
        _fitting(tiles, layer, partial(_spans_up, layer, sums, part, shares))
        for part in spans.split(_WIDEST, dim=1)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _spans_up(layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor, tiles: Tiles) -> Tensor:
    (n, count), heads = spans.shape, _heads_at_once(layer, tiles)
    columns = _padded(count)
    padded = torch.nn.functional.pad(spans.to(_operand(layer)), (0, columns - count))
    out = spans.new_empty(layer.heads // heads, n, count, dtype=torch.float32)
    grid = (triton.cdiv(n, tiles.stationary), layer.heads // heads)
    width = layer.query.shape[2]
    _spans_up_kernel[grid](
        layer.query, layer.key, _weighed(layer, sums, shares), padded.contiguous(), _hidden(layer),
        out, n, width, count, *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(),
        GROUPS=layer.groups, HEADS=heads, M=tiles.stationary, N=tiles.moving, S=columns,
        D=_padded(width), FULL=_padded(width) == width, STAGES=tiles.stages,
        num_warps=tiles.warps, **_flags(layer),
    )  # fmt: skip
    return out.sum(dim=0)


def rows_down(
    layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor, tiles: Tiles = ROWS_DOWN
) -> Tensor:
    """`(targets, n)`: vectors times the weighted mean of the heads' attention."""
    parts = [
        _fitting(tiles, layer, partial(_rows_down, layer, sums, part, shares, False))
        for part in vectors.split(_TARGETS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def gradient_rows_down(
    layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor, tiles: Tiles = GRADIENT_ROWS_DOWN
) -> Tensor:
    """`(targets, n)`: vectors times what each weight adds to the score, where it raises it."""
    parts = [
        _fitting(tiles, layer, partial(_rows_down, layer, sums, part, shares, True))
        for part in vectors.split(_TARGETS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _rows_down(
    layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor, gradient: bool, tiles: Tiles
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
    _rows_down_kernel[grid](
        layer.query, layer.key, value, change, _weighed(layer, sums, shares), padded,
        _hidden(layer), out, n, width, value.shape[2], count, *_scales(layer), *_reach(layer),
        *layer.query.stride(), *layer.key.stride(), *value.stride(), *change.stride(),
        GROUPS=layer.groups, HEADS=heads, N=tiles.stationary, M=tiles.moving, T=targets,
        D=_padded(width), V=_padded(value.shape[2]), FULL=_padded(width) == width,
        GRADIENT=gradient, STAGES=tiles.stages, num_warps=tiles.warps, **_flags(layer),
    )  # fmt: skip
    return out.sum(dim=0).mul_(largest)


def _fitting(tiles: Tiles, layer: Factors, launch: Callable[[Tiles], Tensor]) -> Tensor:
    """The product with these tiles, or with smaller ones where the chip cannot hold them."""
    exact = layer.query.dtype == torch.float32
    for shape in () if exact else (tiles, *_SMALLER):
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
    """What products are multiplied by, and the cap; both in units of log 2."""
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
    """What weights and vectors are multiplied in: float16 would lose the small ones."""
    return torch.float32 if layer.query.dtype == torch.float32 else torch.bfloat16


def _padded(width: int) -> int:
    """The width of a tile: a power of two, as tensor cores take it."""
    return max(16, triton.next_power_of_2(width))
