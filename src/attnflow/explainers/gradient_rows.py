"""Gradient attention of a completion: one pass over its positions, beside the prompt's cache.

The model writes as it always does, with its own fused attention. Its keys and values are kept, and
when the text is there, one forward and one backward pass over the positions that predicted it give
the row of every generated token. That costs a fraction of writing, where a backward pass for each
token as it comes would double it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from attnflow.hosts.factored import told_memory
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.row_gradients import (
    NO_CONTRAST,
    PredictingRows,
    cropped,
    gradient_rows,
)
from attnflow.methods.gradients import find_sink
from attnflow.trace.extras import LOG_PROB, ScoreName

_MOST_NUMBERS = 2**26  # of layers × tokens × positions: above, only the sum over layers is kept

__all__ = ["LOG_PROBS", "CompletionRows", "completion_rows", "empty_cache"]

LOG_PROBS = "log_probs"
"""Where the provenance of a result says how likely each token of the completion is, in nats."""


@dataclass(frozen=True, eq=False)
class CompletionRows:
    """`rows[layer, example, generated token, position]`, positions those of the padded texts.

    weights: (example, generated token, position), the mean weight over layers and heads.
    log_probs: (example, generated token), how likely the model finds what was written, in nats.
    """

    rows: NDArray[np.float64]
    weights: NDArray[np.float64]
    log_probs: NDArray[np.float64]
    prompt: int
    padding: list[int]
    layers: tuple[int, ...]

    def sink(self, example: int, count: int) -> int | None:
        """The prompt token that serves as attention sink, counted without padding."""
        position = find_sink(self.weights[example, :count])
        return None if position is None else position - self.padding[example]

    def of(self, example: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`(layers, count, prompt)` and `(layers, count)`: to the prompt, and to anything else.

        At each layer what it and all layers below it add up to.
        """
        rows = np.cumsum(self.rows[:, example, :count], axis=0)
        on_prompt = rows[..., self.padding[example] : self.prompt]
        return on_prompt.copy(), rows[..., self.prompt :].sum(axis=-1)


def empty_cache() -> DynamicCache:
    """A cache that keeps every position of every layer, so that it can be cut afterwards."""
    return DynamicCache()


def completion_rows(
    model: Any,
    sequences: Tensor,
    mask: Tensor,
    prompt: int,
    lengths: list[int],
    cache: Any = None,
    *,
    score: ScoreName = LOG_PROB,
    contrasts: Mapping[tuple[int, int], int] | None = None,
) -> CompletionRows:
    """The rows of what was written after `prompt` positions, padding on the left included.

    sequences: (batch, length), prompts and completions. mask: (batch, prompt). lengths: how many
    tokens of each completion count. cache: what the model kept while it wrote, if it is at hand.
    contrasts: for an example and a number of its completion's tokens, the id of the token that it
    is held against.
    """
    longest = max(lengths)
    ids = sequences[:, : prompt + longest]
    completion = torch.ones_like(ids[:, prompt:])
    explained = torch.zeros(len(ids), longest, device=ids.device)
    for example, length in enumerate(lengths):
        explained[example, :length] = 1.0
    text = PredictingRows(
        ids=ids[:, :-1],
        mask=torch.cat([mask, completion], dim=1)[:, :-1],
        first=prompt - 1,
        tokens=ids[:, prompt:],
        explained=explained,
        cache=None if cache is None else cropped(cache, prompt - 1),
        contrasts=_contrasts(ids[:, prompt:], contrasts),
    )
    count = _layers_of(model)
    summed = count * longest * text.length * len(ids) > _MOST_NUMBERS
    with at_rest(model), told_memory(model, text.length):
        rows = gradient_rows(model, text, score, summed=summed)
    return CompletionRows(
        rows=rows.values.double().cpu().numpy(),
        weights=rows.weights.double().cpu().numpy(),
        log_probs=rows.log_probs.double().cpu().numpy(),
        prompt=prompt,
        padding=(prompt - mask.sum(dim=1)).tolist(),
        layers=(count,) if summed else tuple(range(1, len(rows.values) + 1)),
    )


def _layers_of(model: Any) -> int:
    return int(adapter_for(model).expected_layers(model) or 0)


def _contrasts(tokens: Tensor, contrasts: Mapping[tuple[int, int], int] | None) -> Tensor | None:
    if not contrasts:
        return None
    others = torch.full_like(tokens, NO_CONTRAST)
    for (example, number), token in contrasts.items():
        others[example, number] = token
    return others
