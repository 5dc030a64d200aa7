"""The attention sink of a prompt: a start token is one, by what the tokenizer says; otherwise it is
measured (see `attnflow.methods.sinks`).
"""

from __future__ import annotations

from typing import Any

from attnflow.hosts.adapter import ModelFacts
from attnflow.hosts.capture import capture
from attnflow.methods.sinks import attention_sink

__all__ = ["prompt_sink"]


def prompt_sink(
    model: Any, tokenizer: Any, inputs: Any, first_token: int, facts: ModelFacts
) -> int | None:
    """The position of a prompt that its model uses as a sink; None if there is none."""
    special = () if tokenizer is None else tokenizer.all_special_ids
    if facts.causal and first_token in special:
        return 0
    return attention_sink(capture((model, tokenizer), inputs, heads="mean"))
