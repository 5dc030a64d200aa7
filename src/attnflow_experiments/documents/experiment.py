"""Is the right document named, wherever it stands and however much stands beside it?

Each question is asked as `attnflow ask` asks it. Where the answer is right, the document that the
statement with the answer is said to draw on most is held against those that support it, and against
the one without which the answer loses most. Or the right answer is given, and read as if the model
had written it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.hosts.model import Model
from attnflow.methods import make_method
from attnflow_experiments.ablation.data import PARTS, Part
from attnflow_experiments.documents.data import (
    SourcedQuestion,
    ordinary_questions,
    ordinary_texts,
    paragraph_questions,
    supported_questions,
)
from attnflow_experiments.documents.reading import DEFAULT, AnswerReading, method_name
from attnflow_experiments.journal import append_record, read_journal
from attnflow_experiments.report import Report

KINDS = ("ordinary", "paragraphs", "supports")
_LEFT_OUT = "leaving a document out"
_FRAME = 96  # tokens of the question, the chat template and the answer
_BETWEEN = 2  # tokens of the blank line after a document, at most


@dataclass(frozen=True, kw_only=True)
class SourcesExperiment:
    """The experiment.

    part: "development", to choose by, or "held-out", to report once; a file with supports is asked
        as a whole.
    methods: names as `ask` takes them; "default"; "checked", what the default names after its
        check, as `ask` does; or "checked+NAME", what another method names after it.
    kinds: "ordinary", contracts, e-mail, tables and others with the right one at every place;
        "paragraphs", of which two are of one article; "supports", a file in which the documents
        that support an answer are known.
    orders: at how many places the right one of the last two stands, from one on that differs by
        question.
    questions: at most so many of each kind.
    places: how many documents, and how many places of the right one between the first and last.
    lengths: fill up with other documents to so many tokens, one run for each; none adds nothing.
    reads_answers: read the right answer as if the model had written it; all questions count.
    """

    part: Part = "development"
    methods: Sequence[str] = (DEFAULT,)
    kinds: Sequence[str] = KINDS
    questions: int | None = None
    places: int = 5
    orders: int = 1
    lengths: Sequence[int] = ()
    reads_answers: bool = False

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise InputError(f"part={self.part!r}. The parts are {', '.join(PARTS)}.")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InputError(f"No documents {unknown[0]!r}. There are {', '.join(KINDS)}.")
        if self.questions is not None and self.questions < 1:
            raise InputError(f"questions is a number of at least 1; got {self.questions!r}.")
        if not 3 <= self.places <= 10:  # of two ordinary documents some draws have no end
            raise InputError(f"places={self.places!r}. There are 3 to 10 places.")
        if not 1 <= self.orders <= self.places:
            raise InputError(f"orders={self.orders!r}. There are 1 to {self.places}.")
        short = [length for length in self.lengths if length < 10 * _FRAME]
        if short:
            raise InputError(f"A length is at least {10 * _FRAME} tokens; got {short[0]!r}.")
        for name in self.methods:  # a long run must not fail on a name
            if method_name(name) != DEFAULT:
                make_method(method_name(name))

    def __call__(self, model: Model, *, data: Path | None, journal: Path | None) -> Report:
        """Ask, count, and keep each question in the journal as it is done."""
        cases = list(self._cases(model, data))
        done = read_journal(journal)
        records = []
        for number, (about, case) in enumerate(cases):
            tell("documents", number, len(cases))
            record = done.get(about["name"])
            if record is None or not set(self.methods) <= set(record["named"]):
                record = {**about, **self._try(model, case)}
                append_record(journal, record)
            records.append(record)
        tell("documents", len(cases), len(cases))
        return self._report(records)

    def _cases(
        self, model: Model, data: Path | None
    ) -> Iterator[tuple[dict[str, Any], SourcedQuestion]]:
        """Yield what is noted of each question, and the question at its place and length."""

        @cache
        def count(text: str) -> int:
            return len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) + _BETWEEN

        mode = "given" if self.reads_answers else "written"
        for kind in self.kinds:
            questions, texts = self._questions(kind, data)
            table = data.stem if kind == "supports" and data is not None else kind
            for length in self.lengths or (0,):
                for number, question in enumerate(questions[: self.questions]):
                    for place in self._places_of(kind, number, question):
                        run = f"{table}-{mode}-{self.places}-{length}-{number}-{place}"
                        about = {"name": run, "kind": table, "length": length, "place": place}
                        if len(question.right) > 1:
                            about["place"] = None
                        filled = question
                        if length:
                            bare = question.alone() if kind == "ordinary" else question
                            filled = bare.filled_up(texts, length - _FRAME, count)
                        yield about, filled.at_place(place, self.places)

    def _places_of(self, kind: str, number: int, question: SourcedQuestion) -> Sequence[int]:
        if kind == "ordinary":
            return range(self.places)
        orders = self.orders if len(question.right) == 1 else 1  # several stay where they are
        return [(number + k) % self.places for k in range(orders)]

    def _questions(self, kind: str, data: Path | None) -> tuple[list[SourcedQuestion], list[str]]:
        """Return the questions of a kind, and the texts to fill up with."""
        if kind == "supports":
            if data is None or not data.is_file():
                raise InputError(f"Questions with supports are a file of JSON lines; got {data}.")
            return supported_questions(data, self.places)
        if kind == "ordinary" and data is not None and data.is_file():
            _, others = supported_questions(data, self.places)
            return ordinary_questions(self.part, self.places), others
        paragraphs: tuple[list[SourcedQuestion], list[str]] = ([], [])
        if data is not None:
            paragraphs = paragraph_questions(data, self.part, self.places)
        if kind == "paragraphs":
            return paragraphs
        others = paragraphs[1] or ordinary_texts(self.part)
        return ordinary_questions(self.part, self.places), others

    def _try(self, model: Model, case: SourcedQuestion) -> dict[str, Any]:
        read = AnswerReading.of_given if self.reads_answers else AnswerReading.of_written
        reading = read(model, case)
        answered = self.reads_answers or reading.is_right
        record: dict[str, Any] = {"answer": reading.text, "answered": answered}
        if not answered:
            return {**record, "named": dict.fromkeys(self.methods)}
        needed = reading.most_needed()
        columns: dict[str, dict[str, bool | None]] = {"named": {}, "sentence": {}, "agrees": {}}
        for name in self.methods:
            document, sentence = reading.named(name)
            columns["named"][name] = document in case.right
            columns["agrees"][name] = document == needed
            columns["sentence"][name] = None
            if case.evidence:
                columns["sentence"][name] = bool(sentence) and any(
                    sentence in evidence or evidence in sentence for evidence in case.evidence
                )
        return {**record, **columns, "left_out": needed in case.right}

    def _report(self, records: Sequence[Mapping[str, Any]]) -> Report:
        kinds = dict.fromkeys(str(record["kind"]) for record in records)
        how = "The right answer is given and read; every question counts."
        if not self.reads_answers:
            how = "The model answers as `attnflow ask` does; answers that are right count."
        return Report(
            name="documents",
            title=f"The document that an answer came from, {self.part}",
            protocol=(
                f"{how} The right document stands at {self.places} places from the first to the "
                f"last: ordinary ones at each, others at {self.orders}. A file with supports keeps "
                "its order where several documents support the answer.",
                "Right document: one that supports the answer is named first for the statement "
                "with the answer. Sentence: the sentence that is named is one that states it. As "
                "leaving out: the document named is the one whose hiding costs the answer most.",
                "95 % bootstrap intervals over prompts, as if places of a question were others.",
            ),
            tables=tuple(self._table(k, [r for r in records if r["kind"] == k]) for k in kinds),
            findings=(),
        )

    def _table(self, kind: str, records: Sequence[Mapping[str, Any]]) -> Table:
        places = sorted({int(r["place"]) for r in records if r["place"] is not None})
        cells, notes = {}, []
        for length in dict.fromkeys(int(record["length"]) for record in records):
            prompts = [record for record in records if record["length"] == length]
            counted = [record for record in prompts if record["answered"]]
            suffix = f", {length} tokens" if length else ""
            for name in (*self.methods, _LEFT_OUT):
                cells[name + suffix] = _row(name, counted, places)
            notes.append(f"{len(counted)} of {len(prompts)} answers are right and count{suffix}.")
        headings = ("right document", "its sentence", "as leaving out")
        columns = (*headings, *(f"place {place + 1}" for place in places))
        return Table(kind, f"{kind.capitalize()} documents", columns, cells, " ".join(notes))


def _row(
    name: str, counted: Sequence[Mapping[str, Any]], places: Sequence[int]
) -> tuple[Cell, ...]:
    """Return the cells of a method, or of leaving documents out, over the answers that count."""

    def share(column: str, place: int | None = None) -> Cell:
        members = [r for r in counted if place is None or r["place"] == place]
        if name == _LEFT_OUT:
            hits = [r["left_out"] for r in members] if column == "named" else []
        else:
            hits = [r[column][name] for r in members if r[column][name] is not None]
        return Cell.of_share(summarize(np.array(hits, dtype=np.float64)))

    headings = (share("named"), share("sentence"), share("agrees"))
    return (*headings, *(share("named", place) for place in places))
