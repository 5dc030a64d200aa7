"""One flow for all sources at once, shared out by Shapley's rule.

The sources are players of one game: v(S) is the maximum flow from the target to all inputs of S
together.  The players of S take from node k of layer 1 what their columns add up to, so v(S) is one
maximum flow into one token with the column ``sum of A_1[:, j] over S``: adding a player only opens
edges, and the flow that is there stays and is augmented.  A player's value is what it adds to v, on
average over all orders in which players can join.

* With few players every v(S) is computed, from each subset to the next in Gray's order, where one
  player joins or leaves at a time (see `kernel` for what a change of ends does).
* With more, orders are drawn.  One *block* is an order, the same backwards, and all rotations of
  both: in a block every player joins once in every place, and place is most of what matters.  Each
  order of a block is equally likely to be any order, so the block's mean is an unbiased estimate,
  and blocks are independent of each other: their spread gives Student's interval.

In every order the gains add up to v of all players, so the values of a row add up too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import factorial, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.maxflow.compiled import compiled
from attnflow.maxflow.edges import clean
from attnflow.maxflow.kernel import change_ends
from attnflow.maxflow.scaling import Floats, Scaled, scale
from attnflow.maxflow.search import search
from attnflow.maxflow.state import (
    EXCESS,
    SOURCE,
    SURPLUS,
    TARGET,
    Graph,
    Integers,
    Work,
    build_graph,
    new_work,
)
from attnflow.maxflow.workers import Job, run_jobs

FEW = 10
"""Up to this many players every subset is computed."""
FIRST_BLOCKS = 16
"""How many blocks are drawn before the first look; every look doubles them."""


@dataclass(frozen=True, eq=False)
class JointRow:
    """The values of one target's players, how far off they may be, and from how many orders."""

    values: Floats
    margins: Floats  # half the width of each interval; 0 where every subset was computed
    total: float  # v of all players
    orders: int  # 0 where every subset was computed


@dataclass(frozen=True, eq=False)
class _Game:
    """One target at one layer; `columns[p]` is what player p takes from each node of layer 1."""

    graph: Graph
    layer: int
    target: int
    columns: Integers
    active: Integers  # the players that can get anything at all
    total: int


def solve_joint(
    capacities: NDArray[Any],
    *,
    rows: Sequence[tuple[int, int]],
    players: Sequence[Sequence[int]],
    tolerance: float = 0.01,
    confidence: float = 0.95,
    seed: int = 0,
    few: int = FEW,
    limit: int = 1 << 14,
    threads: int | None = None,
) -> list[JointRow]:
    """Shapley values of the joint flow for each (layer, target) of `rows`.

    players: the input positions of each player. tolerance: blocks are drawn until no margin is
    above it, or `limit` blocks are drawn. few: up to so many players all subsets are computed.
    """
    if not tolerance > 0 or not 0 < confidence < 1:
        raise InputError(
            "tolerance is above 0, and confidence is between 0 and 1; got "
            f"{tolerance} and {confidence}."
        )
    scaled = scale(capacities, np.inf)
    graph = build_graph(scaled.integers)
    work = new_work(graph)
    games = [_game(graph, work, layer, target, players) for layer, target in rows]
    answers: dict[int, JointRow] = {}
    means: dict[int, list[Floats]] = {}
    for place, game in enumerate(games):
        if len(game.active) <= few or game.layer == 1:
            answers[place] = _from_subsets(game, work, scaled)
        else:
            means[place] = []
    look = 0
    while means:
        look += 1
        _draw(games, means, scaled, FIRST_BLOCKS << (look - 1), seed, threads)
        for place in list(means):
            row = _estimate(games[place], means[place], scaled, confidence, look)
            if row.margins.max() <= tolerance or len(means[place]) >= limit:
                answers[place] = row
                del means[place]
        tell("shapley-flow", len(answers), len(rows))
    return [answers[place] for place in range(len(rows))]


def _game(
    graph: Graph, work: Work, layer: int, target: int, players: Sequence[Sequence[int]]
) -> _Game:
    """The players' columns, and which of them the target reaches at all."""
    columns = np.stack([graph.capacity[1][:, list(p)].sum(axis=1) for p in players])
    if layer == 1:  # every player takes its own edges, whoever else plays
        columns = columns[:, [target]]
        return _Game(graph, layer, target, columns, np.flatnonzero(columns), int(columns.sum()))
    alone = np.zeros((len(players), len(players)), np.int64)
    _run_orders(graph, work, layer, target, columns, np.arange(len(players))[:, None], alone)
    together = np.zeros((1, 1), np.int64)
    everyone = columns.sum(axis=0, keepdims=True)
    _run_orders(graph, work, layer, target, everyone, np.zeros((1, 1), np.int64), together)
    active = np.flatnonzero(np.diagonal(alone))
    return _Game(graph, layer, target, columns, active, int(together[0, 0]))


def _from_subsets(game: _Game, work: Work, scaled: Scaled) -> JointRow:
    """Shapley values from v of every subset."""
    players = len(game.active)
    values = np.zeros(len(game.columns))
    if game.layer == 1:
        values[:] = np.ldexp(game.columns[:, 0].astype(np.float64), -scaled.exponent)
    elif players:
        worth = np.zeros(1 << players, np.int64)
        columns = game.columns[game.active]
        joined = np.zeros((2, columns.shape[1]), np.int64)
        _run_subsets(game.graph, work, game.layer, game.target, columns, joined, worth)
        exact = np.ldexp(worth.astype(np.float64), -scaled.exponent)
        subsets = np.arange(1 << players)
        sizes = np.array([s.bit_count() for s in subsets.tolist()])
        for p in range(players):
            without = subsets[subsets >> p & 1 == 0]
            share = [
                factorial(k) * factorial(players - k - 1) / factorial(players)
                for k in range(players)
            ]
            gains = exact[without | 1 << p] - exact[without]
            values[game.active[p]] = (np.array(share)[sizes[without]] * gains).sum()
    return JointRow(values, np.zeros(len(values)), _float(game.total, scaled), 0)


