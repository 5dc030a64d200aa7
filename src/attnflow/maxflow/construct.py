"""A nearly maximal flow from vectors only, before any graph is searched.

The residual connection makes the straight edges ``v -> v`` wide, so a position is a *channel* in
which flow can fall from layer to layer.  Three kinds of move then carry nearly everything:

* *join*: out of the target's channel into ``v`` at one layer, straight down, and from ``v`` into
  the source token's channel at a lower layer (one row and one column of the graph);
* *direct*: from the target's channel into the source token's;
* *move*: flow that channel ``u`` could receive but not deliver goes to a channel ``v`` that could
  deliver more than it receives, along the row of ``u`` at some layer between.

All of it is a plan: vectors of row and column flows, plus lowered `residual`s for the moves.
Only when the plan is not yet provably maximal is it written into the residual graph (`commit`) and
handed to the exact search.  Nothing here needs to be optimal; it only needs to be feasible.
"""

from __future__ import annotations

from attnflow.maxflow.compiled import bit, compiled
from attnflow.maxflow.moves import hold, join, least, move, reserve, widest
from attnflow.maxflow.search import send_down
from attnflow.maxflow.state import (
    COLUMN,
    EXCESS,
    HELD,
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
    TOUCHED,
    UNBOUNDED,
    Integers,
    Words,
)  # fmt: skip

__all__ = ["commit", "draw_plan", "drop_plan", "undo_moves"]

NEAR = 4
"""How many layers below the target and above the tokens the plan uses; enough at any depth."""


@compiled
def draw_plan(
    capacity: Integers, transposed: Integers, channel: Integers, residual: Integers,
    plan: Integers, vectors: Integers, channels: Integers, rows: Integers, touched: Integers,
    counts: Integers, barren: int, layer: int, target: int, source: int, enough: int,
) -> int:  # fmt: skip
    """Draw the plan for one pair (layer >= 3); returns its value.  Stops once at `enough`."""
    room = vectors[ROOM]
    for v in range(room.shape[0]):
        room[v] = channel[layer, v]
    room[target] = 0
    room[source] = 0
    for m in range(1, layer + 1):
        channels[TARGET, m] = capacity[m, target, target]
        channels[SOURCE, m] = capacity[m, source, source]
    value = join(
        capacity[layer, target], transposed[1, source], plan[ROW, layer], plan[COLUMN, 1],
        room, UNBOUNDED,
    )  # fmt: skip
    if target == source:
        amount = least(channels, TARGET, 1, layer)
        reserve(channels, layer, 0, 1, amount)
        channels[TARGET, 0] = amount
        return value + amount
    upper = max(2, layer - NEAR)
    lower = min(layer - 1, 1 + NEAR)
    for m in range(1, layer + 1):
        if m <= lower or m >= upper:
            amount = min(capacity[m, target, source], widest(channels, layer, m, m))
            plan[ROW, m, source] += amount
            reserve(channels, layer, m, m, amount)
            value += amount
    for above in range(layer, upper - 1, -1):
        for below in range(1, min(lower, above - 1) + 1):
            limit = widest(channels, layer, above, below)
            if value < enough and limit > 0 and (above < layer or below > 1):
                amount = join(
                    capacity[above, target], transposed[below, source], plan[ROW, above],
                    plan[COLUMN, below], room, limit,
                )  # fmt: skip
                reserve(channels, layer, above, below, amount)
                value += amount
    # The later a move may begin and the earlier it must end, the fewer layers are open to it:
    # those go first.
    for rank in range(2 * NEAR, -1, -1):
        for below in range(1, lower + 1):
            above = layer - rank + below - 1
            if above < upper or above > layer:
                continue
            for m in range(below + 1, above):
                if (m > lower and m < upper) or m == barren or value >= enough:
                    continue
                limit = widest(channels, layer, above, below)
                if limit > 0:
                    amount = move(
                        capacity[above, target], transposed[below, source], plan[ROW, above],
                        plan[COLUMN, below], room, room, residual, plan, vectors, rows,
                        touched, counts, m, limit,
                    )  # fmt: skip
                    reserve(channels, layer, above, below, amount)
                    value += amount
    # What falls down channel u at layer m can be sent elsewhere there if u is made good for it
    # at the same layer, by the target (above = m); and what falls down v can go to the source
    # (below = m) if v is made good for it by u.
    held = vectors[HELD]
    for m in range(2, layer):
        if (m > lower and m < upper) or m == barren or value >= enough:
            continue
        hold(plan, vectors, layer, m, target, source)
        for above in range(layer, m - 1, -1):
            for below in range(1, m + 1):
                if (above < upper or below > lower or (above > m and below < m)) or value >= enough:
                    continue
                limit = widest(channels, layer, above, below)
                if limit > 0:
                    amount = move(
                        capacity[above, target], transposed[below, source], plan[ROW, above],
                        plan[COLUMN, below], room if above > m else held,
                        room if below < m else held, residual, plan, vectors, rows, touched,
                        counts, m, limit,
                    )  # fmt: skip
                    reserve(channels, layer, above, below, amount)
                    value += amount
    return value


