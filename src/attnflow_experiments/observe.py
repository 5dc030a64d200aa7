"""Observations of every experiment: importance and attention of many texts, in few passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from attnflow.errors import ModelError
from attnflow.errors.progress import Progress, relaying, tell
from attnflow.evaluation.importance import Importance, Measure
from attnflow.evaluation.passes import batches_by_length
from attnflow.explainers.prompts import neutral_ids
from attnflow.hosts.capture import capture
from attnflow.trace import AttentionTrace

T = TypeVar("T")


def observe_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    measures: Mapping[str, Measure],
    observation: Callable[[int, AttentionTrace, Mapping[str, Importance]], T],
    *,
    answer: Any,
    batch_size: int,
    length: Callable[[str], int] = len,
    refuse: Callable[[str, ModelError], None] | None = None,
) -> list[T]:
    """One observation for each text, of its number, its attention (heads averaged) and the
    importance of its tokens.

    length: by which texts are sorted, so that those of about equal length run together.
    refuse: takes the name and the reason of a measure that this model does not allow; without it
        that is an error.
    """
    importance: dict[str, list[Importance]] = {}
    shared = {"answer": answer, "batch_size": batch_size}
    for name, measure in measures.items():
        try:
            with relaying(partial(_rename, name)):
                importance[name] = measure((model, tokenizer), texts, **shared)
        except ModelError as error:
            if refuse is None:
                raise
            refuse(name, error)
    traces: dict[int, AttentionTrace] = {}
    for numbers in batches_by_length([length(text) for text in texts], batch_size):
        batch = [texts[k] for k in numbers]
        captures = capture((model, tokenizer), batch, heads="mean")
        traces.update(zip(numbers, captures, strict=True))
        tell("attention", len(traces), len(texts))
    observations = []
    for k in range(len(texts)):
        own = {name: results[k] for name, results in importance.items()}
        observations.append(observation(k, traces[k], own))
        tell("attribution", k + 1, len(texts))
    return observations


def _rename(stage: str, step: Progress) -> Progress:
    return step._replace(stage=stage)


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
    return capture((model, tokenizer), [padded(rows)], heads="mean")


def padded(rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Token ids as one batch, padding on the right and masked; no padding token is needed."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}
