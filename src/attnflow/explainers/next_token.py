"""What a causal language model says after a text: the token, and the text as ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnflow.errors import ModelError, TokensError
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.trace import Prediction

__all__ = ["NextToken", "next_token"]


@dataclass(frozen=True)
class NextToken:
    """A text as ids, the token that is explained, and the model's own answer.

    choice: the token's id; the model's answer unless another was named.
    """

    ids: list[int]
    choice: int
    prediction: Prediction


def next_token(
    model: nn.Module, text: str | Mapping[str, Any], tokenizer: Any, answer: int | str | None
) -> NextToken:
    """One forward pass over a text or over prepared inputs of one example."""
    adapter = adapter_for(model)
    if isinstance(text, Mapping):
        batch = adapter.wrap(model, text)
    else:
        batch = adapter.encode(model, tokenizer, [checked_text(text)])
    if batch.size != 1:
        raise TokensError(f"One example is explained at a time; got a batch of {batch.size}.")
    with torch.no_grad(), at_rest(model):
        outputs = adapter.forward(model, batch.inputs)
    (scores,) = adapter.scores(model, tokenizer, outputs, batch)
    if scores is None:
        raise ModelError(f"{type(model).__name__} says nothing of what follows this text.")
    row = batch.inputs["input_ids"][0]
    ids = row[list(batch.positions_of(0, len(row)))].tolist()
    return NextToken(ids, scores.choice(answer), scores.prediction())
