"""Questions over ordinary documents: contracts, minutes, e-mail, code, timetables and others.

All of it was invented for this purpose. Each answer is stated in one place of one document. The two
parts share no document: options are chosen on "development" and reported once on "held-out".
Questions of "development" were reworded, and some of its documents, until SmolLM2 answered 20 of
30; those of "held-out" were not tried on any model, so shares answered do not compare.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from attnflow_experiments.ablation.data import PARTS, Part

_FILE = Path(__file__).with_name("ordinary.json")
_SEED = 13  # of the draws: another seed would ask other questions
_OTHERS = 4  # documents beside the right one
_WORDS = (300, 900)  # of the five documents together


@dataclass(frozen=True)
class OrdinaryQuestion:
    """A question, the five documents it is asked over, and what is right.

    answers: what is accepted, in lower case. documents: their names and texts, in the order in
    which they are asked. right: the index of the document with the answer. evidence: the sentence
    or line of it that states the answer, as it stands there.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[tuple[str, str], ...]
    right: int
    evidence: str


def ordinary_questions(part: Part) -> list[OrdinaryQuestion]:
    """Return the thirty questions of a part, each over its own document and four of other kinds."""
    content = ordinary_content()
    documents = [each for each in content["documents"] if parts_by_name()[each["name"]] == part]
    names = {document["name"] for document in documents}
    return [
        _among_others(question, documents)
        for question in content["questions"]
        if question["document"] in names
    ]


def rotations(question: OrdinaryQuestion) -> Iterator[OrdinaryQuestion]:
    """Yield a question five times: as it is, then with its documents rotated.

    The right document stands once at every place.
    """
    count = len(question.documents)
    for shift in range(count):
        documents = question.documents[shift:] + question.documents[:shift]
        yield replace(question, documents=documents, right=(question.right - shift) % count)


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


def _among_others(question: dict[str, Any], documents: list[dict[str, Any]]) -> OrdinaryQuestion:
    own = next(each for each in documents if each["name"] == question["document"])
    rng = random.Random(f"{_SEED}:{own['name']}:{question['evidence']}")
    order = _draw(rng, own, documents)
    return OrdinaryQuestion(
        question["question"],
        tuple(question["answers"]),
        tuple((document["name"], document["text"]) for document in order),
        order.index(own),
        question["evidence"],
    )


def _draw(
    rng: random.Random, own: dict[str, Any], documents: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Draw until the five are of five kinds and neither too short nor too long together."""
    others = [document for document in documents if document["kind"] != own["kind"]]
    while True:
        order = [own, *rng.sample(others, _OTHERS)]
        words = sum(len(document["text"].split()) for document in order)
        if len({each["kind"] for each in order}) == len(order) and _WORDS[0] <= words <= _WORDS[1]:
            rng.shuffle(order)
            return order
