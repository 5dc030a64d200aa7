"""Rankings of a prompt's sources, held against ablations and against the true source of an answer.

A ranking is a method by name, a rerun method, or a function of your own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError
from attnflow.errors.arguments import check_named
from attnflow.evaluation.metrics import Floats, group_sums, rank_of
from attnflow.evaluation.records import RANDOM
from attnflow.evaluation.subjects.examples import CompletionPrompt
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.explainers.defaults import default_method, measures_words
from attnflow.explainers.measured_words import measure_words
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import ANSWER, Completion
from attnflow.explainers.reruns import measure
from attnflow.explainers.sources import Sources
from attnflow.hosts.model import Model
from attnflow.methods import METHODS, Method, Raw, RerunMethod, make_method, parse_method
from attnflow.methods.reruns import By, RerunScore
from attnflow.tokens.text import surfaces
from attnflow.tokens.units import CharSpan, tokens_in
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

    def by_default(self) -> Attribution:
        """Return what explains an answer when nothing is asked for.

        What it measures beside a pass takes sources away as the case does, like rerun methods.
        """
        method = default_method(self.model)
        result = self.attribution(method)
        if not measures_words(method) or len(result.targets) > 1:
            return result
        tokens = range(len(self.completion_ids))

        def read(sets: Sequence[frozenset[int]]) -> Floats:
            return self.ablation.token_log_probs([sorted(each) for each in sets])

        return measure_words(result, self.sources, [((0,), tokens)], read)

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
    "default": CompletionCase.by_default,
    "raw-mean": lambda case: case.attribution(Raw()).mean_over_layers(),
}


# -- the true source ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptText:
    """A prompt as its tokens spell it, a part for each; it begins at `start`, behind its frame."""

    parts: tuple[str, ...]
    start: int

    @classmethod
    def of(
        cls, tokens: Sequence[str], prompt: str, form: Sequence[bool] | None = None
    ) -> PromptText:
        """Place a prompt in its tokens; `form`: which of them a chat template put there."""
        parts = tuple(surfaces(tokens))
        framed = next((k for k, is_form in enumerate(form or ()) if not is_form), 0)
        start = "".join(parts).find(prompt, len("".join(parts[:framed])))
        if start < 0:
            raise InputError(
                f"The tokens of the prompt do not spell it: {''.join(parts)[:60]!r} for "
                f"{prompt[:60]!r}. The tokenizer changes the text, so its parts cannot be placed."
            )
        return cls(parts, start)

    def shifted(self, spans: Sequence[CharSpan] | None) -> tuple[CharSpan, ...] | None:
        """Return spans of the prompt as spans of the whole text."""
        if spans is None:
            return None
        return tuple((first + self.start, last + self.start) for first, last in spans)

    def tokens_touching(self, span: CharSpan) -> list[int]:
        """Return every token that shares a visible character with a span, which may end inside."""
        ends = np.cumsum([len(part) for part in self.parts])
        begins = ends - np.array([len(part.lstrip()) for part in self.parts])
        first, last = span[0] + self.start, span[1] + self.start
        return np.flatnonzero((begins < last) & (ends > first) & (begins < ends)).tolist()


@dataclass(frozen=True)
class TrueSources:
    """The sources that hold the answer, and those that stand in the part that states facts."""

    true: tuple[int, ...]
    stated: tuple[bool, ...]

    @classmethod
    def of(cls, prompt: CompletionPrompt, text: PromptText, sources: Sources) -> TrueSources | None:
        """Return None where the answer's place is not known; an error where it is no source."""
        if prompt.answer is None:
            return None
        true = sources.containing(text.tokens_touching(prompt.answer))
        if not true:
            raise InputError(
                f"The answer {prompt.prompt[slice(*prompt.answer)]!r} is not a source of "
                "the prompt."
            )
        stated = (True,) * len(sources)
        if prompt.stated is not None:
            first, last = prompt.stated
            members = set(tokens_in(text.parts, (first + text.start, last + text.start)))
            stated = tuple(bool(members & set(each)) for each in sources.positions)
        return cls(true, stated)

    def units(self, groups: Sequence[int]) -> set[int]:
        """Return the coarser units that hold a true source."""
        return {groups[k] for k in self.true if groups[k] >= 0}


def known_hits(
    scores: Floats, sources: Sources, places: TrueSources, *, top: int
) -> dict[str, float]:
    """Say by 1 or 0 if the true source is first, in the top, in the strongest sentence, document.

    A unit's score is the sum of its sources'. Of sentences there are two figures where a part of
    the prompt states facts: "sentence" among those of that part, and "any sentence" among all, the
    unfinished one that the completion goes on with too. Where there is no choice there is no hit.
    """
    rank = rank_of(scores, places.true)
    hits = {"first": float(rank == 1), "top": float(rank <= top)}
    if sources.level in ("sentence", "document"):
        hits[sources.level] = hits["first"]
    for level, groups in sources.groups.items():
        units: Sequence[int] = groups
        if level == "sentence" and not all(places.stated):
            hits |= _hit("any sentence", scores, groups, places)
            pairs = zip(groups, places.stated, strict=True)
            units = [group if inside else -1 for group, inside in pairs]
        hits |= _hit(level, scores, units, places)
    return hits


def _hit(name: str, scores: Floats, groups: Sequence[int], places: TrueSources) -> dict[str, float]:
    true = places.units(groups)
    present = sorted(set(groups) - {-1})
    if not true or len(present) < 2:
        return {}
    # A unit without sources among these has the sum 0 and must not compete.
    sums = group_sums(scores, groups)[present]
    return {name: float(rank_of(sums, [present.index(unit) for unit in true]) == 1)}


def is_answered(expected: str, completion: str, *, cut_off: bool) -> bool:
    """Return whether a completion, whole or cut off, gives the answer, articles and signs aside."""
    right, reply = _plain_words(expected), _plain_words(completion)
    begins = cut_off and bool(completion.strip()) and expected.startswith(completion.strip())
    return (bool(right) and f" {right} " in f" {reply} ") or begins


def _plain_words(text: str) -> str:
    plain = re.sub(r"\b(the|a|an)\b|[^a-z0-9 ]", "", text.lower().replace("\n", " "))
    return " ".join(plain.split())