def _draw(
    games: Sequence[_Game],
    means: dict[int, list[Floats]],
    scaled: Scaled,
    blocks: int,
    seed: int,
    threads: int | None,
) -> None:
    """Bring every open row to so many blocks; a block depends on its number and the seed only."""
    slots: dict[tuple[int, int], Floats] = {}

    def block(place: int, number: int, work: Work) -> Iterator[int]:
        game = games[place]
        random = np.random.default_rng([seed, game.layer, game.target, number])
        order = random.permutation(game.active)
        orders = np.stack(
            [np.roll(way, -k) for way in (order, order[::-1]) for k in range(len(order))]
        )
        gains = np.zeros((len(orders), len(game.columns)), np.int64)
        _run_orders(game.graph, work, game.layer, game.target, game.columns, orders, gains)
        slots[place, number] = np.ldexp(gains.astype(np.float64), -scaled.exponent).mean(axis=0)
        yield 1

    jobs: list[Job[Work]] = [
        partial(block, place, number)
        for place, rows in means.items()
        for number in range(len(rows), blocks)
    ]
    graph = games[0].graph
    run_jobs(jobs, lambda: new_work(graph), threads=threads, report=lambda _: None)
    for place, rows in means.items():
        rows += [slots[place, number] for number in range(len(rows), blocks)]


def _estimate(
    game: _Game, rows: list[Floats], scaled: Scaled, confidence: float, look: int
) -> JointRow:
    """Mean over blocks with Student's margins.

    Whoever looks again and again until an interval is narrow has more chances to be wrong: look
    k gets 1 / (k (k + 1)) of the allowed error, and these shares add up to 1.
    """
    blocks = np.stack(rows)
    count = len(blocks)
    error = (1 - confidence) / (look * (look + 1))
    spread = blocks.std(axis=0, ddof=1) / sqrt(count)
    orders = 2 * len(game.active) * count
    return JointRow(
        blocks.mean(axis=0), student(error, count - 1) * spread, _float(game.total, scaled), orders
    )


def student(error: float, freedom: int) -> float:
    """The two-sided quantile of Student's t, by its series in 1 / degrees of freedom."""
    z = NormalDist().inv_cdf(1 - error / 2)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def _float(units: int, scaled: Scaled) -> float:
    return float(np.ldexp(float(units), -scaled.exponent))


@compiled
def _run_orders(
    graph: Graph, work: Work, layer: int, target: int, columns: Integers, orders: Integers,
    gains: Integers,
) -> None:  # fmt: skip
    """Write what each player adds in each order to `gains[order, player]`.  Layer >= 2."""
    capacity, _, positive, _, _ = graph
    (
        residual, flow, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest, path,
        touched, counts, _,
    ) = work  # fmt: skip
    n = ends.shape[1]
    most = 0
    for v in range(n):
        most += capacity[layer, target, v]
    for o in range(orders.shape[0]):
        for v in range(n):
            ends[TARGET, v] = capacity[layer, target, v]
            ends[SOURCE, v] = 0
            ends[EXCESS, v] = 0
            ends[SURPLUS, v] = 0
        value = 0
        for place in range(orders.shape[1]):
            player = orders[o, place]
            for v in range(n):
                ends[SOURCE, v] += columns[player, v]
            before = value
            value, _optimal = search(
                residual, flow, forward, backward, touched, counts, ends, open_ends, unseen,
                slot_nodes, slots, newest, path, layer, value, most,
            )  # fmt: skip
            gains[o, player] = value - before
            if value == most:  # nothing is left for those who come later
                break
        clean(positive, residual, flow, forward, backward, touched, counts, layer)


@compiled
def _run_subsets(
    graph: Graph, work: Work, layer: int, target: int, columns: Integers, joined: Integers,
    worth: Integers,
) -> None:  # fmt: skip
    """v of every subset, by the bits of its number, in Gray's order.  Layer >= 2.

    `joined` is scratch: the columns of a subset and of the one after it, added up.
    """
    capacity, _, positive, _, _ = graph
    (
        residual, flow, forward, backward, ends, open_ends, unseen, slot_nodes, slots, newest, path,
        touched, counts, _,
    ) = work  # fmt: skip
    n = ends.shape[1]
    most = 0
    before, following = joined[0], joined[1]
    for v in range(n):
        most += capacity[layer, target, v]
        ends[TARGET, v] = capacity[layer, target, v]
        ends[SOURCE, v] = 0
        ends[EXCESS, v] = 0
        ends[SURPLUS, v] = 0
        before[v] = 0
    subset = 0
    for step in range(1, worth.shape[0]):
        player = 0
        while step >> player & 1 == 0:
            player += 1
        sign = 1 if subset >> player & 1 == 0 else -1
        subset ^= 1 << player
        for v in range(n):
            following[v] = before[v] + sign * columns[player, v]
        value = change_ends(before, following, ends, SOURCE, SURPLUS)
        value, _optimal = search(
            residual, flow, forward, backward, touched, counts, ends, open_ends, unseen,
            slot_nodes, slots, newest, path, layer, value, most,
        )  # fmt: skip
        worth[subset] = value
        for v in range(n):
            before[v] = following[v]
    clean(positive, residual, flow, forward, backward, touched, counts, layer)
