"""Attention of many texts in few passes, and of the same prompts with nothing in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnflow.evaluation.batching import batches_by_length
from attnflow.generation.prompts import neutral_ids
from attnflow.hosts.capture import capture_batch
from attnflow.progress import ProgressCallback, tell
from attnflow.trace import AttentionTrace

__all__ = ["capture_texts", "neutral_traces", "padded"]


def capture_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    lengths: Sequence[int],
    batch_size: int,
    progress: ProgressCallback | None,
) -> list[AttentionTrace]:
    """The attention of every text, heads averaged; texts of about equal length together."""
    traces: dict[int, AttentionTrace] = {}
    for numbers in batches_by_length(lengths, batch_size):
        batch = [texts[k] for k in numbers]
        captures = capture_batch(model, batch, tokenizer=tokenizer, heads="mean")
        traces.update(zip(numbers, captures, strict=True))
        tell(progress, "attention", len(traces), len(texts))
    return [traces[k] for k in range(len(texts))]


def neutral_traces(
    model: Any, tokenizer: Any, traces: Sequence[AttentionTrace]
) -> list[AttentionTrace]:
    """The same prompts with nothing in them, in one pass."""
    if not traces:
        return []
    rows = [
        neutral_ids(tokenizer, tokenizer.convert_tokens_to_ids(list(trace.tokens)))
        for trace in traces
    ]
    return capture_batch(model, padded(rows), tokenizer=tokenizer, heads="mean")


def padded(rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Token ids as one batch, padding on the right and masked; no padding token is needed.

    >>> padded([[7, 8], [9]])["attention_mask"].tolist()
    [[1, 1], [1, 0]]
    """
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}
