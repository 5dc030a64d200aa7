"""Prompts that state a fact and ask for it, so that the token an answer comes from is known.

Two sets of wordings: one to choose a default by, and another, not looked at before, to report.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["FactPrompt", "Wording", "fact_prompts"]

Wording = Literal["test", "development"]

_NAMES = "Anna Tom Mary John Sara Peter Lisa Paul Emma Jack Laura David".split()  # noqa: SIM905
_CITIES = "Paris London Rome Berlin Madrid Vienna Tokyo Boston Chicago Sydney".split()  # noqa: SIM905
_ANIMALS = "dog cat horse rabbit bird fish snake turtle goat sheep".split()  # noqa: SIM905
_COLOURS = "red blue green yellow black white pink orange brown purple".split()  # noqa: SIM905
_THINGS = "car house box door bag hat chair book cup shirt".split()  # noqa: SIM905
_JOBS = "doctor teacher lawyer farmer nurse writer singer baker driver judge".split()  # noqa: SIM905
_FILLERS = (
    "It was a quiet day.",
    "Nobody said much.",
    "The weather was mild.",
    "It had rained before.",
)


@dataclass(frozen=True)
class _Kind:
    """A fact as it is stated, the question with the answer's beginning, and what it is about."""

    fact: str
    question: str
    subjects: Sequence[str]
    answers: Sequence[str]


# The two wordings are alike line by line because they ask for the same four facts in other words.
_WORDINGS: dict[Wording, tuple[str, tuple[_Kind, ...]]] = {
    "development": (
        "Context: {}\n{}",
        (
            _Kind("{} lives in {}.", "Q: Where does {0} live?\nA: {0} lives in", _NAMES, _CITIES),
            _Kind("{} has a {}.", "Q: What does {0} have?\nA: {0} has a", _NAMES, _ANIMALS),
            _Kind("The {} is {}.", "Q: What colour is the {0}?\nA: The {0} is", _THINGS, _COLOURS),
            _Kind("{} works as a {}.", "Q: What does {0} do?\nA: {0} works as a", _NAMES, _JOBS),
        ),
    ),
    "test": (
        "{} {}",
        (
            _Kind("{} moved to {} last year.", "So the city {0} moved to is", _NAMES, _CITIES),
            _Kind("{} bought a {} on Monday.", "So the animal {0} bought is a", _NAMES, _ANIMALS),
            _Kind("I painted the {} {} today.", "So now the {0} has the colour", _THINGS, _COLOURS),
            _Kind("{} was hired as a {} in May.", "So by profession {0} is a", _NAMES, _JOBS),
        ),
    ),
}


@dataclass(frozen=True)
class FactPrompt:
    """A prompt, the word that answers it, and where the fact stands among its distractors."""

    text: str
    answer: str
    distractors: int
    place: int
    fillers: int


def fact_prompts(count: int, *, seed: int = 0, wording: Wording = "test") -> list[FactPrompt]:
    """Prompts with no to three distractors, no to two fillers, and the fact anywhere among them."""
    rng = random.Random(seed)
    frame, kinds = _WORDINGS[wording]
    return [
        _prompt(rng, frame, kinds[k % 4], distractors=k // 4 % 4, fillers=k // 16 % 3)
        for k in range(count)
    ]


def _prompt(
    rng: random.Random, frame: str, kind: _Kind, *, distractors: int, fillers: int
) -> FactPrompt:
    subjects = rng.sample(list(kind.subjects), distractors + 1)
    answers = rng.sample(list(kind.answers), distractors + 1)
    place = rng.randrange(distractors + 1)
    sentences = [kind.fact.format(*pair) for pair in zip(subjects, answers, strict=True)]
    for _ in range(fillers):
        sentences.insert(rng.randrange(len(sentences) + 1), rng.choice(_FILLERS))
    text = frame.format(" ".join(sentences), kind.question.format(subjects[place]))
    return FactPrompt(text, answers[place], distractors, place, fillers)
