"""What changes a forward pass: values set to zero, keys hidden, attention made uniform.

An intervention names positions of each example; it knows nothing of the model. An adapter applies
it where the model attends (`Adapter.run_with`). In an encoder–decoder the positions are those of
the encoder, which the encoder itself and the decoder's cross attention draw on; those of the
decoder are named apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import InputError
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer, Stage

Positions = Sequence[Iterable[int]]


@dataclass(frozen=True, eq=False)
class Intervention:
    """A change of a forward pass, for each example of a batch, in every layer and head.

    zero_values: positions that are attended to as before and say nothing.
    hide_keys: positions that no query attends to; all others keep their places. A hidden position
        that can see nothing else sees itself, on which nothing depends, since nobody sees it.
    decoder_zero_values, decoder_hide_keys: the same for the decoder of an encoder–decoder.
    uniform: every query attends alike to all the keys that it may see.

    A batch may hold one text many times, each copy with positions of its own:
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
        """Return the mask (batch, 1 or heads, queries, keys) that is added to the scores.

        `first` is the place of the first of these queries among the layer's `total` ones.
        """
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


class Session:
    """The observer and the intervention of a pass, asked each time a layer attends."""

    def __init__(
        self, observer: AttentionObserver | None = None, intervention: Intervention | None = None
    ) -> None:
        self.observer = observer
        self.intervention = intervention

    @contextmanager
    def replay(self, intervention: Intervention) -> Iterator[None]:
        """Layers run again inside this block: under another intervention, shown to nobody."""
        before = self.observer, self.intervention
        self.observer, self.intervention = None, intervention
        try:
            yield
        finally:
            self.observer, self.intervention = before


class ProjectionHooks:
    """Hooks on an attention module that projects queries, keys and values in one row.

    Its values are seen, and changed, as they are projected; its weights are shown all at once.
    """

    def __init__(self, module: nn.Module, heads: int, session: Session) -> None:
        self.module, self.heads, self.session = module, heads, session
        self.values = torch.empty(0)

    def project(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Take the values, (batch, heads, n, width), from a row (batch, n, 3 × heads × width)."""
        query, key, value = output.unflatten(-1, (3, self.heads, -1)).unbind(2)
        self.values = value.transpose(1, 2)
        if self.session.intervention is None:
            return output
        values = self.session.intervention.values(self.values, "self").transpose(1, 2)
        return torch.stack([query, key, values], dim=2).flatten(2)

    def show(self, weights: Tensor) -> None:
        """Show the weights after the softmax to the observer, if there is one."""
        observer = self.session.observer
        if observer is not None:
            layer = RecordedLayer(self.module, self.values, weights.shape[-2])
            observer.see_rows(layer, weights, slice(0, layer.length))
            observer.end_layer(layer)
