"""Does the antecedent a method prefers agree with the pronoun the model prefers?

Two questions, because a model also prefers a pronoun for its own sake. The *pronoun*: in each
sentence, is the method's antecedent the one that the more probable pronoun goes with? The
*binding*: over the sentences of one frame, which have the genders both ways, whose gender moves
the pronoun's odds? What a model prefers for its own sake cancels there, and a method's lean is
averaged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from attnflow.errors import percent
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.layers import CLEAR, Floats, layer_names
from attnflow_experiments.pronouns.data import PAPERS, PronounSentence, occurrences
from attnflow_experiments.pronouns.observe import Reading

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
    """1 for the same sign, 0 for the other, a half where ours is a tie; nan where unknown."""
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
    sentence = ", ".join(f"{name} {_describe_share(shares[name])}" for name in (*methods, fixed))
    return (
        f"At the last layer the preferred antecedent {question.what}: {sentence}. Clearly above "
        f"the better fixed choice, pair by pair: {', '.join(above) or 'none'}."
    )


def _describe_share(cell: Cell) -> str:
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


PAPER_PROBABILITIES: Final[Mapping[PronounSentence, tuple[float, float]]] = {
    PAPERS[0]: (0.356, 0.122)
}
"""Figure 4 of Abnar and Zuidema (2020), BERT-large: p(his) and p(her) of the first sentence."""

PAPER_PREFERENCES: Final[Mapping[PronounSentence, Mapping[str, bool]]] = {
    PAPERS[0]: {"raw": False, "rollout": True, "flow": True},
    PAPERS[1]: {"raw": False, "rollout": False, "flow": True},
}
"""The same figure: whether each, at the last layer, prefers the first antecedent."""

_DETAILED: Final = 6  # sentences whose layers are tables of their own, and rows of the figure
_FEWEST: Final = 5  # frames that are summed up; over fewer, a share and its interval say nothing


def frames_of(readings: Sequence[Reading]) -> list[Frame]:
    """Sentences that differ only in whose gender is whose, together."""
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.sentence.frame or reading.sentence.text, []).append(reading)
    return [Frame(group, name) for name, group in groups.items()]


def detailed(readings: Sequence[Reading]) -> list[Reading]:
    """The paper's sentences if they are among these, else the first few."""
    papers = [reading for reading in readings if reading.sentence in PAPERS]
    return papers or list(readings[:_DETAILED])


def tables_of(
    readings: Sequence[Reading], questions: Sequence[Question], methods: Sequence[str]
) -> tuple[Table, ...]:
    """Each sentence at every layer, and how often method and pronoun agree over all."""
    return (
        _overview(readings),
        *_beside_the_paper(readings),
        *(_layers(number, r) for number, r in enumerate(detailed(readings), start=1)),
        *(layer_table(question, [*methods, FIRST, LAST]) for question in questions),
        _saturation(readings),
    )


def findings_of(
    readings: Sequence[Reading],
    frames: Sequence[Frame],
    questions: Sequence[Question],
    methods: Sequence[str],
) -> tuple[str, ...]:
    """Return what the tables say, in sentences."""
    return (
        *_unseen(readings),
        *_summary_of(readings, frames),
        *(standing(question, methods) for question in questions),
    )


def _overview(readings: Sequence[Reading]) -> Table:
    methods = list(readings[0].leans)
    rows = {}
    for reading in readings:
        printed = PAPER_PROBABILITIES.get(reading.sentence)
        paper = (None,) * 4 if printed is None else _of_two(*printed)
        ours = _of_two(*reading.probabilities[:2])
        cells = [Cell(value, paper=number) for value, number in zip(ours, paper, strict=True)]
        cells += [Cell(float(reading.leans[name][-1])) for name in methods]
        rows[reading.sentence.label] = tuple(cells)
    columns = ("p(first)", "p(second)", "p(first) of the two", "pronoun leans", *methods)
    note = (
        "The first of the two pronouns goes with the first antecedent named. "
        f"Leans of attributions at layer {readings[0].layers[-1]}. The paper's p are BERT-large's."
    )
    return Table("sentences", "Probabilities, and leans at the last layer", columns, rows, note)


def _of_two(first: float, second: float) -> tuple[float, float, float, float]:
    """Both probabilities, the first's share of the two, and the lean."""
    return first, second, first / (first + second), (first - second) / (first + second)


