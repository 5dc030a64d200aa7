"""Rollout rows beside the key-value cache: what lets a language model be explained as it writes.

Under a causal mask a row of the rollout never changes once computed:

    R_l[t] = r R_{l-1}[t] + (1 - r) Σ_{k ≤ t} W_l[t, k] R_{l-1}[k]

so the rows of all positions so far are kept, as the model keeps its keys and values, and a new
token costs one product of a vector with a matrix in each layer. A row has one column for each
prompt token and one more for everything that falls on generated tokens together: that column is
what the input identity of a generated position adds to. Memory is layers × length × prompt; where
only spans of the prompt are asked for, a row has a column for each of them instead, and memory is
layers × length × spans: what is linear in the columns may be summed before it goes up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.attribution import dependence_of, spread
from attnflow.errors import CaptureError, MethodError
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer
from attnflow.methods.matrices import ATTENTION
from attnflow.methods.mixing import Heads
from attnflow.methods.products import head_shares
from attnflow.methods.rollout import UNIFORM_BASELINE, Rollout, uniform_rollout
from attnflow.trace import ROW_TOLERANCE

_SPARE_ROWS = 64  # room to grow by when more tokens come than were announced


def streams(rollout: Rollout) -> bool:
    """Return whether this rollout's rows are final once computed.

    Discarding a share of each row and dividing by how many queries see a column both depend on
    the length of the finished text; a single head at the top is no row of the rollout below. A
    measured matrix is none that a cache sees.
    """
    if rollout.matrices != ATTENTION or rollout.receptive_field == "column":
        return False
    return not rollout.discard and rollout.top_head is None


@dataclass
class _LayerRows:
    """One layer: `rows[batch, position, prompt column or the generated one]`, of which the first
    `filled` positions are there.

    `below` is None for the first one, which draws on the input itself: its rows are the identity.
    """

    number: int
    rows: Tensor
    share: float
    below: _LayerRows | None
    filled: int = 0


class RolloutCache(AttentionObserver):
    """Watches a causal model run and keeps the rollout of every position to the prompt.

    prompt: how many positions the prompt has, padding included. padding: how many of them are
    padding, on the left, one number for each example. dropped: for each example the columns that
    others may not draw on. layers: how many layers with attention the model has. members:
    (examples, prompt, columns), which positions are summed in which column; None keeps a column
    for each.
    """

    def __init__(
        self,
        rollout: Rollout,
        *,
        prompt: int,
        padding: list[int],
        dropped: list[list[int]],
        layers: int,
        room: int,
        members: Tensor | None = None,
    ) -> None:
        if not streams(rollout):
            raise MethodError(f"{rollout!r} depends on the finished text and cannot be streamed.")
        self.rollout = rollout
        self.prompt = prompt
        self.padding = padding
        self.dtype = "float32"
        self._members = members
        self._columns = prompt if members is None else members.shape[-1]
        self._dropped = dropped
        self._shares = rollout.residual_shares(layers)
        self._room = room
        self._layers: dict[nn.Module, _LayerRows] = {}
        self._masses: list[Tensor] = []  # looked at once, at the end: looking waits for the device
        self._sink = False

    # -- watching -----------------------------------------------------------------------------

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Roll these rows out, from the rows of the layer below."""
        self.dtype = str(weights.dtype).removeprefix("torch.")
        own = self._layers.get(layer.module) or self._new_layer(layer, weights)
        first, last = own.filled + rows.start, own.filled + rows.stop
        offset, visible = _visible(weights, own.filled + layer.length, last)
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            self._make_room(own, last)
            if own.number < self.rollout.start_layer:
                self._add_own(own, first, last, 1.0)  # layers below the start count as identity
                return
            matrix = self._matrix(_mixed(visible, self.rollout.heads), first, offset)
            product = self._product(matrix, own, offset, last)
            width = product.shape[-1]
            if own.below is None:
                own.rows[:, first:last, :width] = product * (1 - own.share)
                self._add_own(own, first, last, own.share)
            else:
                below = own.below.rows[:, first:last, :width]
                own.rows[:, first:last, :width] = product.lerp(below, own.share)

    def end_layer(self, layer: RecordedLayer) -> None:
        """The layer's new rows are complete."""
        self._layers[layer.module].filled += layer.length
        self._sink = self._sink or layer.sink

    def _new_layer(self, layer: RecordedLayer, weights: Tensor) -> _LayerRows:
        if len(self._layers) == len(self._shares):
            raise CaptureError(f"More than {len(self._shares)} layers with attention were seen.")
        rows = torch.zeros(weights.shape[0], self._room, self._columns + 1, device=weights.device)
        number = len(self._layers) + 1 if layer.number is None else layer.number
        share = float(self._shares[len(self._layers)])
        below = next(reversed(self._layers.values()), None)
        self._layers[layer.module] = _LayerRows(number, rows, share, below)
        return self._layers[layer.module]

    def _make_room(self, layer: _LayerRows, last: int) -> None:
        if last > layer.rows.shape[1]:
            batch, _, width = layer.rows.shape
            longer = layer.rows.new_zeros(batch, last + _SPARE_ROWS, width)
            longer[:, : layer.filled] = layer.rows[:, : layer.filled]
            layer.rows = longer

    # -- one matrix ---------------------------------------------------------------------------

    def _matrix(self, weights: Tensor, first: int, offset: int) -> Tensor:
        """The layer's matrix before the residual: what Mixing.layer_matrices() does, in place."""
        mass = weights.sum(dim=-1)
        padded = self._padded_queries(weights, first)
        if padded is not None:
            weights.masked_fill_(padded[..., None], 0.0)
            mass.masked_fill_(padded, 1.0)
        self._masses.append(mass)
        if not any(self._dropped) and self.rollout.receptive_field != "element":
            return weights
        self._without_dropped(weights, first, offset)
        if self.rollout.receptive_field == "element":
            rows, keys = weights.shape[-2:]
            position = torch.arange(first, first + rows, device=weights.device)[:, None]
            key = torch.arange(offset, offset + keys, device=weights.device)
            weights /= (position - key + 1).clamp(min=1)
        return _scaled_back(weights, mass, first - offset)

    def _padded_queries(self, weights: Tensor, first: int) -> Tensor | None:
        if first >= max(self.padding):
            return None
        rows = torch.arange(first, first + weights.shape[-2], device=weights.device)
        start = torch.tensor(self.padding, device=weights.device)
        return rows[None] < start[:, None]

    def _without_dropped(self, weights: Tensor, first: int, offset: int) -> None:
        """Nobody draws on a dropped column but its own row."""
        rows, keys = weights.shape[-2:]
        for example, columns in enumerate(self._dropped):
            for column in columns:
                if not offset <= column < offset + keys:
                    continue
                inside = first <= column < first + rows
                own = weights[example, column - first, column - offset].clone() if inside else None
                weights[example, :, column - offset] = 0.0
                if own is not None:
                    weights[example, column - first, column - offset] = own

    def _product(self, matrix: Tensor, layer: _LayerRows, offset: int, last: int) -> Tensor:
        """matrix @ rows below, only as many columns as these rows can reach."""
        if layer.below is not None:
            narrow = self._members is None and last <= self.prompt
            width = last if narrow else self._columns + 1
            return matrix @ layer.below.rows[:, offset:last, :width]
        product = matrix.new_zeros(*matrix.shape[:2], self._columns + 1)
        inside = max(min(last, self.prompt) - offset, 0)
        if self._members is None:
            product[..., offset : offset + inside] = matrix[..., :inside]
        else:
            product[..., :-1] = matrix[..., :inside] @ self._members[:, offset : offset + inside]
        product[..., -1] = matrix[..., inside:].sum(dim=-1)
        return product

    def _add_own(self, layer: _LayerRows, first: int, last: int, share: float) -> None:
        """The residual's part where the layer below is the input: a position's own column."""
        if self._members is None:
            position = torch.arange(first, last, device=layer.rows.device)
            layer.rows[:, position, position.clamp(max=self.prompt)] += share
            return
        within = max(min(last, self.prompt), first)
        layer.rows[:, first:within, :-1] += share * self._members[:, first:within]
        layer.rows[:, within:last, -1] += share

    # -- the result ---------------------------------------------------------------------------

    def check(self, length: int) -> None:
        """Check that every layer saw every position once, and every row was whole."""
        lengths = {layer.filled for layer in self._layers.values()}
        if len(self._layers) != len(self._shares) or lengths != {length}:
            raise CaptureError(
                f"{len(self._layers)} of {len(self._shares)} layers with attention were seen, over "
                f"{sorted(lengths)} positions where {length} were expected; nothing is returned, "
                "because a rollout over missing layers or positions would be wrong."
            )
        tolerance = ROW_TOLERANCE.get(self.dtype, 1e-4)
        worst = float(torch.cat([mass.reshape(-1) for mass in self._masses]).sub(1).abs().max())
        if not self._sink and not worst <= tolerance:
            raise CaptureError(
                f"A row of attention is off from 1 by {worst:.3g}, more than {tolerance:g}: "
                "what was seen is not attention after its softmax."
            )

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers a result has, from the start layer up."""
        numbers = [layer.number for layer in self._layers.values()]
        return tuple(number for number in numbers if number >= self.rollout.start_layer)

    def rows(self, example: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(layers, count, prompt) and (layers, count): to the prompt, and to generated tokens.

        The first row is that of the prompt's last position, which predicts the first token. Where
        columns are sums, each of them is one, whatever the padding.
        """
        first, padding = self.prompt - 1, self.padding[example]
        values = self._values(example, list(range(first, first + count)))
        if self.rollout.receptive_field == UNIFORM_BASELINE:
            values = values / self._uniform(padding, count)
        begin = padding if self._members is None else 0
        return values[..., begin:-1].copy(), values[..., -1].copy()

    def dependence(self, example: int, count: int) -> NDArray[np.float64] | None:
        """Return how far rows differ from others spread over the text, generated columns pooled."""
        first, padding = self.prompt - 1, self.padding[example]
        own = list(range(first, first + count))
        others = [padding + k for k in spread(first + count - padding)]
        values = self._values(example, [*own, *others])
        return dependence_of(values[:, :count], values[:, count:], own, others)

    def _values(self, example: int, positions: list[int]) -> NDArray[np.float64]:
        layers = [layer for layer in self._layers.values() if layer.number in self.layers]
        rows = torch.stack([layer.rows[example, positions] for layer in layers])
        return rows.double().cpu().numpy()

    def _uniform(self, padding: int, count: int) -> NDArray[np.float64]:
        """The rollout of uniform causal attention, its generated columns pooled like ours."""
        prompt = self.prompt - padding
        below = len(self._shares) - len(self.layers)
        rows = range(prompt - 1, prompt - 1 + count)
        uniform = uniform_rollout(self._shares[below:], prompt + count, rows)
        pooled = np.concatenate(
            [
                np.ones((*uniform.shape[:2], padding)),
                uniform[..., :prompt],
                uniform[..., prompt:].sum(axis=-1, keepdims=True),
            ],
            axis=-1,
        )
        return np.where(pooled > 0, pooled, 1.0)


