"""The files of a corpus: which they are, what they hold, and how one is read from a row on.

    .txt       one text a line, in a column called `text`
    .jsonl     one object, or one text, a line
    .csv       a table with a header; a field with a comma, a quote or a line end is quoted
    .tsv       a table with a header, tabs between; quotes are part of the text, as in GLUE's files,
               unless the header is quoted, or a field begins and ends with one and doubles others
    .parquet   a table
    .arrow     a table as Hugging Face's `save_to_disk` writes it

A file is never held in memory. Its rows have an order, that of the file. What is wrong with one row
(a line that is no JSON, bytes that are no UTF-8) is a `Problem` in the place of that row, so that
the rest of the corpus goes on.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnflow.corpus.tables import TABLES, open_table
from attnflow.errors import FileError, InputError, shorten

__all__ = ["FORMATS", "DataFile", "FileScan", "Problem", "RawRow"]

_TEXT = "text"  # what the one column of a file without columns is called
_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST_FIELD = 2**30  # of a .csv or .tsv; Python's own limit, 128 KB, is less than some documents
_DOUBLED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # a field in quotes with doubled quotes inside
FORMATS = (".txt", ".jsonl", *_DELIMITERS, *TABLES)


@dataclass(frozen=True)
class Problem:
    """Why a row of a file cannot be used.

    >>> Problem("Line 3 is no JSON.").sentence
    'Line 3 is no JSON.'
    """

    sentence: str


RawRow = Mapping[str, Any] | Problem
"""A row by its columns, or what is wrong with it."""


class FileScan(NamedTuple):
    """What one pass over a file tells.

    rows: how many there are. digest: of every byte. offsets: for each row number that was asked
    for, the byte it begins at; 0 for tables, which are read by row numbers.
    """

    rows: int
    digest: str
    offsets: dict[int, int]


@dataclass(frozen=True)
class DataFile:
    """One file of a corpus, read by what its name ends in.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.txt"
    >>> _ = path.write_text("the keys\\n\\nthe cabinet\\n", encoding="utf-8")
    >>> file = DataFile(path)
    >>> [row["text"] for row in file.rows()], file.scan(lambda row: True).rows
    (['the keys', 'the cabinet'], 2)
    """

    path: Path

    def columns(self) -> list[str]:
        """The names of its columns; of JSON lines, those of the first line that has some."""
        if self._format in TABLES:
            return [str(name) for name in open_table(self.path).names()]
        if self._format in _DELIMITERS:
            return self._header()[0]
        first = next((row for row in self.rows() if not isinstance(row, Problem)), {_TEXT: ""})
        return list(first)

    def rows(
        self, row: int = 0, offset: int = 0, columns: Sequence[str] | None = None
    ) -> Iterator[RawRow]:
        """The rows from number `row` on, which begins at byte `offset` where lines are read."""
        if self._format in TABLES:
            return open_table(self.path).rows(row, columns)
        if self._format in _DELIMITERS:
            return self._table_rows(offset)
        return self._line_rows(offset)

    def scan(self, marks: Callable[[int], bool]) -> FileScan:
        """Count the rows and digest the bytes; `marks(row)` says whose offset to note."""
        if self._format in TABLES:
            rows = open_table(self.path).count()
            return FileScan(rows, self._digest(), {k: 0 for k in range(rows) if marks(k)})
        lines = _Lines(self.path)
        offsets: dict[int, int] = {}
        rows = 0
        for begin in self._starts(lines):
            if marks(rows):
                offsets[rows] = begin
            rows += 1
        return FileScan(rows, lines.digest.hexdigest(), offsets)

    @property
    def _format(self) -> str:
        return self.path.suffix.lower()

    def _digest(self) -> str:
        digest = hashlib.sha256()
        with _readable(self.path), self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    # -- lines --------------------------------------------------------------------------------

    def _starts(self, lines: _Lines) -> Iterator[int]:
        """The byte at which each row begins."""
        if self._format not in _DELIMITERS:
            for begin, line in lines:
                if line.strip():
                    yield begin
            return
        table = self._reader(lines)
        begin = 0
        header = True
        with self._as_table(table):
            for fields in table:
                if fields and not header:
                    yield begin
                header = header and not fields
                begin = lines.offset

    def _line_rows(self, offset: int) -> Iterator[RawRow]:
        for begin, line in _Lines(self.path, offset):
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                yield Problem(f"The line at byte {begin} is not UTF-8 text ({error}).")
                continue
            yield {_TEXT: text} if self._format == ".txt" else _json_row(text)

    def _reader(self, lines: _Lines) -> Any:
        """Rows of fields; `line_num` says how many lines of them were read."""
        if csv.field_size_limit() < _LONGEST_FIELD:
            csv.field_size_limit(_LONGEST_FIELD)
        text = (_decoded(line) for _, line in lines)
        delimiter = _DELIMITERS[self._format]
        if self._is_quoted():
            return csv.reader(text, delimiter=delimiter, strict=True)
        return csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)

    def _is_quoted(self) -> bool:
        """Whether quotes stand around fields: always in a .csv, in a .tsv if the header has some"""
        if self._format == ".csv":
            return True
        return next((b'"' in line for _, line in _Lines(self.path) if line.strip()), False)

    def _header(self) -> tuple[list[str], int]:
        """The names of the columns, and where the rows begin."""
        lines = _Lines(self.path)
        table = self._reader(lines)
        with self._as_table(table):
            names: list[str] = next((fields for fields in table if fields), [])
        return [name.strip() for name in names], lines.offset

    def _table_rows(self, offset: int) -> Iterator[RawRow]:
        names, begin = self._header()
        table = self._reader(_Lines(self.path, offset or begin))
        clean = str if self._is_quoted() else _without_quotes
        with self._as_table(table):
            for fields in table:
                if not fields:
                    continue
                if len(fields) == len(names):
                    yield dict(zip(names, map(clean, fields), strict=True))
                else:
                    yield Problem(
                        f"The row has {len(fields)} fields and the header {len(names)}: "
                        f"{shorten(fields)}."
                    )

    def _as_table(self, table: Any) -> _Wrapped:
        return _Wrapped(self.path, lambda: f"line {table.line_num} is no part of a table")


class _Wrapped:
    """Errors of the csv module and of files, as ours."""

    def __init__(self, path: Path, what: Callable[[], str]) -> None:
        self._path, self._what = path, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = shorten(str(self._path))
        if isinstance(error, csv.Error):
            raise InputError(f"{name}: {self._what()} ({error}).") from error
        if isinstance(error, OSError):
            raise FileError(f"{name} cannot be read: {error.strerror or error}.") from error


def _readable(path: Path) -> _Wrapped:
    return _Wrapped(path, lambda: "it is no table")


class _Lines:
    """The lines of a file as bytes, each with the byte it begins at."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with _readable(self.path), self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                begin = self.offset
                self.offset += len(line)
                self.digest.update(line)
                yield begin, line.removeprefix(_BOM) if begin == 0 else line


def _decoded(line: bytes) -> str:
    """Of a table: where a field is no UTF-8, its bytes stay visible as escapes."""
    return line.decode("utf-8", "backslashreplace")


def _without_quotes(field: str) -> str:
    """A field of a .tsv; quotes that a csv writer must have put are taken off."""
    return field[1:-1].replace('""', '"') if _DOUBLED.fullmatch(field) else field


def _json_row(line: str) -> RawRow:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Problem(f"The line is not JSON ({error}): {shorten(line, 60)}.")
    if isinstance(record, str):
        return {_TEXT: record}
    if isinstance(record, Mapping):
        return record
    return Problem(f"The line is neither a text nor an object: {shorten(line, 60)}.")
