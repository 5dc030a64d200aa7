"""How methods that run the model again are carried out: each source taken away, or many at random.

`methods.reruns` says what they are; here a description is the first argument of every function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import Span
from attnflow.errors import InputError, MethodError, TokensError
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers.ablation import CompletionAblation, blank_token, log_odds
from attnflow.explainers.prompts import Prompt, Prompts, encode_prompts
from attnflow.explainers.request import (
    CompletionTarget,
    TargetRef,
    check_completion,
    completion_ids,
    resolve_targets,
)
from attnflow.explainers.sources import (
    SOURCE_TOKENS,
    Sources,
    content_spans,
    prompt_tokens,
    spans_of_content,
)
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.hosts.transformers.inputs import checked_tokenizer
from attnflow.methods.reruns import AblationRegression, LeaveOneOut, RerunMethod
from attnflow.tokens import Tokens

__all__ = [
    "AblationTask",
    "RerunFunction",
    "lasso",
    "measure",
    "measure_completion",
    "random_ablations",
    "register_rerun",
    "run_again",
]

Floats = NDArray[np.float64]
_WHOLE_MODEL = 0  # the number of the one layer


@dataclass(frozen=True, eq=False)
class AblationTask:
    """What a method measures: which tokens of a completion, on which sources.

    targets: of each row of a result the completion's tokens that it is about, by number from 0.
    """

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


def _function_of(method: RerunMethod) -> RerunFunction:
    from attnflow.explainers import careful as careful  # it registers its own

    for kind in type(method).__mro__:
        if kind in _FUNCTIONS:
            return _FUNCTIONS[kind]
    raise MethodError(f"Nothing says how {method!r} is carried out: register_rerun does.")


def responses(method: RerunMethod, task: AblationTask, sets: Sequence[Sequence[int]]) -> Floats:
    """Measure each target with each set of positions taken away, `(sets, targets)`."""
    tokens = task.ablation.token_log_probs(sets)
    log_probs = np.stack([tokens[:, list(row)].sum(axis=1) for row in task.targets], axis=1)
    return log_odds(log_probs) if method.score == "log-odds" else log_probs


@register_rerun(LeaveOneOut)
def _leave_one_out(method: LeaveOneOut, task: AblationTask) -> tuple[Floats, int]:
    sets = [(), *task.sources.positions]
    measured = responses(method, task, sets)
    return np.ascontiguousarray((measured[0] - measured[1:]).T), len(sets)


@register_rerun(AblationRegression)
def _ablation_regression(method: AblationRegression, task: AblationTask) -> tuple[Floats, int]:
    count = len(task.sources)
    choice = random_ablations(method.samples, count, hidden=method.hidden, seed=method.seed)
    measured = responses(method, task, task.sources.hidden(choice))
    visible = (~choice).astype(np.float64)
    return np.stack([lasso(visible, y, alpha=method.alpha) for y in measured.T]), len(choice)


@checked_arguments
def run_again(
    method: RerunMethod,
    model: ModelLike,
    prompt: Prompts,
    completion: str | Sequence[int],
    *,
    targets: Sequence[TargetRef] | TargetRef | None = None,
    spans: Mapping[str, Span] | None = None,
    blank: int | None = None,
    batch_tokens: int | None = None,
) -> Attribution:
    """Attribute a completion to the sources of its prompt.

    prompt: a text, a conversation of messages, or prepared inputs with `input_ids`.
    completion: the text as it follows the prompt, with its leading space, or its token ids.
    targets: only these parts of the completion: tokens by number from 0 or by name, phrases,
        slices, or "answer" for all of it as one; default: every token.
    spans: named spans of the prompt as sources, in place of the method's `level`.
    blank: with by="replace", the id of the blank token; default: the tokenizer's.
    """
    loaded = as_model(model, default="smollm2")
    module, tokenizer = loaded
    checked_generator(module)
    if tokenizer is not None:
        checked_tokenizer(tokenizer)
    encoded = encode_prompts(loaded, prompt)
    if len(encoded) != 1:
        raise TokensError(f"One prompt is measured at a time; got {len(encoded)}.")
    (text,) = encoded.prompts()
    prompt_ids = text.ids
    facts = loaded.facts
    completion_row = completion_ids(tokenizer, completion, facts)
    check_completion(module, facts, completion_row)
    tokens, special = prompt_tokens(tokenizer, prompt_ids)
    if spans is not None:
        sources = Sources.of_spans(tokens, spans)
    else:
        sources = Sources.of_tokens(
            tokens,
            level=method.level,
            inside=_contents(tokens, prompt, text.form),
            special=special if tokenizer is not None else (),
            exclude_first=not facts.encoder_decoder,
        )
    names = prompt_tokens(tokenizer, completion_row)[0]
    needs_blank = method.by == "replace" and blank is None and tokenizer is not None
    ablation = CompletionAblation(
        model=module,
        prompt_ids=prompt_ids,
        completion_ids=completion_row,
        by=method.by,
        blank=blank_token(tokenizer) if needs_blank else blank,
        batch_tokens=batch_tokens,
    )
    explained = None if targets is None else resolve_targets(names, targets)
    return measure(method, ablation, sources, names=names, targets=explained)


def measure(
    method: RerunMethod,
    ablation: CompletionAblation,
    sources: Sources,
    *,
    names: Tokens | None = None,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Do the same on an ablation that is prepared; `names` are the completion's tokens."""
    completion = names or prompt_tokens(None, ablation.completion_ids)[0]
    if targets is None:
        targets = resolve_targets(completion, ablation.targets)
    if method.joint:
        columns = tuple(dict.fromkeys(k for target in targets for k in target.tokens))
        joined = "".join(completion.select(columns).surfaces()).strip() or "completion"
        targets = [CompletionTarget(joined, columns)]
    rows = tuple(target.tokens for target in targets)
    values, passes = _function_of(method)(method, AblationTask(ablation, sources, rows))
    dtype = str(next(ablation.model.parameters()).dtype).removeprefix("torch.")
    return Attribution(
        values=values[None],
        layers=(_WHOLE_MODEL,),
        targets=Tokens(
            tuple(target.text for target in targets),
            tuple(sources.length + target.tokens[0] for target in targets),
        ),
        sources=sources.tokens,
        method=method,
        provenance={
            **provenance_of(ablation.model, dtype),
            "prompt_length": sources.length,
            "passes": passes,
            SOURCE_TOKENS: [list(each) for each in sources.positions],
        },
    )


