"""Flow on single edges of the residual graph: put there, taken back, and all of it cleaned away."""

from __future__ import annotations

import numpy as np

from attnflow.maxflow.compiled import NONE, bit, compiled, inlined
from attnflow.maxflow.state import TOUCHED, Integers, Words


@inlined
def send_down(
    residual: Integers, flow: Integers, forward: Words, backward: Words, touched: Integers,
    counts: Integers, m: int, u: int, v: int, amount: int,
) -> None:  # fmt: skip
    """Put `amount` on edge (m, u, v), and note the edge for cleaning when it had no flow.

    A full list is not an error: `clean` then resets everything.
    """
    if backward[m, v, u >> 6] & bit(u) == NONE:
        backward[m, v, u >> 6] |= bit(u)
        count = counts[TOUCHED]
        if count < touched.shape[0]:
            touched[count] = (m << 40) | (u << 20) | v
        counts[TOUCHED] = count + 1
    flow[m, u, v] += amount
    left = residual[m, u, v] - amount
    residual[m, u, v] = left
    if left == 0:
        forward[m, u, v >> 6] &= ~bit(v)


@inlined
def take_back(
    residual: Integers, flow: Integers, forward: Words, backward: Words, m: int, u: int, v: int,
    amount: int,
) -> None:  # fmt: skip
    """Take `amount` off the flow of edge (m, u, v)."""
    forward[m, u, v >> 6] |= bit(v)
    residual[m, u, v] += amount
    left = flow[m, u, v] - amount
    flow[m, u, v] = left
    if left == 0:
        backward[m, v, u >> 6] &= ~bit(u)


@compiled
def clean(
    positive: Words, residual: Integers, flow: Integers, forward: Words, backward: Words,
    touched: Integers, counts: Integers, layer: int,
) -> None:  # fmt: skip
    """Back to zero flow.  Edges were noted when flow first entered them."""
    n, words = residual.shape[1], forward.shape[2]
    mask = np.int64((1 << 20) - 1)
    for t in range(min(counts[TOUCHED], touched.shape[0])):
        edge = touched[t]
        m, u, v = edge >> 40, (edge >> 20) & mask, edge & mask
        residual[m, u, v] += flow[m, u, v]
        flow[m, u, v] = 0
        forward[m, u, v >> 6] |= bit(v)
        backward[m, v, u >> 6] = NONE
    if counts[TOUCHED] > touched.shape[0]:  # more than were noted
        for m in range(2, layer):
            for u in range(n):
                for w in range(words):
                    forward[m, u, w] = positive[m, u, w]
                    backward[m, u, w] = NONE
                for v in range(n):
                    residual[m, u, v] += flow[m, u, v]
                    flow[m, u, v] = 0
    counts[TOUCHED] = 0
