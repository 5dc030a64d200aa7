"""The steps a plan is made of: joins and moves between channels, each for all channels at once.

See `construct` for what they are for.  `channels` holds what is left of the straight edges of the
target's and of the source token's channel; every step takes its share of them with `reserve`.

Flow that moves along a *row* is taken off `residual` there, and the row is noted; flow that moves
along a *column*, where the graph has no neighbours in memory, is noted in a vector of its own
(`drawn`).  An edge lies on both.  So a row that is noted has what its columns have drawn taken off,
and a column draws from rows only that are not noted (`FREE`).

Lists of parameters and the ends of loops repeat in the compiled functions of this folder: numba
compiles plain functions of arrays fastest, and a helper for three lines of a loop over arrays
would need as many parameters as the loop.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import NONE, ONE, compiled, inlined, trailing_zeros
from attnflow.maxflow.lanes import (
    LANES,
    add,
    first_of,
    least,
    load,
    members,
    most,
    nothing,
    store,
    subtract,
    total,
)
from attnflow.maxflow.state import (
    COLUMNS,
    DEMAND,
    DRAWN,
    FREE,
    MOVED_IN,
    MOVED_OUT,
    ROOM,
    ROWS,
    SOURCE,
    SUPPLY,
    TARGET,
    UNBOUNDED,
    Integers,
    Short,
)  # fmt: skip

BIG = 5
"""Supplies and demands of at least 2**-BIG of all are worth a row or a column."""
FEW = 5
"""The same for moves by two edges, which take a row and a column for each pair of them."""


@inlined
def narrowest(channels: Integers, which: int, first: int, last: int) -> int:
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
    return min(
        narrowest(channels, TARGET, above + 1, layer), narrowest(channels, SOURCE, 1, below - 1)
    )


@inlined
def join(first: Short, second: Short, room: Short, limit: int) -> int:
    """Flow target -> v along `first`, v -> source along `second`, for all v at once."""
    left = limit
    for k in range(0, room.shape[0], LANES):
        amount = least(least(load(first, k), load(second, k)), load(room, k))
        size = total(amount)
        if size > left:
            amount = first_of(amount, left)
            size = left
        store(first, k, subtract(load(first, k), amount))
        store(second, k, subtract(load(second, k), amount))
        store(room, k, subtract(load(room, k), amount))
        left -= size
        if left == 0:
            break
    return limit - left


@inlined
def spend(edges: Short, demand: Short, arrivals: Short, amount: int) -> int:
    """Spend `amount` along edges into demands; returns what is left of it."""
    for k in range(0, edges.shape[0], LANES):
        sent = least(load(edges, k), load(demand, k))
        size = total(sent)
        if size > amount:
            sent = first_of(sent, amount)
            size = amount
        store(edges, k, subtract(load(edges, k), sent))
        store(demand, k, subtract(load(demand, k), sent))
        store(arrivals, k, add(load(arrivals, k), sent))
        amount -= size
        if amount == 0:
            break
    return amount


@inlined
def note_row(
    residual: Short, plan: Short, rows: Integers, columns: Integers, drawn: Short,
    counts: Integers, m: int, u: int,
) -> None:  # fmt: skip
    """Make `residual` right for the row of node (m, u), and from now on the only record of it."""
    if plan[FREE, m, u] > 0:
        plan[FREE, m, u] = 0
        rows[counts[ROWS]] = (m << 20) | u
        counts[ROWS] += 1
        for c in range(counts[COLUMNS]):
            if columns[c] >> 20 == m:
                residual[m, u, columns[c] & 0xFFFFF] -= drawn[c, u]


@inlined
def note_column(
    plan: Short, columns: Integers, drawn: Short, counts: Integers, m: int, v: int
) -> int:
    """The place of the edges into (m - 1, v) in the list of columns, or -1 when that is full."""
    c = plan[DRAWN, m, v] - 1
    if c < 0:
        c = counts[COLUMNS]
        if c == columns.shape[0]:
            return -1
        counts[COLUMNS] += 1
        columns[c] = (m << 20) | v
        plan[DRAWN, m, v] = c + 1
        for k in range(0, drawn.shape[1], LANES):
            store(drawn[c], k, nothing(drawn))
    return c


@inlined
def push_rows(
    residual: Short, plan: Short, vectors: Short, rows: Integers, columns: Integers,
    drawn: Short, counts: Integers, m: int, large: int, limit: int,
) -> int:  # fmt: skip
    """Push large supplies along their rows of layer `m`; returns the total."""
    supply, demand = vectors[SUPPLY], vectors[DEMAND]
    left = limit
    for k in range(0, supply.shape[0], LANES):
        nodes = members(load(supply, k), large)
        while nodes != NONE and left > 0:
            u = k + trailing_zeros(nodes)
            nodes &= nodes - ONE
            amount = min(supply[u], left)
            note_row(residual, plan, rows, columns, drawn, counts, m, u)
            own = demand[u]
            demand[u] = 0  # the straight edge belongs to the channel
            moved = amount - spend(residual[m, u], demand, plan[MOVED_IN, m], amount)
            demand[u] = own
            supply[u] -= moved
            plan[MOVED_OUT, m, u] += moved
            left -= moved
    return limit - left


@inlined
def pull_columns(
    transposed: Short, plan: Short, vectors: Short, columns: Integers, drawn: Short,
    counts: Integers, m: int, large: int, limit: int,
) -> int:  # fmt: skip
    """Pull supplies along columns of layer `m` into large demands; returns the total."""
    supply, demand = vectors[SUPPLY], vectors[DEMAND]
    free, departures = plan[FREE, m], plan[MOVED_OUT, m]
    left = limit
    for k in range(0, demand.shape[0], LANES):
        nodes = members(load(demand, k), large)
        while nodes != NONE and left > 0:
            v = k + trailing_zeros(nodes)
            nodes &= nodes - ONE
            c = note_column(plan, columns, drawn, counts, m, v)
            if c < 0:
                return limit - left
            own = supply[v]
            supply[v] = 0  # the straight edge belongs to the channel
            amount = min(demand[v], left)
            open_amount = amount
            column, used = transposed[m, v], drawn[c]
            for w in range(0, demand.shape[0], LANES):
                sent = least(
                    least(load(supply, w), load(free, w)), subtract(load(column, w), load(used, w))
                )
                size = total(sent)
                if size > open_amount:
                    sent = first_of(sent, open_amount)
                    size = open_amount
                store(used, w, add(load(used, w), sent))
                store(supply, w, subtract(load(supply, w), sent))
                store(departures, w, add(load(departures, w), sent))
                open_amount -= size
                if open_amount == 0:
                    break
            supply[v] = own
            plan[MOVED_IN, m, v] += amount - open_amount
            demand[v] -= amount - open_amount
            left -= amount - open_amount
    return limit - left


@compiled
def move(
    first: Short, second: Short, givers: Short, takers: Short, transposed: Short, residual: Short,
    plan: Short, vectors: Short, rows: Integers, columns: Integers, drawn: Short,
    counts: Integers, lowest: int, highest: int, lower: int, upper: int, barren: int, limit: int,
) -> int:  # fmt: skip
    """Flow target -> u along `first`, u -> v at one of some layers, v -> source along `second`.

    `givers[u]` and `takers[v]` say how much each channel can be used for it.
    """
    supply, demand = vectors[SUPPLY], vectors[DEMAND]
    n = supply.shape[0]
    supplies = nothing(supply)
    demands = nothing(demand)
    for k in range(0, n, LANES):
        gives = least(load(first, k), load(givers, k))
        takes = most(nothing(demand), least(load(second, k), subtract(load(takers, k), gives)))
        store(supply, k, gives)
        store(demand, k, takes)
        supplies = add(supplies, gives)
        demands = add(demands, takes)
    all_supply, all_demand = total(supplies), total(demands)
    limit = min(limit, min(all_supply, all_demand))
    moved = 0
    for m in range(lowest, highest + 1):
        if moved == limit or m == barren or lower < m < upper:
            continue
        large = ((all_supply - moved) >> BIG) + 1
        moved += push_rows(
            residual, plan, vectors, rows, columns, drawn, counts, m, large, limit - moved
        )
        if moved < limit and m < transposed.shape[0]:
            large = ((all_demand - moved) >> BIG) + 1
            moved += pull_columns(
                transposed, plan, vectors, columns, drawn, counts, m, large, limit - moved
            )
    if moved > 0:
        for k in range(0, n, LANES):
            gives = least(load(first, k), load(givers, k))
            takes = most(nothing(demand), least(load(second, k), subtract(load(takers, k), gives)))
            left = subtract(gives, load(supply, k))
            arrived = subtract(takes, load(demand, k))
            store(first, k, subtract(load(first, k), left))
            store(second, k, subtract(load(second, k), arrived))
            store(givers, k, subtract(load(givers, k), left))
            store(takers, k, subtract(load(takers, k), arrived))
    return moved


@compiled
def move_twice(
    first: Short, second: Short, transposed: Short, residual: Short, plan: Short,
    vectors: Short, rows: Integers, columns: Integers, drawn: Short, counts: Integers,
    upper: int, lower: int, target: int, source: int, limit: int,
) -> int:  # fmt: skip
    """Flow target -> u along `first`, u -> w at layer `upper`, w -> v at `lower`, v -> source.

    For the few channels that are left with much to give or to take and that no edge joins.
    """
    room, supply, demand = vectors[ROOM], vectors[SUPPLY], vectors[DEMAND]
    n = supply.shape[0]
    supplies = nothing(supply)
    demands = nothing(demand)
    for k in range(0, n, LANES):
        gives = least(load(first, k), load(room, k))
        takes = most(nothing(demand), least(load(second, k), subtract(load(room, k), gives)))
        store(supply, k, gives)
        store(demand, k, takes)
        supplies = add(supplies, gives)
        demands = add(demands, takes)
    all_supply, all_demand = total(supplies), total(demands)
    if all_supply == 0 or all_demand == 0:
        return 0
    giving, taking = (all_supply >> FEW) + 1, (all_demand >> FEW) + 1
    free = plan[FREE, lower]
    left = limit
    for a in range(0, n, LANES):
        takers = members(load(demand, a), taking)
        while takers != NONE:
            v = a + trailing_zeros(takers)
            takers &= takers - ONE
            c = note_column(plan, columns, drawn, counts, lower, v)
            if c < 0:
                return limit - left
            column, used = transposed[lower, v], drawn[c]
            for b in range(0, n, LANES):
                givers = members(load(supply, b), giving)
                while givers != NONE:
                    u = b + trailing_zeros(givers)
                    givers &= givers - ONE
                    if u == v:
                        continue
                    # A channel that flow has passed on its way has less room than before.
                    amount = min(min(min(supply[u], demand[v]), min(room[u], room[v])), left)
                    if amount <= 0:
                        continue
                    note_row(residual, plan, rows, columns, drawn, counts, upper, u)
                    row = residual[upper, u]
                    straight, onward, back, short = row[u], row[v], row[target], row[source]
                    row[u] = 0
                    row[v] = 0
                    row[target] = 0
                    row[source] = 0
                    open_amount = amount
                    for k in range(0, n, LANES):
                        sent = least(
                            least(load(row, k), load(free, k)),
                            subtract(load(column, k), load(used, k)),
                        )
                        if upper > lower + 1:
                            sent = least(sent, load(room, k))
                        size = total(sent)
                        if size > open_amount:
                            sent = first_of(sent, open_amount)
                            size = open_amount
                        store(row, k, subtract(load(row, k), sent))
                        store(used, k, add(load(used, k), sent))
                        store(plan[MOVED_IN, upper], k, add(load(plan[MOVED_IN, upper], k), sent))
                        store(plan[MOVED_OUT, lower], k, add(load(plan[MOVED_OUT, lower], k), sent))
                        if upper > lower + 1:
                            store(room, k, subtract(load(room, k), sent))
                        open_amount -= size
                        if open_amount == 0:
                            break
                    row[u] = straight
                    row[v] = onward
                    row[target] = back
                    row[source] = short
                    moved = amount - open_amount
                    plan[MOVED_OUT, upper, u] += moved
                    plan[MOVED_IN, lower, v] += moved
                    first[u] -= moved
                    second[v] -= moved
                    room[u] -= moved
                    room[v] -= moved
                    supply[u] -= moved
                    demand[v] -= moved
                    left -= moved
                    if left == 0:
                        return limit
    return limit - left
