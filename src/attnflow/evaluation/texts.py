"""Texts from a file: one a line, or a column of a table; the file's ending says which.

    .txt             one text a line
    .csv             a table with a header, quoted where a field holds a comma or a quotation mark
    .tsv             a table with a header, tabs between
    .jsonl           one object, or one string, a line
    .parquet         a table (pyarrow)

A table's texts are in the column `text` or `sentence` (in any case), or in the one that is named; a
column `label` says what the right answer is, if it is there. Empty texts are left out; a file that
is not what its ending says is refused, with the line.

In a .tsv quotation marks are part of the text, as in GLUE's files. Only where they must be the
quotes of a csv writer are they taken off: where the header has them, where a field begins and ends
with one and doubles those inside, or where without quotes some line would have too many fields.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, InputError, did_you_mean, optional_import
from attnflow.errors.arguments import checked_arguments

__all__ = ["FORMATS", "LabelledText", "holds_prompts", "read_texts"]

_TEXT_COLUMNS = ("text", "sentence")
_LABEL_COLUMN = "label"
_PROMPT_COLUMN = "prompt"
_DOUBLED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # a field in quotes with doubled quotes inside


@dataclass(frozen=True)
class LabelledText:
    """A text, its right answer where the file gives one (a class by name or number), its line.

    >>> LabelledText("the key to the cabinets", "singular")
    LabelledText(text='the key to the cabinets', label='singular')
    """

    text: str
    label: str | None = None
    line: int = field(default=0, compare=False, repr=False)


@checked_arguments
def read_texts(path: str | os.PathLike[str], *, column: str | None = None) -> list[LabelledText]:
    """The texts of a file, in its order; `column` names the one they are in.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.tsv"
    >>> _ = path.write_text('sentence\\tlabel\\na "good" film\\t1\\n', encoding="utf-8")
    >>> read_texts(path)
    [LabelledText(text='a "good" film', label='1')]
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r} to read texts from.")
    if suffix not in FORMATS:
        raise InputError(
            f"{str(path)!r} ends in {suffix or 'nothing'!r}; texts are read from "
            f"{', '.join(FORMATS)}. The ending decides how a file is read: rename it if it is one."
        )
    if suffix == ".txt" and column is not None:
        raise InputError(f"A .txt file is one text a line and has no column {column!r}.")
    texts = [each for each in FORMATS[suffix](path, column) if each.text]
    if not texts:
        raise InputError(f"{str(path)!r} holds no text.")
    return texts


