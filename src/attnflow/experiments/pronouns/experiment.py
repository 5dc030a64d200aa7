"""Figure 4 of the paper: the pronoun a model prefers, beside the antecedent attention prefers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from attnflow.evaluation.importance.base import check_named
from attnflow.experiments.pronouns import winogender_tables
from attnflow.experiments.pronouns.data import PAPERS, PronounSentence
from attnflow.experiments.pronouns.observe import PronounReader, Protocol, Reading
from attnflow.experiments.pronouns.tables import (
    FIRST,
    LAST,
    Frame,
    Question,
    agreed,
    layer_names,
    layer_table,
    shown_layers,
    standing,
)
from attnflow.experiments.pronouns.winogender import Schema
from attnflow.experiments.report import Cell, Report, Table
from attnflow.experiments.verb_number.observe import Stages

__all__ = ["PAPER_PREFERENCES", "PAPER_PROBABILITIES", "Pronouns"]

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

_PROTOCOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "sound": (
        "A causal model's text opens with a line end (unless its tokenizer begins with a token of "
        "its own): decoders park attention on the first token, and a name must not be that token.",
        "The default of generate() is there for causal models: rollout with a residual that does "
        "not drown depth, the first token dropped, less the same of a neutral prompt.",
    ),
    "paper": (
        "As in the paper: the text as it is, raw attention, rollout and flow with half of each "
        "layer for the residual, heads averaged, rows of flow divided by their sum. The first "
        "token of a causal model, which collects attention whatever it is, counts like any other.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pronouns:
    """The pronoun experiment, on sentences or on Winogender schemas.

    protocol: "sound", or "paper" for theirs with its oddities.
    """

    protocol: Protocol = "sound"

    def __post_init__(self) -> None:
        check_named("protocol", self.protocol, get_args(Protocol))

    def of_sentences(
        self,
        model: Any,
        tokenizer: Any,
        sentences: Sequence[PronounSentence],
        *,
        command: str = "",
        stages: Stages = lambda *_: None,
    ) -> Report:
        """Each sentence at every layer, and how often method and pronoun agree over all."""
        reader = PronounReader(model=model, tokenizer=tokenizer, protocol=self.protocol)
        readings = reader(sentences, stages)
        frames = _frames(readings)
        tables = [_overview(readings), *_beside_the_paper(readings)]
        tables += [_layers(number, r) for number, r in enumerate(_detailed(readings), start=1)]
        asked = _questions(frames)
        methods = list(reader.methods)
        tables += [layer_table(question, [*methods, FIRST, LAST]) for question in asked]
        tables.append(_saturation(readings))
        return Report(
            name="pronouns",
            title="Pronouns: the preferred pronoun beside the preferred antecedent",
            protocol=(*_protocol(reader), *_PROTOCOLS[self.protocol]),
            tables=tuple(tables),
            findings=(
                *_unseen(readings),
                *_findings(readings, frames),
                *(standing(question, methods) for question in asked),
            ),
            command=command,
            figure=lambda path: _figure(_detailed(readings), path),
        )

    def of_winogender(
        self,
        model: Any,
        tokenizer: Any,
        schemas: Sequence[Schema],
        *,
        command: str = "",
        stages: Stages = lambda *_: None,
    ) -> Report:
        """A summary over all schemas."""
        reader = PronounReader(model=model, tokenizer=tokenizer, protocol=self.protocol)
        found = winogender_tables.read_schemas(reader, schemas, stages)
        return Report(
            name="pronouns",
            title="Winogender: the model's pronoun and the methods' antecedents",
            protocol=(
                *_protocol(reader),
                *_PROTOCOLS[self.protocol],
                *winogender_tables.protocol(found),
            ),
            tables=winogender_tables.tables(found),
            findings=winogender_tables.findings(found),
            command=command,
            figure=lambda path: winogender_tables.draw(found, path),
        )


def _protocol(reader: PronounReader) -> tuple[str, ...]:
    name = getattr(getattr(reader.model, "config", None), "name_or_path", "")
    shown = Path(str(name)).name or type(reader.model).__name__
    if reader.masked:
        sees = "a masked model: the row of the mask in the whole sentence"
    else:
        sees = (
            "a causal model: the row of the last position before the pronoun, which predicts it; "
            "what stands after the pronoun it does not see"
        )
    return (
        f"{shown}, {sees}.",
        "The first pronoun goes with the first antecedent, the second with the second. "
        "Probabilities are of all words; a lean is (first − second) / (|first| + |second|), for "
        "pronouns and for attributions: positive prefers the first antecedent.",
        "An antecedent's attribution is the sum over its word pieces, in the mean of all heads; "
        "flows to several pieces are added, which is no flow itself.",
    )


def _frames(readings: Sequence[Reading]) -> list[Frame]:
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.sentence.frame or reading.sentence.text, []).append(reading)
    return [Frame(group, name) for name, group in groups.items()]


def _detailed(readings: Sequence[Reading]) -> list[Reading]:
    """The paper's sentences if they are among these, else the first few."""
    papers = [reading for reading in readings if reading.sentence in PAPERS]
    return papers or list(readings[:_DETAILED])


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
            Cell(float(agreed(reading.leans[name][-1:], np.ones(1))[0]), paper=float(preferred))
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
        shown=shown_layers(len(reading.layers)),
    )


def _questions(frames: Sequence[Frame]) -> list[Question]:
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
        shown=shown_layers(len(layers)),
    )


def _unseen(readings: Sequence[Reading]) -> list[str]:
    return [
        f"Not visible: {', '.join(reading.unseen)} stands after the pronoun in "
        f"{reading.sentence.text!r}, and a causal model sees only what stands before; nothing is "
        "compared there."
        for reading in readings
        if reading.unseen
    ]


def _findings(readings: Sequence[Reading], frames: Sequence[Frame]) -> list[str]:
    found = [_said(reading) for reading in _detailed(readings) if not reading.unseen]
    both = [frame for frame in frames if len(frame.readings) > 1]
    if both:
        moved = sum(len({_preferred(r) for r in frame.readings}) == 1 for frame in both)
        found.append(
            f"In {moved} of {len(both)} frames the preferred pronoun goes with the same antecedent "
            "when the genders are exchanged; in the others the model prefers one pronoun as such."
        )
    return found


def _preferred(reading: Reading) -> int:
    return 0 if reading.pronoun_lean > 0 else 1


def _said(reading: Reading) -> str:
    sentence, choice = reading.sentence, _preferred(reading)
    p = reading.probabilities
    truth = np.array(reading.pronoun_lean)
    verdicts = {name: float(agreed(leans[-1], truth)) for name, leans in reading.leans.items()}
    agree = [name for name, verdict in verdicts.items() if verdict == 1]
    return (
        f"{sentence.before!r}: {sentence.pronouns[choice]} ({p[choice]:.2g}) before "
        f"{sentence.pronouns[1 - choice]} ({p[1 - choice]:.2g}), so "
        f"{sentence.antecedents[choice]}; at the last layer {', '.join(agree) or 'no method'} "
        f"prefer{'s' if len(agree) < 2 else ''} it too."
    )


def _figure(readings: Sequence[Reading], path: Path) -> None:
    from attnflow.show import plots

    plots.pronoun_figure(
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