@compiled
def commit(
    capacity: Integers, transposed: Integers, residual: Integers, forward: Words, backward: Words,
    touched: Integers, counts: Integers, ends: Integers, plan: Integers, vectors: Integers,
    channels: Integers, rows: Integers, layer: int, target: int, source: int,
) -> None:  # fmt: skip
    """Write the plan into the residual graph."""
    n = ends.shape[1]
    planned = counts[TOUCHED]
    for v in range(n):
        ends[EXCESS, v] = 0
        ends[SURPLUS, v] = 0
        ends[TARGET, v] = capacity[layer, target, v] - plan[ROW, layer, v]
        ends[SOURCE, v] = transposed[1, source, v] - plan[COLUMN, 1, v]
        vectors[SUPPLY, v] = plan[ROW, layer, v]
    ends[TARGET, target] = channels[TARGET, layer]
    if target == source:
        ends[SOURCE, source] = channels[TARGET, 1]
    else:
        ends[SOURCE, source] = channels[SOURCE, 1]
        ends[SOURCE, target] -= plan[ROW, 1, source]
    for m in range(layer - 1, 1, -1):
        for v in range(n):
            amount = plan[ROW, m, v]
            if amount > 0:
                send_down(residual, forward, backward, touched, counts, m, target, v, amount)
            out = plan[COLUMN, m, v]
            if out > 0:
                send_down(residual, forward, backward, touched, counts, m, v, source, out)
            held = vectors[SUPPLY, v] - out - plan[MOVED_OUT, m, v]
            vectors[SUPPLY, v] = held + amount + plan[MOVED_IN, m, v]
            if v == target:
                held = capacity[m, v, v] - channels[TARGET, m]
            elif v == source:
                held = capacity[m, v, v] - channels[SOURCE, m]
            if held > 0:
                send_down(residual, forward, backward, touched, counts, m, v, v, held)
    for t in range(planned):
        m, u, v = touched[t] >> 40, (touched[t] >> 20) & 0xFFFFF, touched[t] & 0xFFFFF
        backward[m, v, u >> 6] |= bit(u)
        if residual[m, u, v] == 0:
            forward[m, u, v >> 6] &= ~bit(v)
    for t in range(counts[ROWS]):
        m, u = rows[t] >> 20, rows[t] & 0xFFFFF
        for v in range(n):
            left = residual[m, u, v]
            if left < capacity[m, u, v]:
                backward[m, v, u >> 6] |= bit(u)
                if left == 0:
                    forward[m, u, v >> 6] &= ~bit(v)


@compiled
def drop_plan(plan: Integers, layer: int) -> None:
    """Forget the plan: clear every vector `draw_plan` may have written for this layer."""
    for m in range(1, layer + 1):
        if m <= 1 + NEAR or m >= layer - NEAR:
            for v in range(plan.shape[2]):
                plan[ROW, m, v] = 0
                plan[COLUMN, m, v] = 0
                plan[MOVED_OUT, m, v] = 0
                plan[MOVED_IN, m, v] = 0
                plan[NOTED, m, v] = 0


@compiled
def undo_moves(
    capacity: Integers, residual: Integers, rows: Integers, touched: Integers, counts: Integers
) -> None:
    """Back to zero flow on every edge the moves of a plan used, or its search."""
    n = residual.shape[1]
    for t in range(counts[ROWS]):
        m, u = rows[t] >> 20, rows[t] & 0xFFFFF
        for v in range(n):
            residual[m, u, v] = capacity[m, u, v]
    counts[ROWS] = 0
    for t in range(min(counts[TOUCHED], touched.shape[0])):
        m, u, v = touched[t] >> 40, (touched[t] >> 20) & 0xFFFFF, touched[t] & 0xFFFFF
        residual[m, u, v] = capacity[m, u, v]
    counts[TOUCHED] = 0
