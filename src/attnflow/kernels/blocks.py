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

_ROWS = 128  # queries of a block
_NUMBERS = 2**21  # numbers of a block over all heads: 8 MB, which a processor's cache holds in part
_NUMBERS_ON_DEVICE = 2**27  # an accelerator wants large blocks
_ROWS_OF_COLUMNS = 4096  # queries at a time where only a few keys count
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
    """`(heads, rows, n)`: the weights of these queries, times their gradients where asked.

    sums: (heads, rows), the log-sum-exp of these rows.
    """
    every = slice(0, layer.length)
    weights = _scores(layer, rows, every).sub_(sums[..., None]).exp_()
    return weights.mul_(_changes(layer, rows, every)) if with_gradient else weights


def row_sums(layer: Factors, rows: Tensor) -> Tensor:
    """`(heads, rows)`: the log-sum-exp of these rows alone."""
    sums = _scores(layer, rows, slice(0, layer.length)).logsumexp(dim=-1)
    sums = sums.masked_fill_(sums < _EMPTY / 2, 0.0)
    return sums if layer.sink is None else torch.logaddexp(sums, layer.sink.to(sums)[:, None])


def weight_columns(layer: Factors, sums: Tensor, columns: Tensor, shares: Tensor) -> Tensor:
    """`(n, columns)` in float64: the mixed weights of all queries on these keys."""
    mixed = torch.empty(layer.length, len(columns), dtype=torch.float64, device=sums.device)
    for first in range(0, layer.length, _ROWS_OF_COLUMNS):
        rows = slice(first, min(first + _ROWS_OF_COLUMNS, layer.length))
        scores = _raw_scores(layer, rows, layer.key[:, columns])
        scores.masked_fill_(_unseen_pairs(layer, rows, columns), _EMPTY)
        weights = scores.sub_(sums[:, rows, None]).exp_()
        mixed[rows] = torch.einsum("h,hrc->rc", shares.to(torch.float64), weights.double())
    return mixed


def sees_something(layer: Factors) -> Tensor:
    """`(n,)`: true for queries that see at least one key."""
    if layer.hidden is None:
        return torch.ones(layer.length, dtype=torch.bool, device=layer.query.device)
    counts = torch.cat([torch.zeros_like(layer.hidden[:1]).long(), (~layer.hidden).cumsum(0)])
    places = torch.arange(layer.length, device=layer.query.device)
    begin = torch.zeros_like(places)
    end = torch.full_like(places, layer.length)
    if layer.band.before is not None:
        begin = (places - layer.band.before).clamp(min=0)
    if layer.band.after is not None:
        end = (places + layer.band.after + 1).clamp(max=layer.length)
    return counts[end] > counts[begin]


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
    scores = _raw_scores(layer, rows, layer.key[:, columns])
    hidden = _unseen(layer, rows, columns)
    return scores if hidden is None else scores.masked_fill_(hidden, _EMPTY)


def _raw_scores(layer: Factors, rows: Rows, key: Tensor) -> Tensor:
    scores = _grouped_product(layer.query[:, rows].float() * layer.scale, key.float())
    if layer.softcap is None:
        return scores
    return scores.div_(layer.softcap).tanh_().mul_(layer.softcap)


def _grouped_product(rows: Tensor, columns: Tensor) -> Tensor:
    """`(heads, rows, columns)` of (heads, rows, width) and (key heads, columns, width)."""
    heads, count, width = rows.shape
    grouped = rows.reshape(len(columns), heads // len(columns) * count, width)
    return (grouped @ columns.transpose(1, 2)).view(heads, count, columns.shape[1])


def _unseen(layer: Factors, rows: Rows, columns: slice) -> Tensor | None:
    """True (rows, columns) where a query does not see a key; None where all are visible."""
    band, device = layer.band, layer.query.device
    inside = isinstance(rows, slice) and band.covers(
        rows.start, rows.stop, columns.start, columns.stop
    )
    if inside and layer.hidden is None:
        return None
    return _unseen_pairs(layer, rows, torch.arange(columns.start, columns.stop, device=device))


def _unseen_pairs(layer: Factors, rows: Rows, keys: Tensor) -> Tensor:
    """True (rows, keys) where a query does not see a key."""
    band = layer.band
    if isinstance(rows, slice):
        rows = torch.arange(rows.start, rows.stop, device=keys.device)
    distance = keys[None] - rows[:, None]
    unseen = torch.zeros_like(distance, dtype=torch.bool)
    if band.before is not None:
        unseen |= distance < -band.before
    if band.after is not None:
        unseen |= distance > band.after
    return unseen if layer.hidden is None else unseen | layer.hidden[keys]


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