def measure_completion(
    method: RerunMethod,
    model: Model,
    prompt: Prompt,
    ids: Sequence[int],
    *,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Do the same on a prompt that is encoded; what a chat template put there is no source."""
    tokenizer = model.tokenizer
    tokens, special = prompt_tokens(tokenizer, prompt.ids)
    template = [k for k, is_form in enumerate(prompt.form or ()) if is_form]
    sources = Sources.of_tokens(
        tokens,
        level=method.level if tokenizer is not None or method.level != "word" else "token",
        special=(*special, *template),
        exclude_first=not model.facts.encoder_decoder,
    )
    blank = blank_token(tokenizer) if method.by == "replace" and tokenizer is not None else None
    ablation = CompletionAblation(
        model=model.module, prompt_ids=prompt.ids, completion_ids=ids, by=method.by, blank=blank
    )
    names = prompt_tokens(tokenizer, ids)[0]
    return measure(method, ablation, sources, names=names, targets=targets)


def _contents(
    tokens: Tokens, prompt: Any, form: Sequence[bool] | None
) -> list[tuple[int, int]] | None:
    """Where a conversation's messages stand; None if the prompt is no conversation."""
    if form is not None:
        return spans_of_content(tokens, form)
    if isinstance(prompt, (str, Mapping)):
        return None
    contents = [str(m["content"]) for m in prompt if isinstance(m, Mapping) and m.get("content")]
    return content_spans(tokens, contents) if contents else None


_SWEEPS = 10_000
_CONVERGED = 1e-10


def random_ablations(
    count: int, sources: int, *, hidden: float = 0.3, seed: int = 0
) -> NDArray[np.bool_]:
    """(count, sources): True where a source is taken away, the same number in each row.

    >>> random_ablations(2, 10, hidden=0.3).sum(axis=1).tolist()
    [3, 3]
    """
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

    >>> lasso([[0.0], [1.0], [0.0], [1.0]], [0.0, 2.0, 0.0, 2.0], alpha=0.0).round(6).tolist()
    [2.0]
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
