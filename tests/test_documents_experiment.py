"""The experiment on documents: what counts, what is kept, and how its table adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnflow.errors import InputError
from attnflow_experiments.documents.experiment import SourcesExperiment, paragraph_questions


def record(number: int, place: int, *, named: bool, answered: bool = True) -> dict[str, Any]:
    return {
        "name": f"ordinary-0-{number}",
        "kind": "ordinary",
        "place": place,
        "answered": answered,
        "named": {"default": named},
        "sentence": {"default": named},
        "left_out": True,
    }


def test_shares_are_of_right_answers_by_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is not asked again: no model is needed for a run that is done."""
    rows = [record(k, k, named=k != 1, answered=k != 4) for k in range(5)]
    journal = tmp_path / "kept.jsonl"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    journal.write_text(lines + '{"name": "torn', encoding="utf-8")
    experiment = SourcesExperiment(kinds=("ordinary",), questions=1)
    model: Any = None
    (table,) = experiment(model, data=None, journal=journal).tables
    cells = table.rows["default"]
    assert [cell.value for cell in cells] == [0.75, 0.75, 1.0, 0.0, 1.0, 1.0]
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
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parts = [paragraph_questions(tmp_path, part) for part in ("development", "held-out")]
    assert len(parts[0]) + len(parts[1]) == 9
    for question in [*parts[0], *parts[1]]:
        texts = [text for _, text in question.documents]
        number = int(question.answers[0].removeprefix("number"))
        assert texts[question.right] == rows[number]["context"]
        assert question.evidence == f"The answer is number{number}."
        article = [text for text in texts if int(text.split()[1]) // 3 == number // 3]
        assert (len(texts), len(article)) == (5, 2)


@pytest.mark.parametrize("options", [{"part": "test"}, {"kinds": ("odd",)}, {"questions": 0}])
def test_what_is_not_there_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=repr(next(iter(options.values())))[:4].strip("('")):
        SourcesExperiment(**options)
