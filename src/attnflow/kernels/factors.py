"""What the attention of one layer is made of: queries, keys, and which keys a query may see."""

from __future__ import annotations

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
        """Whether each of these queries sees each of these keys."""
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
        """How many query heads."""
        return int(self.query.shape[0])

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return self.heads // int(self.key.shape[0])

    @property
    def length(self) -> int:
        """How many positions."""
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
