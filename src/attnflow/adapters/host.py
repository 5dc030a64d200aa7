"""The contract between capture and a host: batches go in, recorded layers come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.mixing import Heads, mix_heads
from attnflow.tokens import Tokens
from attnflow.trace import Prediction

__all__ = ["Adapter", "Batch", "Recorder"]


@dataclass(frozen=True)
class Batch:
    """Some examples as the model takes them.

    `kept[b]` are the positions of example b that are not padding, and `tokens[b]` their tokens.
    """

    inputs: Mapping[str, Tensor]
    tokens: tuple[Tokens, ...]
    kept: tuple[tuple[int, ...], ...]


class Recorder:
    """Takes each layer's weights as they are computed and keeps what is asked for, on the CPU.

    With `heads` given the heads are mixed at once, so that never more than one layer exists with
    all its heads; with None every head is kept.
    """

    def __init__(self, heads: Heads | None) -> None:
        self.heads = heads
        self.dtype = ""
        self.layers: list[NDArray[np.float32]] = []

    def add(self, weights: Tensor) -> None:
        """One layer's weights after the softmax, (batch, heads, queries, keys)."""
        self.dtype = str(weights.dtype).removeprefix("torch.")
        array = weights.detach().float().cpu().numpy()
        if self.heads is not None:
            array = mix_heads(array, self.heads)[:, None].astype(np.float32)
        self.layers.append(array)


class Adapter(Protocol):
    """What a host declares. `testing.check_adapter` holds an adapter to this contract."""

    name: str

    def recognises(self, model: nn.Module) -> bool:
        """Whether this adapter is for this model."""
        ...

    def encode(self, model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Batch:
        """Texts to inputs, padded to one length."""
        ...

    def wrap(self, model: nn.Module, tokenizer: Any, inputs: Mapping[str, Tensor]) -> Batch:
        """Inputs the user prepared, with their tokens."""
        ...

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """One forward pass; every layer's weights go to the recorder, in order."""
        ...

    def layer_count(self, model: nn.Module) -> int | None:
        """How many layers must have been recorded, if the host says."""
        ...

    def predictions(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Prediction | None]:
        """What the model said of each example, where it has a head that says something."""
        ...
