"""The compiled solver: a plan from vectors, and the exact search where the plan falls short."""

from __future__ import annotations

from attnflow.maxflow.compiled import compiled
from attnflow.maxflow.construct import commit, draw_plan, drop_plan
from attnflow.maxflow.search import clean, search
from attnflow.maxflow.state import UNBOUNDED, Graph, Integers, Work

__all__ = ["solve_open", "solve_run"]

CONSTRUCTED, SEARCHED = 2, 3


@compiled
def solve_run(
    graph: Graph, work: Work, layer: int, targets: Integers, sources: Integers,
    ceilings: Integers, slack: int, lower: Integers, upper: Integers, how: Integers,
) -> None:  # fmt: skip
    """Maximum flows of many pairs at one layer >= 2.

    `ceilings` are known upper bounds; a flow within `slack` of its ceiling is accepted.
    """
    capacity, transposed, positive, channel, _, _, barren = graph
    (
        residual, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest, path,
        touched, rows, counts, plan, channels, vectors,
    ) = work  # fmt: skip
    for t in range(targets.shape[0]):
        target, source, enough = targets[t], sources[t], ceilings[t] - slack
        value = draw_plan(
            capacity, transposed, channel, residual, plan, vectors, channels, rows,
            touched, counts, barren, layer, target, source, enough,
        )  # fmt: skip
        upper[t] = ceilings[t]
        how[t] = CONSTRUCTED
        if value < enough:
            how[t] = SEARCHED
            commit(
                capacity, transposed, residual, forward, backward, touched, counts, ends, plan,
                vectors, channels, rows, layer, target, source,
            )  # fmt: skip
            value, optimal = search(
                capacity, residual, forward, backward, touched, counts, ends, open_ends, unseen,
                slot_nodes, slots, newest, path, layer, value, enough,
            )  # fmt: skip
            if optimal:
                upper[t] = value
            clean(capacity, positive, residual, forward, backward, touched, counts, layer)
        drop_plan(capacity, residual, plan, rows, touched, counts, layer)
        lower[t] = value


def solve_open(graph: Graph, work: Work, layer: int, target: int, source: int) -> int:
    """Solve one pair at layer >= 2 to its minimum cut and leave flow and cut in `work`."""
    value = draw_plan(
        graph.capacity, graph.transposed, graph.channel, work.residual, work.plan, work.vectors,
        work.channels, work.rows, work.touched, work.counts, graph.barren, layer, target, source,
        UNBOUNDED,
    )  # fmt: skip
    commit(
        graph.capacity, graph.transposed, work.residual, work.forward, work.backward,
        work.touched, work.counts, work.ends, work.plan, work.vectors, work.channels, work.rows,
        layer, target, source,
    )  # fmt: skip
    value, _ = search(
        graph.capacity, work.residual, work.forward, work.backward, work.touched, work.counts,
        work.ends, work.open_ends, work.unseen, work.slot_nodes, work.slots, work.newest,
        work.path, layer, value, UNBOUNDED,
    )  # fmt: skip
    return int(value)
