"""Visibility, and the careful method that joins it with gradient attention and checks the best.

Both are measured on the model, at a number of passes that does not grow with the number of sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import MethodError, ModelError, shorten, whole_number
from attnflow.errors.progress import tell
from attnflow.evaluation.ablation.measured import AblationTask, MeasuredMethod
from attnflow.evaluation.ablation.passes import CompletionAblation, log_odds
from attnflow.evaluation.ablation.sources import Sources
from attnflow.generation.gradient_rows import can_explain_rows, completion_rows
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.visibility import visibility

__all__ = ["Careful", "Visibility"]

Floats = NDArray[np.float64]
_MOST = 10_000  # passes a target: more is a mistake


@dataclass(frozen=True, kw_only=True)
class Visibility(MeasuredMethod):
    """What the completion loses while its sources fade, in log odds: `steps` passes a target.

    All sources fade together along a path that is even in the logarithm of their keys' weight; the
    gradient with respect to each key's weight, summed along it, is that key's part.

    steps: how many points of the path are taken, each a forward and a backward pass.

    >>> Visibility(steps=4).to_dict()["options"]["steps"]
    4
    """

    name: ClassVar[str] = "visibility"
    steps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)

    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        targets = task.targets
        rows = []
        for number, target in enumerate(targets):
            rows.append(_visibility(task, target, self.steps))
            tell(task.progress, self.name, number + 1, len(targets))
        return np.stack(rows), self.steps * len(targets)


@dataclass(frozen=True, kw_only=True)
class Careful(MeasuredMethod):
    """Gradient attention and visibility together, with the best sources checked by hiding them.

    The shares of both are added; each of the `verify` strongest sources is then hidden alone, and
    its value is the mean of what that cost and what was predicted. The others keep their share, in
    the unit that fits the measured ones best. With 4 steps and 5 checks that is ten passes a
    target, whatever the number of sources.

    steps: points of visibility's path.
    verify: how many of the strongest sources are hidden, one pass each.

    >>> Careful().steps + Careful().verify + 1  # passes a target
    10
    """

    name: ClassVar[str] = "careful"
    steps: int = 4
    verify: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)
        _check_count("verify", self.verify)

    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        targets = task.targets
        attention = _gradient_attention(task)
        rows = []
        for number, target in enumerate(targets):
            faded = _visibility(task, target, self.steps)
            predicted = (_shares(attention[number]) + _shares(faded)) / 2
            rows.append(self._verified(task, target, predicted))
            tell(task.progress, self.name, number + 1, len(targets))
        return np.stack(rows), (1 + self.steps + self.verify) * len(targets)

    def _verified(self, task: AblationTask, target: Sequence[int], predicted: Floats) -> Floats:
        """The strongest sources hidden one by one; the rest scaled to what that showed."""
        best = np.argsort(-predicted, kind="stable")[: self.verify]
        sets = [(), *(task.sources.positions[k] for k in best.tolist())]
        log_probs = task.ablation.token_log_probs(sets)[:, list(target)].sum(axis=1)
        odds = log_odds(log_probs)
        losses = odds[0] - odds[1:]
        square = float((predicted[best] ** 2).sum())
        unit = max(0.0, float((losses * predicted[best]).sum()) / square) if square > 0 else 0.0
        values = unit * predicted
        values[best] = (values[best] + losses) / 2
        return values


def _shares(values: Floats) -> Floats:
    total = float(np.abs(values).sum())
    return values / total if total > 0 else values


def _ids(ablation: CompletionAblation) -> torch.Tensor:
    ids = [*ablation.prompt_ids, *ablation.completion_ids]
    return torch.tensor(ids, device=ablation.model.device)


def _visibility(task: AblationTask, target: Sequence[int], steps: int) -> Floats:
    """One value for each source: the sum over its tokens."""
    ablation, sources = task.ablation, task.sources
    _check_model(ablation)
    ids, start = _ids(ablation), len(ablation.prompt_ids)
    fading = torch.zeros(len(ids) - 1, dtype=torch.bool, device=ids.device)
    fading[[position for each in sources.positions for position in each]] = True
    with at_rest(ablation.model):
        values = visibility(ablation.model, ids, start, fading, steps=steps, explained=target)
    return _summed(values.double().cpu().numpy(), sources)


def _gradient_attention(task: AblationTask) -> Floats:
    """(targets, sources), from one pass over the completion."""
    ablation, sources = task.ablation, task.sources
    _check_model(ablation)
    ids, start = _ids(ablation)[None], len(ablation.prompt_ids)
    mask = torch.ones_like(ids[:, :start])
    length = len(ablation.completion_ids)
    rows = completion_rows(ablation.model, ids, mask, start, [length])
    values, _ = rows.of(0, length)
    tokens = [values[-1, list(target)].sum(axis=0) for target in task.targets]
    return np.stack([_summed(each, sources) for each in tokens])


def _summed(tokens: Floats, sources: Sources) -> Floats:
    return np.array([tokens[list(each)].sum() for each in sources.positions])


def _check_model(ablation: CompletionAblation) -> None:
    if not can_explain_rows(ablation.model):
        raise ModelError(
            f"Visibility and gradient attention of a completion need a causal language model whose "
            f"attention can be seen; {type(ablation.model).__name__} is none. Leave-one-out takes "
            "any model that generates."
        )


def _check_count(name: str, count: object) -> None:
    number = whole_number(count)
    if number is None or not 1 <= number <= _MOST:
        raise MethodError(f"{name} is a number from 1 to {_MOST:,}; got {shorten(count)}.")
