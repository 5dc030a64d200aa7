"""LayeredGraph: attention as a flow network.

Node (layer, position) has the number `layer * n + position`; layer 0 holds the input tokens.
An edge runs from a target in one layer down to a source in the layer below, as in the paper, and
`capacities[l - 1, i, j]` is the capacity of the edge from (l, i) to (l - 1, j).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow import storage
from attnflow.errors import InputError, WeightsError, optional_import

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

__all__ = ["Cut", "CutEdge", "LayeredGraph"]


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """Capacities of the edges between consecutive layers, `layer × target × source`."""

    capacities: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.capacities.flags.writeable = False

    @classmethod
    def from_capacities(cls, capacities: ArrayLike) -> Self:
        """A graph from any non-negative array of shape (layers, n, n); rows need not sum to 1."""
        array = np.array(capacities, dtype=np.float64)
        if array.ndim != 3 or array.shape[1] != array.shape[2] or 0 in array.shape:
            raise WeightsError(
                f"Capacities must have shape (layers, n, n), none of them 0; got {array.shape}."
            )
        if not np.isfinite(array).all() or (array < 0).any():
            raise WeightsError("Capacities must be finite and not negative.")
        return cls(array)

    @property
    def layers(self) -> int:
        """How many layers of edges."""
        return int(self.capacities.shape[0])

    @property
    def length(self) -> int:
        """How many positions in each layer."""
        return int(self.capacities.shape[1])

    def node(self, layer: int, position: int) -> int:
        """The number of a node; layer 0 is the input."""
        if not (0 <= layer <= self.layers and 0 <= position < self.length):
            raise InputError(
                f"No node at layer {layer}, position {position}: layers are 0 to {self.layers}, "
                f"positions 0 to {self.length - 1}."
            )
        return layer * self.length + position

    def place(self, node: int) -> tuple[int, int]:
        """(layer, position) of a node: the inverse of `node`."""
        return divmod(node, self.length)

    def to_csr(self) -> csr_array[Any, Any]:
        """All capacities as one sparse matrix over node numbers (needs scipy)."""
        sparse = optional_import("scipy.sparse", extra="graphs", purpose="to_csr()")
        layer, target, source = np.nonzero(self.capacities)
        n, size = self.length, (self.layers + 1) * self.length
        entries = self.capacities[layer, target, source]
        return sparse.csr_array(
            (entries, ((layer + 1) * n + target, layer * n + source)), shape=(size, size)
        )

    def to_networkx(self) -> nx.DiGraph[int]:
        """The same graph for networkx, with `capacity` on the edges and `layer`, `position` on
        the nodes (needs networkx).
        """
        networkx = optional_import("networkx", extra="graphs", purpose="to_networkx()")
        graph: nx.DiGraph[int] = networkx.DiGraph()
        for node in range((self.layers + 1) * self.length):
            layer, position = self.place(node)
            graph.add_node(node, layer=layer, position=position)
        for layer, target, source in np.argwhere(self.capacities > 0).tolist():
            graph.add_edge(
                self.node(layer + 1, target),
                self.node(layer, source),
                capacity=float(self.capacities[layer, target, source]),
            )
        return graph

    def __repr__(self) -> str:
        edges = int(np.count_nonzero(self.capacities))
        return f"<LayeredGraph {self.layers} layers × {self.length} positions, {edges} edges>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to .safetensors or .json; `load` gives the same bits back."""
        storage.write(path, "LayeredGraph", {}, {"capacities": self.capacities})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        _, arrays = storage.read(path, "LayeredGraph")
        with storage.unpacking(path):
            return cls(arrays["capacities"])


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
    """The narrowest place between one target and one source, strongest edges first.

    By the max-flow min-cut theorem the flow from the target to the source equals the total
    capacity of these edges, so they are the whole reason why the flow is not larger.
    """

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
