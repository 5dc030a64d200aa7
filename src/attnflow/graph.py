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
from attnflow.errors import (
    InputError,
    WeightsError,
    optional_import,
    percent,
    shorten,
    whole_number,
)

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

__all__ = ["Cut", "CutEdge", "LayeredGraph"]


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """Capacities of the edges between consecutive layers, `layer × target × source`.

    >>> graph = LayeredGraph.from_capacities([[[1.0, 0.0], [0.5, 0.5]]])
    >>> graph
    <LayeredGraph 1 layers × 2 positions, 3 edges>
    >>> graph.node(layer=1, position=0), graph.place(2)
    (2, (1, 0))
    """

    capacities: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.capacities.flags.writeable = False

    @classmethod
    def from_capacities(cls, capacities: ArrayLike) -> Self:
        """Return a graph of any non-negative array (layers, n, n); rows need not sum to 1."""
        try:
            array = np.array(capacities, dtype=np.float64)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise WeightsError(
                f"Capacities cannot be read as one array: {str(error)[:200]}."
            ) from error
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
        level, place = whole_number(layer), whole_number(position)
        if level in range(self.layers + 1) and place in range(self.length):
            return level * self.length + place  # type: ignore[operator]  # None is in no range
        raise InputError(
            f"No node at layer {shorten(layer)}, position {shorten(position)}: layers are 0 to "
            f"{self.layers}, positions 0 to {self.length - 1}."
        )

    def place(self, node: int) -> tuple[int, int]:
        """(layer, position) of a node: the inverse of `node`."""
        number, last = whole_number(node), (self.layers + 1) * self.length - 1
        if number is None or not 0 <= number <= last:
            raise InputError(f"No node {shorten(node)}: nodes are 0 to {last}.")
        return divmod(number, self.length)

    def to_csr(self) -> csr_array[Any, Any]:
        """Return all capacities as one sparse matrix over node numbers (needs scipy)."""
        sparse = optional_import("scipy.sparse", extra="graphs", purpose="to_csr()")
        layer, target, source = np.nonzero(self.capacities)
        n, size = self.length, (self.layers + 1) * self.length
        entries = self.capacities[layer, target, source]
        return sparse.csr_array(
            (entries, ((layer + 1) * n + target, layer * n + source)), shape=(size, size)
        )

    def to_networkx(self) -> nx.DiGraph[int]:
        """Return it for networkx, `capacity` on the edges and `layer`, `position` on the nodes."""
        networkx = optional_import("networkx", extra="graphs", purpose="to_networkx()")
        graph: nx.DiGraph[int] = networkx.DiGraph()
        for node in range((self.layers + 1) * self.length):
            layer, position = self.place(node)
            graph.add_node(node, layer=layer, position=position)
        for layer, target, source in np.argwhere(self.capacities > 0).tolist():
            capacity = float(self.capacities[layer, target, source])
            ends = self.node(layer + 1, target), self.node(layer, source)
            graph.add_edge(*ends, capacity=capacity)
        return graph

    def __repr__(self) -> str:
        edges = int(np.count_nonzero(self.capacities))
        return f"<LayeredGraph {self.layers} layers × {self.length} positions, {edges} edges>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to .safetensors or .json; `load` gives the same bits back."""
        storage.write(path, "LayeredGraph", {}, {"capacities": self.capacities})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; it is checked as `from_capacities` checks it."""
        _, arrays = storage.read(path, "LayeredGraph")
        with storage.unpacking(path):
            storage.check_dtypes(arrays, capacities=("float64",))
            if set(arrays) - {"capacities"}:
                raise InputError(f"there are arrays that no graph has, {shorten(sorted(arrays))}")
            return cls.from_capacities(arrays["capacities"])


class CutEdge(NamedTuple):
    """One edge of the cut, from a position above to one below; `layer` is the upper one's.

    >>> CutEdge(2, 0, "the", 1, "key", 0.5).capacity
    0.5
    """

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

    layer, lowest_layer: the model's numbers of the target's layer and of the lowest layer of the
    graph. passed_on: the capacity of all edges to the source in the lowest layer. taken: the
    capacity of all edges from the target in its layer. None where that is not known.

    >>> edge = CutEdge(2, 0, "the", 1, "key", 0.5)
    >>> Cut(3, "the", "key", 0.5, (edge,)).place
    'between: 100 % in layer 2'
    """

    layer: int
    target: str
    source: str
    value: float
    edges: tuple[CutEdge, ...]
    lowest_layer: int = 1
    passed_on: float | None = None
    taken: float | None = None

    def by_layer(self) -> dict[int, float]:
        """How much of the cut lies in each layer; a layer without cut edges is absent."""
        shares: dict[int, float] = {}
        for edge in sorted(self.edges, key=lambda edge: edge.layer):
            shares[edge.layer] = shares.get(edge.layer, 0.0) + edge.capacity
        return shares

    @property
    def place(self) -> str:
        """The place where the flow is held back, in words: at the source, the target or between."""
        shares = self.by_layer()
        if not shares:
            return f"no path leads from {self.target!r} at layer {self.layer} to {self.source!r}"
        if self.layer == self.lowest_layer:
            return f"the one edge from {self.target!r} to {self.source!r}, in layer {self.layer}"
        if set(shares) == {self.lowest_layer}:
            who = f"{self._share_of(self.passed_on)} {self.source!r}"
            return f"at the source: {who} passes on in layer {self.lowest_layer}"
        if set(shares) == {self.layer}:
            who = f"{self._share_of(self.taken)} {self.target!r}"
            return f"at the target: {who} takes in layer {self.layer}"
        parts = [f"{percent(mass / self.value)} in layer {layer}" for layer, mass in shares.items()]
        return "between: " + ", ".join(parts)

    def _share_of(self, total: float | None) -> str:
        """Say if the cut is all that there is at one end, or the edges that lead to the other."""
        if total is None or abs(self.value - total) <= 1e-9 * max(total, 1e-300):
            return "everything"
        return f"{percent(self.value / total)}, over {len(self.edges)} edges, of what"

    def __repr__(self) -> str:
        ends = f"{self.target!r} at layer {self.layer} to {self.source!r}"
        return f"<Cut {ends}: {self.value:.6f} over {len(self.edges)} edges, {self.place}>"
