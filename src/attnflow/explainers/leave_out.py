"""Sources taken away: each alone, many at random, or only those that gradients find strongest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.attribution.verdict import lost_or_held
from attnflow.errors import InputError, MethodError
from attnflow.errors.progress import tell
from attnflow.explainers.ablation import CompletionAblation, log_odds
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import Completion
from attnflow.explainers.sources import Sources, strongest
from attnflow.hosts.model import Model
from attnflow.methods import BalancedGradient
from attnflow.methods.reruns import AblationRegression, Careful, LeaveOneOut, RerunMethod

Floats = NDArray[np.float64]
_MEASURED = 1 / 2  # the measured part of a source that was left out; docs/evidence.md#careful
_SWEEPS = 10_000
_CONVERGED = 1e-10


@dataclass(frozen=True, eq=False)
class AblationTask:
    """The tokens of a completion that each row of a result is about, on which sources."""

    ablation: CompletionAblation
    sources: Sources
    targets: tuple[tuple[int, ...], ...]


RerunFunction = Callable[[Any, AblationTask], tuple[Floats, int]]
"""Takes a description and a task; gives values (targets, sources) and the number of passes."""

_FUNCTIONS: dict[type[RerunMethod], RerunFunction] = {}


def register_rerun(kind: type[RerunMethod]) -> Callable[[RerunFunction], RerunFunction]:
    """Decorate the function that carries out methods of this class."""

    def register(function: RerunFunction) -> RerunFunction:
        _FUNCTIONS[kind] = function
        return function

    return register


def function_of(method: RerunMethod) -> RerunFunction:
    """Return the function that carries a method out."""
    for kind in type(method).__mro__:
        if kind in _FUNCTIONS:
            return _FUNCTIONS[kind]
    raise MethodError(f"Nothing says how {method!r} is carried out: register_rerun does.")


def responses(method: RerunMethod, task: AblationTask, sets: Sequence[Sequence[int]]) -> Floats:
    """Measure each target with each set of positions taken away, `(sets, targets)`."""
    return _of_targets(method, task, task.ablation.token_log_probs(sets))


def _responses_with_question(
    method: RerunMethod, task: AblationTask, sets: Sequence[Sequence[int]]
) -> Floats:
    """Measure the question together with each target, sets hidden from these only.

    The question is all of the prompt that follows the last source, but for its first token, at
    which the reading begins.
    """
    ablation, start = task.ablation, 1 + max(map(max, task.sources.positions))
    count = len(ablation.prompt_ids) - start - 1
    if count < 1:
        raise InputError(
            "question=True counts what the question loses, and the prompt has no text after its "
            "last document. Put the question behind the documents, as attnflow.ask does, or leave "
            "question= out."
        )
    tokens = ablation.read_from(start + 1).log_probs_beside(sets, start)
    question, completion = np.split(tokens, [count], axis=1)
    return _of_targets(method, task, completion, question.sum(axis=1, keepdims=True))


def _of_targets(
    method: RerunMethod, task: AblationTask, tokens: Floats, question: Floats | float = 0.0
) -> Floats:
    """Return what a method measures of each target, from `(sets, completion tokens)`.

    question: the log-probability of what is read with each of them.
    """
    log_probs = np.stack([tokens[:, list(row)].sum(axis=1) for row in task.targets], axis=1)
    log_probs = log_probs + question
    return log_odds(log_probs) if method.score == "log-odds" else log_probs


@register_rerun(LeaveOneOut)
def _leave_one_out(method: LeaveOneOut, task: AblationTask) -> tuple[Floats, int]:
    places = task.sources.positions
    sets: list[Sequence[int]] = [(), *places]
    if method.alone:
        every = {position for place in places for position in place}
        sets += [sorted(every), *(sorted(every.difference(place)) for place in places)]
    measured = (_responses_with_question if method.question else responses)(method, task, sets)
    base, without, rest = np.split(measured, [1, 1 + len(places)])
    values = lost_or_held(base, without, rest[1:], rest[:1]) if method.alone else base - without
    return np.ascontiguousarray(values.T), len(sets)


@register_rerun(AblationRegression)
def _ablation_regression(method: AblationRegression, task: AblationTask) -> tuple[Floats, int]:
    count = len(task.sources)
    choice = random_ablations(method.samples, count, hidden=method.hidden, seed=method.seed)
    measured = responses(method, task, task.sources.hidden(choice))
    visible = (~choice).astype(np.float64)
    return np.stack([lasso(visible, y, alpha=method.alpha) for y in measured.T]), len(choice)


@register_rerun(Careful)
def _careful(method: Careful, task: AblationTask) -> tuple[Floats, int]:
    """Predict by one balanced pass for each target, then leave out what each finds strongest."""
    ablation, sources = task.ablation, task.sources
    reader = Reader.of(Model(ablation.model), BalancedGradient())
    completion = Completion(Prompt(list(ablation.prompt_ids)), list(ablation.completion_ids))
    tell_done = partial(tell, method.name, total=len(task.targets))
    results = reader.read_phrases(reader.method, completion, task.targets, tell_done)
    rows = [sources.scores(row) for row in results]
    best = [list(strongest(row, method.verify)) for row in rows]
    checked = sorted({source for each in best for source in each})
    read = replace(task, ablation=replace(ablation, keys=completion.keys))
    measured = responses(method, read, [(), *(sources.positions[k] for k in checked)])
    losses = np.zeros((len(rows), len(sources)))
    losses[:, checked] = (measured[0] - measured[1:]).T
    values = [_join(*parts) for parts in zip(rows, losses, best, strict=True)]
    return np.stack(values), len(rows) + len(measured)


def _join(predicted: Floats, losses: Floats, best: list[int]) -> Floats:
    """Return the mean of what a source that was left out cost and of its prediction.

    The others keep their prediction. Predictions are in the unit in which those of the sources that
    were left out are as large, together, as what these cost.
    """
    size = float(np.abs(predicted[best]).sum())
    values = predicted * (float(np.abs(losses[best]).sum()) / size if size > 0 else 0.0)
    values[best] = (1 - _MEASURED) * values[best] + _MEASURED * losses[best]
    return values


def random_ablations(
    count: int, sources: int, *, hidden: float = 0.3, seed: int = 0
) -> NDArray[np.bool_]:
    """(count, sources): True where a source is taken away, the same number in each row."""
    if count < 1 or sources < 1 or not 0 < hidden < 1:
        raise InputError(
            "count and sources are at least 1, and hidden is a share between 0 and 1; got "
            f"count={count}, sources={sources}, hidden={hidden}."
        )
    rng = np.random.default_rng(seed)
    number = min(max(1, round(hidden * sources)), max(1, sources - 1))
    choice = np.zeros((count, sources), dtype=bool)
    for row in choice:
        row[rng.permutation(sources)[:number]] = True
    return choice


def lasso(features: ArrayLike, response: ArrayLike, *, alpha: float = 0.01) -> Floats:
    """The weights w that make ½·mean((y − Xw − b)²) + alpha·Σ|w| least, in units of the response.

    The response is scaled to a standard deviation of 1 first, so that `alpha` means the same
    whatever its unit; the intercept b is free. Found by coordinate descent, which converges to the
    optimum because the penalty is separable.
    """
    x, y = np.asarray(features, dtype=np.float64), np.asarray(response, dtype=np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y) or alpha < 0:
        raise InputError(
            "There is one row of features for each response, and alpha is at least 0; got "
            f"features {x.shape}, response {y.shape}, alpha {alpha}."
        )
    x, y = x - x.mean(axis=0), y - y.mean()
    scale = float(y.std())
    if scale == 0:
        return np.zeros(x.shape[1])
    return _descend(x.T @ x / len(y), x.T @ y / (len(y) * scale), alpha) * scale


def _descend(gram: Floats, products: Floats, alpha: float) -> Floats:
    """`slope` is kept equal to X'(y − Xw)/n; a column that never varies gets the weight 0."""
    weights, slope = np.zeros(len(products)), products.copy()
    columns = np.flatnonzero(gram.diagonal() > 0)
    for _ in range(_SWEEPS):
        largest = 0.0
        for j in columns:
            partial = slope[j] + gram[j, j] * weights[j]
            updated = np.sign(partial) * max(abs(partial) - alpha, 0.0) / gram[j, j]
            change = updated - weights[j]
            if change:
                slope -= gram[:, j] * change
                weights[j] = updated
                largest = max(largest, abs(change))
        if largest < _CONVERGED:
            break
    return weights
