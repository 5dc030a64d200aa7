"""Visibility, on words and on images, and the careful method that joins it with gradient attention.

Both are measured on the model, at a number of passes that does not grow with the number of sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError, ModelError
from attnflow.errors.progress import tell
from attnflow.explainers.ablation import CompletionAblation, log_odds
from attnflow.explainers.gradient_rows import completion_rows
from attnflow.explainers.leave_out import AblationTask, register_rerun
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.reader import Reader
from attnflow.explainers.sources import Sources
from attnflow.hosts.capture import capture
from attnflow.hosts.model import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.visibility import image_visibility, visibility
from attnflow.methods import RerunMethod
from attnflow.methods.reruns import Careful, Visibility
from attnflow.methods.towers import carried

Floats = NDArray[np.float64]
_FADED = 2 / 3  # visibility's part of a careful prediction; chosen on development data, two models
_MEASURED = 2 / 3  # the measured part of a source that was hidden; likewise


@register_rerun(Visibility)
def _visible_values(method: Visibility, task: AblationTask) -> tuple[Floats, int]:
    targets = task.targets
    rows = []
    for number, target in enumerate(targets):
        path = _visibility(task, target, method.steps)
        rows.append(_checked(task, target, path, method.alone) if method.alone else path)
        tell(method.name, number + 1, len(targets))
    passes = method.steps + (1 + method.alone if method.alone else 0)
    return np.stack(rows), passes * len(targets)


@register_rerun(Careful)
def _careful_values(method: Careful, task: AblationTask) -> tuple[Floats, int]:
    targets = task.targets
    attention, log_probs = _gradient_attention(task)
    rows = []
    for number, target in enumerate(targets):
        faded = _visibility(task, target, method.steps)
        predicted = (1 - _FADED) * _shares(attention[number]) + _FADED * _shares(faded)
        base = float(log_probs[list(target)].sum())
        rows.append(_checked(task, target, predicted, method.verify, base))
        tell(method.name, number + 1, len(targets))
    return np.stack(rows), (1 + method.steps + method.verify) * len(targets)


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
    if not adapter_for(ablation.model).supports_row_gradients(ablation.model):
        raise ModelError(
            f"Visibility and gradient attention of a completion need a causal language model whose "
            f"attention can be seen; {type(ablation.model).__name__} is not one. Leave-one-out "
            "takes any model that generates."
        )


def measure_images(
    reader: Reader, method: RerunMethod, prompt: Prompt, ids: Sequence[int]
) -> Attribution:
    """What each target of a completion loses while parts of its prompt fade."""
    if not isinstance(method, Visibility):
        raise MethodError(
            f"{method.name!r} runs the model again without words of its prompt; with images it "
            "cannot say what a patch is worth. 'visibility' and the methods that read attention do."
        )
    inputs = reader.text_inputs(prompt.ids, list(ids))
    trace = capture(reader.model, inputs, heads="mean")
    first, patches = len(prompt.ids) - 1, trace.encoder_length or 0
    columns = reader.columns(trace, len(prompt.ids))
    targets = reader.targets(list(ids))
    rows = np.zeros((1, len(targets), trace.length))
    for row, target in zip(rows[0], targets, strict=True):
        answer = [(first + k, ids[k]) for k in target.tokens]
        losses = image_visibility(
            reader.module, inputs, len(prompt.ids), answer, steps=method.steps
        )
        row[patches:] = losses.double().cpu().numpy()
    values = carried(rows, trace, "rollout")[..., columns]
    return Attribution(
        values,
        (trace.layers[-1],),
        targets=reader.names_after(prompt.ids, targets),
        sources=trace.tokens.select(columns),
        method=replace(method, alone=0),
        provenance={**trace.provenance, **reader.about(prompt.ids, list(ids))},
    )
