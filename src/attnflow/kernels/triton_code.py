"""The code that runs on the device: tiles of scores that are formed, used and forgotten.

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
    queries, keys, n, before, after, hidden,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """Tell which of these keys these queries see; both broadcast against each other."""
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
def _reach(first, n, back, on, STAYS: tl.constexpr, STEP: tl.constexpr, BACK: tl.constexpr,
           ON: tl.constexpr):  # fmt: skip
    """Where the tiles begin and end that pass a tile of STAYS positions, as far as a band reaches.

    back, on: how far it reaches before and after a position; BACK, ON: whether it ends there.
    """
    begin = tl.maximum(0, first - back) // STEP * STEP if BACK else first * 0
    end = tl.minimum(n, first + STAYS + on) if ON else n
    return begin, end


@triton.jit
def _free(first, begin, end, n, back, on, STAYS: tl.constexpr, STEP: tl.constexpr,
          BACK: tl.constexpr, ON: tl.constexpr, HIDDEN: tl.constexpr):  # fmt: skip
    """Which of these tiles see, or are seen by, every position that stays: they need no mask."""
    free, bound = begin, n // STEP * STEP
    if BACK:
        free = tl.minimum(end, tl.cdiv(tl.maximum(0, first + STAYS - 1 - back), STEP) * STEP)
    if ON:
        bound = tl.minimum(bound, (first + on + 1) // STEP * STEP)
    if HIDDEN:
        bound = free
    return free, tl.maximum(bound, free)


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
    begin, end = _reach(first, n, before, after, M, N, BEFORE, AFTER)
    free, bound = _free(first, begin, end, n, before, after, M, N, BEFORE, AFTER, HIDDEN)
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
    begin, end = _reach(first, n, after, before, N, M, AFTER, BEFORE)
    free, bound = _free(first, begin, end, n, after, before, N, M, AFTER, BEFORE, HIDDEN)
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


@triton.jit
def attend_kernel(
    query, key, value, sink, hidden, out, sums, n, width, value_width, scale2, cap2, before, after,
    sqh, sqn, sqd, skh, skn, skd, svh, svn, svd,
    GROUPS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr, CAPPED: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`out[heads, n, value width]` and, to base 2, `sums[heads, n]`: M queries stay, keys pass."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    head = tl.program_id(1).to(tl.int64)
    rows = first + tl.arange(0, M)
    q = _tile(query + head * sqh, rows, width, sqn, sqd, n, D, True)
    largest = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    if SINK:  # it takes part in the sum and adds nothing
        largest = tl.zeros((M,), tl.float32) + tl.load(sink + head)
        total += 1.0
    product = tl.zeros((M, V), tl.float32)
    begin, end = _reach(first, n, before, after, M, N, BEFORE, AFTER)
    for start in tl.range(begin, end, N, num_stages=STAGES):
        columns = start + tl.arange(0, N)
        k = _tile(key + (head // GROUPS) * skh, columns, width, skn, skd, n, D, True)
        v = _tile(value + (head // GROUPS) * svh, columns, value_width, svn, svd, n, V, True)
        s = _log2_scores(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale2, cap2, CAPPED)
        visible = _visible(rows[:, None], columns[None, :], n, before, after, hidden, BEFORE, AFTER,
                           HIDDEN)  # fmt: skip
        s = tl.where(visible, s, -1e30)
        higher = tl.maximum(largest, tl.max(s, 1))
        p = tl.where(visible, tl.exp2(s - higher[:, None]), 0.0)
        shrunk = tl.exp2(largest - higher)
        total = total * shrunk + tl.sum(p, 1)
        product = product * shrunk[:, None]
        product = tl.dot(p.to(v.dtype), v, product, input_precision=PRECISION)
        largest = higher
    some = total > 0
    total = tl.where(some, total, 1.0)
    places = head * n + rows
    tl.store(sums + places, tl.where(some, largest + tl.log2(total), 0.0), mask=rows < n)
    columns = tl.arange(0, V)
    places = out + places[:, None] * value_width + columns[None, :]
    inside = (rows[:, None] < n) & (columns[None, :] < value_width)
    tl.store(places, (product / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _back_tile(
    q, k, v, g, lse, through, rows, keys, hidden, n, scale2, cap2, before, after,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr, CAPPED: tl.constexpr,
    SECANT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Weights of these rows on these keys, and the gradient of their scores before the scale.

    Both broadcast against each other: (keys, rows) where rows lie along the second axis.
    """
    products = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    s = _log2_scores(products, scale2, cap2, CAPPED)
    visible = _visible(rows[None, :], keys[:, None], n, before, after, hidden, BEFORE, AFTER,
                       HIDDEN)  # fmt: skip
    p = tl.where(visible, tl.exp2(s - lse[None, :]), 0.0)
    change = tl.dot(v, tl.trans(g), input_precision=PRECISION)
    ds = p * (change - through[None, :])
    if CAPPED:
        bent = s / cap2  # tanh(s / cap)
        if SECANT:
            x = products * scale2 * 0.6931471805599453
            small = tl.abs(x) < 1e-3  # where tanh x is x to seven digits
            ds = ds * tl.where(small, 1.0, bent / tl.where(small, 1.0, x))
        else:
            ds = ds * (1 - bent * bent)
    return p, ds


