"""A nearly maximal flow from vectors only, before any graph is searched.

The residual connection makes the straight edges ``v -> v`` wide, so a position is a *channel* in
which flow can fall from layer to layer.  Three kinds of move then carry nearly everything:

* *join*: out of the target's channel into ``v`` at one layer, straight down, and from ``v`` into
  the source token's channel at a lower layer (one row and one column of the graph);
* *direct*: from the target's channel into the source token's;
* *move*: flow that channel ``u`` could receive but not deliver goes to a channel ``v`` that could
  deliver more than it receives, along an edge of some layer between, or by way of a third channel
  along two.

A plan is drawn in 32 bits: eight numbers at a time, and half as much to read.  Capacities are
rounded down, so it fits the exact graph.  But those of the end that decides the ceiling, the
target's edges or the source token's, are rounded *up*: a plan that uses them all up fits the exact
graph once every path is narrowed to what its edge at that end really has, and then uses up the
exact end.  So a plan can prove that a flow reaches its ceiling, to the last unit.

Only when it does not is it written into the residual graph (`commit`) and handed to the exact
search.  Nothing here needs to be optimal; it only needs to be feasible.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import compiled, inlined
from attnflow.maxflow.edges import send_down
from attnflow.maxflow.lanes import LANES, load, nothing, store
from attnflow.maxflow.moves import join, move, move_twice, narrowest, reserve, widest
from attnflow.maxflow.state import (
    COLUMN,
    COLUMNS,
    DIRECT,
    DRAWN,
    ENTRY,
    EXCESS,
    EXIT,
    FREE,
    MOVED_IN,
    MOVED_OUT,
    NOTED,
    ROOM,
    ROW,
    ROWS,
    SOURCE,
    SUPPLY,
    SURPLUS,
    TARGET,
    UNBOUNDED,
    Coarse,
    Draft,
    Integers,
    Short,
    Words,
)  # fmt: skip

NEAR = 4
"""How many layers below the target and above the tokens the plan uses; enough at any depth."""
CROWD = 256
"""Beyond so many channels, plans begin with the target's own edges."""


@inlined
def span(layer: int, target: int, source: int) -> tuple[int, int]:
    """The lowest layer at which a plan leaves the target's channel, the highest at which it enters
    the source's."""
    if target == source:
        return layer, 1
    return max(2, layer - NEAR), min(layer - 1, 1 + NEAR)


@inlined
def copy(numbers: Short, into: Short) -> None:
    """Copy a row."""
    for k in range(0, into.shape[0], LANES):
        store(into, k, load(numbers, k))


