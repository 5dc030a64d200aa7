"""Is the right document named, wherever it stands?

Each question is asked as `attnflow ask` asks it. Where the answer is right, the document that the
statement with the answer is said to draw on most is held against the one that states it, and
against the one without which the answer loses most.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import attnflow
from attnflow.attribution.passages import DOCUMENTS, Statement
from attnflow.data import rows
from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import summarize
from attnflow.evaluation.subjects.known import is_answered
from attnflow.evaluation.table import Cell, Table
from attnflow.explainers.ablation import ablate
from attnflow.explainers.answers import question_prompt, uses_chat
from attnflow.hosts.model import Model
from attnflow_experiments.ablation.data import PARTS, Part, part_of
from attnflow_experiments.documents.data import OrdinaryQuestion, ordinary_questions, rotations
from attnflow_experiments.report import Report

KINDS = ("ordinary", "paragraphs")
_DEFAULT = "default"
_OF_ONE_ARTICLE = 2  # paragraphs that could be mistaken for one another
_PARAGRAPHS = 5
_SEED = 13


@dataclass(frozen=True, kw_only=True)
class SourcesExperiment:
    """The experiment.

    part: "development", to choose by, or "held-out", to report once.
    methods: names as `ask` takes them, or "default".
    kinds: "ordinary", contracts, e-mail, tables and others in every rotation; "paragraphs", of
        which two are of one article, in random order.
    questions: at most so many of each kind.
    """

    part: Part = "development"
    methods: Sequence[str] = (_DEFAULT,)
    kinds: Sequence[str] = KINDS
    questions: int | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise InputError(f"part={self.part!r}. The parts are {', '.join(PARTS)}.")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InputError(f"No documents {unknown[0]!r}. There are {', '.join(KINDS)}.")
        if self.questions is not None and self.questions < 1:
            raise InputError(f"questions is a number of at least 1; got {self.questions!r}.")

    def __call__(self, model: Model, *, data: Path | None, journal: Path | None) -> Report:
        """Ask, count, and keep each question in the journal as it is done."""
        cases = list(self._cases(data))
        done = _read_journal(journal)
        records = []
        for number, (kind, name, case) in enumerate(cases):
            tell("documents", number, len(cases))
            record = done.get(name)
            if record is None or not set(self.methods) <= set(record["named"]):
                record = {"name": name, "kind": kind, **self._try(model, case)}
                _append(journal, record)
            records.append(record)
        tell("documents", len(cases), len(cases))
        return self._report(records)

    def _cases(self, data: Path | None) -> Iterator[tuple[str, str, OrdinaryQuestion]]:
        if "ordinary" in self.kinds:
            for number, question in enumerate(ordinary_questions(self.part)[: self.questions]):
                for shift, case in enumerate(rotations(question)):
                    yield "ordinary", f"ordinary-{number}-{shift}", case
        if "paragraphs" in self.kinds and data is not None:
            for number, case in enumerate(paragraph_questions(data, self.part)[: self.questions]):
                yield "paragraphs", f"paragraphs-{number}", case

    def _try(self, model: Model, case: OrdinaryQuestion) -> dict[str, Any]:
        documents = dict(case.documents)
        record: dict[str, Any] = {"place": case.right, "named": {}, "sentence": {}}
        answer = None
        for name in self.methods:
            method = None if name == _DEFAULT else name
            answer = attnflow.ask(model, case.question, documents, method, max_new_tokens=24)
            answered = any(is_answered(one, answer.text, cut_off=False) for one in case.answers)
            record |= {"answer": answer.text, "answered": answered}
            if not answered:
                record["named"] = dict.fromkeys(self.methods)
                return record
            source = _statement_with(answer.statements, case.answers).sources[0]
            record["named"][name] = source.name == case.documents[case.right][0]
            record["sentence"][name] = source.text.strip() in case.evidence or (
                case.evidence in source.text
            )
        if answer is not None:
            left_out = _most_needed(model, case, answer)
            record["left_out"] = left_out == case.right
        return record

    def _report(self, records: Sequence[Mapping[str, Any]]) -> Report:
        tables = [
            self._table(kind, [r for r in records if r["kind"] == kind and r["answered"]], records)
            for kind in self.kinds
        ]
        return Report(
            name="documents",
            title=f"The document that an answer came from, {self.part}",
            protocol=(
                "Each question is asked as `attnflow ask` does, with five documents; ordinary ones "
                "in each of the five rotations, so that the right one stands at every place.",
                "Counted where the answer is right. Right document: the one that states the answer "
                "is named first for the statement with the answer. Sentence: so is its sentence.",
                "Leaving out: hiding that document costs the answer most.",
                "95 % bootstrap intervals over prompts.",
            ),
            tables=tuple(tables),
            findings=(),
        )

    def _table(
        self, kind: str, counted: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
    ) -> Table:
        places = sorted({int(record["place"]) for record in counted})
        cells = {
            name: (
                _share([r["named"][name] for r in counted]),
                _share([r["sentence"][name] for r in counted]),
                *(_share([r["named"][name] for r in counted if r["place"] == k]) for k in places),
            )
            for name in self.methods
        }
        left_out = [r["left_out"] for r in counted]
        nothing = _share([])
        cells["leaving a document out"] = (
            _share(left_out),
            nothing,
            *(_share([r["left_out"] for r in counted if r["place"] == k]) for k in places),
        )
        headings = ("right document", "its sentence", *(f"place {k + 1}" for k in places))
        count = sum(record["kind"] == kind for record in records)
        note = f"{len(counted)} of {count} answers are right and count."
        return Table(kind, f"{kind.capitalize()} documents", headings, cells, note)


def _share(hits: Iterable[bool]) -> Cell:
    return Cell.of_share(summarize(np.array(list(hits), dtype=np.float64)))


def _statement_with(statements: Sequence[Statement], answers: Sequence[str]) -> Statement:
    """Return the statement that gives the answer, or else the first."""
    return next(
        (s for s in statements if any(is_answered(a, s.text, cut_off=False) for a in answers)),
        statements[0],
    )


def _most_needed(model: Model, case: OrdinaryQuestion, answer: attnflow.Answer) -> int:
    """Return the document whose hiding costs the answer most."""
    chat = uses_chat(model.tokenizer, None)
    prompt = question_prompt(model, case.question, answer.documents, chat)
    ablation = ablate(model, prompt.ids, answer.result.provenance["completion_ids"])
    spans = [list(range(int(a), int(b))) for _, a, b in answer.result.provenance[DOCUMENTS]]
    return int(np.argmin(ablation.log_probs(spans)))


def paragraph_questions(folder: Path, part: Part) -> list[OrdinaryQuestion]:
    """Return questions over five paragraphs, one more of them of the same article.

    folder: it holds questions.jsonl, as for the ablation experiment.
    """
    records = [dict(row.values) for row in rows(folder / "questions.jsonl")]
    by_article: dict[str, list[str]] = {}
    for record in records:
        texts = by_article.setdefault(str(record["article"]), [])
        if record["context"] not in texts:
            texts.append(str(record["context"]))
    questions = []
    for record in records:
        if part_of(str(record["question"])) != part:
            continue
        rng = random.Random(f"{_SEED}:{record['question']}")
        own, article = str(record["context"]), str(record["article"])
        same = [text for text in by_article[article] if text != own]
        other = [text for name in by_article if name != article for text in by_article[name]]
        order = [own, *rng.sample(same, _OF_ONE_ARTICLE - 1)]
        order += rng.sample(other, _PARAGRAPHS - len(order))
        rng.shuffle(order)
        documents = tuple((f"paragraph {k + 1}", text) for k, text in enumerate(order))
        answer, start = str(record["answer"]), int(record["start"])
        questions.append(
            OrdinaryQuestion(
                str(record["question"]),
                (answer,),
                documents,
                order.index(own),
                _sentence_at(own, start),
            )
        )
    return questions


def _sentence_at(text: str, place: int) -> str:
    """Return the sentence of a text around a place."""
    begin = max(text.rfind(". ", 0, place) + 2, 0) if ". " in text[:place] else 0
    end = text.find(". ", place)
    return text[begin : end + 1 if end >= 0 else len(text)]


def _read_journal(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return {record["name"]: record for record in records}


def _append(path: Path | None, record: Mapping[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
