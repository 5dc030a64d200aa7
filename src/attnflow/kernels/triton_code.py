"""What runs on the device: tiles of scores that are formed, used and forgotten.

Written in Triton's language, which looks like Python and is compiled: names in capitals are known
when it is. `triton_kernels` says what the kernels compute and calls them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _log2_scores(products, scale2, cap2, CAPPED: tl.constexpr):
    """Scores in units of log 2, capped as cap · tanh(s / cap)."""
    if CAPPED:
        # products · scale2 is s · log2(e) / cap here, and tanh x = 1 - 2 / (exp(2x) + 1)
        return cap2 * (1 - 2 / (tl.exp2(products * scale2 * 2) + 1))
    return products * scale2


@triton.jit
def _visible(
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
    visible = (keys < n) & (queries < n)
    if BEFORE:
        visible = visible & (keys >= queries - before)
    if AFTER:
        visible = visible & (keys <= queries + after)
    if HIDDEN:
        visible = visible & (tl.load(hidden + keys, mask=keys < n, other=1) == 0)
    return visible


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
def log_sum_exp_kernel(
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
        visible = _visible(rows[:, None], columns[None, :], n, before, after, hidden, BEFORE, AFTER,
                     HIDDEN)  # fmt: skip
        s = tl.where(visible, s, -1e30)
        higher = tl.maximum(largest, tl.max(s, 1))
        p = tl.where(visible, tl.exp2(s - higher[:, None]), 0.0)
        total = total * tl.exp2(largest - higher) + tl.sum(p, 1)
        largest = higher
    sums = tl.where(total > 0, largest + tl.log2(tl.where(total > 0, total, 1.0)), 0.0)
    tl.store(out + head.to(tl.int64) * n + rows, sums, mask=rows < n)


@triton.jit
def spans_up_kernel(
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
    # Both kernels load their heads so: Triton unrolls by constants, and no function returns tiles.
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
                visible = _visible(rows[:, None], columns[None, :], n, before, after, hidden,
                                   BEFORE, AFTER, HIDDEN)  # fmt: skip
                p = tl.where(visible, p, 0.0)
            places = spans + columns[:, None].to(tl.int64) * S + columns_of_spans[None, :]
            if phase == 1:
                c = tl.load(places)
            else:
                c = tl.load(places, mask=columns[:, None] < n, other=0.0)
            product = tl.dot(p.to(c.dtype), c, product, input_precision=PRECISION)
    places = out + (part * n + rows[:, None]) * count + columns_of_spans[None, :]
    tl.store(places, product, mask=inside[:, None] & (columns_of_spans[None, :] < count))


@triton.jit
def rows_down_kernel(
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
                    lse = tl.load(sums + (head + h) * n + rows)
                else:
                    q = _tile(query + (head + h) * sqh, rows, width, sqn, sqd, n, D, True)
                    lse = tl.load(sums + (head + h) * n + rows, mask=rows < n, other=1e30)
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
                weight = tl.exp2(_log2_scores(s, scale2, cap2, CAPPED) - lse[None, :])
                if GRADIENT:
                    g = _tile(gradient + (head + h) * sgh, rows, value_width, sgn, sgd, n, V, True)
                    weight *= tl.dot(v, tl.trans(g), input_precision=PRECISION)
                    weight = tl.maximum(weight, 0.0)
                p += weight
            if phase != 1:
                visible = _visible(rows[None, :], keys[:, None], n, before, after, hidden,
                                   BEFORE, AFTER, HIDDEN)  # fmt: skip
                p = tl.where(visible, p, 0.0)
            places = vectors + rows[:, None].to(tl.int64) * T + targets[None, :]
            if phase == 1:
                r = tl.load(places)
            else:
                r = tl.load(places, mask=rows[:, None] < n, other=0.0)
            product = tl.dot(p.to(r.dtype), r, product, input_precision=PRECISION)
    places = out + (part * count + targets[None, :]) * n + keys[:, None]
    tl.store(places, product, mask=(keys[:, None] < n) & (targets[None, :] < count))
