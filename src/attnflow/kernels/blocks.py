"""The products, and attention itself, as blocks of torch: on any device, in memory that grows with
n, not n².

A block of weights is `exp(scores - log-sum-exp)`: with each row's log-sum-exp at hand no row need
be complete to be right. Heads are summed within a block, so the product with the vectors is made
once and not for each head. Blocks that the band leaves empty are never formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnflow.errors import InputError


@dataclass(frozen=True)
class Band:
    """The keys a query at position i may see: from `i - before` to `i + after`, None for all."""

    before: int | None = None
    after: int | None = None

    @classmethod
    def causal(cls, window: int | None = None) -> Band:
        """Nothing later; with a window, only the latest so many keys, the query's own included."""
        return cls(None if window is None else window - 1, 0)

    def keys_of(self, first: int, last: int, length: int) -> tuple[int, int]:
        """The range of keys that the queries from `first` up to `last` see some of."""
        begin = 0 if self.before is None else max(0, first - self.before)
        end = length if self.after is None else min(length, last + self.after)
        return begin, max(begin, end)

    def covers(self, first: int, last: int, begin: int, end: int) -> bool:
        """Return whether each of these queries sees each of these keys."""
        early = self.before is None or begin >= last - 1 - self.before
        late = self.after is None or end - 1 <= first + self.after
        return early and late


@dataclass(frozen=True, eq=False)
class Factors:
    """One layer: `query` (heads, n, width) and `key` (key heads, n, width), after rotary embedding.

    Neighbouring query heads share a key head, so heads is a multiple of key heads. scale: scores
    are `scale · q·k`. softcap: scores s become `c tanh(s / c)`. sink: (heads,), the score of a
    learned sink, which takes part in the softmax and is no source. hidden: (n,), true for keys that
    nobody sees, such as padding. value (key heads, n, value width) and gradient (heads, n, value
    width), that of the attention's output, are there where gradients are asked for.
    """

    query: Tensor
    key: Tensor
    scale: float
    band: Band = field(default_factory=Band.causal)
    softcap: float | None = None
    sink: Tensor | None = None
    hidden: Tensor | None = None
    value: Tensor | None = None
    gradient: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = (tuple(self.query.shape), tuple(self.key.shape))
        fits = self.query.ndim == self.key.ndim == 3 and self.query.shape[1:] == self.key.shape[1:]
        if not fits or self.query.shape[0] % self.key.shape[0]:
            raise InputError(
                "Factors have queries (heads, n, width) and keys (key heads, n, width), heads a "
                f"multiple of key heads; got {shapes[0]} and {shapes[1]}."
            )

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.query.shape[0])

    @property
    def groups(self) -> int:
        """The number of query heads that share a key head."""
        return self.heads // int(self.key.shape[0])

    @property
    def length(self) -> int:
        """The number of positions."""
        return int(self.query.shape[1])

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.query, self.key, self.value, self.gradient)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def gradient_factors(self) -> tuple[Tensor, Tensor]:
        """Values and the output's gradient, or an error that says they were not recorded."""
        if self.value is None or self.gradient is None:
            raise InputError(
                "These factors hold queries and keys only; gradient-weighted products also need "
                "the values and the gradient of the attention's output."
            )
        return self.value, self.gradient

    def log_shares(self, shares: Tensor) -> Tensor:
        """`(heads, 1)`: what is added to a head's log weights to weigh the head; -inf for none."""
        return shares.to(self.query.device, torch.float32).log()[:, None]


_ROWS = 128  # queries of a block
_NUMBERS = 2**21  # numbers of a block over all heads: 8 MB, which a processor's cache holds in part
_NUMBERS_ON_DEVICE = 2**27  # an accelerator wants large blocks
_ROWS_OF_COLUMNS = 4096  # queries at a time where only a few keys count
_EMPTY = -1e30  # a score that no exponential feels; -inf less -inf would be no number


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


def attend(layer: Factors, value: Tensor) -> tuple[Tensor, Tensor]:
    """`(heads, n, value width)` and `(heads, n)`: the output, and each row's log-sum-exp."""
    shape = (layer.heads, layer.length, value.shape[2])
    output = torch.zeros(shape, device=value.device)
    sums = torch.full(shape[:2], _EMPTY, device=value.device)
    if layer.sink is not None:  # it takes part in the sum and adds nothing
        sums = layer.sink.float()[:, None].to(value.device).repeat(1, layer.length)
    for rows, columns in _tiles(layer):
        scores = _scores(layer, rows, columns)
        before = sums[:, rows].clone()
        sums[:, rows] = torch.logaddexp(before, scores.logsumexp(dim=-1))
        weights = scores.sub_(sums[:, rows, None]).exp_()
        output[:, rows] *= (before - sums[:, rows]).exp_()[..., None]
        output[:, rows] += _ungrouped(weights, value[:, columns].float())
    blind = sums < _EMPTY / 2
    return output.masked_fill_(blind[..., None], 0.0).to(value.dtype), sums.masked_fill_(blind, 0.0)


