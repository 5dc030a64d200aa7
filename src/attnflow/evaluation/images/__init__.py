"""Is a map true? Patches hidden by its order, and where the true thing is, where that is known."""

from __future__ import annotations

from attnflow.evaluation.images.ablation import PatchAblation
from attnflow.evaluation.images.examples import ImageExample, holds_images, read_images
from attnflow.evaluation.images.results import ImageEvaluation
from attnflow.evaluation.images.run import evaluate_images

__all__ = [
    "ImageEvaluation",
    "ImageExample",
    "PatchAblation",
    "evaluate_images",
    "holds_images",
    "read_images",
]
