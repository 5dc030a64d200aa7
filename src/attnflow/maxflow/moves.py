"""The steps a plan is made of: joins and moves between channels, each for all channels at once.

See `construct` for what they are for.  `channels` holds what is left of the straight edges of the
target's and of the source token's channel; every step takes its share of them with `reserve`.

Lists of parameters and the ends of loops repeat in the compiled functions of this folder: numba
compiles plain functions of arrays fastest, and a helper for three lines of a loop over arrays
would need as many parameters as the loop.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import compiled, inlined
from attnflow.maxflow.state import (
    COLUMN,
    DEMAND,
    HELD,
    MOVED_IN,
    MOVED_OUT,
    NOTED,
    OPEN,
    ROW,
    ROWS,
    SOURCE,
    SUPPLY,
    TARGET,
    TOUCHED,
    UNBOUNDED,
    Integers,
)  # fmt: skip

__all__ = [
    "hold",
    "join",
    "least",
    "move",
    "push_few",
    "push_row",
    "push_rows",
    "reserve",
    "widest",
]

BIG = 5
"""Supplies of at least 2**-BIG of all supply are pushed along whole rows, others edge by edge."""
TRIES = 4
"""How many demands a small supply tries."""


@inlined
def least(channels: Integers, which: int, first: int, last: int) -> int:
    """The narrowest edge left in a channel over layers first .. last; unbounded when empty."""
    result = UNBOUNDED
    for m in range(first, last + 1):
        result = min(result, channels[which, m])
    return result


@inlined
def reserve(channels: Integers, layer: int, above: int, below: int, amount: int) -> None:
    """Use the target's channel over layers > `above` and the source's over layers < `below`."""
    for m in range(above + 1, layer + 1):
        channels[TARGET, m] -= amount
    for m in range(1, below):
        channels[SOURCE, m] -= amount


@inlined
def widest(channels: Integers, layer: int, above: int, below: int) -> int:
    """The most that `reserve` may reserve."""
    return min(least(channels, TARGET, above + 1, layer), least(channels, SOURCE, 1, below - 1))


@inlined
def join(
    first: Integers, second: Integers, into: Integers, out: Integers, room: Integers, limit: int
) -> int:
    """Flow target -> v along `first`, v -> source along `second`, for all v at once."""
    n = room.shape[0]
    total = 0
    for v in range(n):
        total += min(min(first[v] - into[v], second[v] - out[v]), room[v])
    if total <= limit:
        for v in range(n):
            amount = min(min(first[v] - into[v], second[v] - out[v]), room[v])
            into[v] += amount
            out[v] += amount
            room[v] -= amount
        return total
    total = limit
    for v in range(n):
        amount = min(min(first[v] - into[v], second[v] - out[v]), min(room[v], limit))
        into[v] += amount
        out[v] += amount
        room[v] -= amount
        limit -= amount
    return total


@inlined
def push_row(row: Integers, demand: Integers, amount: int) -> int:
    """Spend `amount` of supply along one row into the demands; returns what is left of it."""
    n = row.shape[0]
    total = 0
    for v in range(n):
        total += min(row[v], demand[v])
    if total <= amount:
        for v in range(n):
            sent = min(row[v], demand[v])
            row[v] -= sent
            demand[v] -= sent
        return amount - total
    for v in range(n):
        sent = min(min(row[v], demand[v]), amount)
        row[v] -= sent
        demand[v] -= sent
        amount -= sent
        if amount == 0:
            break
    return amount


@inlined
def push_rows(
    residual: Integers, plan: Integers, vectors: Integers, rows: Integers, counts: Integers,
    m: int, at_least: int, limit: int,
) -> int:  # fmt: skip
    """Push supplies of `at_least` or more along their rows of layer `m`; returns the total."""
    demand = vectors[DEMAND]
    total = 0
    for u in range(vectors.shape[1]):
        amount = vectors[SUPPLY, u]
        if amount < at_least:
            continue
        amount = min(amount, limit - total)
        own = demand[u]
        demand[u] = 0  # the straight edge belongs to the channel
        sent = amount - push_row(residual[m, u], demand, amount)
        demand[u] = own
        if sent > 0:
            if plan[NOTED, m, u] == 0:
                plan[NOTED, m, u] = 1
                rows[counts[ROWS]] = (m << 20) | u
                counts[ROWS] += 1
            plan[MOVED_OUT, m, u] += sent
            vectors[SUPPLY, u] -= sent
            total += sent
            if total == limit:
                break
    return total


@inlined
def push_few(
    residual: Integers, plan: Integers, vectors: Integers, touched: Integers, counts: Integers,
    m: int, less_than: int, limit: int,
) -> int:  # fmt: skip
    """Push supplies of `less_than` or less, each into the next few open demands that take it.

    A small supply fits into one or two edges; reading its whole row would cost more than that.
    The demands are taken round robin, so that the same ones are not tried in vain every time.
    """
    demand, waiting = vectors[DEMAND], vectors[OPEN]
    count = 0
    for v in range(vectors.shape[1]):
        if demand[v] > 0:
            waiting[count] = v
            count += 1
    total = 0
    place = 0
    for u in range(vectors.shape[1]):
        supply = vectors[SUPPLY, u]
        if supply == 0 or supply >= less_than:
            continue
        left = min(supply, limit - total)
        for _ in range(TRIES):
            if left == 0 or count == 0 or counts[TOUCHED] >= touched.shape[0]:
                break
            if place >= count:
                place = 0
            v = waiting[place]
            sent = min(min(residual[m, u, v], demand[v]), left)
            if v == u or sent == 0:
                place += 1
                continue
            touched[counts[TOUCHED]] = (m << 40) | (u << 20) | v
            counts[TOUCHED] += 1
            residual[m, u, v] -= sent
            demand[v] -= sent
            left -= sent
            total += sent
            plan[MOVED_OUT, m, u] += sent
            vectors[SUPPLY, u] -= sent
            if demand[v] == 0:
                count -= 1
                waiting[place] = waiting[count]
            else:
                place += 1
        if total == limit:
            break
    return total


@compiled
def move(
    first: Integers, second: Integers, into: Integers, out: Integers, givers: Integers,
    takers: Integers, residual: Integers, plan: Integers, vectors: Integers, rows: Integers,
    touched: Integers, counts: Integers, m: int, limit: int,
) -> int:  # fmt: skip
    """Flow target -> u along `first`, u -> v at layer `m`, v -> source along `second`.

    `givers[u]` and `takers[v]` say how much each channel can be used for it.
    """
    n = vectors.shape[1]
    supply, demand = vectors[SUPPLY], vectors[DEMAND]
    all_supply = 0
    all_demand = 0
    for v in range(n):
        supply[v] = min(first[v] - into[v], givers[v])
        demand[v] = max(0, min(second[v] - out[v], takers[v] - supply[v]))
        all_supply += supply[v]
        all_demand += demand[v]
    if all_supply == 0 or all_demand == 0:
        return 0
    limit = min(limit, all_demand)
    big = (all_supply >> BIG) + 1
    total = push_rows(residual, plan, vectors, rows, counts, m, big, limit)
    if total < limit:
        total += push_few(
            residual, plan, vectors, touched, counts, m, big, limit - total
        )  # fmt: skip
    if total > 0:
        for v in range(n):
            before = min(first[v] - into[v], givers[v])
            arrived = max(0, min(second[v] - out[v], takers[v] - before)) - demand[v]
            left = before - supply[v]
            into[v] += left
            out[v] += arrived
            plan[MOVED_IN, m, v] += arrived
            givers[v] -= left
            takers[v] -= arrived
    return total


@inlined
def hold(plan: Integers, vectors: Integers, layer: int, m: int, target: int, source: int) -> None:
    """HELD: what falls down each channel's straight edge of layer `m`, by the plan so far."""
    held = vectors[HELD]
    for v in range(held.shape[0]):
        held[v] = plan[ROW, layer, v]
    for k in range(layer - 1, m - 1, -1):
        for v in range(held.shape[0]):
            held[v] -= plan[COLUMN, k, v] + plan[MOVED_OUT, k, v]
        if k > m:
            for v in range(held.shape[0]):
                held[v] += plan[ROW, k, v] + plan[MOVED_IN, k, v]
    held[target] = 0
    held[source] = 0
