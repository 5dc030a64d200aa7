"""Which attribution to trust for a model and its texts: methods held against what the model uses.

`evaluate_methods` runs; an `Evaluation` is what it found, a frozen value that can be shown,
compared and written. Every method sees the same captured pass and every ranking the same perturbed
texts, so that differences between methods are differences on the same examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnflow.evaluation.records import Metric, Record
from attnflow.evaluation.results import Evaluation
from attnflow.evaluation.run import evaluate_methods

if TYPE_CHECKING:
    from attnflow.evaluation.ablation.run import evaluate_completions

__all__ = ["Evaluation", "Metric", "Record", "evaluate_completions", "evaluate_methods"]


def __getattr__(name: str) -> object:
    """Completions need transformers, which texts do not: imported when they are asked for."""
    if name != "evaluate_completions":
        raise AttributeError(f"module 'attnflow.evaluation' has no attribute {name!r}")
    from attnflow.evaluation.ablation.run import evaluate_completions

    return evaluate_completions
