"""The steps a plan is made of: joins and moves between channels, each for all channels at once.

See `construct` for what they are for.  `channels` holds what is left of the straight edges of the
target's and of the source token's channel; every step takes its share of them with `reserve`.

A *row* along which flow moves is noted: what is left of its edges is a vector of its own (`left`).
Flow that moves along a *column* is noted in another one (`drawn`).  An edge lies on both.  So a row
that is noted has what its columns have drawn taken off, and a column draws from rows only that are
not noted (`FREE`).

Lists of parameters and the ends of loops repeat in the compiled functions of this folder: numba
compiles plain functions of arrays fastest, and a helper for three lines of a loop over arrays
would need as many parameters as the loop.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import NONE, ONE, bit, compiled, inlined, trailing_zeros
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
    DEMANDS,
    DRAWN,
    FREE,
    MOVED_IN,
    MOVED_OUT,
    NOTED,
    ROOM,
    ROWS,
    SOURCE,
    SUPPLIES,
    SUPPLY,
    TARGET,
    UNBOUNDED,
    Integers,
    Short,
    Words,
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
def mark_block(blocks: Words, which: int, node: int, amount: int) -> None:
    """Mark that a node has some supply or demand: a block that has none is not looked at again."""
    if amount > 0:
        block = node // LANES
        blocks[which, block >> 6] |= bit(block)


@inlined
def spend(edges: Short, demand: Short, arrivals: Short, blocks: Words, amount: int) -> int:
    """Spend `amount` along edges into demands; returns what is left of it."""
    for x in range(blocks.shape[1]):
        marked = blocks[DEMANDS, x]
        while marked != NONE:
            block = (x << 6) + trailing_zeros(marked)
            marked &= marked - ONE
            k = block * LANES
            sent = least(load(edges, k), load(demand, k))
            size = total(sent)
            if size > amount:
                sent = first_of(sent, amount)
                size = amount
            open_demand = subtract(load(demand, k), sent)
            store(edges, k, subtract(load(edges, k), sent))
            store(demand, k, open_demand)
            store(arrivals, k, add(load(arrivals, k), sent))
            if members(open_demand, 1) == NONE:
                blocks[DEMANDS, x] &= ~bit(block)
            amount -= size
            if amount == 0:
                return 0
    return amount


@inlined
def note_row(
    capacity: Short, left: Short, plan: Short, rows: Integers, columns: Integers, drawn: Short,
    counts: Integers, m: int, u: int,
) -> int:  # fmt: skip
    """The place of the row of node (m, u) in `left`, from now on the only record of it; -1 when the
    list of rows is full.
    """
    r = plan[NOTED, m, u] - 1
    if r < 0:
        r = counts[ROWS]
        if r == rows.shape[0]:
            return -1
        counts[ROWS] += 1
        rows[r] = (m << 20) | u
        plan[NOTED, m, u] = r + 1
        plan[FREE, m, u] = 0
        for k in range(0, left.shape[1], LANES):
            store(left[r], k, load(capacity[m, u], k))
        for c in range(counts[COLUMNS]):
            if columns[c] >> 20 == m:
                left[r, columns[c] & 0xFFFFF] -= drawn[c, u]
    return r


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
    capacity: Short, left: Short, plan: Short, vectors: Short, rows: Integers, columns: Integers,
    drawn: Short, counts: Integers, blocks: Words, m: int, large: int, limit: int,
) -> int:  # fmt: skip
    """Push large supplies along their rows of layer `m`; returns the total."""
    supply, demand = vectors[SUPPLY], vectors[DEMAND]
    open_amount = limit
    for k in range(0, supply.shape[0], LANES):
        nodes = members(load(supply, k), large)
        while nodes != NONE and open_amount > 0:
            u = k + trailing_zeros(nodes)
            nodes &= nodes - ONE
            amount = min(supply[u], open_amount)
            r = note_row(capacity, left, plan, rows, columns, drawn, counts, m, u)
            if r < 0:
                return limit - open_amount
            own = demand[u]
            demand[u] = 0  # the straight edge belongs to the channel
            moved = amount - spend(left[r], demand, plan[MOVED_IN, m], blocks, amount)
            demand[u] = own
            mark_block(blocks, DEMANDS, u, own)
            supply[u] -= moved
            plan[MOVED_OUT, m, u] += moved
            open_amount -= moved
    return limit - open_amount


@inlined
def pull_columns(
    transposed: Short, plan: Short, vectors: Short, columns: Integers, drawn: Short,
    counts: Integers, blocks: Words, m: int, large: int, limit: int,
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
            for x in range(blocks.shape[1]):
                marked = blocks[SUPPLIES, x]
                while marked != NONE and open_amount > 0:
                    block = (x << 6) + trailing_zeros(marked)
                    marked &= marked - ONE
                    w = block * LANES
                    sent = least(load(supply, w), load(free, w))
                    sent = least(sent, subtract(load(column, w), load(used, w)))
                    size = total(sent)
                    if size > open_amount:
                        sent = first_of(sent, open_amount)
                        size = open_amount
                    open_supply = subtract(load(supply, w), sent)
                    store(used, w, add(load(used, w), sent))
                    store(supply, w, open_supply)
                    store(departures, w, add(load(departures, w), sent))
                    if members(open_supply, 1) == NONE:
                        blocks[SUPPLIES, x] &= ~bit(block)
                    open_amount -= size
            supply[v] = own
            mark_block(blocks, SUPPLIES, v, own)
            plan[MOVED_IN, m, v] += amount - open_amount
            demand[v] -= amount - open_amount
            left -= amount - open_amount
    return limit - left


@compiled
def move(
    first: Short, second: Short, givers: Short, takers: Short, capacity: Short, transposed: Short,
    left: Short, plan: Short, vectors: Short, rows: Integers, columns: Integers, drawn: Short,
    counts: Integers, blocks: Words, lowest: int, highest: int, lower: int, upper: int,
    barren: int, limit: int,
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
        if k % (64 * LANES) == 0:
            blocks[SUPPLIES, k // (64 * LANES)] = NONE
            blocks[DEMANDS, k // (64 * LANES)] = NONE
        if members(gives, 1) != NONE:
            mark_block(blocks, SUPPLIES, k, 1)
        if members(takes, 1) != NONE:
            mark_block(blocks, DEMANDS, k, 1)
    all_supply, all_demand = total(supplies), total(demands)
    limit = min(limit, min(all_supply, all_demand))
    moved = 0
    for m in range(lowest, highest + 1):
        if moved == limit or m == barren or lower < m < upper:
            continue
        large = ((all_supply - moved) >> BIG) + 1
        moved += push_rows(
            capacity,
            left,
            plan,
            vectors,
            rows,
            columns,
            drawn,
            counts,
            blocks,
            m,
            large,
            limit - moved,
        )
        if moved < limit and m < transposed.shape[0]:
            large = ((all_demand - moved) >> BIG) + 1
            moved += pull_columns(
                transposed, plan, vectors, columns, drawn, counts, blocks, m, large, limit - moved
            )
    if moved > 0:
        for k in range(0, n, LANES):
            gives = least(load(first, k), load(givers, k))
            takes = most(nothing(demand), least(load(second, k), subtract(load(takers, k), gives)))
            sent = subtract(gives, load(supply, k))
            arrived = subtract(takes, load(demand, k))
            store(first, k, subtract(load(first, k), sent))
            store(second, k, subtract(load(second, k), arrived))
            store(givers, k, subtract(load(givers, k), sent))
            store(takers, k, subtract(load(takers, k), arrived))
    return moved


@compiled
def move_twice(
    first: Short, second: Short, capacity: Short, transposed: Short, left: Short, plan: Short,
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
    unmoved = limit
    for a in range(0, n, LANES):
        takers = members(load(demand, a), taking)
        while takers != NONE:
            v = a + trailing_zeros(takers)
            takers &= takers - ONE
            c = note_column(plan, columns, drawn, counts, lower, v)
            if c < 0:
                return limit - unmoved
            column, used = transposed[lower, v], drawn[c]
            for b in range(0, n, LANES):
                givers = members(load(supply, b), giving)
                while givers != NONE:
                    u = b + trailing_zeros(givers)
                    givers &= givers - ONE
                    if u == v:
                        continue
                    # A channel that flow has passed on its way has less room than before.
                    amount = min(min(min(supply[u], demand[v]), min(room[u], room[v])), unmoved)
                    if amount <= 0:
                        continue
                    r = note_row(capacity, left, plan, rows, columns, drawn, counts, upper, u)
                    if r < 0:
                        return limit - unmoved
                    row = left[r]
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
                    unmoved -= moved
                    if unmoved == 0:
                        return limit
    return limit - unmoved
