"""Gradient attention where a causal language model predicts, for many texts at once.

`capture` gives the rows of all positions and needs two passes over the text for it. A corpus asks
for one row: that of the last position. All others go through the model's own attention without
gradients, and one more step beside their cache, forward and backward, gives the row. It is the row
of `gradient_rows`, so the same numbers, for little more than a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.hosts.adapter import Scores
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.inputs import tokens_of
from attnflow.hosts.transformers.row_gradients import (
    PredictingRows,
    gradient_rows,
    log_probability,
    logit,
)
from attnflow.methods import GradientAttention
from attnflow.methods.base import layers_from
from attnflow.methods.gradients import find_sink
from attnflow.trace.extras import ScoreName

__all__ = ["explain_last_rows"]


@dataclass(frozen=True, eq=False)
class _LastRow(PredictingRows):
    """The last position of each text, explained by its likeliest token.

    logits: what that token is read from, put here when the model has run.
    """

    logits: list[Tensor] = field(default_factory=list)

    def scores(self, logits: Tensor, rows: slice, name: ScoreName) -> Tensor:
        """Return that of the likeliest token, `(batch, rows)`."""
        self.logits.append(logits.detach()[:, -1])
        score = logit if name == "logit" else log_probability
        return score(logits, logits.argmax(dim=-1))


def explain_last_rows(
    model: Model, texts: Sequence[str], methods: Sequence[GradientAttention], layers: int
) -> list[list[Attribution]]:
    """Return for each method the result of every text: its last position at one layer.

    The methods take gradients of the same score.

    >>> from attnflow.testing import tiny_decoder
    >>> [[first, second]] = explain_last_rows(
    ...     Model(*tiny_decoder()), ["the key", "the keys to the"], [GradientAttention()], -1
    ... )
    >>> first.values.shape, second.values.shape  # layers, targets, sources
    ((1, 1, 2), (1, 1, 4))
    """
    module, tokenizer = model
    batch = model.adapter.encode(module, tokenizer, texts)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    lengths = mask.sum(dim=1).tolist()
    padding = [ids.shape[1] - length for length in lengths]
    text = _LastRow(
        ids=_pad_left(ids, padding),
        mask=_pad_left(mask, padding),
        first=ids.shape[1] - 1,
        tokens=ids[:, :1],
    )
    with at_rest(module):
        rows = gradient_rows(module, text, methods[0].score)
    values, weights = (array.double().cpu().numpy() for array in (rows.values, rows.weights))
    about = provenance_of(module, str(module.dtype).removeprefix("torch."))
    results: list[list[Attribution]] = [[] for _ in methods]
    for k, (length, pad) in enumerate(zip(lengths, padding, strict=True)):
        tokens = tokens_of(tokenizer, ids[k, :length].tolist())
        scores = Scores(text.logits[-1][k], length - 1, partial(_names, tokenizer))
        sink = find_sink(weights[k, :, pad:]) if length > 2 else None
        frame = {
            "targets": tokens.select([length - 1]),
            "sources": tokens,
            "prediction": scores.prediction(),
            "provenance": {**about, "kind": "causal", "sink": sink},
        }
        for method, column in zip(methods, results, strict=True):
            column.append(_result(method, values[:, k, :, pad:], sink, layers, frame))
    return results


def _pad_left(rows: Tensor, padding: Sequence[int]) -> Tensor:
    """Move the padding to the left, so that all texts end together."""
    return torch.stack([row.roll(pad) for row, pad in zip(rows, padding, strict=True)])


def _result(
    method: GradientAttention, rows: Any, sink: int | None, layers: int, frame: dict[str, Any]
) -> Attribution:
    numbers = tuple(range(1, len(rows) + 1))
    available = layers_from(numbers, method.start_layer)
    top = available[-1] if layers == -1 else layers
    sums = rows[available[0] - 1 : top].sum(axis=0, keepdims=True)
    values, elsewhere = method.without_sink(sums, np.zeros(sums.shape[:2]), sink)
    return Attribution(
        values,
        (top,),
        method=method,
        elsewhere=elsewhere if sink is not None else None,
        **frame,
    )


def _names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(name) for name in tokenizer.convert_ids_to_tokens(list(ids))]