def _scaled_back(rows: Tensor, mass: Tensor, shift: int) -> Tensor:
    """Rows scaled to the mass they had; a row with nothing left keeps to itself.

    Row i's own key stands at i + shift.
    """
    total = rows.sum(dim=-1)
    empty = (total <= 0).to(rows.dtype)
    rows.diagonal(shift, dim1=-2, dim2=-1).add_(empty)
    return rows.mul_((mass / (total + empty))[..., None])


def _visible(weights: Tensor, total: int, last: int) -> tuple[int, Tensor]:
    """The position of the first key, and the weights on the keys up to the last query.

    A sliding window's cache holds the latest keys only; a cache of fixed size has empty room
    after the last one.
    """
    keys = weights.shape[-1]
    offset = max(total - keys, 0)
    if last - offset < keys and bool(weights[..., last - offset :].any()):
        raise CaptureError(
            "A position attends to a later one: this model's attention is not causal, so its rows "
            "are not final while it generates. explain() takes such a model after the fact."
        )
    return offset, weights[..., : last - offset]


def _mixed(weights: Tensor, heads: Heads) -> Tensor:
    """Heads as `mix_heads` mixes them, on the model's device, in float32."""
    weights = weights.float()
    mean = weights.mean(dim=1)
    if heads == "mean":
        return mean
    shares = head_shares(heads, weights.shape[1])
    if shares is not None:
        return torch.einsum("h,bhqk->bqk", weights.new_tensor(shares), weights)
    extreme = weights.amax(dim=1) if heads == "max" else weights.amin(dim=1)
    total = extreme.sum(dim=-1, keepdim=True)
    mass = mean.sum(dim=-1, keepdim=True)
    return extreme * torch.where(total > 0, mass / total, torch.zeros_like(total))
