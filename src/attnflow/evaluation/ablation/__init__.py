"""The yardstick for language models: a prompt run again without some of its parts.

`CompletionAblation` runs it. `LeaveOneOut`, `AblationRegression`, `Visibility` and `Careful`
measure what a completion draws on, and `evaluate_completions` holds any attribution against
ablations.
"""

from __future__ import annotations

from attnflow.evaluation.ablation.careful import Careful, Visibility
from attnflow.evaluation.ablation.confirm import confirm_completion
from attnflow.evaluation.ablation.measured import AblationRegression, LeaveOneOut, MeasuredMethod
from attnflow.evaluation.ablation.passes import CompletionAblation, log_odds
from attnflow.evaluation.ablation.prompts import CompletionPrompt, read_prompts
from attnflow.evaluation.ablation.rankings import CompletionCase
from attnflow.evaluation.ablation.results import CompletionEvaluation
from attnflow.evaluation.ablation.run import evaluate_completions
from attnflow.evaluation.ablation.sources import Sources

__all__ = [
    "AblationRegression",
    "Careful",
    "CompletionAblation",
    "CompletionCase",
    "CompletionEvaluation",
    "CompletionPrompt",
    "LeaveOneOut",
    "MeasuredMethod",
    "Sources",
    "Visibility",
    "confirm_completion",
    "evaluate_completions",
    "log_odds",
    "read_prompts",
]