def _beside_the_paper(readings: Sequence[Reading]) -> list[Table]:
    """1 where the first antecedent is preferred at the last layer, beside the paper's 1 or 0."""
    rows = {
        f"{reading.sentence.label}: {reading.sentence.antecedents[0]}": tuple(
            Cell(float(agreement(reading.leans[name][-1:], np.ones(1))[0]), paper=float(preferred))
            for name, preferred in PAPER_PREFERENCES[reading.sentence].items()
        )
        for reading in readings
        if reading.sentence in PAPER_PREFERENCES
    }
    if not rows:
        return []
    note = "The paper's model is BERT-large, which fills [MASK] and sees the words after it."
    title = "Is the first antecedent preferred at the last layer? (1 yes, 0 no)"
    return [Table("paper", title, ("raw", "rollout", "flow"), rows, note)]


def _layers(number: int, reading: Reading) -> Table:
    rows = {
        f"{name}: {word}": tuple(Cell(100 * float(value)) for value in values[:, k])
        for name, values in reading.attributions.items()
        for k, word in enumerate(reading.sentence.antecedents)
    }
    return Table(
        f"layers-{number}",
        f"{reading.sentence.label}: attributions in percent, layer by layer",
        layer_names(reading.layers),
        rows,
        columns_to_print=layers_to_print(len(reading.layers)),
    )


def questions_of(frames: Sequence[Frame]) -> list[Question]:
    """Over all sentences; the binding only where each frame has the genders both ways."""
    if len(frames) < _FEWEST:
        return []
    count = sum(len(frame.readings) for frame in frames)
    pronoun = Question(
        "agreement",
        "agrees with the preferred pronoun",
        frames,
        Frame.follows_pronoun,
        f"{count} sentences in {len(frames)} frames; a frame counts once, intervals are over "
        "frames. A tie counts a half.",
    )
    if any(len(frame.readings) == 1 for frame in frames):
        return [pronoun]
    binding = Question(
        "binding",
        "is the one the model binds the pronoun to",
        frames,
        Frame.follows_binding,
        "The sentences of a frame have the genders both ways: the model's preference for a "
        "pronoun as such cancels in the mean of its log odds, and what is left says which "
        "antecedent's gender the pronoun follows. A method's lean is averaged in the same way.",
    )
    return [pronoun, binding]


def _saturation(readings: Sequence[Reading]) -> Table:
    share = np.mean([reading.saturated for reading in readings], axis=0)
    rows = {"both flows saturated": tuple(Cell(float(value)) for value in share)}
    layers = readings[0].layers
    note = "Where it is 1, the flow's preference is the same for every target, pronoun or not."
    return Table(
        "saturation",
        "Share of sentences in which flow no longer depends on the target",
        layer_names(layers),
        rows,
        note,
        columns_to_print=layers_to_print(len(layers)),
    )


def _unseen(readings: Sequence[Reading]) -> list[str]:
    return [
        f"Not visible: {', '.join(reading.unseen)} stands after the pronoun in "
        f"{reading.sentence.text!r}, and a causal model sees only what stands before; nothing is "
        "compared there."
        for reading in readings
        if reading.unseen
    ]


def _summary_of(readings: Sequence[Reading], frames: Sequence[Frame]) -> list[str]:
    sentences = [_describe_reading(reading) for reading in detailed(readings) if not reading.unseen]
    both = [frame for frame in frames if len(frame.readings) > 1]
    if both:
        constant = sum(len({_preferred(r) for r in frame.readings}) == 1 for frame in both)
        sentences.append(
            f"In {constant} of {len(both)} frames the preferred pronoun goes with the same "
            "antecedent when the genders are exchanged; in the others the model prefers one "
            "pronoun as such."
        )
    return sentences


def _preferred(reading: Reading) -> int:
    return 0 if reading.pronoun_lean > 0 else 1


def _describe_reading(reading: Reading) -> str:
    sentence, choice = reading.sentence, _preferred(reading)
    p = reading.probabilities
    truth = np.array(reading.pronoun_lean)
    verdicts = {name: float(agreement(leans[-1], truth)) for name, leans in reading.leans.items()}
    agree = [name for name, verdict in verdicts.items() if verdict == 1]
    return (
        f"{sentence.before!r}: {sentence.pronouns[choice]} ({p[choice]:.2g}) before "
        f"{sentence.pronouns[1 - choice]} ({p[1 - choice]:.2g}), so "
        f"{sentence.antecedents[choice]}; at the last layer {', '.join(agree) or 'no method'} "
        f"prefer{'s' if len(agree) < 2 else ''} it too."
    )


def draw(readings: Sequence[Reading], path: Path) -> None:
    """Pronouns and antecedents of each sentence, layer by layer."""
    from attnflow_experiments.pronouns.figures import pronoun_figure

    pronoun_figure(
        [
            {
                "heading": reading.sentence.label,
                "pronouns": reading.sentence.pronouns[:2],
                "probabilities": reading.probabilities[:2],
                "antecedents": reading.sentence.antecedents,
                "layers": reading.layers,
                "methods": {name: values.T for name, values in reading.attributions.items()},
            }
            for reading in readings
        ],
        path,
    )
