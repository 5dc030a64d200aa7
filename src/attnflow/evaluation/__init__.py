"""Which attribution to trust for a model and its texts: methods held against what the model uses.

`evaluate_methods` runs; an `Evaluation` is what it found, a frozen value that can be shown,
compared and written. Every method sees the same captured pass and every ranking the same perturbed
texts, so that differences between methods are differences on the same examples.
"""

from __future__ import annotations

from attnflow.errors.lazy import submodules
from attnflow.evaluation.records import Metric, Record
from attnflow.evaluation.results import Evaluation
from attnflow.evaluation.run import evaluate_methods

__all__ = ["Evaluation", "Metric", "Record", "evaluate_methods"]

__getattr__ = submodules(__name__, ("ablation", "faithfulness", "images", "importance", "metrics"))
