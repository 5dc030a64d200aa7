"""The model's own completion of a prompt, by greedy search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnflow.hosts.adapter import device_of
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import end_tokens, run_generate

__all__ = ["greedy_completion"]


def greedy_completion(
    model: Any,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop: str | None = None,
) -> tuple[list[int], bool]:
    """What the model writes by greedy search, and whether it was cut off.

    The end token, and all from the first token on whose text holds `stop`, is left out.
    """
    ids = torch.tensor([list(prompt_ids)], device=device_of(model))
    pad = None if tokenizer is None else tokenizer.pad_token_id or tokenizer.eos_token_id
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "pad_token_id": pad or 0}
    with at_rest(model):
        sequence = run_generate(
            model,
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            options,
            observer=None,
            tokenizer=tokenizer,
            seed=None,
        )[0]
    two_stacks = adapter_for(model).facts(model).encoder_decoder
    completion = sequence[1 if two_stacks else len(prompt_ids) :].tolist()
    ends = end_tokens(model, options)
    for k, token in enumerate(completion):
        if token in ends or (stop is not None and stop in tokenizer.decode([token])):
            return completion[:k], False
    return completion, True
