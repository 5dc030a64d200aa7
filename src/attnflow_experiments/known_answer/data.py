"""Prompts and sums whose true sources are known, and what a model makes of them.

Sums and products are of the small calculators of the package mathformer (MIT): Llamas.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from attnflow.errors import ModelError
from attnflow.errors.progress import tell
from attnflow.hosts.capture import capture
from attnflow.trace import AttentionTrace
from attnflow_experiments.observe import neutral_traces, padded

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


_MODELS = {"*": "mulformer", "+": "addformer"}


def mathformer_folder(folder: Path | None) -> Path | None:
    """The folder itself, or without one that of the installed package, or None."""
    if folder is not None:
        if not (folder / _MODELS["*"]).is_dir():
            raise ModelError(f"{str(folder)!r} holds no folder {_MODELS['*']!r} of mathformer.")
        return folder
    package = importlib.util.find_spec("mathformer")
    places = list(package.submodule_search_locations or []) if package else []
    return Path(places[0]) if places else None


def load_mathformer(folder: Path | None, sign: str) -> tuple[Any, dict[str, int]]:
    """The model for "*" or "+", and the id of each character."""
    from transformers import LlamaForCausalLM

    if folder is None:
        raise ModelError("mathformer is not installed: pip install mathformer.")
    place = folder / _MODELS[sign]
    vocabulary = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    return LlamaForCausalLM.from_pretrained(place).eval(), vocabulary


_BATCH = 16


@dataclass(frozen=True, eq=False)
class Known:
    """One prompt the model answered rightly: its attention, and the positions of true sources."""

    trace: AttentionTrace
    neutral: AttentionTrace | None
    sources: tuple[int, ...]
    distractors: int = 0
    inputs: str | Mapping[str, torch.Tensor] = ""


def stated_facts(model: Any, tokenizer: Any, prompts: Sequence[FactPrompt]) -> list[Known]:
    """Those prompts whose answer the model gives, each beside its neutral prompt."""
    facts: list[Known] = []
    for start in range(0, len(prompts), _BATCH):
        part = prompts[start : start + _BATCH]
        texts = [prompt.text for prompt in part]
        traces = capture((model, tokenizer), texts, heads="mean")
        right = [
            (prompt, trace)
            for prompt, trace in zip(part, traces, strict=True)
            if _answers(trace, f"Ġ{prompt.answer}")
        ]
        others = neutral_traces(model, tokenizer, [trace for _, trace in right])
        for (prompt, trace), neutral in zip(right, others, strict=True):
            sources = trace.tokens.occurrences_of([f"Ġ{prompt.answer}"])
            facts.append(Known(trace, neutral, tuple(sources), prompt.distractors, prompt.text))
        tell("asking", min(start + _BATCH, len(prompts)), len(prompts))
    return facts


def arithmetic(model: Any, vocabulary: Mapping[str, int], sign: str) -> list[Known]:
    """`7*6=` for all pairs of digits: the operands are the true sources of the first digit."""
    compute: Callable[[int, int], int] = {"*": int.__mul__, "+": int.__add__}[sign]
    pairs = [(a, b) for a in range(10) for b in range(10)]
    rows = [[vocabulary[c] for c in f"{a}{sign}{b}="] for a, b in pairs]
    traces = capture(model, [padded(rows)], heads="mean")
    tell("calculating", len(pairs), len(pairs))
    return [
        Known(trace, None, (0, 2), inputs={"input_ids": torch.tensor([row])})
        for (a, b), row, trace in zip(pairs, rows, traces, strict=True)
        if _answers(trace, str(vocabulary[str(compute(a, b))[0]]))
    ]


def _answers(trace: AttentionTrace, label: str) -> bool:
    return trace.prediction is not None and trace.prediction.label == label
