"""Winogender, summed up: the model's pronoun, the binding, and the true referent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.layers import Floats
from attnflow_experiments.pronouns.data import SOMEONE, Schema, crossed
from attnflow_experiments.pronouns.observe import PronounReader, Reading
from attnflow_experiments.pronouns.tables import (
    FIRST,
    LAST,
    Frame,
    Question,
    agreement,
    layer_table,
    share_of,
    standing,
)
from attnflow_experiments.report import curve_panel

MODEL: Final = "the model's binding"


@dataclass(frozen=True, eq=False)
class Item:
    """One schema as it was read, and its frame: the same with a man and a woman in it."""

    schema: Schema
    plain: Reading
    frame: Frame | None

    @property
    def prompt(self) -> str:
        """The part of it that the model sees."""
        return self.plain.sentence.before

    def lean(self, method: str) -> Floats:
        """Towards the occupation, at each layer."""
        if method != MODEL:
            return self.plain.leans[method]
        binding = np.nan if self.frame is None else self.frame.binding
        return np.full(len(self.plain.layers), binding)


@dataclass(frozen=True, eq=False)
class Winogender:
    """Everything that was read; `methods` are the names of what is compared."""

    items: Sequence[Item]
    methods: tuple[str, ...]
    masked: bool

    @property
    def distinct(self) -> list[Item]:
        """One item for each text the model is shown, and case of the pronoun."""
        return list({item.plain.sentence: item for item in self.items}.values())

    @property
    def framed(self) -> list[Item]:
        """Those of them that name both people, so that each can be made a man or a woman."""
        return [item for item in self.distinct if item.frame is not None]

    @property
    def pairs(self) -> list[tuple[Item, Item]]:
        """Sentences that differ in the true referent: the occupation's first."""
        items: dict[tuple[str, str], dict[int, Item]] = {}
        for item in self.items:
            key = item.schema.occupation, item.schema.participant
            items.setdefault(key, {})[item.schema.referent] = item
        return [(pair[0], pair[1]) for pair in items.values() if len(pair) == 2]

    @property
    def telling_pairs(self) -> list[tuple[Item, Item]]:
        """Pairs whose difference the model is shown; in the others it stands after the pronoun."""
        return [(a, b) for a, b in self.pairs if self._prompt(a) != self._prompt(b)]

    def _prompt(self, item: Item) -> str:
        return item.schema.text if self.masked else item.prompt


def read_schemas(reader: PronounReader, schemas: Sequence[Schema]) -> Winogender:
    """Every schema as it is and, where both people are named, with the genders both ways."""
    visible = [_cut(schema, reader.masked) for schema in schemas]
    groups = [[] if s.participant == SOMEONE else crossed(s) for s in visible]
    both_ways = [sentence for group in groups for sentence in group]
    readings = iter(reader([*(schema.sentence for schema in visible), *both_ways]))
    plain_ones = [next(readings) for _ in visible]
    items = []
    for original, schema, plain, group in zip(schemas, visible, plain_ones, groups, strict=True):
        members = [next(readings) for _ in group]
        frame = Frame(members, schema.occupation) if members else None
        items.append(Item(original, plain, frame))
    return Winogender(items, tuple(reader.methods), reader.masked)


def _cut(schema: Schema, masked: bool) -> Schema:
    """Cut off what a causal model does not see, so that equal prompts are read once."""
    if masked:
        return schema
    text = schema.sentence.before
    return Schema(schema.occupation, schema.participant, schema.referent, text, schema.pronouns)


# --- tables ---------------------------------------------------------------------------------------


def tables(winogender: Winogender) -> tuple[Table, ...]:
    """The summary, most telling first."""
    rows = [*winogender.methods, FIRST, LAST]
    questions = _questions(winogender)
    return (
        _pronouns(winogender),
        *(layer_table(question, rows) for question in questions),
        *([_referents(winogender)] if winogender.telling_pairs else []),
        _position(winogender),
        _methods(winogender),
        _saturated(winogender),
    )


def _pronouns(winogender: Winogender) -> Table:
    """Which of the three pronouns the model prefers where nothing says a gender."""
    rows: dict[str, tuple[Cell, ...]] = {}
    cases = sorted({item.schema.pronouns for item in winogender.distinct})
    for pronouns in [*cases, None]:
        items = [i for i in winogender.distinct if pronouns in (None, i.schema.pronouns)]
        shares = np.array([item.plain.probabilities[:2] for item in items])
        prefers = [np.argmax(item.plain.probabilities) for item in items]
        name = "all" if pronouns is None else "/".join(pronouns)
        rows[f"{name} ({len(items)})"] = (
            *(share_of(np.equal(prefers, k).astype(np.float64)) for k in range(3)),
            share_of(shares[:, 0] / shares.sum(axis=1)),
            share_of([sum(item.plain.probabilities) for item in items]),
        )
    columns = ("prefers male", "female", "neutral", "p(male) of the two", "p of all three")
    note = "Different texts only, as the model is shown them."
    return Table("pronouns", "The preferred pronoun, as the sentences are", columns, rows, note)


def _as_frames(items: Sequence[Item]) -> list[Frame]:
    return [Frame([item.plain], item.schema.occupation) for item in items]


