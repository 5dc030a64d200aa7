"""Random joint games, small enough for every subset: what sampled Shapley flows must enclose.

`check_games(count, seed)` counts how many values lie in their intervals, and what went wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations
from math import factorial

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from attnflow.maxflow.joint import solve_joint
from attnflow.testing import random_attention
from random_graphs import KINDS, random_capacities


@dataclass
class GameTally:
    """How many games and values were tried, how many values were enclosed, and what was wrong."""

    games: int = 0
    values: int = 0
    enclosed: int = 0
    wrong: list[str] = field(default_factory=list)


def joint_flow(
    capacities: NDArray[np.float64], layer: int, target: int, members: tuple[int, ...]
) -> float:
    """The maximum flow from a target to several inputs at once, by networkx."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    graph.add_nodes_from([(layer, target), "sink"])
    for m, i, j in np.argwhere(capacities[:layer] > 0).tolist():
        graph.add_edge((m + 1, i), (m, j), capacity=float(capacities[m, i, j]))
    for j in members:
        graph.add_edge((0, j), "sink")
    search = nx.algorithms.flow.shortest_augmenting_path  # the fastest on graphs this small
    return float(nx.maximum_flow_value(graph, (layer, target), "sink", flow_func=search))


def shapley_by_subsets(
    capacities: NDArray[np.float64], layer: int, target: int, players: list[list[int]]
) -> NDArray[np.float64]:
    """Shapley's formula as it is written, v by networkx."""
    count = len(players)
    values = np.zeros(count)
    for p in range(count):
        rest = [q for q in range(count) if q != p]
        for size in range(count):
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for subset in combinations(rest, size):
                inputs = tuple(j for q in subset for j in players[q])
                more = joint_flow(capacities, layer, target, (*inputs, *players[p]))
                less = joint_flow(capacities, layer, target, inputs)
                values[p] += weight * (more - less)
    return values


def random_game(number: int, rng: random.Random) -> tuple[NDArray[np.float64], int, int]:
    """Up to 8 tokens x 4 layers, of every kind in turn; a layer and a target."""
    kind = KINDS[number % len(KINDS)]
    if number % 3 == 0:
        n, seed = rng.randint(6, 8), rng.randrange(2**31)
        weights = random_attention(4, 1, n, seed=seed, shape=("dense", "causal")[number % 2])
        capacities = 0.5 * weights[:, 0] + 0.5 * np.eye(n)
    else:
        capacities = random_capacities(kind, rng)[:4]
    return capacities, rng.randint(1, len(capacities)), rng.randrange(capacities.shape[1])


def check_games(count: int, seed: int = 0, tolerance: float = 0.02) -> GameTally:
    """Try `count` games: sampled against all subsets, and rows that add up."""
    rng = random.Random(seed)
    tally = GameTally()
    for number in range(count):
        capacities, layer, target = random_game(number, rng)
        players = [[j] for j in range(capacities.shape[1])]
        game = {"rows": [(layer, target)], "players": players, "threads": 1}
        exact = solve_joint(capacities, **game, few=20)[0]  # type: ignore[arg-type]
        drawn = solve_joint(
            capacities,
            **game,
            few=1,
            seed=number,
            tolerance=tolerance,  # type: ignore[arg-type]
        )[0]
        tally.games += 1
        for row in (exact, drawn):
            if abs(row.values.sum() - row.total) > 1e-12 * max(1.0, row.total):
                tally.wrong.append(f"#{number}: a row adds up to {row.values.sum() - row.total:g}")
        counts = exact.values > 1e-12
        inside = np.abs(drawn.values - exact.values) <= drawn.margins + 1e-12
        tally.values += int(counts.sum())
        tally.enclosed += int((inside & counts).sum())
    return tally
