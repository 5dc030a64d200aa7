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
from attnflow.hosts.registry import adapter_for
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
from attnflow.methods.sinks import find_sink
from attnflow.trace.extras import ScoreName

__all__ = ["explain_last_rows"]


@dataclass(frozen=True, eq=False)
class _LastRow(PredictingRows):
    """The last position of each text, explained by its likeliest token.

    logits: what that token is read from, put here when the model has run.
    """

    logits: list[Tensor] = field(default_factory=list)

    def scores(self, logits: Tensor, rows: slice, name: ScoreName) -> Tensor:
        """That of the likeliest token, `(batch, rows)`."""
        self.logits.append(logits.detach()[:, -1])
        score = logit if name == "logit" else log_probability
        return score(logits, logits.argmax(dim=-1))


def explain_last_rows(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    methods: Sequence[GradientAttention],
    layer: int,
) -> list[list[Attribution]]:
    """For each method the result of every text: its last position at one layer.

    The methods take gradients of the same score.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> [[one, other]] = explain_last_rows(
    ...     model, tokenizer, ["the key", "the keys to the"], [GradientAttention()], -1
    ... )
    >>> one.values.shape, other.values.shape  # layers, targets, sources
    ((1, 1, 2), (1, 1, 4))
    """
    batch = adapter_for(model).encode(model, tokenizer, texts)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    lengths = mask.sum(dim=1).tolist()
    padding = [ids.shape[1] - length for length in lengths]
    text = _LastRow(
        ids=_moved(ids, padding),
        mask=_moved(mask, padding),
        first=ids.shape[1] - 1,
        tokens=ids[:, :1],
    )
    with at_rest(model):
        rows = gradient_rows(model, text, methods[0].score)
    values, weights = (part.double().cpu().numpy() for part in (rows.values, rows.weights))
    about = provenance_of(model, str(model.dtype).removeprefix("torch."))
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
        for method, own in zip(methods, results, strict=True):
            own.append(_result(method, values[:, k, :, pad:], sink, layer, frame))
    return results


def _moved(rows: Tensor, padding: Sequence[int]) -> Tensor:
    """Padding to the left, so that all texts end together."""
    return torch.stack([row.roll(pad) for row, pad in zip(rows, padding, strict=True)])


def _result(
    method: GradientAttention, rows: Any, sink: int | None, layer: int, frame: dict[str, Any]
) -> Attribution:
    numbers = tuple(range(1, len(rows) + 1))
    available = layers_from(numbers, method.start_layer)
    top = available[-1] if layer == -1 else layer
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