def holds_prompts(path: Path) -> bool:
    """Whether a file is about what a language model writes: it has a column `prompt`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "prompts.jsonl"
    >>> _ = path.write_text('{"prompt": "Anna lives in"}', encoding="utf-8")
    >>> holds_prompts(path)
    True
    """
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in FORMATS or suffix == ".txt":
        return False
    if suffix == ".parquet":
        parquet = optional_import(
            "pyarrow.parquet", extra="evaluate", purpose="Reading a .parquet file"
        )
        try:
            return _PROMPT_COLUMN in parquet.read_schema(path).names
        except (OSError, ValueError):
            return False  # who reads it says what is wrong
    first = next((line for _, line in _lines(path)), "")
    if suffix == ".jsonl":
        try:
            record = json.loads(first)
        except json.JSONDecodeError:
            return False
        return isinstance(record, Mapping) and _PROMPT_COLUMN in record
    names = first.split("," if suffix == ".csv" else "\t")
    return _PROMPT_COLUMN in [name.strip().strip('"') for name in names]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers from 1."""
    for number, line in enumerate(_content(path).split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _content(path: Path, newline: str | None = None) -> str:
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise FileError(f"{str(path)!r} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except OSError as error:
        raise FileError(f"{str(path)!r} cannot be read: {error}.") from error


def _txt(path: Path, column: str | None) -> Iterator[LabelledText]:
    return (LabelledText(text, line=number) for number, text in _lines(path))


Row = tuple[int, list[str]]
"""The number of the line a row ends on, and its fields."""


def _csv(path: Path, column: str | None) -> Iterator[LabelledText]:
    return _texts_of(path, _quoted_rows(path, _content(path, newline=""), ","), column)


def _tsv(path: Path, column: str | None) -> Iterator[LabelledText]:
    # Lines end at \n alone: splitlines() also ends one at rare signs that may stand in a text.
    lines = [line.removesuffix("\r") for line in _content(path, newline="").split("\n")]
    rows = [(n, line.split("\t")) for n, line in enumerate(lines, start=1) if line.strip()]
    if any(_is_quoted(row, rows[0][1]) for row in rows):
        rows = _quoted_rows(path, "\n".join(lines), "\t")
    return _texts_of(path, rows, column)


def _is_quoted(row: Row, header: Sequence[str]) -> bool:
    """Whether a csv writer must have put the quotes of this line of a .tsv."""
    fields = row[1]
    if len(fields) != len(header) or fields is header:
        return any(field.startswith('"') for field in fields)
    return any(_DOUBLED.fullmatch(field) for field in fields)


def _quoted_rows(path: Path, content: str, delimiter: str) -> list[Row]:
    table = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        return [(table.line_num, row) for row in table if row]
    except csv.Error as error:
        raise InputError(f"Line {table.line_num} of {str(path)!r}: {error}.") from error


def _texts_of(path: Path, rows: Sequence[Row], column: str | None) -> Iterator[LabelledText]:
    if not rows:
        return
    names = [name.strip() for name in rows[0][1]]
    text_column = _column(path, names, column)
    for number, fields in rows[1:]:
        if len(fields) != len(names):
            raise InputError(
                f"Line {number} of {str(path)!r} has {len(fields)} fields and the header "
                f"{len(names)} ({', '.join(names)}). Put quotes around a field that holds the "
                "sign between fields."
            )
        yield _labelled(dict(zip(names, fields, strict=True)), text_column, number)


def _jsonl(path: Path, column: str | None) -> Iterator[LabelledText]:
    for number, line in _lines(path):
        where = f"Line {number} of {str(path)!r}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where} is not JSON ({error}): {line[:60]!r}.") from error
        if isinstance(record, str) and column is None:
            yield LabelledText(record.strip(), line=number)
        elif isinstance(record, Mapping):
            name = _column(where, list(record), column)
            if not isinstance(record[name], str):
                raise InputError(f"{where}: {name!r} is not a text but {record[name]!r}.")
            yield _labelled(record, name, number)
        else:
            raise InputError(f"{where} is neither a text nor an object with one: {line[:60]!r}.")


def _parquet(path: Path, column: str | None) -> list[LabelledText]:
    parquet = optional_import(
        "pyarrow.parquet", extra="evaluate", purpose="Reading a .parquet file"
    )
    try:
        with parquet.ParquetFile(path) as table:
            names = [str(name) for name in table.schema_arrow.names]
            text_column = _column(path, names, column)
            columns = [n for n in names if n == text_column or n.lower() == _LABEL_COLUMN]
            rows = table.read(columns=columns).to_pylist()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise FileError(f"{str(path)!r} cannot be read as Parquet: {error}.") from error
    for number, row in enumerate(rows, start=1):
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"Row {number} of {str(path)!r}: {text_column!r} is not a text but {text!r}."
            )
    return [_labelled(row, text_column, number) for number, row in enumerate(rows, start=1)]


def _column(where: Path | str, names: Sequence[str], column: str | None) -> str:
    """The column the texts are in: the one that is named, or the first with a usual name."""
    allowed: Iterable[str] = _TEXT_COLUMNS if column is None else (column,)
    for name in allowed:
        for present in names:
            if present == name or (column is None and present.lower() == name):
                return present
    place = repr(str(where)) if isinstance(where, Path) else where
    missing = " or ".join(repr(name) for name in allowed)
    hint = did_you_mean(column, names) if column is not None else ""
    raise InputError(
        f"{place} has no column {missing}.{hint} The columns are "
        f"{', '.join(map(repr, names)) or 'none'}; name the one with the texts: --column (column=)."
    )


def _labelled(record: Mapping[str, Any], column: str, line: int) -> LabelledText:
    labels = [record[name] for name in record if name.lower() == _LABEL_COLUMN and name != column]
    label = "" if not labels or labels[0] is None else str(labels[0]).strip()
    return LabelledText(str(record[column] or "").strip(), label or None, line)


FORMATS: Mapping[str, Callable[[Path, str | None], Iterable[LabelledText]]] = {
    ".txt": _txt,
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
