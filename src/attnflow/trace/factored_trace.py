"""A trace in factors: each layer's queries and keys in place of its n × n weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow import storage
from attnflow.errors import MatrixError, TokensError
from attnflow.tokens import Tokens
from attnflow.trace.attention_trace import AttentionTrace
from attnflow.trace.checks import (
    Floats,
    Kind,
    check_prediction,
    checked_layers,
    checked_measured,
    checked_provenance,
)
from attnflow.trace.extras import Prediction


def weights_size(layers: int, heads: int, length: int) -> int:
    """Return the bytes that weights of these layers and heads take, in float32."""
    return layers * heads * length * length * 4


def size_in_words(count: float) -> str:
    """Return a number of bytes as people say it."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            digits = 0 if count >= 10 * unit else 1
            return f"{count / unit:,.{digits}f} {name}"
    return f"{count / 1e3:.1f} kB"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class FactoredTrace(AttentionTrace):
    """An AttentionTrace whose layers are factors. It has no `weights`: asking for them says how
    large they would be. `Raw`, `Rollout`, `GradientRollout` and `GradientAttention` take either
    form and agree; a method that needs all weights at once refuses.

    gradient_kind: what the output gradients among the factors are of: "gradients", of one score;
    "gradient-attention", of each row's own answer; "balanced", "balanced-rows", the same by a
    balanced backward pass; None where there are none.

    >>> from attnflow.testing import random_factors
    >>> trace = random_factors(layers=3, length=5)
    >>> trace
    <FactoredTrace 3 layers × 2 heads × 5 tokens, 't0 t1 t2 t3 t4', in factors>
    >>> from attnflow import Rollout
    >>> Rollout()(trace, targets=[4], layers=-1).values.shape
    (1, 1, 5)
    """

    factors: tuple[LayerFactors, ...] = ()
    gradient_kind: str | None = None

    def __init__(
        self,
        factors: Sequence[LayerFactors],
        tokens: Sequence[str],
        *,
        layers: Sequence[int] | None = None,
        kind: Kind = "causal",
        prediction: Prediction | None = None,
        gradient_kind: str | None = None,
        measured: Mapping[str, ArrayLike] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        names = Tokens.of(tokens)
        if {layer.length for layer in factors} != {len(names)}:
            raise TokensError(
                f"{len(names)} tokens for factors over "
                f"{sorted({layer.length for layer in factors})} positions; pass one for each."
            )
        check_prediction(prediction, len(names))
        fields: dict[str, Any] = {
            "factors": tuple(factors),
            "gradient_kind": gradient_kind,
            "tokens": names,
            "layers": checked_layers(layers, len(factors)),
            "kind": kind,
            "prediction": prediction,
            "measured": checked_measured(measured, len(factors), len(names)),
            "provenance": {
                **storage.provenance_stamp(),
                **checked_provenance(provenance or {}),
                "attention": f"factors, {factors[0].way}",
            },
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]  # a refusal in place of a field
    def weights(self) -> Floats:
        """There are none; the error says what they would take."""
        size = weights_size(len(self.layers), self.heads, self.length)
        raise MatrixError(
            f"This trace is in factors: the weights of {len(self.layers)} layers × {self.heads} "
            f"heads × {self.length} × {self.length} positions would take {size_in_words(size)}. "
            "Raw, Rollout, GradientRollout and GradientAttention work on factors; other methods "
            "need a shorter text and capture(..., form='weights')."
        )

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.tokens)

    @property
    def heads(self) -> int:
        """The number of heads; all of them are in the factors."""
        return self.factors[0].heads

    def weight_rows(self, index: int, rows: NDArray[np.intp] | slice) -> Floats:
        """`(heads, rows, n)`: the weights of these rows of one layer, formed from its factors."""
        return self.factors[index].weight_rows(np.arange(self.length)[rows])

    def stage(self, name: str) -> AttentionTrace:
        """There is one stack of layers only."""
        raise MatrixError(f"A trace in factors is one stack of layers and has no stage {name!r}.")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, in factors>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Factors belong to the model that made them: what is saved is a result."""
        raise MatrixError(
            f"A trace in factors is not written to files; its factors take "
            f"{size_in_words(sum(layer.size for layer in self.factors))}. Apply a method and save "
            "its result, or capture(..., form='weights')."
        )


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
        """The number of heads."""

    @property
    def length(self) -> int:
        """The number of positions."""

    @property
    def size(self) -> int:
        """How many bytes the factors take."""

    @property
    def way(self) -> str:
        """The way products are formed, in words for a result's provenance."""

    def weight_rows(self, rows: Rows, *, with_gradient: bool = False) -> NDArray[np.float32]:
        """`(heads, rows, n)`: the weights of these rows, each times its gradient where asked."""

    def mean_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the weights of these rows, the mean over heads."""

    def score_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the gradient of these rows' scores where positive, the mean over heads."""

    def gradient_sums(self) -> NDArray[np.float32]:
        """`(n,)`: the sum over all rows of `relu(A ⊙ ∇A)`, the mean over heads."""

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
