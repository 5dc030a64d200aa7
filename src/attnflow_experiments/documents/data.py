"""Questions over documents whose sources are known: ordinary ones, which ship, and those of files.

Ordinary documents (contracts, minutes, e-mail, code, timetables and others) were invented for this
purpose. Each answer is stated in one place of one document. The two parts share no document:
options are chosen on "development" and reported once on "held-out". Questions of "development" were
reworded, and some of its documents, until SmolLM2 answered 20 of 30; those of "held-out" were not
tried on any model, so shares answered do not compare.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from attnflow.data import rows
from attnflow.errors import InputError
from attnflow.evaluation.subjects.rankings import is_answered
from attnflow_experiments.ablation.data import PARTS, Part, part_of

_FILE = Path(__file__).with_name("ordinary.json")
_SEED = 13  # of the draws: another seed would ask other questions
_WORDS = (60, 180)  # of a document, in the mean over those that are asked together
_OF_ONE_ARTICLE = 2  # paragraphs that could be mistaken for one another
_LEAST_FILLED = 0.75  # of the length that is asked for


@dataclass(frozen=True)
class SourcedQuestion:
    """A question, the documents it is asked over, and what is right.

    answers: what is accepted; where an answer is given to be read, it is the first. documents:
    their names and texts, in the order in which they are asked. right: the indices of those that
    support the answer. evidence: the sentences or lines of them that state it, as they stand there;
    none where only the documents are known. span: the characters of the first answer that `right`
    supports, where other characters have other sources.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[tuple[str, str], ...]
    right: tuple[int, ...]
    evidence: tuple[str, ...]
    span: tuple[int, int] | None = None

    def at_place(self, place: int, places: int) -> SourcedQuestion:
        """Return it with its document at one of so many places between the first and the last.

        Where several documents support the answer, all stay where they are.
        """
        if len(self.right) != 1:
            return self
        others = [each for k, each in enumerate(self.documents) if k not in self.right]
        index = round(place * len(others) / (places - 1))
        documents = (*others[:index], self.documents[self.right[0]], *others[index:])
        return replace(self, documents=documents, right=(index,))

    def alone(self) -> SourcedQuestion:
        """Return it with its right documents only."""
        documents = tuple(self.documents[k] for k in self.right)
        return replace(self, documents=documents, right=tuple(range(len(documents))))

    def filled_up(
        self, texts: Sequence[str], size: int, measure: Callable[[str], int]
    ) -> SourcedQuestion:
        """Return it with other texts among its documents, as many as the size has room for.

        No text that holds an accepted answer is taken.
        """
        rng = random.Random(f"{_SEED}:{self.question}")
        telling = [answer for answer in self.answers if answer.lower() not in ("yes", "no")]
        present = {text for _, text in self.documents}
        room = size - sum(map(measure, present))
        documents = list(self.documents)
        for text in rng.sample(texts, len(texts)):
            if room <= 0:
                break
            holds = any(is_answered(answer, text, cut_off=False) for answer in telling)
            if text in present or holds or measure(text) > room:
                continue
            room -= measure(text)
            others = sum(name.startswith("other ") for name, _ in documents)
            name = f"other {others + 1}"
            documents.insert(rng.randrange(len(documents) + 1), (name, text))
        if room > (1 - _LEAST_FILLED) * size:
            raise InputError(
                f"There are too few other documents to fill up to {size}: {room} are left. Ask for "
                "less, or give more texts with --data."
            )
        right = tuple(documents.index(self.documents[k]) for k in self.right)
        return replace(self, documents=tuple(documents), right=right)


def ordinary_questions(part: Part, documents: int = 5) -> list[SourcedQuestion]:
    """Return the thirty questions of a part, each over its document and others of other kinds."""
    content = ordinary_content()
    own = [each for each in content["documents"] if parts_by_name()[each["name"]] == part]
    names = {document["name"] for document in own}
    return [
        _among_others(question, own, documents)
        for question in content["questions"]
        if question["document"] in names
    ]


def ordinary_texts(part: Part) -> list[str]:
    """Return the texts of a part's documents."""
    documents = ordinary_content()["documents"]
    return [each["text"] for each in documents if parts_by_name()[each["name"]] == part]


