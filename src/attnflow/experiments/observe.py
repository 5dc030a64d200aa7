"""What every experiment looks at: importance and attention of many texts, in few passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attnflow.errors import ModelError
from attnflow.evaluation.batching import batches_by_length
from attnflow.evaluation.importance import Importance, Measure
from attnflow.generation.prompts import neutral_ids
from attnflow.hosts.capture import capture_batch
from attnflow.progress import ProgressCallback, tell
from attnflow.trace import AttentionTrace

__all__ = ["capture_texts", "measure_all", "neutral_traces", "padded"]


def measure_all(
    measures: Mapping[str, Measure],
    model: nn.Module,
    texts: Sequence[str],
    *,
    progress: ProgressCallback | None,
    refuse: Callable[[str, ModelError], None] | None = None,
    **options: Any,
) -> dict[str, list[Importance]]:
    """The importance of every token of every text, by the name of the measure.

    A measure that this model does not allow is handed to `refuse` and left out.
    """
    results: dict[str, list[Importance]] = {}
    for name, measure in measures.items():
        try:
            results[name] = measure(model, texts, progress=_under(name, progress), **options)
        except ModelError as error:
            if refuse is None:
                raise
            refuse(name, error)
    return results


def _under(stage: str, progress: ProgressCallback | None) -> ProgressCallback:
    return lambda step: tell(progress, stage, step.done, step.total)


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
