"""Files of examples: every format gives the same rows, and what is wrong is told by its row."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnflow.data import DataFile, find_files, name_subject, rows
from attnflow.errors import FileError, InputError

TEXTS = ['one, "two"', "a line\nand another", "é ü 日本", "a\u2028b", "last"]


def write_formats(folder: Path) -> list[Path]:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"id": [str(k) for k in range(5)], "text": TEXTS})
    parquet.write_table(table, folder / "a.parquet", row_group_size=3)
    with arrow.ipc.new_stream(folder / "a.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    for name, options in (
        ("a.csv", {}),
        ("minimal.tsv", {"delimiter": "\t"}),
        ("all.tsv", {"delimiter": "\t", "quoting": csv.QUOTE_ALL}),
    ):
        with (folder / name).open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, **options).writerows([("id", "text"), *enumerate(TEXTS)])  # type: ignore[arg-type]
    records = [{"id": str(k), "text": text} for k, text in enumerate(TEXTS)]
    lines = "\n\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    (folder / "a.jsonl").write_text(lines, encoding="utf-8")
    (folder / "a.json").write_text(json.dumps(records), encoding="utf-8")
    return sorted(folder.iterdir())


def test_every_format_gives_the_same_rows_from_any_row_on(tmp_path: Path) -> None:
    for path in write_formats(tmp_path):
        file = DataFile(path)
        assert file.columns() == ["id", "text"], path.name
        scan = file.scan(range(5).__contains__)
        assert (scan.rows, list(scan.offsets)) == (5, [0, 1, 2, 3, 4]), path.name
        for start in range(6):
            for offset in {0, scan.offsets.get(start, 0)}:
                found = [(row.number, row.values["text"]) for row in file.rows(start, offset)]
                assert found == list(enumerate(TEXTS))[start:], (path.name, start, offset)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('text\tlabel\n"open\t1\na "b" c\t0\n"he said ""no"""\t1\n\t\n',
         [('"open', "1"), ('a "b" c', "0"), ('he said "no"', "1"), ("", "")]),
        ('text\n"well\n"good" he said\n"all of it"\n',
         [('"well',), ('"good" he said',), ('"all of it"',)]),
        ('text\tlabel\n"a\tb"\t1\n"c"\t0\n', [("a\tb", "1"), ("c", "0")]),
        ('"text"\t"label"\r\n"a"\t"1"\r\n', [("a", "1")]),
    ],
)  # fmt: skip
def test_quotes_of_a_tsv_are_text_unless_a_writer_put_them(
    content: str, expected: list[tuple[str, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(content.encode())
    assert [tuple(row.values.values()) for row in rows(path)] == expected


def test_a_byte_that_is_no_utf8_is_told_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "a.txt", "a.jsonl"):
        path = tmp_path / name
        path.write_bytes('text\n"one"\n"caf\xe9"\n"last"\n'.encode("latin1"))
        problems = [row for row in DataFile(path).rows() if row.problem is not None]
        with pytest.raises(FileError, match=r"byte 15 of it is 0xe9\. Save it as UTF-8.*iconv"):
            raise problems[-1].problem or AssertionError(name)
        assert problems[-1].line == 3
        with pytest.raises((FileError, InputError)):
            list(rows(path))
    path.with_suffix(".csv").write_bytes(b"t\xe9xt\none\n")
    with pytest.raises(FileError, match="is not UTF-8"):
        DataFile(path.with_suffix(".csv")).columns()


def test_a_row_that_cannot_be_used_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,1\ntwo\nthree,3\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('"one"\n{"text": \n"three"\n[4]\n', encoding="utf-8")
    for name, message in (("a.csv", "has 1 fields and the header 2"), ("a.jsonl", "is not JSON")):
        found = list(DataFile(tmp_path / name).rows())
        assert [row.values.get("text") for row in found[:3]] == ["one", None, "three"]
        assert message in str(found[1].problem)
        with pytest.raises(InputError, match=f"Line {found[1].line} .*{message}"):
            list(rows(tmp_path / name))
    (tmp_path / "open.csv").write_text('text\n"open\n', encoding="utf-8")
    with pytest.raises(InputError, match="no part of a table"):
        list(DataFile(tmp_path / "open.csv").rows())
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(FileError, match="cannot be read as Parquet"):
        list(rows(tmp_path / "a.parquet"))


def test_a_long_field_of_a_table_is_a_row(tmp_path: Path) -> None:
    long = "the " * 50_000
    (tmp_path / "a.csv").write_text(f"text\n{long}\nthe key\n", encoding="utf-8")
    assert [len(row.values["text"]) for row in rows(tmp_path / "a.csv")] == [len(long), 7]


def test_files_are_found_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "_hidden.txt", "notes.md", "config.json"):
        (tmp_path / name).write_text('"x"', encoding="utf-8")
    assert [file.path.name for file in find_files(tmp_path)] == ["a.jsonl", "b.txt"]
    for place, message in (("none.txt", "There is no file"), ("*.csv", "No file matches")):
        with pytest.raises(FileError, match=message):
            find_files(tmp_path / place)
    with pytest.raises(InputError, match=r"ends in '\.md'; data are read from \.txt, \.csv"):
        find_files(tmp_path / "notes.md")
    with pytest.raises(InputError, match="twice"):
        find_files([tmp_path / "b.txt", tmp_path])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match="holds the splits 'train', 'test'"):
        find_files(tmp_path)


def test_a_folder_of_images_has_a_row_for_each(tmp_path: Path) -> None:
    (tmp_path / "cat.png").touch()
    assert [row.values["image"] for row in rows(tmp_path)] == [tmp_path / "cat.png"]
    file = find_files(tmp_path)[0]
    assert (file.columns(), file.scan(lambda _: True).rows) == (["image"], 1)
    assert name_subject(tmp_path) == "image"


@pytest.mark.parametrize(
    ("name", "content", "subject"),
    [
        ("a.txt", "prompt", "text"),
        ("a.csv", "path,label\ncat.png,cat\n", "image"),
        ("a.csv", "path,text\nnotes.txt,cat\n", "text"),
        ("a.tsv", "Prompt\tanswer\n", "prompt"),
        ("a.jsonl", '{"prompt": "a"}', "prompt"),
        ("a.jsonl", "{", "text"),
        ("none/b.png", None, "image"),
        ("none.csv", None, "text"),
    ],
)
def test_data_say_what_they_are_about(
    name: str, content: str | None, subject: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert name_subject(tmp_path / name) == subject


def test_reading_files_needs_no_torch() -> None:
    code = "import sys, attnflow.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
