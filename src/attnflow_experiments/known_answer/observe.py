"""Prompts and sums whose true sources are known, as a model reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnflow.errors.progress import tell
from attnflow.hosts.capture import capture_batch
from attnflow.trace import AttentionTrace
from attnflow_experiments.known_answer.data import FactPrompt
from attnflow_experiments.observe import neutral_traces, padded

__all__ = ["Known", "arithmetic", "stated_facts"]

_BATCH = 16


@dataclass(frozen=True, eq=False)
class Known:
    """One prompt the model answered rightly: its attention, and the positions of true sources."""

    trace: AttentionTrace
    neutral: AttentionTrace | None
    sources: tuple[int, ...]
    distractors: int = 0
    inputs: str | Mapping[str, torch.Tensor] = ""


def stated_facts(model: Any, tokenizer: Any, prompts: Sequence[FactPrompt]) -> list[Known]:
    """Those prompts whose answer the model gives, each beside its neutral prompt."""
    facts: list[Known] = []
    for start in range(0, len(prompts), _BATCH):
        part = prompts[start : start + _BATCH]
        texts = [prompt.text for prompt in part]
        traces = capture_batch(model, texts, tokenizer=tokenizer, heads="mean")
        right = [
            (prompt, trace)
            for prompt, trace in zip(part, traces, strict=True)
            if _answers(trace, f"Ġ{prompt.answer}")
        ]
        others = neutral_traces(model, tokenizer, [trace for _, trace in right])
        for (prompt, trace), neutral in zip(right, others, strict=True):
            sources = trace.tokens.occurrences_of([f"Ġ{prompt.answer}"])
            facts.append(Known(trace, neutral, tuple(sources), prompt.distractors, prompt.text))
        tell("asking", min(start + _BATCH, len(prompts)), len(prompts))
    return facts


def arithmetic(model: Any, vocabulary: Mapping[str, int], sign: str) -> list[Known]:
    """`7*6=` for all pairs of digits: the operands are the true sources of the first digit."""
    compute: Callable[[int, int], int] = {"*": int.__mul__, "+": int.__add__}[sign]
    pairs = [(a, b) for a in range(10) for b in range(10)]
    rows = [[vocabulary[c] for c in f"{a}{sign}{b}="] for a, b in pairs]
    traces = capture_batch(model, padded(rows), heads="mean")
    tell("calculating", len(pairs), len(pairs))
    return [
        Known(trace, None, (0, 2), inputs={"input_ids": torch.tensor([row])})
        for (a, b), row, trace in zip(pairs, rows, traces, strict=True)
        if _answers(trace, str(vocabulary[str(compute(a, b))[0]]))
    ]


def _answers(trace: AttentionTrace, label: str) -> bool:
    return trace.prediction is not None and trace.prediction.label == label
