"""Who looks where: the attention of every head, for the viewer's grid of thumbnails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.tokens import Tokens
from attnflow.trace import AttentionTrace

__all__ = ["MOST_HEAD_WEIGHTS", "HeadWeights"]

MOST_HEAD_WEIGHTS = 2_000_000
"""Weights of all heads together that a page carries, a byte each; with more there is no grid."""


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """`weights[layer, head, row, column]`: how much of its attention each row gives each column.

    rows: the positions that look, called by the token that is read there; columns: what is looked
    at. Of a completion a row is called by the token that its position writes.

    >>> trace = AttentionTrace.from_arrays(np.full((1, 2, 2, 2), 0.5), ["the", "key"])
    >>> HeadWeights.of_trace(trace).rows
    ('the', 'key')
    """

    layers: tuple[int, ...]
    weights: NDArray[np.floating[Any]]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of_trace(cls, trace: AttentionTrace | None) -> HeadWeights | None:
        """Every position of a trace; None where it has no heads of their own, or other axes."""
        if trace is None or trace.weights.ndim != 4 or trace.weights.shape[1] < 2:
            return None
        if trace.weights.shape[2] != trace.weights.shape[3]:
            return None
        names = trace.tokens.names
        return cls(tuple(trace.layers), trace.weights, names, names)

    @classmethod
    def of_completion(cls, trace: AttentionTrace, prompt: int, targets: Tokens) -> HeadWeights:
        """The positions that write the completion, of a trace of prompt and completion; `prompt`
        is the length of the prompt.

        >>> weights = np.full((1, 2, 3, 3), 1 / 3)
        >>> trace = AttentionTrace.from_arrays(weights, ["the", "key", "is"])
        >>> HeadWeights.of_completion(trace, 2, Tokens(("is", "old"))).weights.shape
        (1, 2, 2, 3)
        """
        rows = slice(prompt - 1, prompt - 1 + len(targets))
        return cls(
            tuple(trace.layers),
            trace.weights[:, :, rows].copy(),
            targets.names,
            trace.tokens.names,
        )
