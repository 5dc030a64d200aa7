"""Texts from a file: one a line, or a column of a table; the file's ending says which.

    .txt             one text a line
    .csv, .tsv       a table with a header
    .jsonl           one object, or one string, a line
    .parquet         a table (pyarrow)

A table's texts are in the column `text` or `sentence`, or in the one that is named; a column
`label` says what the right answer is, if it is there. Empty texts are left out; a file that is not
what its ending says is refused, with the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, InputError, did_you_mean, optional_import

__all__ = ["FORMATS", "LabelledText", "read_texts"]

_TEXT_COLUMNS = ("text", "sentence")
_LABEL_COLUMN = "label"


@dataclass(frozen=True)
class LabelledText:
    """A text, and its right answer where the file gives one: a class by name or number."""

    text: str
    label: str | None = None


def read_texts(path: Path, *, column: str | None = None) -> list[LabelledText]:
    """The texts of a file, in its order; `column` names the one they are in."""
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
    found = [each for each in FORMATS[suffix](path, column) if each.text]
    if not found:
        raise InputError(f"{str(path)!r} holds no text.")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers from 1."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line.strip()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> FileError:
    return FileError(f"{str(path)!r} is not UTF-8 text ({error}). Save it as UTF-8.")


def _txt(path: Path, column: str | None) -> Iterator[LabelledText]:
    return (LabelledText(line) for _, line in _lines(path))


def _delimited(delimiter: str) -> Callable[[Path, str | None], list[LabelledText]]:
    def read(path: Path, column: str | None) -> list[LabelledText]:
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                return list(
                    _rows(path, csv.reader(lines, delimiter=delimiter, strict=True), column)
                )
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from error

    return read


def _rows(path: Path, table: Any, column: str | None) -> Iterator[LabelledText]:
    """Rows as the csv module reads them: `table.line_num` is the line a row ends on."""
    names: list[str] = []
    try:
        for row in table:
            if not names:
                names = [name.strip() for name in row]
                chosen = _column(path, names, column)
            elif row and len(row) != len(names):
                raise InputError(
                    f"Line {table.line_num} of {str(path)!r} has {len(row)} fields and the header "
                    f"{len(names)} ({', '.join(names)}). Put quotes around a field that holds the "
                    "sign between fields."
                )
            elif row:
                yield _labelled(dict(zip(names, row, strict=True)), chosen)
    except csv.Error as error:
        raise InputError(f"Line {table.line_num} of {str(path)!r}: {error}.") from error


def _jsonl(path: Path, column: str | None) -> Iterator[LabelledText]:
    for number, line in _lines(path):
        where = f"Line {number} of {str(path)!r}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where} is not JSON ({error}): {line[:60]!r}.") from error
        if isinstance(record, str) and column is None:
            yield LabelledText(record.strip())
        elif isinstance(record, Mapping):
            chosen = _column(where, list(record), column)
            if not isinstance(record[chosen], str):
                raise InputError(f"{where}: {chosen!r} is no text but {record[chosen]!r}.")
            yield _labelled(record, chosen)
        else:
            raise InputError(f"{where} is neither a text nor an object with one: {line[:60]!r}.")


def _parquet(path: Path, column: str | None) -> list[LabelledText]:
    parquet = optional_import(
        "pyarrow.parquet", extra="evaluate", purpose="Reading a .parquet file"
    )
    try:
        with parquet.ParquetFile(path) as table:
            names = [str(name) for name in table.schema_arrow.names]
            chosen = _column(path, names, column)
            wanted = [name for name in (chosen, _LABEL_COLUMN) if name in names]
            rows = table.read(columns=wanted).to_pylist()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise FileError(f"{str(path)!r} cannot be read as Parquet: {error}.") from error
    for number, row in enumerate(rows, start=1):
        if row[chosen] is not None and not isinstance(row[chosen], str):
            raise InputError(
                f"Row {number} of {str(path)!r}: {chosen!r} is no text but {row[chosen]!r}."
            )
    return [_labelled(row, chosen) for row in rows]


def _column(where: Path | str, names: Sequence[str], asked: str | None) -> str:
    """The column the texts are in."""
    wanted: Iterable[str] = _TEXT_COLUMNS if asked is None else (asked,)
    for name in wanted:
        if name in names:
            return name
    place = repr(str(where)) if isinstance(where, Path) else where
    missing = " or ".join(repr(name) for name in wanted)
    hint = did_you_mean(asked, names) if asked is not None else ""
    raise InputError(
        f"{place} has no column {missing}.{hint} The columns are "
        f"{', '.join(map(repr, names)) or 'none'}; name the one with the texts: --column (column=)."
    )


def _labelled(record: Mapping[str, Any], column: str) -> LabelledText:
    label = record.get(_LABEL_COLUMN) if column != _LABEL_COLUMN else None
    known = label is not None and str(label).strip() != ""
    return LabelledText(str(record[column] or "").strip(), str(label).strip() if known else None)


FORMATS: Mapping[str, Callable[[Path, str | None], Iterable[LabelledText]]] = {
    ".txt": _txt,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
