"""Whoever watches a forward pass, and what changes it.

An observer is shown attention weights; the recorder is the one that keeps them. An intervention
sets values to zero, hides keys or makes attention uniform: it names positions of each example and
knows nothing of the model. An adapter applies it where the model attends (`Adapter.run_with`). In
an encoder–decoder the positions are those of the encoder, which the encoder itself and the
decoder's cross attention draw on; those of the decoder are named apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import InputError
from attnflow.methods.mixing import Heads, mix_heads
from attnflow.trace.extras import GRADIENTS

Stage = Literal["self", "encoder", "decoder", "cross"]


@dataclass(frozen=True, eq=False)
class RecordedLayer:
    """One layer that attends, as an observer is told of it.

    `module` computes the attention. `values` are what it mixes, (batch, heads, keys, width), and
    `length` is the number of its queries. `stage` says which attention of the model it is.
    `number` is the model's own number of the layer, from 1, where the host tells it. `sink` says
    that the layer has a learned sink, so that what its rows lack went there.
    """

    module: nn.Module
    values: Tensor
    length: int
    stage: Stage = "self"
    number: int | None = None
    sink: bool = False


@dataclass(frozen=True)
class LayerWeights:
    """One layer as a recorder keeps it, heads mixed if so asked; for gradients as in the graph."""

    weights: NDArray[np.float32]
    stage: Stage = "self"
    number: int | None = None
    sink: bool = False
    in_graph: tuple[Tensor, ...] = ()
    module: nn.Module | None = None


class AttentionObserver(ABC):
    """Whoever is shown attention weights while a model runs, some rows of a layer at a time."""

    @abstractmethod
    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """See weights after the softmax, (batch, heads, these rows of the queries, keys)."""

    @abstractmethod
    def end_layer(self, layer: RecordedLayer) -> None:
        """Learn that all rows of one layer were shown."""


class Recorder(AttentionObserver):
    """Takes each layer's weights as they are computed and keeps what is asked for, on the CPU.

    With `heads` given the heads are mixed at once, so that never more than one layer exists with
    all its heads; with None every head is kept. `expected` layers of one shape share one block of
    memory, so that stacking them later copies nothing.

    `record` names what is wanted beside the weights. An adapter that can measure hands each layer's
    measurements, (batch, n, n) or (batch, n), to `measure`. `watch`, where set, is told every
    layer's weights and values. `disturb` asks the adapter to make attention uniform before it is
    used: the check that what is shown is what the model uses. `positions` are those of each
    example that are no padding, for a host that learns of its padding only while it runs.
    """

    def __init__(
        self,
        heads: Heads | None,
        *,
        expected: int | None = None,
        disturb: bool = False,
        record: Sequence[str] = (),
    ) -> None:
        self.heads = heads
        self.disturb = disturb
        self.expected = expected or 0
        self.positions: tuple[tuple[int, ...], ...] | None = None
        self.record = tuple(record)
        self.dtype = ""
        self.layers: list[LayerWeights] = []
        self.measured: dict[str, list[NDArray[np.float32]]] = {}
        self.watch: Callable[[Tensor, Tensor], None] | None = None
        self._block: NDArray[np.float32] | None = None
        self._rows = np.empty(0, dtype=np.float32)
        self._in_graph: list[Tensor] = []

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Keep these rows; the first of a layer make room for all of it."""
        part = self.reduce(weights)
        if rows.start == 0:
            self._rows = self.room((*part.shape[:2], layer.length, part.shape[-1]))
            self._in_graph = []
        self._rows[:, :, rows] = part
        if self.wants_gradients or self.watch is not None:
            self._in_graph.append(weights)

    def end_layer(self, layer: RecordedLayer) -> None:
        """Keep the layer."""
        if self.watch is not None:
            self.watch(torch.cat(self._in_graph, dim=-2), layer.values)
        in_graph = tuple(self._in_graph) if self.wants_gradients else ()
        self.layers.append(
            LayerWeights(self._rows, layer.stage, layer.number, layer.sink, in_graph, layer.module)
        )
        self._in_graph = []

    @property
    def wants_gradients(self) -> bool:
        """True where weights must be kept as the model used them."""
        return GRADIENTS in self.record

    def measure(self, name: str, values: Tensor) -> None:
        """Keep one layer's measurement."""
        array: NDArray[np.float32] = values.detach().float().cpu().numpy()
        self.measured.setdefault(name, []).append(array)

    def room(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Memory for the next layer's weights: in the block if they fit, else on its own."""
        if self._block is None and self.expected:
            self._block = np.empty((self.expected, *shape), dtype=np.float32)
        k = len(self.layers)
        if self._block is not None and k < self.expected and self._block.shape[1:] == shape:
            return self._block[k]
        return np.empty(shape, dtype=np.float32)

    def stacked(self) -> NDArray[np.float32]:
        """Return all layers, (layers, batch, heads, queries, keys)."""
        block = self._block
        if (
            block is not None
            and all(layer.weights.base is block for layer in self.layers)
            and len(block) == len(self.layers)
        ):
            return block
        return np.stack([layer.weights for layer in self.layers])

    def reduce(self, weights: Tensor) -> NDArray[np.float32]:
        """Return what is kept of weights; with every head it is a view of the host's memory."""
        self.dtype = str(weights.dtype).removeprefix("torch.")
        array: NDArray[np.float32] = weights.detach().float().cpu().numpy()
        if self.heads is None:
            return array
        return mix_heads(array, self.heads)[:, None].astype(np.float32)

    def add(
        self, weights: Tensor, *, stage: Stage = "self", in_graph: Tensor | None = None
    ) -> None:
        """Keep one layer; `in_graph` is the tensor the model used, if `weights` is a copy of it."""
        reduced = self.reduce(weights)
        rows = self.room(reduced.shape)
        rows[:] = reduced
        parts = (weights if in_graph is None else in_graph,) if self.wants_gradients else ()
        self.layers.append(LayerWeights(rows, stage, in_graph=parts))


Positions = Sequence[Iterable[int]]


@dataclass(frozen=True, eq=False)
class Intervention:
    """A change of a forward pass, for each example of a batch, in every layer and head.

    zero_values: positions that are attended to as before and say nothing.
    hide_keys: positions that no query attends to; all others keep their places. A hidden position
        that can see nothing else sees itself, on which nothing depends, since nobody sees it.
    decoder_zero_values, decoder_hide_keys: the same for the decoder of an encoder–decoder.
    uniform: every query attends alike to all the keys that it may see.

    A batch may hold one text many times, each copy with positions of its own.
    """

    zero_values: Positions = ()
    hide_keys: Positions = ()
    decoder_zero_values: Positions = ()
    decoder_hide_keys: Positions = ()
    uniform: bool = False
    _masks: dict[tuple[str, int, torch.device], Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in _POSITIONS:
            rows = tuple(tuple(int(k) for k in row) for row in getattr(self, name))
            if any(k < 0 for row in rows for k in row):
                raise InputError(f"{name}: positions count from 0; got {rows!r}.")
            object.__setattr__(self, name, rows)
        if len(self._sizes) > 1:
            raise InputError(
                f"An intervention is for one batch; it names {sorted(self._sizes)} examples."
            )

    @property
    def _sizes(self) -> set[int]:
        return {len(getattr(self, name)) for name in _POSITIONS if getattr(self, name)}

    @property
    def size(self) -> int | None:
        """The number of examples it is for; None fits any batch."""
        return next(iter(self._sizes), None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the fields that change something."""
        return tuple(name for name in (*_POSITIONS, "uniform") if getattr(self, name))

    def queries(self, query: Tensor) -> Tensor:
        """Return queries as they shall be: zeros score every key alike, whatever is masked."""
        return torch.zeros_like(query) if self.uniform else query

    def values(self, value: Tensor, stage: Stage) -> Tensor:
        """Return values (batch, heads, keys, width) as they shall be."""
        rows = self._mask("zero_values", stage, value.shape[-2], len(value), value.device)
        return value if rows is None else value.masked_fill(rows[:, None, :, None], 0.0)

    def mask(
        self, mask: Tensor | None, query: Tensor, keys: int, stage: Stage, first: int, total: int
    ) -> Tensor | None:
        """Return what is added to the scores of queries from `first` of `total` on."""
        keys_to_hide = self._mask("hide_keys", stage, keys, len(query), query.device)
        if keys_to_hide is None:
            return mask
        lowest = torch.finfo(query.dtype).min
        if mask is None:
            mask = query.new_zeros(len(query), 1, query.shape[-2], keys)
        elif mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
        mask = mask[..., :keys].masked_fill(keys_to_hide[:, None, None, :], lowest)
        if stage == "cross":
            return mask
        own = torch.arange(query.shape[-2], device=query.device) + first + keys - total
        alone = (mask <= lowest).all(dim=-1, keepdim=True)
        is_own = torch.arange(keys, device=query.device)[None] == own[:, None]
        return mask.masked_fill(alone & is_own, 0.0)

    def _mask(
        self, name: str, stage: Stage, keys: int, batch: int, device: torch.device
    ) -> Tensor | None:
        """True (batch, keys) at the positions a kind of change is for; None where it has none."""
        name = f"decoder_{name}" if stage == "decoder" else name
        rows: tuple[tuple[int, ...], ...] = getattr(self, name)
        if not any(rows):
            return None
        if len(rows) != batch:
            raise InputError(f"{name} is for {len(rows)} examples and the batch has {batch}.")
        mask = self._masks.get((name, keys, device))
        if mask is None:
            mask = torch.zeros(batch, keys, dtype=torch.bool)
            for line, row in zip(mask, rows, strict=True):
                if row and max(row) >= keys:
                    raise InputError(f"{name} names position {max(row)}; there are {keys} keys.")
                line[list(row)] = True
            mask = self._masks.setdefault((name, keys, device), mask.to(device))
        return mask


_POSITIONS = ("zero_values", "hide_keys", "decoder_zero_values", "decoder_hide_keys")
UNIFORM = Intervention(uniform=True)
"""Attention made uniform: the check that what is seen is what the model uses."""


@dataclass(eq=False)
class Session:
    """The observer and the intervention of a pass, asked each time a layer attends."""

    observer: AttentionObserver | None = None
    intervention: Intervention | None = None

    @contextmanager
    def replay(self, intervention: Intervention) -> Iterator[None]:
        """Layers run again inside this block: under another intervention, shown to nobody."""
        before = self.observer, self.intervention
        self.observer, self.intervention = None, intervention
        try:
            yield
        finally:
            self.observer, self.intervention = before