@cache
def ordinary_content() -> dict[str, list[dict[str, Any]]]:
    """Read the documents (name, kind, text) and questions (document, question, answers, evidence).

    Documents of a kind stand together, three of each.
    """
    content: dict[str, list[dict[str, Any]]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


@cache
def parts_by_name() -> dict[str, Part]:
    """Return the part of each document, by its place in the file.

    Of the first kind, the third, and so on, two documents are for development and one is held out;
    of the others it is the other way round. So each part has every kind, and half the questions.
    """
    kinds: dict[str, list[str]] = {}
    for document in ordinary_content()["documents"]:
        kinds.setdefault(document["kind"], []).append(document["name"])
    development, held_out = PARTS
    return {
        name: development if place < 2 - number % 2 else held_out
        for number, names in enumerate(kinds.values())
        for place, name in enumerate(names)
    }


def _among_others(
    question: dict[str, Any], documents: list[dict[str, Any]], count: int
) -> SourcedQuestion:
    own = next(each for each in documents if each["name"] == question["document"])
    rng = random.Random(f"{_SEED}:{own['name']}:{question['evidence']}")
    order = _draw(rng, own, documents, count)
    return SourcedQuestion(
        question["question"],
        tuple(question["answers"]),
        tuple((document["name"], document["text"]) for document in order),
        (order.index(own),),
        (question["evidence"],),
    )


def _draw(
    rng: random.Random, own: dict[str, Any], documents: list[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """Draw until each is of another kind, and together they are neither too short nor too long."""
    others = [document for document in documents if document["kind"] != own["kind"]]
    while True:
        order = [own, *rng.sample(others, count - 1)]
        words = sum(len(document["text"].split()) for document in order)
        fits = _WORDS[0] * count <= words <= _WORDS[1] * count
        if len({each["kind"] for each in order}) == count and fits:
            rng.shuffle(order)
            return order


# --- paragraphs of articles ----------------------------------------------------------------------


def paragraph_questions(
    folder: Path, part: Part, documents: int = 5
) -> tuple[list[SourcedQuestion], list[str]]:
    """Return questions over paragraphs, one more of them of the same article; and all paragraphs.

    No paragraph but its own holds an answer: of two that do, neither is the only right one.

    folder: it holds questions.jsonl, as for the ablation experiment.
    """
    records = [dict(row.values) for row in rows(folder / "questions.jsonl")]
    articles: dict[str, str] = {str(each["context"]): str(each["article"]) for each in records}
    questions = []
    for record in records:
        if part_of(str(record["question"])) != part:
            continue
        rng = random.Random(f"{_SEED}:{record['question']}")
        own, article = str(record["context"]), str(record["article"])
        answer = str(record["answer"])
        silent = [text for text in articles if not is_answered(answer, text, cut_off=False)]
        same = [text for text in silent if articles[text] == article and text != own]
        other = [text for text in silent if articles[text] != article]
        order = [own, *rng.sample(same, _OF_ONE_ARTICLE - 1)]
        order += rng.sample(other, documents - len(order))
        rng.shuffle(order)
        questions.append(
            SourcedQuestion(
                str(record["question"]),
                (answer,),
                tuple((f"paragraph {k + 1}", text) for k, text in enumerate(order)),
                (order.index(own),),
                (_sentence_at(own, int(record["start"])),),
            )
        )
    return questions, list(articles)


def _sentence_at(text: str, place: int) -> str:
    """Return the sentence of a text around a place."""
    begin = max(text.rfind(". ", 0, place) + 2, 0) if ". " in text[:place] else 0
    end = text.find(". ", place)
    return text[begin : end + 1 if end >= 0 else len(text)]


# --- questions with supports ---------------------------------------------------------------------


def supported_questions(path: Path, documents: int = 5) -> tuple[list[SourcedQuestion], list[str]]:
    """Return questions with the documents that support their answers; and all documents' texts.

    path: lines of JSON with question, answers, documents (each a title and sentences), and support
    (pairs of a document's number and a sentence's, or null), or spans of the first answer (first
    character, one after the last, document), each a question of its own. A document that stands
    alone is put among others.
    """
    questions = []
    texts: dict[str, None] = {}
    for row in rows(path):
        try:
            supported = list(_supported(row.values))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(
                f"{row.place} is not a question with answers, documents and support ({error!r})."
            ) from error
        questions += supported
        texts |= dict.fromkeys(text for question in supported for _, text in question.documents)
    pool = list(texts)
    return [
        question.filled_up(pool, documents, lambda _: 1)
        if len(question.documents) == 1
        else question
        for question in questions
    ], pool


def _supported(values: Mapping[str, Any]) -> Iterator[SourcedQuestion]:
    documents = tuple(
        (f"{number}. {each['title']}", _titled(str(each["title"]), " ".join(each["sentences"])))
        for number, each in enumerate(values["documents"], start=1)
    )
    answers = tuple(map(str, values["answers"]))
    question = SourcedQuestion(str(values["question"]), answers, documents, (), ())
    for first, end, document in values.get("spans", ()):
        yield replace(question, right=(int(document),), span=(int(first), int(end)))
    if support := values.get("support"):
        evidence = tuple(
            str(values["documents"][document]["sentences"][sentence])
            for document, sentence in support
            if sentence is not None
        )
        right = tuple(range(len(documents))[k] for k in sorted({int(k) for k, _ in support}))
        yield replace(question, right=right, evidence=evidence)


def _titled(title: str, text: str) -> str:
    """Return a text that says what it is about."""
    return text if text.startswith(title) else f"{title}: {text}"