@compiled
def draw_plan(
    capacity: Short, transposed: Short, channel: Short, left: Short, plan: Short,
    vectors: Short, channels: Integers, rows: Integers, columns: Integers, drawn: Short,
    counts: Integers, blocks: Words, barren: int, layer: int, target: int, source: int,
    enough: int,
) -> int:  # fmt: skip
    """Draw the plan for one pair; returns its value.  Stops once at `enough`.

    `vectors` hold the target's edges, `ENTRY`, and those of the source token, `EXIT`.
    """
    room = vectors[ROOM]
    copy(channel[layer], room)
    room[target] = 0
    room[source] = 0
    copy(vectors[ENTRY], plan[ROW, layer])
    copy(vectors[EXIT], plan[COLUMN, 1])
    for m in range(2, layer):
        channels[TARGET, m] = capacity[m, target, target]
        channels[SOURCE, m] = capacity[m, source, source]
        channels[DIRECT, m] = 0
        for k in range(0, room.shape[0], LANES):
            store(plan[MOVED_OUT, m], k, nothing(room))
            store(plan[MOVED_IN, m], k, nothing(room))
    channels[TARGET, 1] = capacity[1, target, target]
    channels[SOURCE, layer] = capacity[layer, source, source]
    channels[TARGET, layer] = vectors[ENTRY, target]
    channels[SOURCE, 1] = vectors[EXIT, source]
    value = join(plan[ROW, layer], plan[COLUMN, 1], room, UNBOUNDED)
    upper, lower = span(layer, target, source)
    if target == source:
        channels[TARGET, 1] = vectors[EXIT, source]
        amount = narrowest(channels, TARGET, 1, layer)
        reserve(channels, layer, 0, 1, amount)
        return value + amount
    for m in range(1, layer + 1):
        if m <= lower or m >= upper:
            edge = capacity[m, target, source]
            if m == layer:
                edge = vectors[ENTRY, source]
            elif m == 1:
                edge = vectors[EXIT, target]
            amount = min(edge, widest(channels, layer, m, m))
            channels[DIRECT, m] = amount
            reserve(channels, layer, m, m, amount)
            value += amount
    for m in range(upper, layer):
        copy(capacity[m, target], plan[ROW, m])
    for m in range(2, lower + 1):
        copy(transposed[m, source], plan[COLUMN, m])
    for fall in range(layer):
        for below in range(1, lower + 1):
            # Among few channels, edges that go with few others come first: what enters late must
            # leave at once.  Among many, the target's own edges are many and thin, and come first.
            above = 1 + fall + below if room.shape[0] <= CROWD else layer - fall
            if above < upper or above > layer or below >= above:
                continue
            limit = widest(channels, layer, above, below)
            if value < enough and limit > 0 and (above < layer or below > 1):
                amount = join(plan[ROW, above], plan[COLUMN, below], room, limit)
                reserve(channels, layer, above, below, amount)
                value += amount
    # The later a move may begin and the earlier it must end, the fewer layers are open to it:
    # those go first.
    for rank in range(2 * NEAR, -1, -1):
        for below in range(1, lower + 1):
            above = layer - rank + below - 1
            if above < upper or above > layer:
                continue
            limit = widest(channels, layer, above, below)
            if limit > 0 and value < enough and above > below + 1:
                amount = move(
                    plan[ROW, above], plan[COLUMN, below], room, room, capacity, transposed, left,
                    plan, vectors, rows, columns, drawn, counts, blocks, below + 1, above - 1,
                    lower, upper, barren, limit,
                )  # fmt: skip
                reserve(channels, layer, above, below, amount)
                value += amount
    # What no edge joins may find a way by two: from u to w, and from there to v.
    for gap in range(1, layer - 2):
        for below in range(1, lower + 1):
            for m in range(below + 1, min(layer - gap, transposed.shape[0])):
                for above in range(layer, max(m + gap, upper - 1), -1):
                    if value >= enough or m == barren or m + gap == barren:
                        continue
                    limit = widest(channels, layer, above, below)
                    if limit > 0:
                        amount = move_twice(
                            plan[ROW, above], plan[COLUMN, below], capacity, transposed, left, plan,
                            vectors, rows, columns, drawn, counts, m + gap, m, target, source,
                            limit,
                        )  # fmt: skip
                        reserve(channels, layer, above, below, amount)
                        value += amount
    return value


@compiled
def plan_pair(
    capacity: Integers, transposed: Integers, coarse: Coarse, draft: Draft, layer: int,
    target: int, source: int, ceiling: int, slack: int, round_up: int,
) -> tuple[int, int]:  # fmt: skip
    """Draw the plan of a pair, of capacities of 64 bits.

    Returns its value and the value, both in units, at which it proves that the flow is within
    `slack` of the `ceiling`: the plan stops there.  round_up: whether an end may be
    rounded up for that, 1 or 0.
    """
    short, short_transposed, channel, shift, barren = coarse
    left, plan, vectors, channels, rows, columns, drawn, counts, blocks = draft
    row, column = capacity[layer, target], transposed[1, source]
    entry, out = vectors[ENTRY], vectors[EXIT]
    sent, received = 0, 0
    for v in range(row.shape[0]):
        sent += row[v]
    for v in range(row.shape[0]):
        received += column[v]
    up = (1 << shift) - 1
    by_target = round_up != 0 and ceiling == sent
    by_source = round_up != 0 and ceiling == received and not by_target
    at_target = up if by_target else 0
    at_source = up if by_source else 0
    for v in range(row.shape[0]):
        entry[v] = (row[v] + at_target) >> shift
    for v in range(row.shape[0]):
        out[v] = (column[v] + at_source) >> shift
    most = (ceiling + up) >> shift
    if by_target or by_source:
        end = entry if by_target else out
        most = 0
        for v in range(row.shape[0]):
            most += end[v]
    # An end that is rounded up and lacks some units lacks at most these of its exact capacity.
    enough = most - (slack >> shift)
    value = draw_plan(
        short, short_transposed, channel, left, plan, vectors, channels, rows, columns, drawn,
        counts, blocks, barren, layer, target, source, enough,
    )  # fmt: skip
    return value, enough


