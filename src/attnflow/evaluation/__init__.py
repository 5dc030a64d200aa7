"""Which attribution to trust for a model: methods held against what the model uses.

`evaluate` runs on texts, prompts or images; an `Evaluation` is what it found, a frozen value that
can be shown, compared and written. Every method sees the same examples and every ranking the same
perturbed ones, so that differences between methods are differences on the same examples.
"""

from __future__ import annotations

from attnflow.errors import submodules
from attnflow.evaluation.records import Record
from attnflow.evaluation.report import Evaluation
from attnflow.evaluation.run import evaluate
from attnflow.evaluation.subjects.base import Metric
from attnflow.evaluation.subjects.examples import CompletionPrompt, ImageExample, LabelledText
from attnflow.evaluation.subjects.images import Images
from attnflow.evaluation.subjects.prompts import Prompts
from attnflow.evaluation.subjects.texts import Texts

__all__ = [
    "CompletionPrompt",
    "Evaluation",
    "ImageExample",
    "Images",
    "LabelledText",
    "Metric",
    "Prompts",
    "Record",
    "Texts",
    "evaluate",
]

__getattr__ = submodules(__name__, ("faithfulness", "importance", "metrics", "subjects"))