def attend_back(
    layer: Factors, sums: Tensor, output: Tensor, *, secant: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, each of its own shape, in float32.

    With s = scale q_i·k_j, c(s) = s or its soft cap, P_ij = exp(c(s_ij) - L_i), L_i the log-sum-exp
    of a row and its sink, o_i = Σ_j P_ij v_j, and g_i the gradient of o_i:

        dv_j  = Σ_i P_ij g_i
        dP_ij = g_i · v_j
        dc_ij = P_ij (dP_ij - Σ_k P_ik dP_ik) = P_ij (g_i · v_j - g_i · o_i)
        ds_ij = slope(s_ij) dc_ij
        dq_i  = scale Σ_j ds_ij k_j,   dk_j = scale Σ_i ds_ij q_i

    A sink has no value, so that o_i and with it the last term need none of it. The rules of
    balanced gradients change only this: weights × values and queries × keys are products of two,
    of which each factor has half, so that values get a half of dv, queries and keys a quarter of dq
    and dk (½ of P's half). These are factors of the results, which whoever asks puts on
    (`hosts.balanced.attention_shares`). The softmax keeps its derivative. A soft cap is a function
    of one number, so that its slope is c(s) / s (`secant`), where the derivative is 1 - tanh²(s/c).
    """
    value, gradient = layer.gradient_factors()
    through = (gradient.float() * output.float()).sum(dim=-1)
    query_gradient, key_gradient, value_gradient = (
        torch.zeros_like(part, dtype=torch.float32) for part in (layer.query, layer.key, value)
    )
    for rows, columns in _tiles(layer):
        weights = _weights(layer, sums, rows, columns)
        upper = gradient[:, rows].float()
        value_gradient[:, columns] += _grouped_sum(weights, upper, len(value))
        scores = weights.mul_(_changes(layer, rows, columns).sub_(through[:, rows, None]))
        if layer.softcap is not None:
            scores = scores.mul_(_slopes(layer, rows, columns, secant))
        query_gradient[:, rows] += _ungrouped(scores, layer.key[:, columns].float())
        key_gradient[:, columns] += _grouped_sum(scores, layer.query[:, rows].float(), len(value))
    return query_gradient.mul_(layer.scale), key_gradient.mul_(layer.scale), value_gradient


def weight_rows(
    layer: Factors, sums: Tensor, rows: Tensor, *, with_gradient: bool = False
) -> Tensor:
    """`(heads, rows, n)`: the weights of these queries, times their gradients where asked.

    sums: (heads, rows), the log-sum-exp of these rows.
    """
    every = slice(0, layer.length)
    weights = _scores(layer, rows, every).sub_(sums[..., None]).exp_()
    return weights.mul_(_changes(layer, rows, every)) if with_gradient else weights


def score_rows(layer: Factors, sums: Tensor, rows: Tensor) -> Tensor:
    """`(rows, n)`: the gradient of these rows' scores where positive, the mean over heads.

    A weight is raised at the others' cost: what a row would have gained by them is taken off.
    sums: (heads, rows), the log-sum-exp of these rows.
    """
    step = max(1, _NUMBERS_ON_DEVICE // (layer.heads * layer.length))
    parts = []
    for places, totals in zip(rows.split(step), sums.split(step, dim=1), strict=True):
        weights = weight_rows(layer, totals, places)
        products = _changes(layer, places, slice(0, layer.length)).mul_(weights)
        gained = products.sum(dim=-1, keepdim=True)
        parts.append(products.sub_(weights.mul_(gained)).clamp_(min=0).mean(dim=0))
    return torch.cat(parts)


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
    scores = _uncapped(layer, rows, key)
    if layer.softcap is None:
        return scores
    return scores.div_(layer.softcap).tanh_().mul_(layer.softcap)


def _uncapped(layer: Factors, rows: Rows, key: Tensor) -> Tensor:
    return _grouped_product(layer.query[:, rows].float() * layer.scale, key.float())


def _slopes(layer: Factors, rows: Rows, columns: slice, secant: bool) -> Tensor:
    """`(heads, rows, columns)`: how far a capped score follows the score itself."""
    x = _uncapped(layer, rows, layer.key[:, columns]).div_(layer.softcap or 1.0)
    if secant:
        return torch.where(x == 0, 1.0, x.tanh() / x)
    return 1 - x.tanh_().square_()


def _grouped_product(rows: Tensor, columns: Tensor) -> Tensor:
    """`(heads, rows, columns)` of (heads, rows, width) and (key heads, columns, width)."""
    heads, count, width = rows.shape
    grouped = rows.reshape(len(columns), heads // len(columns) * count, width)
    return (grouped @ columns.transpose(1, 2)).view(heads, count, columns.shape[1])


def _ungrouped(block: Tensor, columns: Tensor) -> Tensor:
    """`(heads, rows, width)` of (heads, rows, columns) and (key heads, columns, width)."""
    heads, count, _ = block.shape
    return (block.view(len(columns), -1, block.shape[2]) @ columns).view(heads, count, -1)


def _grouped_sum(block: Tensor, rows: Tensor, key_heads: int) -> Tensor:
    """`(key heads, columns, width)`: (heads, rows, columns) turned times (heads, rows, width)."""
    turned = block.view(key_heads, -1, block.shape[2]).transpose(1, 2)
    return turned @ rows.reshape(key_heads, -1, rows.shape[2])


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
