"""A minimum cut: the edges that hold one flow back.

By the max-flow min-cut theorem the flow from a target to a source equals the total capacity of
these edges, so they are the whole reason why the flow is not larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Cut", "CutEdge"]


class CutEdge(NamedTuple):
    """One edge of the cut, from a position above to one below; `layer` is the upper one's."""

    layer: int
    target: int
    target_token: str
    source: int
    source_token: str
    capacity: float


@dataclass(frozen=True)
class Cut:
    """The narrowest place between one target and one source, strongest edges first."""

    layer: int
    target: str
    source: str
    value: float
    edges: tuple[CutEdge, ...]

    def by_layer(self) -> dict[int, float]:
        """How much of the cut lies in each layer; a layer without cut edges is absent."""
        shares: dict[int, float] = {}
        for edge in sorted(self.edges, key=lambda edge: edge.layer):
            shares[edge.layer] = shares.get(edge.layer, 0.0) + edge.capacity
        return shares

    @property
    def place(self) -> str:
        """In words, where the flow is held back."""
        shares = self.by_layer()
        if not shares:
            return f"no path leads from {self.target!r} at layer {self.layer} to {self.source!r}"
        if set(shares) == {1} and {edge.source_token for edge in self.edges} == {self.source}:
            return f"at the source: everything {self.source!r} passes on in layer 1"
        if set(shares) == {self.layer}:
            return f"at the target: everything {self.target!r} takes in layer {self.layer}"
        parts = [f"{share / self.value:.0%} in layer {layer}" for layer, share in shares.items()]
        return "between: " + ", ".join(parts)

    def __repr__(self) -> str:
        ends = f"{self.target!r} at layer {self.layer} to {self.source!r}"
        return f"<Cut {ends}: {self.value:.6f} over {len(self.edges)} edges, {self.place}>"