@triton.jit
def attend_back_kernel(
    query, key, value, gradient, sums, through, hidden, out, value_out,
    n, width, value_width, scale2, cap2, before, after,
    sqh, sqn, sqd, skh, skn, skd, svh, svn, svd, sgh, sgn, sgd,
    GROUPS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr, CAPPED: tl.constexpr,
    SECANT: tl.constexpr, OF_KEYS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`blocks.attend_back`, where it is derived, before the scale.

    OF_KEYS: N keys stay and the queries of all heads that share them pass: gradients of keys and
    values. Else M queries stay and keys pass: gradients of queries. Scores are formed twice, and no
    two programs write to the same place, so that results do not depend on their order.
    """
    if OF_KEYS:
        part = tl.program_id(1).to(tl.int64)
        first = tl.program_id(0) * N
        keys = first + tl.arange(0, N)
        k = _tile(key + part * skh, keys, width, skn, skd, n, D, True)
        v = _tile(value + part * svh, keys, value_width, svn, svd, n, V, True)
        of_keys = tl.zeros((N, D), tl.float32)
        of_values = tl.zeros((N, V), tl.float32)
        begin, end = _reach(first, n, after, before, N, M, AFTER, BEFORE)
        for h in range(GROUPS):
            head = part * GROUPS + h
            for start in tl.range(begin, end, M, num_stages=STAGES):
                rows = start + tl.arange(0, M)
                q = _tile(query + head * sqh, rows, width, sqn, sqd, n, D, True)
                g = _tile(gradient + head * sgh, rows, value_width, sgn, sgd, n, V, True)
                lse = tl.load(sums + head * n + rows, mask=rows < n, other=1e30)
                own = tl.load(through + head * n + rows, mask=rows < n, other=0.0)
                p, ds = _back_tile(q, k, v, g, lse, own, rows, keys, hidden, n, scale2, cap2,
                                   before, after, BEFORE, AFTER, HIDDEN, CAPPED, SECANT,
                                   PRECISION)  # fmt: skip
                of_values = tl.dot(p.to(g.dtype), g, of_values, input_precision=PRECISION)
                of_keys = tl.dot(ds.to(q.dtype), q, of_keys, input_precision=PRECISION)
        columns = tl.arange(0, V)
        places = value_out + (part * n + keys[:, None]) * value_width + columns[None, :]
        inside = (keys[:, None] < n) & (columns[None, :] < value_width)
        tl.store(places, of_values.to(value_out.dtype.element_ty), mask=inside)
        stay, result = keys, of_keys
    else:
        part = tl.program_id(1).to(tl.int64)
        first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
        rows = first + tl.arange(0, M)
        q = _tile(query + part * sqh, rows, width, sqn, sqd, n, D, True)
        g = _tile(gradient + part * sgh, rows, value_width, sgn, sgd, n, V, True)
        lse = tl.load(sums + part * n + rows, mask=rows < n, other=1e30)
        own = tl.load(through + part * n + rows, mask=rows < n, other=0.0)
        of_queries = tl.zeros((M, D), tl.float32)
        begin, end = _reach(first, n, before, after, M, N, BEFORE, AFTER)
        for start in tl.range(begin, end, N, num_stages=STAGES):
            keys = start + tl.arange(0, N)
            k = _tile(key + (part // GROUPS) * skh, keys, width, skn, skd, n, D, True)
            v = _tile(value + (part // GROUPS) * svh, keys, value_width, svn, svd, n, V, True)
            p, ds = _back_tile(q, k, v, g, lse, own, rows, keys, hidden, n, scale2, cap2,
                               before, after, BEFORE, AFTER, HIDDEN, CAPPED, SECANT,
                               PRECISION)  # fmt: skip
            of_queries = tl.dot(tl.trans(ds.to(k.dtype)), k, of_queries, input_precision=PRECISION)
        stay, result = rows, of_queries
    columns = tl.arange(0, D)
    places = out + (part * n + stay[:, None]) * width + columns[None, :]
    inside = (stay[:, None] < n) & (columns[None, :] < width)
    tl.store(places, result.to(out.dtype.element_ty), mask=inside)
