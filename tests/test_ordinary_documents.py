"""The ordinary documents: each answer is stated once, and the parts share nothing."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from attnflow_experiments.ablation.data import PARTS, Part
from attnflow_experiments.documents.data import (
    SourcedQuestion,
    ordinary_content,
    ordinary_questions,
    parts_by_name,
)


def both_parts() -> list[SourcedQuestion]:
    return [question for part in PARTS for question in ordinary_questions(part)]


def occurrences(answer: str, text: str) -> int:
    """How often an answer stands in a text as words of their own; "1.7" is not "1"."""
    return len(re.findall(rf"(?<![\w.,:]){re.escape(answer)}(?![\w:]|[.,]\d)", text.casefold()))


def test_there_are_ten_kinds_with_three_documents_each() -> None:
    documents = ordinary_content()["documents"]
    kinds = Counter(document["kind"] for document in documents)
    assert len(kinds) == 10
    assert set(kinds.values()) == {3}
    assert len({document["name"] for document in documents}) == 30


def test_there_are_two_questions_for_each_document() -> None:
    questions = ordinary_content()["questions"]
    assert len(questions) == len({question["question"] for question in questions}) == 60
    assert Counter(question["document"] for question in questions) == Counter(
        {document["name"]: 2 for document in ordinary_content()["documents"]}
    )


def test_evidence_stands_once_in_its_document_and_in_no_other() -> None:
    for question in both_parts():
        counts = [text.count(question.evidence[0]) for _, text in question.documents]
        assert counts == [int(k in question.right) for k in range(5)], question.question


def test_the_evidence_holds_an_accepted_answer() -> None:
    for question in both_parts():
        assert all(answer == answer.casefold() for answer in question.answers)
        evidence = question.evidence[0].casefold()
        assert any(answer in evidence for answer in question.answers), question.question


def test_no_accepted_answer_stands_anywhere_but_in_the_evidence() -> None:
    texts = [document["text"] for document in ordinary_content()["documents"]]
    for question in ordinary_content()["questions"]:
        for answer in question["answers"]:
            everywhere = sum(occurrences(answer, text) for text in texts)
            assert everywhere == occurrences(answer, question["evidence"]), (question, answer)


def test_parts_have_all_kinds_and_share_no_document() -> None:
    kinds = {document["name"]: document["kind"] for document in ordinary_content()["documents"]}
    names: dict[Part, set[str]] = {
        part: {name for question in ordinary_questions(part) for name, _ in question.documents}
        for part in PARTS
    }
    assert not names["development"] & names["held-out"]
    for part in PARTS:
        assert len(ordinary_questions(part)) == 30
        own = {name for name, where in parts_by_name().items() if where == part}
        assert names[part] <= own
        assert {kinds[name] for name in own} == set(kinds.values())


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("part", PARTS)
def test_prompts_have_documents_of_different_kinds_and_a_bounded_length(
    part: Part, count: int
) -> None:
    kinds = {document["name"]: document["kind"] for document in ordinary_content()["documents"]}
    for question in ordinary_questions(part, count):
        assert len({kinds[name] for name, _ in question.documents}) == count
        words = sum(len(text.split()) for _, text in question.documents)
        assert 60 * count <= words <= 180 * count
    assert ordinary_questions(part, count) == ordinary_questions(part, count)


def test_the_right_document_can_stand_at_every_place() -> None:
    for question in both_parts():
        placed = [question.at_place(place, 5) for place in range(5)]
        assert [each.right for each in placed] == [(place,) for place in range(5)]
        assert question in placed
        for each in placed:
            assert each.documents[each.right[0]] == question.documents[question.right[0]]
            assert set(each.documents) == set(question.documents)
