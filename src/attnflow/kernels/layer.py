"""One layer of a trace in factors: a method's matrix, with residual and dropped columns, applied
without being formed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.errors import InputError, MatrixError, shorten
from attnflow.kernels import blocks
from attnflow.kernels.blocks import Factors
from attnflow.trace.factored_trace import LayerMix

Way = Literal["triton", "blocks"]
WAYS: dict[Way, str] = {"triton": "Triton kernels", "blocks": "blocks of torch"}


class Products(Protocol):
    """The products that every way offers. `sums` is (heads, n), `shares` is (heads,)."""

    def rows_down(self, layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor) -> Tensor:
        """`(targets, n)`: vectors times the mixed attention."""

    def spans_up(self, layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor) -> Tensor:
        """`(n, spans)`: the mixed attention times the spans."""

    def gradient_rows_down(
        self, layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor
    ) -> Tensor:
        """`(targets, n)`: vectors times the mean of relu(A ⊙ ∇A)."""

    def attend(self, layer: Factors, value: Tensor) -> tuple[Tensor, Tensor]:
        """`(heads, n, value width)` and `(heads, n)`: the output, and each row's log-sum-exp."""

    def attend_back(
        self, layer: Factors, sums: Tensor, output: Tensor, *, secant: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values from that of the output."""


def way_for(device: torch.device) -> Way:
    """Triton on CUDA where it is installed, blocks of torch everywhere else."""
    return "triton" if device.type == "cuda" and _has_triton() else "blocks"


def products_of(way: Way) -> Products:
    """The products formed in this way."""
    if way == "triton":
        from attnflow.kernels import triton_kernels

        return triton_kernels
    if way == "blocks":
        return blocks
    raise InputError(f"way={way!r}: products are formed by {', '.join(map(repr, WAYS))}.")


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


Rows = Sequence[int] | NDArray[np.intp]
_LEAST_REST = 1e-2  # below it, what dropping leaves of a row is summed and not had by subtraction


@dataclass(frozen=True, eq=False)
class _Dropping:
    """The effect of dropping columns on the rows of a layer.

    factor: (n,), what a row is scaled by. own: (columns,), the dropped positions' weights on
    themselves. alone: (n,), the mass of rows that have nothing else and stay with themselves.
    """

    columns: Tensor
    factor: Tensor
    own: Tensor
    alone: Tensor


class FactoredLayer:
    """The factors of a layer, its rows' log-sum-exp, and the way products are formed.

    sums: (heads, n), where the model's own attention gave it; else it is computed when needed.
    """

    def __init__(
        self, factors: Factors, sums: Tensor | None = None, way: Way | None = None
    ) -> None:
        self.factors = factors
        self._way: Way = way or way_for(factors.query.device)
        self._sums = sums
        self._dropping: dict[tuple[tuple[float, ...], tuple[int, ...]], _Dropping] = {}

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.factors.heads

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.factors.length

    @property
    def size(self) -> int:
        """Bytes of the factors."""
        return self.factors.size

    @property
    def way(self) -> str:
        """The way products are formed, in words."""
        return WAYS[self._way]

    @property
    def sums(self) -> Tensor:
        """`(heads, n)`: the log-sum-exp of each row."""
        if self._sums is None:
            self._sums = aside(self._sums_of(self.factors))
        return self._sums.to(self.factors.query.device, non_blocking=True)

    def _mass(self, sums: Tensor) -> Tensor:
        """`(heads, n)`: what each row's weights sum to: less than 1 where a sink takes part."""
        sink = self.factors.sink
        visible = blocks.sees_something(self.factors).to(sums)
        if sink is None:
            return visible.expand_as(sums)
        return (1 - (sink.to(sums)[:, None] - sums).exp()) * visible

    def weight_rows(self, rows: Rows, *, with_gradient: bool = False) -> NDArray[np.float32]:
        """`(heads, rows, n)`: the weights of these rows, each times its gradient where asked."""
        sums, places = self._row_sums(rows)
        weights = blocks.weight_rows(self.factors, sums, places, with_gradient=with_gradient)
        return weights.cpu().numpy()

    def mean_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the weights of these rows, the mean over heads."""
        return self.read_means(rows).cpu().numpy()

    def score_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the gradient of these rows' scores where positive, the mean over heads."""
        return self.read_scores(rows).cpu().numpy()

    def gradient_sums(self) -> NDArray[np.float32]:
        """`(n,)`: the sum over all rows of `relu(A ⊙ ∇A)`, the mean over heads."""
        return self.read_sums().cpu().numpy()

    def read_means(self, rows: Rows) -> Tensor:
        """Return `mean_rows` where the factors are: nothing waits for the device."""
        return blocks.weight_rows(self.factors, *self._row_sums(rows)).mean(dim=0)

    def read_scores(self, rows: Rows) -> Tensor:
        """Return `score_rows`, likewise."""
        return blocks.score_rows(self.factors, *self._row_sums(rows))

    def read_sums(self) -> Tensor:
        """Return `gradient_sums`, likewise."""
        ones = torch.ones(1, self.length, device=self.factors.query.device)
        return self.times_gradient(ones, (1 / self.heads,) * self.heads)[0]

    def _row_sums(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """`(heads, rows)`, the log-sum-exp of these rows, and the rows as a tensor."""
        device = self.factors.query.device
        places = torch.as_tensor(np.asarray(rows)).to(device, non_blocking=True)
        return self.sums[:, places], places

    def _sums_of(self, layer: Factors) -> Tensor:
        return products_of(self._way).attend(layer, layer.key)[1]

    def unit_rows(self, rows: Rows) -> Tensor:
        """`(rows, n)`: 1 at each row's own position."""
        vectors = torch.zeros(len(rows), self.length, device=self.factors.query.device)
        vectors[torch.arange(len(rows)), torch.as_tensor(np.asarray(rows))] = 1.0
        return vectors

    def vectors(self, array: NDArray[np.float64]) -> Tensor:
        """Vectors of these numbers."""
        return torch.from_numpy(array).float().to(self.factors.query.device)

    def join(self, vectors: Sequence[Tensor]) -> Tensor:
        """Vectors `(targets, levels, n)` of several levels as one."""
        return torch.cat(list(vectors), dim=1)

    def array(self, vectors: Tensor) -> NDArray[np.float64]:
        """The numbers of vectors."""
        return vectors.double().cpu().numpy()

    def times(self, vectors: Tensor, mix: LayerMix) -> Tensor:
        """Vectors times `(1 - residual) W + residual I`."""
        drop = self._dropped(mix)
        scaled = vectors if drop is None else vectors * drop.factor
        product = products_of(self._way).rows_down(
            self.factors, self.sums, scaled, self._shares(mix.heads)
        )
        if drop is not None:
            product[:, drop.columns] = scaled[:, drop.columns] * drop.own
            product += vectors * drop.alone
        return torch.lerp(product, vectors.to(product), mix.residual)

    def spans(self, spans: Tensor, mix: LayerMix) -> Tensor:
        """`(1 - residual) W + residual I` times spans, (n, spans)."""
        drop = self._dropped(mix)
        sources = spans if drop is None else spans.index_fill(0, drop.columns, 0.0)
        product = products_of(self._way).spans_up(
            self.factors, self.sums, sources, self._shares(mix.heads)
        )
        if drop is not None:
            product[drop.columns] += drop.own[:, None] * spans[drop.columns]
            product = product * drop.factor[:, None] + spans * drop.alone[:, None]
        return torch.lerp(product, spans.to(product), mix.residual)

    def times_gradient(self, vectors: Tensor, heads: tuple[float, ...]) -> Tensor:
        """Vectors times the weighted mean over heads of `relu(A ⊙ ∇A)`."""
        return products_of(self._way).gradient_rows_down(
            self.factors, self.sums, vectors, self._shares(heads)
        )

    def _shares(self, heads: tuple[float, ...]) -> Tensor:
        """Sent without waiting: built on the device, they would hold up every layer's launch."""
        shares = torch.tensor(heads, dtype=torch.float32)
        return shares.to(self.factors.query.device, non_blocking=True)

    def _dropped(self, mix: LayerMix) -> _Dropping | None:
        if not mix.drop:
            return None
        key = (mix.heads, mix.drop)
        if key not in self._dropping:
            self._dropping[key] = self._without(mix)
        return self._dropping[key]

    def _without(self, mix: LayerMix) -> _Dropping:
        sums = self.sums
        columns = torch.tensor(sorted(set(mix.drop)), device=sums.device)
        shares = self._shares(mix.heads).double()
        weights = blocks.weight_columns(self.factors, sums, columns, shares)
        own = weights[columns, torch.arange(len(columns), device=columns.device)].clone()
        weights[columns, torch.arange(len(columns), device=columns.device)] = 0.0
        mass = shares @ self._mass(sums).double()
        rest = mass - weights.sum(dim=1)
        if bool((rest < _LEAST_REST).any()):
            rest = self._rest(columns, shares).index_add(0, columns, own)
        alone = (rest <= 0) & (mass > 0)
        factor = torch.where(alone, 0.0, mass / rest.masked_fill(rest <= 0, 1.0))
        return _Dropping(
            columns, factor.float(), own.float(), torch.where(alone, mass, 0.0).float()
        )

    def _rest(self, columns: Tensor, shares: Tensor) -> Tensor:
        """`(n,)`: what rows have beside dropped columns, summed over what is left: subtracting
        from 1 would leave few digits where a sink takes nearly everything.
        """
        hidden = self.factors.hidden
        hidden = (
            torch.zeros(self.length, dtype=torch.bool, device=columns.device)
            if hidden is None
            else hidden
        )
        rest = replace(self.factors, hidden=hidden.index_fill(0, columns, True), sink=None)
        sums = self._sums_of(rest)
        visible = blocks.sees_something(rest)
        return shares @ ((sums - self.sums).exp() * visible).double()


class ReadLayer:
    """The part of a layer that a backward pass read while its factors were there; they are gone.

    rows: the positions whose answer was explained. keys: whether all rows are summed too. The pass
    goes on meanwhile: numbers are waited for when they are asked for.
    """

    def __init__(self, layer: FactoredLayer, rows: Sequence[int], *, keys: bool) -> None:
        self.heads, self.length, self.way = layer.heads, layer.length, layer.way
        self._rows = tuple(rows)
        self._weights, self._scores = aside(layer.read_means(rows)), aside(layer.read_scores(rows))
        self._sums = aside(layer.read_sums()) if keys else None

    @property
    def size(self) -> int:
        """Bytes of what is kept."""
        return self._weights.nbytes + self._scores.nbytes

    def mean_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the weights of these rows, the mean over heads."""
        return arrived(self._weights)[self._places(rows)]

    def score_rows(self, rows: Rows) -> NDArray[np.float32]:
        """`(rows, n)`: the gradient of these rows' scores where positive, the mean over heads."""
        return arrived(self._scores)[self._places(rows)]

    def gradient_sums(self) -> NDArray[np.float32]:
        """`(n,)`: the sum over all rows of `relu(A ⊙ ∇A)`, the mean over heads."""
        if self._sums is None:
            return self.missing("the sums over all rows")
        return arrived(self._sums)

    def _places(self, rows: Rows) -> list[int]:
        if not set(rows) <= set(self._rows):
            return self.missing(f"rows of other positions than {shorten(list(self._rows))}")
        return [self._rows.index(int(row)) for row in rows]

    def missing(self, name: str) -> Any:
        """Raise, and say what of a long text is not kept."""
        raise MatrixError(
            f"Of a text this long only what its own method reads is kept, without {name}. Capture "
            "it for the other method alone, or with form='factors' where memory allows it."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.missing("its queries and keys")


def aside(numbers: Tensor) -> Tensor:
    """Numbers of a device wait in the host's memory, on their way there once what computes them is
    done: layers are gone through one after the other, and the device's own memory is what long
    texts are short of.
    """
    if numbers.device.type != "cuda":
        return numbers
    waiting = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    return waiting.copy_(numbers, non_blocking=True)


def arrived(waiting: Tensor) -> NDArray[np.float32]:
    """Return numbers that were put aside, once they are there."""
    if waiting.is_pinned():
        torch.cuda.synchronize()
    return waiting.numpy()
