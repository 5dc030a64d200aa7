"""Which of the two ways forms a product: one place that chooses, and says what it chose."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Literal, Protocol

import torch
from torch import Tensor

from attnflow.errors import InputError
from attnflow.kernels import blocks
from attnflow.kernels.factors import Factors

Way = Literal["triton", "blocks"]
WAYS: dict[Way, str] = {
    "triton": "Triton kernels",
    "blocks": "blocks of torch",
}


class Products(Protocol):
    """What every way offers. `sums` is (heads, n), `shares` is (heads,)."""

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
