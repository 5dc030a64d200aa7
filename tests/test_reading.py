"""Labelled texts out of rows: which column, which label, and what is wrong by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnflow.errors import FileError, InputError
from attnflow.evaluation.subjects.examples import LabelledText, read_texts


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "\ufeff one text \n\n\nanother\n"),
        ("a.csv", "id,Sentence\n1, one text \n2,\n3,another\n"),
        ("a.tsv", "text\tlabel\none text\t\n \t1\nanother\t \n"),
        ("a.jsonl", '"one text"\n{"text": "another", "label": null}\n'),
        ("a.json", '[{"sentence": "one text"}, {"sentence": null}, {"sentence": "another"}]'),
    ],
)
def test_texts_are_clean_and_not_empty(tmp_path: Path, name: str, content: str) -> None:
    expected = [LabelledText("one text"), LabelledText("another")]
    assert read_texts(write(tmp_path / name, content)) == expected


def test_a_text_has_its_label_and_knows_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\ttext\tLabel\n\n7\ta\t1\n\n8\tb\tgood \n")
    assert read_texts(path) == [LabelledText("a", "1"), LabelledText("b", "good")]
    assert [each.line for each in read_texts(path)] == [3, 5]
    assert [each.text for each in read_texts(path, column="id")] == ["7", "8"]
    labels = read_texts(path, column="Label")  # labels can be the texts; then there is no label
    assert labels == [LabelledText("1"), LabelledText("good")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n  \n", "holds no text"),
        ("a.csv", "", "holds no text"),
        ("a.tsv", "text\tlabel\n", "holds no text"),
        ("a.csv", "id,words\n1,a\n", "no column 'text' or 'sentence'.*'id', 'words'.*--column"),
        ("a.jsonl", '{"text": 3}\n', "Line 1 .*'text' is not a text but 3"),
        ("a.jsonl", '"a"\n{"words": "a"}\n', "Line 2 .*no column 'text' or 'sentence'.*'words'"),
        ("a.docx", "a", r"ends in '\.docx'; data are read from \.txt, \.csv, \.tsv, \.jsonl"),
        ("data", "a", "ends in 'nothing'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_texts(write(tmp_path / name, content))
    with pytest.raises(FileError, match="There is no file"):
        read_texts(tmp_path / "none.txt")


def test_a_column_that_is_named_must_be_there(tmp_path: Path) -> None:
    for name, content in (("a.csv", "text,label\na,1\n"), ("a.txt", "a")):
        with pytest.raises(InputError, match=r"no column 'txt' .*\. Did you mean 'text'"):
            read_texts(write(tmp_path / name, content), column="txt")
