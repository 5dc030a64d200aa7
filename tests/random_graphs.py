"""Random flow networks of every kind, solved exactly: what attnflow's bounds must enclose.

`check_random_graphs(count, seed)` tries that many and counts what went wrong. The oracle works on
whole numbers of any size: a float is a whole number times a power of two, so nothing is rounded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from attnflow import maxflow
from attnflow.testing import random_attention

KINDS = (
    *("dense", "causal", "window", "peaked", "uniform", "identity"),
    *("residual", "sparse", "ties", "tiny", "uneven", "disconnected"),
)
TOLERANCE = 1e-6


@dataclass
class Tally:
    """How many graphs and pairs were tried, and what went wrong with which."""

    graphs: int = 0
    pairs: int = 0
    wrong: list[str] = field(default_factory=list)


def random_capacities(kind: str, rng: random.Random) -> NDArray[np.float64]:
    """`(layers, n, n)` of this kind: up to 5 layers of up to 7 positions."""
    layers, n, seed = rng.randint(1, 5), rng.randint(1, 7), rng.randrange(2**31)
    if kind in KINDS[:6]:
        return random_attention(layers, 1, n, seed=seed, shape=kind)[:, 0]  # type: ignore[arg-type]
    numbers = np.random.default_rng(seed)
    dense = random_attention(layers, 1, n, seed=seed)[:, 0]
    if kind == "residual":
        return 0.5 * dense.astype(np.float32).astype(np.float64) + 0.5 * np.eye(n)
    if kind == "sparse":
        return dense * (numbers.uniform(size=dense.shape) < 0.4)
    if kind == "ties":
        return numbers.integers(0, 4, size=dense.shape) / 4.0
    if kind == "tiny":
        return dense * 2.0 ** -numbers.integers(0, 60, size=dense.shape).astype(np.float64)
    if kind == "uneven":
        return dense * numbers.uniform(0, 3, size=(layers, n, 1))
    return dense * np.triu(np.ones((n, n)), k=1)  # a position draws on later ones only


def exact_flow(capacities: NDArray[np.float64], layer: int, target: int, source: int) -> Fraction:
    """The maximum flow from (layer, target) down to (0, source), as a fraction."""
    n = capacities.shape[1]
    fractions = {
        (int(m), int(i), int(j)): Fraction(float(capacities[m, i, j]))
        for m, i, j in np.argwhere(capacities[:layer] > 0)
    }
    unit = max((f.denominator for f in fractions.values()), default=1)  # powers of two, all of them
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from([layer * n + target, source])
    for (m, i, j), capacity in fractions.items():
        graph.add_edge((m + 1) * n + i, m * n + j, capacity=int(capacity * unit))
    return Fraction(nx.maximum_flow_value(graph, layer * n + target, source), unit)


def check_random_graphs(count: int, seed: int = 0) -> Tally:
    """Try `count` graphs, kinds in turn, with three pairs of each at one layer."""
    rng = random.Random(seed)
    tally = Tally()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        capacities = random_capacities(kind, rng)
        layer, n = rng.randint(1, len(capacities)), capacities.shape[1]
        pairs = [(rng.randrange(n), rng.randrange(n)) for _ in range(3)]
        result = maxflow.solve_pairs(capacities, layer=layer, pairs=pairs, threads=1)
        tally.graphs += 1
        for k, (target, source) in enumerate(pairs):
            tally.pairs += 1
            exact = exact_flow(capacities, layer, target, source)
            what = f"{kind} #{number}, layer {layer}, {target} to {source}"
            reason = _why_wrong(exact, float(result.lower[k]), float(result.upper[k]))
            place: dict[str, Any] = {"layer": layer, "target": target, "source": source}
            cut = maxflow.minimum_cut(capacities, **place)
            reason = reason or _why_wrong(exact, cut.lower, cut.value * (1 + 1e-12))
            if reason:
                tally.wrong.append(f"{what}: {reason}")
    return tally


def _why_wrong(exact: Fraction, lower: float, upper: float) -> str:
    if not Fraction(lower) <= exact <= Fraction(upper):
        return f"{float(exact)!r} is not between {lower!r} and {upper!r}"
    return "" if upper - lower <= TOLERANCE else f"the bounds are {upper - lower:g} apart"
