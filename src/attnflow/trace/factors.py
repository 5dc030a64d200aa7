"""What a layer's factors can do: the contract between traces in factors and who computes.

A trace may hold each layer's queries and keys instead of its weights, which grow with the square of
the length. The products that methods need are then formed from the factors, block by block. How,
and on which device, is not known here: `attnflow.kernels` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["LayerFactors", "LayerMix"]

Rows = Sequence[int] | NDArray[np.intp]


@dataclass(frozen=True)
class LayerMix:
    """How the heads of a layer become one matrix: `(1 - residual) W + residual I`.

    heads: the share of each head in W. drop: positions on which nobody but themselves may draw;
    each row is scaled back to the mass it had.

    >>> LayerMix(heads=(0.5, 0.5), residual=0.5)
    LayerMix(heads=(0.5, 0.5), residual=0.5, drop=())
    """

    heads: tuple[float, ...]
    residual: float = 0.0
    drop: tuple[int, ...] = ()


class LayerFactors(Protocol):
    """One layer's attention in factors. Vectors are opaque: only the layers of a trace, which all
    compute in the same place, can take them; parts are had by indexing their first axis.

    >>> from attnflow.testing import random_factors
    >>> layer = random_factors(layers=1, length=4).factors[0]
    >>> layer.array(layer.unit_rows([2])).tolist()
    [[0.0, 0.0, 1.0, 0.0]]
    """

    @property
    def heads(self) -> int:
        """How many heads."""

    @property
    def length(self) -> int:
        """How many positions."""

    @property
    def size(self) -> int:
        """How many bytes the factors take."""

    @property
    def way(self) -> str:
        """How products are formed, in words for a result's provenance."""

    @property
    def has_gradients(self) -> bool:
        """Whether gradient-weighted products can be formed."""

    def weight_rows(self, rows: Rows, *, with_gradient: bool = False) -> NDArray[np.float32]:
        """`(heads, rows, n)`: the weights of these rows, each times its gradient where asked."""

    def unit_rows(self, rows: Rows) -> Any:
        """A vector for each of these rows, 1 at its own position."""

    def vectors(self, array: NDArray[np.float64]) -> Any:
        """Vectors of these numbers, (vectors, n)."""

    def join(self, vectors: Sequence[Any]) -> Any:
        """Several groups of vectors as one."""

    def array(self, vectors: Any) -> NDArray[np.float64]:
        """`(vectors, n)`: the numbers of vectors."""

    def times(self, vectors: Any, mix: LayerMix) -> Any:
        """Vectors times the layer's matrix."""

    def times_gradient(self, vectors: Any, heads: tuple[float, ...]) -> Any:
        """Vectors times the weighted mean over heads of `relu(A ⊙ ∇A)`."""
