"""How soon attention flow saturates: the measured table of docs/how/flow.md.

    python benchmarks/saturation.py

A flow is saturated when it equals what its source passes on to anyone, min(1, first-layer column
sum). Counted over all pairs of a layer, on the attention of a real encoder over prose.txt and on
random causal attention.
"""

from __future__ import annotations

import numpy as np
from flow import LAYERS, causal_capacities, minilm_capacities
from numpy.typing import NDArray

from attnflow.errors import percent
from attnflow.maxflow import solve

Capacities = NDArray[np.float64]


def shares(capacities: Capacities) -> list[tuple[float, float]]:
    """For each layer: the share of saturated pairs, and the spread of a column over targets."""
    everyone = range(capacities.shape[1])
    layers = range(1, len(capacities) + 1)
    found = solve(capacities, layers=layers, targets=everyone, sources=everyone).lower
    ceiling = np.minimum(1, capacities[0].sum(axis=0))
    saturated = (found >= ceiling - 2e-6).mean(axis=(1, 2))
    spread = found.std(axis=1).mean(axis=1)
    return list(zip(saturated.tolist(), spread.tolist(), strict=True))


def main() -> None:
    """Print the table."""
    cases = {
        "MiniLM, 16 tokens": minilm_capacities(16),
        "MiniLM, 64 tokens": minilm_capacities(64),
        "MiniLM, 256 tokens": minilm_capacities(256),
        "MiniLM twice (12 layers), 64 tokens": np.concatenate([minilm_capacities(64)] * 2),
        "random causal, 64 tokens": causal_capacities(64),
    }
    layers = range(1, 2 * LAYERS + 1)
    print("| saturated pairs at layer | " + " | ".join(map(str, layers)) + " |")
    print("|---" * (len(layers) + 1) + "|")
    for name, capacities in cases.items():
        cells = [percent(share, 1) for share, _ in shares(capacities)]
        cells += [""] * (len(layers) - len(cells))
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| spread of one source's flow over targets | " + " | ".join(map(str, layers)) + " |")
    print("|---" * (len(layers) + 1) + "|")
    for name, capacities in cases.items():
        cells = [f"{spread:.3f}" for _, spread in shares(capacities)]
        cells += [""] * (len(layers) - len(cells))
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
