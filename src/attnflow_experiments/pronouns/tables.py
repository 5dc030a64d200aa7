"""Does the antecedent a method prefers agree with the pronoun the model prefers?

Two questions, because a model also prefers a pronoun for its own sake. The *pronoun*: in each
sentence, is the method's antecedent the one that the more probable pronoun goes with? The
*binding*: over the sentences of one frame, which have the genders both ways, whose gender moves
the pronoun's odds? What a model prefers for its own sake cancels there, and a method's lean is
averaged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from attnflow.errors.percent import percent
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.layers import CLEAR, Floats, layer_names
from attnflow_experiments.pronouns.data import occurrences
from attnflow_experiments.pronouns.observe import Reading

__all__ = [
    "FIRST",
    "LAST",
    "Frame",
    "Question",
    "agreement",
    "layer_table",
    "layers_to_print",
    "share_of",
    "standing",
]

FIRST: Final = "always the first named"
LAST: Final = "always the last named"
_COLUMNS: Final = 7  # layers a table prints


@dataclass(frozen=True, eq=False)
class Frame:
    """The readings of one frame; frames of one `cluster` share words and are not independent."""

    readings: Sequence[Reading]
    cluster: str

    @property
    def binding(self) -> float:
        """The pronouns' log odds for the first antecedent, over the genders both ways."""
        return float(np.mean([reading.odds for reading in self.readings]))

    def leans(self, method: str) -> Floats:
        """reading × layer; the two constants too, which a method must beat."""
        if method not in (FIRST, LAST):
            return np.stack([reading.leans[method] for reading in self.readings])
        signs = [_order(reading) * (1 if method == FIRST else -1) for reading in self.readings]
        return np.repeat(np.array(signs)[:, None], len(self.readings[0].layers), axis=1)

    def follows_pronoun(self, method: str) -> Floats:
        """At each layer, the share of readings in which the method goes with the pronoun."""
        truth = np.array([reading.pronoun_lean for reading in self.readings])
        return agreement(self.leans(method), truth[:, None]).mean(axis=0)

    def follows_binding(self, method: str) -> Floats:
        """At each layer, whether the method's mean lean goes with the binding."""
        return agreement(self.leans(method).mean(axis=0), np.array(self.binding))


def agreement(ours: Floats, truth: Floats) -> Floats:
    """1 for the same sign, 0 for the other, a half where ours is a tie; nan where unknown.

    >>> agreement(np.array([2.0, -1.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0, 0.0]))
    array([1. , 0. , 0.5, nan])
    """
    same = (1 + np.sign(ours) * np.sign(truth)) / 2
    return np.where(np.sign(truth) == 0, np.nan, same)


def _order(reading: Reading) -> float:
    """1 where the first antecedent is also the first in the text, −1 where it is the second."""
    sentence = reading.sentence
    first, second = (occurrences(sentence.text, word)[0] for word in sentence.antecedents)
    return 1.0 if first < second else -1.0


def layers_to_print(count: int) -> tuple[int, ...]:
    """All of a shallow model; of a deep one the first, the last, and some between."""
    if count <= 12:
        return tuple(range(count))
    steps = np.linspace(0, count, _COLUMNS)[1:] - 1
    return (0, *steps.round().astype(int).tolist())


@dataclass(frozen=True, eq=False)
class Question:
    """How often the antecedent a method prefers is the one that `what` says.

    `of(frame, method)` answers for one frame, layer by layer; `title` is for other questions.
    """

    name: str
    what: str
    frames: Sequence[Frame]
    of: Callable[[Frame, str], Floats]
    note: str = ""
    title: str = ""

    def values(self, method: str) -> Floats:
        """cluster × layer: the mean of its frames, of those that are defined."""
        groups: dict[str, list[Floats]] = {}
        for frame in self.frames:
            groups.setdefault(frame.cluster, []).append(self.of(frame, method))
        return np.stack([_mean(np.stack(rows)) for rows in groups.values()])


def layer_table(question: Question, methods: Sequence[str]) -> Table:
    """One row for each method, over layers; each cluster counts once."""
    layers = question.frames[0].readings[0].layers
    return Table(
        question.name,
        question.title or f"How often the preferred antecedent {question.what}",
        layer_names(layers),
        {name: tuple(share_of(column) for column in question.values(name).T) for name in methods},
        question.note,
        in_figure=True,
        columns_to_print=layers_to_print(len(layers)),
    )


def standing(question: Question, methods: Sequence[str]) -> str:
    """The last layer in words, and who is above what a fixed choice gives."""
    last = {name: question.values(name)[:, -1] for name in (*methods, FIRST, LAST)}
    shares = {name: share_of(values) for name, values in last.items()}
    fixed = max((FIRST, LAST), key=lambda name: shares[name].value)
    tests = {name: compare_paired(last[name], last[fixed]) for name in methods}
    above = [
        f"{name} (p = {test.p:.3f})"
        for name, test in tests.items()
        if test.difference > 0 and test.p < CLEAR
    ]
    sentence = ", ".join(f"{name} {_in_words(shares[name])}" for name in (*methods, fixed))
    return (
        f"At the last layer the preferred antecedent {question.what}: {sentence}. Clearly above "
        f"the better fixed choice, pair by pair: {', '.join(above) or 'none'}."
    )


def _in_words(cell: Cell) -> str:
    if cell.low is None or cell.high is None or not cell.n:
        return "undefined"
    return f"{percent(cell.value)} ({percent(cell.low)} to {percent(cell.high)})"


def _mean(rows: Floats) -> Floats:
    known = np.isfinite(rows)
    count = known.sum(axis=0)
    total = np.where(known, rows, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def share_of(values: Sequence[float] | Floats) -> Cell:
    """A share with its interval; a standard deviation says nothing of a yes or no."""
    return Cell.of_share(summarize(values))
