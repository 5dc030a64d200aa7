"""Texts from files: every format gives the same texts, and everything wrong is told by its line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from attnflow.errors import FileError, InputError
from attnflow.evaluation.subjects.examples import LabelledText, read_texts

TEXTS = ['the key, said "she"', "naïve words\tand a tab", "dogs"]
LABELS = ["singular", None, "1"]
EXPECTED = [LabelledText(text, label) for text, label in zip(TEXTS, LABELS, strict=True)]


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def table(path: Path, column: str = "text", delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, delimiter=delimiter)
        writer.writerow(["id", column, "label"])
        writer.writerows([k, text, label or ""] for k, (text, label) in enumerate(pairs()))
    return path


def pairs() -> list[tuple[str, str | None]]:
    return list(zip(TEXTS, LABELS, strict=True))


def test_one_text_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeff one text \n\n\nanother, with a comma\n")
    assert read_texts(path) == [LabelledText("one text"), LabelledText("another, with a comma")]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.TSV", "\t")])
@pytest.mark.parametrize("column", ["text", "sentence"])
def test_tables(tmp_path: Path, name: str, delimiter: str, column: str) -> None:
    path = table(tmp_path / name, column, delimiter)
    assert read_texts(path) == EXPECTED
    assert [each.text for each in read_texts(path, column="id")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("sentence\tlabel\na b\t1\n\nc \t0\n", [("a b", "1"), ("c", "0")]),
        ("text\tlabel\r\na\tPositive\r\n", [("a", "Positive")]),
        ('label\tidx\tsentence\n0\t7\tsay "no"\n', [('say "no"', "0")]),
        ("index\tsentence\n0\ta\n1\tb\u2028c\n", [("a", None), ("b\u2028c", None)]),
        ("\ufefftext\tlabel\na\t1", [("a", "1")]),
        ('text\n"well\n"good" he said\n"all of it"\n', [('"well', None), ('"good" he said', None),
                                                       ('"all of it"', None)]),
        ('text\tlabel\n"say ""no"""\t1\n', [('say "no"', "1")]),
        ('text\tlabel\n"a\tb"\t1\n"c"\t0\n', [("a\tb", "1"), ("c", "0")]),
        ('"text"\t"label"\n"a"\t"1"\n', [("a", "1")]),
    ],
)  # fmt: skip
def test_quotes_of_a_tsv_are_text_unless_they_must_be_quotes(
    content: str, expected: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(content.encode())
    assert [(each.text, each.label) for each in read_texts(path)] == expected


def test_a_text_knows_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\n\na\t1\n\nb\t0\n")
    assert [each.line for each in read_texts(path)] == [3, 5]


def test_jsonl(tmp_path: Path) -> None:
    records = [{"label": label, "text": text} for text, label in pairs()]
    lines = "\n\n".join(json.dumps(record) for record in records)
    assert read_texts(write(tmp_path / "a.jsonl", lines)) == EXPECTED
    strings = write(tmp_path / "b.jsonl", '"one"\n"two words"\n')
    assert read_texts(strings) == [LabelledText("one"), LabelledText("two words")]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {"sentence": [*TEXTS, None], "label": [*LABELS, "x"], "other": [1, 2, 3, 4]}
    parquet.write_table(arrow.table(columns), path)
    assert read_texts(path) == EXPECTED  # the row without a text is left out
    with pytest.raises(InputError, match=r"no column 'words'.*'sentence', 'label', 'other'"):
        read_texts(path, column="words")
    with pytest.raises(InputError, match=r"Row 1 .*'other' is not a text but 1"):
        read_texts(path, column="other")
    with pytest.raises(FileError, match="cannot be read as Parquet"):
        read_texts(write(tmp_path / "b.parquet", "not a table"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n  \n", "holds no text"),
        ("a.csv", "", "holds no text"),
        ("a.csv", "text\n", "holds no text"),
        ("a.csv", "id,words\n1,a\n", "no column 'text' or 'sentence'.*'id', 'words'.*--column"),
        ("a.csv", "text,label\na,b\nc, d, e\n", r"Line 3 .* has 3 fields and the header 2"),
        ("a.csv", 'text\n"a" b\n', "Line 2"),
        ("a.tsv", "", "holds no text"),
        ("a.tsv", "\n\n", "holds no text"),
        ("a.tsv", "text\tlabel\n", "holds no text"),
        ("a.tsv", "review\tstars\na\t1\n", "no column 'text' or 'sentence'.*'review', 'stars'"),
        ("a.tsv", "text\tlabel\na\t1\nb\n", "Line 3 .* has 1 fields and the header 2"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "Line 2 .* is not JSON"),
        ("a.jsonl", '{"text": "a"}\n\n[1]\n', "Line 3 .* is neither a text nor an object"),
        ("a.jsonl", '{"text": 3}\n', "Line 1 .*'text' is not a text but 3"),
        ("a.jsonl", '{"words": "a"}\n', "Line 1 .*no column 'text' or 'sentence'.*'words'"),
        ("a.docx", "a", "ends in '.docx'; texts are read from .txt, .csv, .tsv, .jsonl, .parquet"),
        ("data", "a", "ends in 'nothing'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_texts(write(tmp_path / name, content))


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        read_texts(tmp_path / "none.txt")
    for name in ("a.txt", "a.csv", "a.tsv", "a.jsonl"):
        (tmp_path / name).write_bytes(b"text\n\xff\xfe")
        with pytest.raises(FileError, match="is not UTF-8"):
            read_texts(tmp_path / name)


def test_a_column_is_named_where_there_are_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column 'text'"):
        read_texts(write(tmp_path / "a.txt", "a"), column="text")
    path = table(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"no column 'txt'\. Did you mean 'text'"):
        read_texts(path, column="txt")
    labels = read_texts(path, column="label")  # labels can be the texts; then there is no label
    assert labels == [LabelledText("singular"), LabelledText("1")]