def _questions(winogender: Winogender) -> list[Question]:
    """Return what fixed choices can be held against; none where no sentence names both people."""
    frames = [item.frame for item in winogender.framed if item.frame is not None]
    if not frames:
        return []
    originals = _as_frames(winogender.framed)
    bindings = {
        id(one): np.array(frame.binding) for one, frame in zip(originals, frames, strict=True)
    }
    return [
        Question(
            "agreement",
            "agrees with the preferred pronoun",
            frames,
            Frame.follows_pronoun,
            "A man and a woman in the two roles, both ways. A model that always prefers one "
            "pronoun agrees with any fixed choice half of the time.",
        ),
        Question(
            "binding",
            "is the one the model binds the pronoun to",
            frames,
            Frame.follows_binding,
            "Bound: the antecedent whose gender moves the pronoun's odds. The method's lean is "
            "the mean over the same sentences.",
        ),
        Question(
            "original",
            "is the one bound, in the sentence as it is",
            originals,
            lambda frame, name: agreement(frame.leans(name)[0], bindings[id(frame)]),
            "The method's lean is that of the sentence with its occupation and participant; the "
            "binding is that of the same sentence with a man and a woman in the two roles.",
        ),
    ]


def _referents(winogender: Winogender) -> Table:
    """Position and frequency cancel within a pair: only what the two prompts say differs."""
    pairs = winogender.telling_pairs
    frames = _as_frames([first for first, _ in pairs])
    other = {id(f): pair for f, pair in zip(frames, pairs, strict=True)}

    def right(frame: Frame, name: str) -> Floats:
        first, second = other[id(frame)]
        return agreement(first.lean(name) - second.lean(name), np.ones(1))

    rows = [*winogender.methods, *([MODEL] if any(a.frame for a, _ in pairs) else [])]
    note = (
        f"{len(pairs)} of {len(winogender.pairs)} pairs: in the others all that tells the "
        "referents apart stands after the pronoun, so a causal model is shown the same text twice. "
        "The binding is known where both people are named."
    )
    title = "True referent: does the method lean to the occupation more where it is the referent?"
    return layer_table(Question("referents", "", frames, right, note, title), rows)


def _position(winogender: Winogender) -> Table:
    def first(frame: Frame, name: str) -> Floats:
        return agreement(frame.leans(name)[0], frame.leans(FIRST)[0])

    question = Question(
        "position",
        "is the first named",
        _as_frames(winogender.distinct),
        first,
        "Near 0 or 1 the method chooses by position, whatever the sentence says.",
    )
    return layer_table(question, winogender.methods)


def _methods(winogender: Winogender) -> Table:
    rows = {
        f"{one} and {other}": (
            share_of([
                float(agreement(item.lean(one)[-1:], item.lean(other)[-1:])[0])
                for item in winogender.distinct
            ]),
        )
        for one, other in combinations(winogender.methods, 2)
    }  # fmt: skip
    title = "How often two methods prefer the same antecedent, at the last layer"
    return Table("methods", title, ("agree",), rows)


def _saturated(winogender: Winogender) -> Table:
    question = Question(
        "saturation",
        "",
        _as_frames(winogender.distinct),
        lambda frame, _: frame.readings[0].saturated.astype(np.float64),
        title="Share of sentences in which flow no longer depends on the target",
    )
    return layer_table(question, ["flow"])


# --- words ----------------------------------------------------------------------------------------


def protocol(winogender: Winogender) -> tuple[str, ...]:
    """How 'agrees' is meant."""
    clusters = len({item.schema.occupation for item in winogender.items})
    return (
        f"{len(winogender.items)} sentences about {clusters} occupations; "
        f"{len(winogender.distinct)} different texts as the model is shown them. An "
        "occupation counts once in each table over layers, and intervals are over "
        "occupations: its sentences share their words.",
        "Nothing in Winogender says the gender of an occupation, so a preferred pronoun names no "
        "antecedent. Therefore each sentence is also read with a man and a woman in the two roles "
        "(man and woman, boy and girl), both ways: there the pronoun does name one. What the model "
        "prefers as such cancels over both ways; what is left of the log odds is the binding.",
    )


def findings(winogender: Winogender) -> tuple[str, ...]:
    """Return what the tables say, in sentences."""
    sentences = []
    if winogender.framed:
        consistent = sum(_names_one(item) for item in winogender.framed)
        sentences.append(
            f"In {consistent} of {len(winogender.framed)} texts the preferred pronoun goes with "
            "the same role however the genders are laid; in the others it does not."
        )
        sentences += [standing(q, winogender.methods) for q in _questions(winogender)]
    equal = len(winogender.pairs) - len(winogender.telling_pairs)
    if equal:
        sentences.append(
            f"{equal} of {len(winogender.pairs)} pairs with different referents are the same text "
            "up to the pronoun: no method and no causal model could tell them apart."
        )
    return tuple(sentences)


def _names_one(item: Item) -> bool:
    assert item.frame is not None
    return len({reading.pronoun_lean > 0 for reading in item.frame.readings}) == 1


def draw(winogender: Winogender, path: Path) -> None:
    """Agreement over layers."""
    from attnflow_experiments.pronouns.figures import agreement_figure

    names = ("agreement", "binding", "original", "referents")
    panels = [curve_panel(table) for table in tables(winogender) if table.name in names]
    fixed = (FIRST, LAST, MODEL)
    agreement_figure([{**panel, "fixed": fixed} for panel in panels], path)
