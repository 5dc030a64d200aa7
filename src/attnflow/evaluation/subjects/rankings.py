"""Rankings held against ablations: methods by name, rerun methods, or a function of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError
from attnflow.errors.arguments import check_named
from attnflow.evaluation.records import RANDOM
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import ANSWER, Completion
from attnflow.explainers.reruns import measure
from attnflow.explainers.sources import Sources
from attnflow.hosts.model import Model
from attnflow.methods import METHODS, Method, Raw, RerunMethod, make_method, parse_method
from attnflow.methods.reruns import By, RerunScore
from attnflow.trace.extras import BALANCED, GRADIENTS


@dataclass(frozen=True, eq=False)
class CompletionCase:
    """One prompt with its completion, as a ranking gets it."""

    model: Model
    ablation: CompletionAblation
    sources: Sources
    seed: int = 0

    @property
    def prompt_ids(self) -> list[int]:
        """The token ids of the prompt."""
        return list(self.ablation.prompt_ids)

    @property
    def completion_ids(self) -> list[int]:
        """The token ids of the completion."""
        return list(self.ablation.completion_ids)

    def attribution(self, method: Method) -> Attribution:
        """Return what reading this completion gives, as one answer where a method can."""
        one_pass = bool({GRADIENTS, BALANCED} & set(method.requires.record))
        reader = Reader.of(self.model, method, targets=ANSWER if one_pass else None)
        return reader.read(Completion(Prompt(self.prompt_ids), self.completion_ids))

    def measured(self, method: RerunMethod) -> Attribution:
        """Return what a rerun method gives, taking sources away in its own way."""
        ablation = self.ablation
        if method.by != ablation.by:
            ablation = ablate(
                self.model,
                ablation.prompt_ids,
                ablation.completion_ids,
                by=method.by,
                batch_tokens=ablation.batch_tokens,
            )
        return measure(method, ablation, self.sources)


Ranking = Callable[[CompletionCase], Attribution | ArrayLike]
"""Scores a case: a result, or one value for each prompt token or each source."""


def named_rankings(
    methods: Sequence[Any] | Mapping[str, Any], *, by: By = "hide", score: RerunScore = "log-prob"
) -> dict[str, Ranking]:
    """Return rankings by the name of their row.

    A name is a method's, with options as `NAME:key=value`; "default", what explains an answer when
    nothing is asked for; "raw-mean", raw attention over all layers; or "random". A mapping gives
    functions names of your own. A method that runs the model again and is named measures the
    completion as one target, `by` and `score` as the evaluation.
    """
    if isinstance(methods, Mapping):
        pairs = [(name, _make_ranking(each, by, score)[1]) for name, each in methods.items()]
    else:
        pairs = [_make_ranking(each, by, score) for each in methods]
    rankings = dict(pairs)
    if not pairs or len(rankings) < len(pairs):
        names = ", ".join(name for name, _ in pairs)
        raise InputError(f"methods: {names or 'none'}; at least one is needed, each once.")
    return rankings


def _make_ranking(method: Any, by: By, score: RerunScore) -> tuple[str, Ranking]:
    if isinstance(method, str):
        if method in _FUNCTIONS:
            return method, _FUNCTIONS[method]
        name, options = parse_method(method)
        check_named("method", name, [*_FUNCTIONS, *METHODS])
        method = make_method(method)
        if isinstance(method, RerunMethod):
            usual = {"by": by, "score": score, "joint": True}
            rerun = replace(method, **{**usual, **options})
            return method.label, lambda case: case.measured(rerun)
    if isinstance(method, RerunMethod):
        return method.label, lambda case: case.measured(method)
    if isinstance(method, Method):
        return method.label, lambda case: case.attribution(method)
    if callable(method):
        return str(getattr(method, "__name__", "function")), method
    raise MethodError(f"A ranking is a name, a method or a function; got {method!r}.")


_FUNCTIONS: dict[str, Ranking] = {
    RANDOM: lambda case: np.random.default_rng(case.seed).random(len(case.sources)),
    "default": lambda case: case.attribution(default_method(case.model)),
    "raw-mean": lambda case: case.attribution(Raw()).mean_over_layers(),
}
