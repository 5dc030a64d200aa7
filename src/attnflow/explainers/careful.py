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
from attnflow.explainers.ablation import CompletionAblation, log_odds
from attnflow.explainers.gradient_rows import can_explain_rows, completion_rows
from attnflow.explainers.reruns import AblationTask, MeasuredMethod
from attnflow.explainers.sources import Sources
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.visibility import visibility

__all__ = ["Careful", "Visibility"]

Floats = NDArray[np.float64]
_MOST = 10_000  # passes a target: more is a mistake
_FADED = 2 / 3  # visibility's part of a careful prediction; chosen on development data, two models
_MEASURED = 2 / 3  # the measured part of a source that was hidden; likewise


@dataclass(frozen=True, kw_only=True)
class Visibility(MeasuredMethod):
    """What the completion loses while its sources fade, in log odds: at most 16 passes a target.

    All sources fade together along a path that is even in the logarithm of their keys' weight; the
    gradient with respect to each key's weight, summed along it, is that key's part. Together is
    not alone: sources that stand in for each other share what one of them would cost. So the
    strongest then fade one by one. Where one source fades alone the sum along its path is the
    difference of its ends, which takes one pass.

    steps: how many points of the path are taken, each a forward and a backward pass.
    alone: how many of the strongest sources fade alone, a pass each; 0 leaves it at the path.

    >>> Visibility(steps=4).to_dict()["options"]["steps"]
    4
    """

    name: ClassVar[str] = "visibility"
    steps: int = 8
    alone: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)
        _check_count("alone", self.alone, least=0)

    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        targets = task.targets
        rows = []
        for number, target in enumerate(targets):
            path = _visibility(task, target, self.steps)
            rows.append(_checked(task, target, path, self.alone) if self.alone else path)
            tell(self.name, number + 1, len(targets))
        passes = self.steps + (1 + self.alone if self.alone else 0)
        return np.stack(rows), passes * len(targets)


@dataclass(frozen=True, kw_only=True)
class Careful(MeasuredMethod):
    """Gradient attention and visibility together, with the best sources checked by hiding them.

    A prediction has one third of gradient attention's share of each source and two thirds of
    visibility's, which agrees better with ablations. Each of the `verify` strongest sources is
    then hidden alone. With 4 steps and 5 checks that is ten passes a target, whatever the number
    of sources; the pass of gradient attention also tells what the unchanged prompt gives.

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
        attention, log_probs = _gradient_attention(task)
        rows = []
        for number, target in enumerate(targets):
            faded = _visibility(task, target, self.steps)
            predicted = (1 - _FADED) * _shares(attention[number]) + _FADED * _shares(faded)
            base = float(log_probs[list(target)].sum())
            rows.append(_checked(task, target, predicted, self.verify, base))
            tell(self.name, number + 1, len(targets))
        return np.stack(rows), (1 + self.steps + self.verify) * len(targets)


def _checked(
    task: AblationTask,
    target: Sequence[int],
    predicted: Floats,
    count: int,
    base: float | None = None,
) -> Floats:
    """The strongest sources hidden one by one: two thirds of what that cost and one third of what
    was predicted; the others keep their prediction. Predictions are in the unit that fits best.

    base: the log-probability of the target as the prompt is; None measures it too.
    """
    best = np.argsort(-predicted, kind="stable")[:count]
    sets: list[Sequence[int]] = [task.sources.positions[k] for k in best.tolist()]
    if base is None:
        sets.append(())
    log_probs = task.ablation.token_log_probs(sets)[:, list(target)].sum(axis=1)
    unchanged = log_probs[-1] if base is None else base
    losses = log_odds(np.asarray(unchanged)) - log_odds(log_probs[: len(best)])
    square = float((predicted[best] ** 2).sum())
    unit = max(0.0, float((losses * predicted[best]).sum()) / square) if square > 0 else 0.0
    values = unit * predicted
    values[best] = (1 - _MEASURED) * values[best] + _MEASURED * losses
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


def _gradient_attention(task: AblationTask) -> tuple[Floats, Floats]:
    """(targets, sources), and the completion's log-probabilities, from one pass over it."""
    ablation, sources = task.ablation, task.sources
    _check_model(ablation)
    ids, start = _ids(ablation)[None], len(ablation.prompt_ids)
    mask = torch.ones_like(ids[:, :start])
    length = len(ablation.completion_ids)
    rows = completion_rows(ablation.model, ids, mask, start, [length])
    values, _ = rows.of(0, length)
    tokens = [values[-1, list(target)].sum(axis=0) for target in task.targets]
    return np.stack([_summed(each, sources) for each in tokens]), rows.log_probs[0]


def _summed(tokens: Floats, sources: Sources) -> Floats:
    return np.array([tokens[list(each)].sum() for each in sources.positions])


def _check_model(ablation: CompletionAblation) -> None:
    if not can_explain_rows(ablation.model):
        raise ModelError(
            f"Visibility and gradient attention of a completion need a causal language model whose "
            f"attention can be seen; {type(ablation.model).__name__} is not one. Leave-one-out "
            "takes any model that generates."
        )


def _check_count(name: str, count: object, least: int = 1) -> None:
    number = whole_number(count)
    if number is None or not least <= number <= _MOST:
        raise MethodError(f"{name} is a number from {least} to {_MOST:,}; got {shorten(count)}.")
