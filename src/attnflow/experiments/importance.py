"""Several measures of importance over the same texts, each under a stage of its own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from attnflow.errors import ModelError
from attnflow.evaluation.importance import Importance, Measure
from attnflow.progress import ProgressCallback, tell

__all__ = ["measure_all"]


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
