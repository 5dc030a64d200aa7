"""The yardstick for language models: a prompt run again without some of its parts.

`evaluate_completions` holds any attribution against ablations.
"""

from __future__ import annotations

from attnflow.evaluation.ablation.prompts import CompletionPrompt, read_prompts
from attnflow.evaluation.ablation.rankings import CompletionCase
from attnflow.evaluation.ablation.results import CompletionEvaluation
from attnflow.evaluation.ablation.run import evaluate_completions

__all__ = [
    "CompletionCase",
    "CompletionEvaluation",
    "CompletionPrompt",
    "evaluate_completions",
    "read_prompts",
]
