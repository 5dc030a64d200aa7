"""One forward pass of a transformers model in which some positions pass nothing on.

Queries, keys and so the weights stay as they are; what is gone is what the position says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.hosts.recorder import AttentionObserver, Stage
from attnflow.hosts.transformers.attention import recording

__all__ = ["silencing"]


class _Silencer(AttentionObserver):
    """Zeroes values and looks at nothing."""

    def __init__(self, silent: Tensor) -> None:
        self.zeroed = silent

    def see_rows(self, module: nn.Module, weights: Tensor, rows: slice, length: int) -> None:
        """Never called: nothing is shown while values are zeroed."""

    def end_layer(
        self,
        module: nn.Module,
        value: Tensor,
        length: int,
        *,
        stage: Stage,
        number: int | None,
        sink: bool,
    ) -> None:
        """Never called either."""


@contextmanager
def silencing(model: PreTrainedModel, silent: Tensor) -> Iterator[None]:
    """Silence one position of each example in every layer; put everything back."""
    with recording(model, _Silencer(silent)):
        yield
