"""Where the true source of an answer stands, and whether scores point to it at each level."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluation.metrics import Floats, group_sums, rank_of
from attnflow.evaluation.subjects.examples import CompletionPrompt
from attnflow.explainers.sources import Sources
from attnflow.tokens.text import surfaces
from attnflow.tokens.units import CharSpan, tokens_in


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
    """Which sources hold the answer, and which stand in the part that states facts."""

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
