"""The experiment on documents: what counts, what is kept, and how its table adds up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import attnflow
from attnflow.errors import InputError
from attnflow.testing import tiny_decoder
from attnflow_experiments.documents.data import (
    SourcedQuestion,
    ordinary_questions,
    paragraph_questions,
    supported_questions,
)
from attnflow_experiments.documents.experiment import SourcesExperiment
from attnflow_experiments.documents.reading import AnswerReading
from attnflow_experiments.journal import append_record, read_journal

TEXTS = ("the keys to the cabinets .", "the author is old .", "the dogs are here .")


def record(place: int, *, named: bool, answered: bool = True) -> dict[str, Any]:
    return {
        "name": f"ordinary-written-5-0-0-{place}",
        "kind": "ordinary",
        "length": 0,
        "place": place,
        "answered": answered,
        "named": {"default": named},
        "sentence": {"default": named},
        "agrees": {"default": True},
        "left_out": True,
    }


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def test_shares_are_of_right_answers_by_place(tmp_path: Path) -> None:
    """What is kept is not asked again: no model is needed for a run that is done."""
    rows = [record(k, named=k != 1, answered=k != 4) for k in range(5)]
    journal = tmp_path / "kept.jsonl"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    journal.write_text(lines + '{"name": "torn', encoding="utf-8")
    experiment = SourcesExperiment(kinds=("ordinary",), questions=1)
    model: Any = None
    (table,) = experiment(model, data=None, journal=journal).tables
    shares = [cell.value for cell in table.rows["default"]]
    assert shares[:-1] == [0.75, 0.75, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert math.isnan(shares[-1])  # no answer was right at the last place
    assert table.rows["leaving a document out"][0].value == 1.0
    assert table.note == "4 of 5 answers are right and count."


def test_paragraphs_of_one_article_stand_beside_each_other(tmp_path: Path) -> None:
    rows = [
        {
            "article": f"article {k // 3}",
            "paragraph": k,
            "context": f"Text {k} begins. The answer is number{k}. It ends.",
            "question": f"What is number {k}?",
            "answer": f"number{k}",
            "start": f"Text {k} begins. The answer is number{k}.".index("number"),
        }
        for k in range(9)
    ]
    write_lines(tmp_path / "questions.jsonl", rows)
    parts = [paragraph_questions(tmp_path, part)[0] for part in ("development", "held-out")]
    assert len(parts[0]) + len(parts[1]) == 9
    for question in [*parts[0], *parts[1]]:
        texts = [text for _, text in question.documents]
        number = int(question.answers[0].removeprefix("number"))
        assert texts[question.right[0]] == rows[number]["context"]
        assert question.evidence == (f"The answer is number{number}.",)
        article = [text for text in texts if int(text.split()[1]) // 3 == number // 3]
        assert (len(texts), len(article)) == (5, 2)


def test_documents_are_filled_up_to_a_length_without_another_place_of_the_answer() -> None:
    documents = tuple((f"own {k}", f"own text {k}") for k in range(3))
    question = SourcedQuestion("Which?", ("seven",), documents, (2,), ("own text 2",))
    pool = [f"text {k} has seven words" if k % 2 else f"text {k}" for k in range(40)]
    filled = question.filled_up([*pool, "own text 1"], 30, lambda text: len(text.split()))
    texts = [text for _, text in filled.documents]
    assert sum(len(text.split()) for text in texts) in (29, 30)
    assert not any("seven" in text for text in texts)
    assert len(texts) == len(set(texts))
    again = filled.filled_up(pool, 40, lambda text: len(text.split()))
    names = [name for name, _ in again.documents]
    assert len(names) == len(set(names)) > len(texts)
    for place in range(5):
        placed = filled.at_place(place, 5)
        assert placed.documents[placed.right[0]] == documents[2]
        assert placed.right[0] == round(place * (len(texts) - 1) / 4)
    assert question.alone() == SourcedQuestion(
        "Which?", ("seven",), documents[2:], (0,), ("own text 2",)
    )
    with pytest.raises(InputError, match="too few other documents"):
        question.filled_up(pool[:2], 30, lambda text: len(text.split()))


def test_ordinary_documents_are_filled_up_from_a_file_too(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", [supported(number) for number in range(6)])
    experiment = SourcesExperiment(kinds=("ordinary",))
    questions, texts = experiment._questions("ordinary", path)
    assert questions == ordinary_questions("development")
    assert texts == supported_questions(path)[1]


def supported(number: int, **values: Any) -> dict[str, Any]:
    sentences = [TEXTS[number % 3], "the cat is here ."]
    return {
        "question": "the keys",
        "answers": ["the dogs are old"],
        "documents": [{"title": f"the {number}", "sentences": sentences}],
        "support": [[0, 1]],
        **values,
    }


def test_files_name_the_documents_and_sentences_that_support_an_answer(tmp_path: Path) -> None:
    two = [{"title": "cats", "sentences": [text]} for text in TEXTS[:2]]
    records = [
        *(supported(number) for number in range(5)),
        supported(5, documents=two, support=[[1, None], [0, 0]]),
        supported(6, documents=two, support=[], spans=[[0, 8, 1], [9, 16, 0]]),
    ]
    questions, texts = supported_questions(write_lines(tmp_path / "q.jsonl", records), 5)
    assert len(questions) == 5 + 1 + 2
    assert len(texts) == 7
    for number, question in enumerate(questions[:5]):  # alone, so put among others
        assert len({text for _, text in question.documents}) == 5
        own = question.documents[question.right[0]][1]
        assert own == f"the {number}: {TEXTS[number % 3]} the cat is here ."
        assert question.evidence == ("the cat is here .",)
    assert (questions[5].right, questions[5].evidence) == ((0, 1), (TEXTS[0],))
    assert [(each.right, each.span) for each in questions[6:]] == [((1,), (0, 8)), ((0,), (9, 16))]
    with pytest.raises(InputError, match="is not a question with answers, documents and support"):
        supported_questions(write_lines(tmp_path / "odd.jsonl", [{"question": "why"}]), 5)


@pytest.mark.parametrize("method", [None, "gradient-attention"])
def test_a_written_answer_is_read_as_ask_reads_it(method: str | None) -> None:
    model = tiny_decoder()
    documents = tuple((f"{k}.txt", text) for k, text in enumerate(TEXTS))
    case = SourcedQuestion("the keys", ("nothing",), documents, (0,), ())
    answer = attnflow.ask(
        model, case.question, dict(documents), method, max_new_tokens=24, check=False
    )
    reading = AnswerReading.of_written(model, case)
    assert reading.text == answer.text
    source = answer.statements[0].sources[0]
    assert reading.named(method or "default") == (source.passage, source.text.strip())
    omissions = attnflow.ask(
        model, case.question, dict(documents), "leave-one-out", max_new_tokens=24, confirm=True
    ).omissions
    if len(answer.statements) == 1 and len(omissions) == len(TEXTS):
        most = max(omissions, key=lambda omission: omission.less_likely)
        assert documents[reading.most_needed()][0] == most.document


def test_only_the_tokens_of_a_span_are_traced() -> None:
    documents = tuple((f"{k}.txt", text) for k, text in enumerate(TEXTS))
    answers = ("the keys to the keys",)
    case = SourcedQuestion("the keys", answers, documents, (0,), (), span=(9, 15))
    assert AnswerReading.of_given(tiny_decoder(), case).target == slice(2, 4)


def test_an_answer_of_one_word_in_several_byte_level_tokens_is_spelled_as_it_is() -> None:
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({piece: k for k, piece in enumerate(pieces)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model = replace(tiny_decoder(), tokenizer=PreTrainedTokenizerFast(tokenizer_object=raw))
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    case = SourcedQuestion("who", ("spurs",), (("a", "a b"), ("c", "c d")), (0,), (), span=(0, 5))
    reading = AnswerReading.of_given(model, case)
    assert (reading.text, reading.target) == ("spurs", slice(0, 5))
    assert reading.is_right


def test_given_answers_all_count_and_are_kept(tmp_path: Path) -> None:
    records = [supported(number) for number in range(3)]
    path = write_lines(tmp_path / "facts.jsonl", records)
    options = {"methods": ("default", "gradient-attention"), "places": 3, "reads_answers": True}
    experiment = SourcesExperiment(kinds=("supports",), **options)
    journal = tmp_path / "kept.jsonl"
    report = experiment(tiny_decoder(), data=path, journal=journal)
    (table,) = report.tables
    assert table.name == "facts"
    assert table.note == "3 of 3 answers are right and count."
    assert list(table.rows) == ["default", "gradient-attention", "leaving a document out"]
    kept = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [each["place"] for each in kept] == [0, 1, 2]
    shares = [each["named"]["default"] for each in kept]
    assert table.rows["default"][0].value == pytest.approx(sum(shares) / 3)
    assert experiment(None, data=path, journal=journal).tables == report.tables  # type: ignore[arg-type]


def test_a_question_is_asked_at_so_many_places(tmp_path: Path) -> None:
    """The right document is at each of them, and where several are right they stay."""
    two = [{"title": "cats", "sentences": [text]} for text in TEXTS[:2]]
    several = supported(2, documents=two, support=[[0, None], [1, None]])
    path = write_lines(tmp_path / "facts.jsonl", [supported(0), supported(1), several])
    experiment = SourcesExperiment(kinds=("supports",), places=3, orders=2, reads_answers=True)
    cases = list(experiment._cases(tiny_decoder(), path))
    assert [each["place"] for each, _ in cases] == [0, 1, 1, 2, None]
    assert [question.right for _, question in cases] == [(0,), (1,), (1,), (2,), (0, 1)]
    assert len({each["name"] for each, _ in cases}) == 5


def test_a_support_that_is_no_document_is_told_as_that(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", [supported(0), supported(1, support=[[1, None]])])
    with pytest.raises(InputError, match=r"Line 2 .*q\.jsonl. is not a question with"):
        supported_questions(path, 3)


def test_what_is_named_after_a_check_is_what_ask_names() -> None:
    documents = (("a", "the keys to the cabinets ."), ("b", "the author is old ."))
    case = SourcedQuestion("the keys", ("the cabinets",), documents, (0,), ())
    model = tiny_decoder()
    for name, method in (("checked", None), ("checked+gradient-attention", "gradient-attention")):
        answer = attnflow.ask(model, case.question, dict(documents), method, answer=case.answers[0])
        (statement,) = answer.statements
        reading = AnswerReading.of_given(model, case)
        assert reading.ranking(name)[0] == statement.sources[0].passage


@pytest.mark.parametrize(
    "options",
    [
        {"part": "test"},
        {"kinds": ("odd",)},
        {"questions": 0},
        {"places": 2},
        {"places": 11},
        {"orders": 0},
        {"orders": 6},
        {"lengths": (20,)},
        {"methods": ("odd",)},
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=repr(next(iter(options.values())))[:4].strip("(',")):
        SourcesExperiment(**options)


def test_a_journal_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append_record(path, {"name": "first"})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"name": "torn", "named": {}')
    append_record(path, {"name": "second"})
    assert list(read_journal(path)) == ["first", "second"]
