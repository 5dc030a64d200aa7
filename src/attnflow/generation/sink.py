"""Where a model's attention goes when it has nowhere to go: found, never assumed.

A decoder puts much of its attention on its first token, whatever that is; an encoder often on its
end token. Whoever leaves the sink out must know which position it is: a start token is one, by what
the tokenizer says; otherwise it is measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.hosts.capture import capture
from attnflow.hosts.facts import ModelFacts
from attnflow.trace import AttentionTrace

__all__ = ["attention_sink", "prompt_sink"]

_FACTOR = 2.0  # a sink gets more than this many times what uniform attention would give it


def prompt_sink(
    model: Any, tokenizer: Any, inputs: Any, first_token: int, facts: ModelFacts
) -> int | None:
    """The position of a prompt that its model uses as a sink; None if there is none."""
    special = () if tokenizer is None else tokenizer.all_special_ids
    if facts.causal and first_token in special:
        return 0
    return attention_sink(capture(model, inputs, tokenizer=tokenizer, heads="mean"))


def attention_sink(trace: AttentionTrace) -> int | None:
    """The source that gets most attention from the other positions, over all layers and heads.

    It must get more than twice what it would if every position attended alike to all that it sees.
    Of an encoder–decoder only the encoder's positions are sources.

    >>> from attnflow import AttentionTrace
    >>> weights = [[[1.0, 0.0, 0.0], [0.1, 0.2, 0.7], [0.1, 0.0, 0.9]]]
    >>> attention_sink(AttentionTrace.from_arrays(weights, ["a", "b", "</s>"]))
    2
    """
    weights = trace.weights.mean(axis=1, dtype=np.float64)
    visible = weights > 0
    uniform = visible / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    others = ~np.eye(trace.length, dtype=bool)
    received, expected = ((x * others).sum(axis=(0, 1)) for x in (weights, uniform))
    sink = int(received[: trace.encoder_length].argmax())
    return sink if received[sink] > _FACTOR * expected[sink] else None
