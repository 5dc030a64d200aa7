"""The three products as blocks of torch: on any device, in memory that grows with n, not n².

A block of weights is `exp(scores - log-sum-exp)`: with each row's log-sum-exp at hand no row need
be complete to be right. Heads are summed within a block, so the product with the vectors is made
once and not for each head. Blocks that the band leaves empty are never formed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnflow.kernels.factors import Factors

__all__ = [
    "gradient_rows_down",
    "log_sum_exp",
    "rows_down",
    "spans_up",
    "weight_rows",
]

_ROWS = 128  # queries of a block
_NUMBERS = 2**21  # numbers of a block over all heads: 8 MB, which a processor's cache holds in part
_NUMBERS_ON_DEVICE = 2**27  # an accelerator wants large blocks
_EMPTY = -1e30  # a score that no exponential feels; -inf less -inf would be no number


def log_sum_exp(layer: Factors) -> Tensor:
    """`(heads, n)` in float32: the logarithm of each row's sum, sinks included."""
    totals = torch.full((layer.heads, layer.length), _EMPTY, device=layer.query.device)
    for rows, columns in _tiles(layer):
        block = _scores(layer, rows, columns).logsumexp(dim=-1)
        totals[:, rows] = torch.logaddexp(totals[:, rows], block)
    if layer.sink is not None:
        totals = torch.logaddexp(totals, layer.sink.float()[:, None].to(totals.device))
    return totals.masked_fill_(totals < _EMPTY / 2, 0.0)  # a row that sees nothing has no weights


def rows_down(layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor) -> Tensor:
    """`(targets, n)`: vectors times the weighted mean of the heads' attention."""
    product = torch.zeros_like(vectors, dtype=torch.float32)
    for rows, columns in _tiles(layer):
        part = vectors[:, rows].float()
        if len(vectors) > 1 or bool(part.any()):
            product[:, columns] += part @ _mixed(layer, sums, shares, rows, columns)
    return product


def spans_up(layer: Factors, sums: Tensor, spans: Tensor, shares: Tensor) -> Tensor:
    """`(n, spans)`: the weighted mean of the heads' attention times the spans."""
    product = torch.zeros_like(spans, dtype=torch.float32)
    for rows, columns in _tiles(layer):
        product[rows] += _mixed(layer, sums, shares, rows, columns) @ spans[columns].float()
    return product


def gradient_rows_down(layer: Factors, sums: Tensor, vectors: Tensor, shares: Tensor) -> Tensor:
    """`(targets, n)`: vectors times what each weight adds to the score, where it raises it."""
    product = torch.zeros_like(vectors, dtype=torch.float32)
    for rows, columns in _tiles(layer):
        raised = _weights(layer, sums, rows, columns)
        raised.mul_(_changes(layer, rows, columns)).clamp_(min=0)
        product[:, columns] += vectors[:, rows].float() @ _summed(raised, shares)
    return product


def weight_rows(
    layer: Factors, sums: Tensor, rows: Tensor, *, with_gradient: bool = False
) -> Tensor:
    """`(heads, rows, n)`: the weights of these queries, times their gradients where asked."""
    every = slice(0, layer.length)
    weights = _weights(layer, sums, rows, every)
    return weights.mul_(_changes(layer, rows, every)) if with_gradient else weights


Rows = slice | Tensor


def _tiles(layer: Factors) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries and keys that hold something."""
    numbers = _NUMBERS if layer.query.device.type == "cpu" else _NUMBERS_ON_DEVICE
    width = max(_ROWS, numbers // (_ROWS * layer.heads))
    for first in range(0, layer.length, _ROWS):
        last = min(first + _ROWS, layer.length)
        begin, end = layer.band.keys_of(first, last, layer.length)
        for start in range(begin, end, width):
            yield slice(first, last), slice(start, min(start + width, end))


def _scores(layer: Factors, rows: Rows, columns: slice) -> Tensor:
    """`(heads, rows, columns)` in float32, what a query does not see far below zero."""
    query, key = layer.query[:, rows].float(), layer.key[:, columns].float()
    scores = _grouped_product(query * layer.scale, key)
    if layer.softcap is not None:
        scores = scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    hidden = _unseen(layer, rows, columns)
    return scores if hidden is None else scores.masked_fill_(hidden, _EMPTY)


def _grouped_product(rows: Tensor, columns: Tensor) -> Tensor:
    """`(heads, rows, columns)` of (heads, rows, width) and (key heads, columns, width)."""
    heads, count, width = rows.shape
    grouped = rows.reshape(len(columns), heads // len(columns) * count, width)
    return (grouped @ columns.transpose(1, 2)).view(heads, count, columns.shape[1])


def _unseen(layer: Factors, rows: Rows, columns: slice) -> Tensor | None:
    """True (rows, columns) where a query does not see a key; None where all are seen."""
    band, device = layer.band, layer.query.device
    inside = isinstance(rows, slice) and band.covers(
        rows.start, rows.stop, columns.start, columns.stop
    )
    if inside and layer.hidden is None:
        return None
    keys = torch.arange(columns.start, columns.stop, device=device)
    queries = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
    distance = keys[None] - queries[:, None]
    unseen = torch.zeros_like(distance, dtype=torch.bool)
    if band.before is not None:
        unseen |= distance < -band.before
    if band.after is not None:
        unseen |= distance > band.after
    return unseen if layer.hidden is None else unseen | layer.hidden[columns]


def _weights(layer: Factors, sums: Tensor, rows: Rows, columns: slice) -> Tensor:
    return _scores(layer, rows, columns).sub_(sums[:, rows, None]).exp_()


def _changes(layer: Factors, rows: Rows, columns: slice) -> Tensor:
    """`(heads, rows, columns)`: the gradient of the score with respect to each weight."""
    value, gradient = layer.gradient_factors()
    return _grouped_product(gradient[:, rows].float(), value[:, columns].float())


def _mixed(layer: Factors, sums: Tensor, shares: Tensor, rows: Rows, columns: slice) -> Tensor:
    return _summed(_weights(layer, sums, rows, columns), shares)


def _summed(block: Tensor, shares: Tensor) -> Tensor:
    """Heads weighed and summed."""
    heads, rows, columns = block.shape
    return (shares.to(block).reshape(1, heads) @ block.view(heads, -1)).view(rows, columns)