@compiled
def commit(
    capacity: Integers, transposed: Integers, residual: Integers, flow: Integers, forward: Words,
    backward: Words, touched: Integers, counts: Integers, ends: Integers, coarse: Coarse,
    draft: Draft, layer: int, target: int, source: int,
) -> int:  # fmt: skip
    """Write a plan, of which no end was rounded up, into the residual graph; returns its value."""
    short, short_transposed, _, shift, _ = coarse
    left, plan, vectors, channels, rows, columns, drawn, noted, _ = draft
    n = ends.shape[1]
    upper, lower = span(layer, target, source)
    same = target == source
    value = 0
    for v in range(n):
        sent = vectors[ENTRY, v] - plan[ROW, layer, v]
        received = vectors[EXIT, v] - plan[COLUMN, 1, v]
        vectors[SUPPLY, v] = sent
        if v == target:
            sent = vectors[ENTRY, v] - channels[TARGET, layer]
            received = channels[DIRECT, 1]
        if v == source:
            sent = sent if same else channels[DIRECT, layer]
            received = vectors[EXIT, v] - channels[TARGET if same else SOURCE, 1]
        ends[TARGET, v] = capacity[layer, target, v] - (sent << shift)
        ends[SOURCE, v] = transposed[1, source, v] - (received << shift)
        ends[EXCESS, v] = 0
        ends[SURPLUS, v] = 0
        value += sent
    for r in range(noted[ROWS]):
        m, u = rows[r] >> 20, rows[r] & 0xFFFFF
        for v in range(n):
            amount = short[m, u, v] - left[r, v]
            if amount > 0:
                send_down(
                    residual, flow, forward, backward, touched, counts, m, u, v, amount << shift
                )
    for c in range(noted[COLUMNS]):
        m, v = columns[c] >> 20, columns[c] & 0xFFFFF
        for u in range(n):
            amount = drawn[c, u]
            if amount > 0 and plan[FREE, m, u] > 0:  # else it is in the row already
                send_down(
                    residual, flow, forward, backward, touched, counts, m, u, v, amount << shift
                )
    for m in range(layer - 1, 1, -1):
        amount = channels[DIRECT, m]
        if amount > 0:
            send_down(
                residual,
                flow,
                forward,
                backward,
                touched,
                counts,
                m,
                target,
                source,
                amount << shift,
            )
        for v in range(n):
            into, out = 0, 0
            if m >= upper:
                into = short[m, target, v] - plan[ROW, m, v]
            if m <= lower:
                out = short_transposed[m, source, v] - plan[COLUMN, m, v]
            if into > 0:
                send_down(
                    residual, flow, forward, backward, touched, counts, m, target, v, into << shift
                )
            if out > 0:
                send_down(
                    residual, flow, forward, backward, touched, counts, m, v, source, out << shift
                )
            held = vectors[SUPPLY, v] - out - plan[MOVED_OUT, m, v]
            vectors[SUPPLY, v] = held + into + plan[MOVED_IN, m, v]
            if v == target:
                held = short[m, v, v] - channels[TARGET, m]
            elif v == source:
                held = short[m, v, v] - channels[SOURCE, m]
            if held > 0:
                send_down(
                    residual, flow, forward, backward, touched, counts, m, v, v, held << shift
                )
    return value << shift


@inlined
def drop_plan(draft: Draft) -> None:
    """Forget the plan: no row and no column is noted."""
    plan = draft.plan
    for r in range(draft.counts[ROWS]):
        m, u = draft.rows[r] >> 20, draft.rows[r] & 0xFFFFF
        plan[NOTED, m, u] = 0
        plan[FREE, m, u] = plan[FREE, 0, 0]  # which is never noted
    for c in range(draft.counts[COLUMNS]):
        plan[DRAWN, draft.columns[c] >> 20, draft.columns[c] & 0xFFFFF] = 0
    draft.counts[ROWS] = 0
    draft.counts[COLUMNS] = 0
