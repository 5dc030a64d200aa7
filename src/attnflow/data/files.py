"""One file of examples, read row by row from any row on.

    .txt       one text a line, in a column called `text`
    .jsonl     one object, or one text, a line
    .json      a list of objects or texts
    .csv       a table with a header; a field with a comma, a quote or a line end is quoted
    .tsv       a table with a header, tabs between; quotes are part of the text, as in GLUE's files,
               unless a csv writer must have put them (see `_is_quoted`)
    .parquet   a table
    .arrow     a table as Hugging Face's `save_to_disk` writes it
    .png ...   an image: one row, with its path in a column called `image`

A file is never held in memory (a .json is: it has no rows before its end). Its rows have an order,
that of the file. What is wrong with one row (a line that is no JSON, bytes that are no UTF-8) is
the `problem` of that row, so that whoever reads can go on with the rest, or raise it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import whitespace
from typing import Any, NamedTuple

from attnflow.data import arrow
from attnflow.errors import FileError, InputError, shorten
from attnflow.tokens.patches import PICTURE_ENDINGS

TEXT = "text"  # what the one column of a file without columns is called
IMAGE = "image"  # and that of an image
_BOM = b"\xef\xbb\xbf"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST_FIELD = 2**30  # of a .csv or .tsv; Python's own limit, 128 KB, is less than some documents
_DOUBLED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # a field in quotes with doubled quotes inside
FORMATS = (".txt", ".csv", ".tsv", ".jsonl", ".json", *arrow.FORMATS)


@dataclass(frozen=True)
class Row:
    """One row of a file: its values by column, or the problem that keeps it from being used.

    number: in its file, from 0. line: of its last line, from 1; 0 where that is not known (a table
    of pyarrow, a file that was read from the middle).

    >>> Row(Path("a.csv"), 0, {"text": "the keys"}, line=2).place
    "Line 2 of 'a.csv'"
    """

    file: Path
    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0
    problem: FileError | InputError | None = None

    @property
    def place(self) -> str:
        """Its line, or its row, and its file, for messages."""
        count = f"Line {self.line}" if self.line else f"Row {self.number + 1}"
        return f"{count} of {shorten(str(self.file))}"


class FileScan(NamedTuple):
    """The facts that one pass over a file gives.

    rows: how many there are. digest: of every byte. offsets: for each row number that was asked
    for, the byte it begins at; 0 for files that are read by row numbers.

    >>> FileScan(rows=2, digest="9f", offsets={0: 0, 1: 10}).offsets[1]
    10
    """

    rows: int
    digest: str
    offsets: dict[int, int]


@dataclass(frozen=True)
class DataFile:
    """One file, read by what its name ends in.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.txt"
    >>> _ = path.write_text("the keys\\n\\nthe cabinet\\n", encoding="utf-8")
    >>> file = DataFile(path)
    >>> [(row.number, row.values["text"]) for row in file.rows()]
    [(0, 'the keys'), (1, 'the cabinet')]
    >>> file.scan(lambda row: row == 1).offsets
    {1: 10}
    """

    path: Path

    @property
    def format(self) -> str:
        """The ending of its name, which says how it is read."""
        return self.path.suffix.lower()

    def columns(self) -> list[str]:
        """Return the names of its columns; of JSON, those of the first row that has some."""
        if self.format in PICTURE_ENDINGS:
            return [IMAGE]
        if self.format in arrow.FORMATS:
            return arrow.column_names(self.path)
        if self.format in _DELIMITERS:
            return self._header()[0]
        usable = (row.values for row in self.rows() if row.problem is None)
        return list(next(usable, {TEXT: ""}))

    def rows(
        self, start: int = 0, offset: int = 0, columns: Sequence[str] | None = None
    ) -> Iterator[Row]:
        """Read the rows from number `start` on, or from its byte (`offset`, of a `scan`)."""
        if self.format in PICTURE_ENDINGS:
            return iter([Row(self.path, 0, {IMAGE: self.path})][start:])
        if self.format in arrow.FORMATS:
            values = arrow.read_rows(self.path, start, columns)
            return (Row(self.path, number, row) for number, row in enumerate(values, start=start))
        if self.format == ".json":
            return (self._json_row(k, 0, v) for k, v in enumerate(self._json()) if k >= start)
        read = self._table_rows if self.format in _DELIMITERS else self._line_rows
        if offset:
            return read(offset, start)
        return (row for row in read(0, 0) if row.number >= start)

    def scan(self, marks: Callable[[int], bool]) -> FileScan:
        """Count the rows and digest the bytes; `marks(row)` says whose offset to note."""
        lines = _Lines(self.path)
        offsets: dict[int, int] = {}
        count = 0
        for begin in self._starts(lines):
            if marks(count):
                offsets[count] = begin
            count += 1
        for _ in lines:
            pass  # those of a file that is read by row numbers: every byte counts in the digest
        return FileScan(count, lines.digest.hexdigest(), offsets)

    def _starts(self, lines: _Lines) -> Iterable[int]:
        """Return the byte at which each row begins; 0 where rows are read by their numbers."""
        if self.format in PICTURE_ENDINGS:
            return [0]
        if self.format == ".json":
            return [0] * len(self._json())
        if self.format in arrow.FORMATS:
            return [0] * arrow.count_rows(self.path)
        if self.format in _DELIMITERS:
            return self._table_starts(lines)
        return (begin for begin, line in lines if line.strip())

    def _refuse(self, number: int, line: int, sentence: str) -> Row:
        """Return a row that cannot be used; the sentence says why of its place."""
        place = Row(self.path, number, line=line).place
        return Row(self.path, number, {}, line, InputError(f"{place} {sentence}"))

    # -- lines and JSON -----------------------------------------------------------------------

    def _line_rows(self, offset: int, number: int) -> Iterator[Row]:
        lines = _Lines(self.path, offset)
        for count, text in enumerate(lines.decode(), start=1):
            if not text.strip(whitespace):  # as bytes have it: other spaces make a row
                continue
            line, problem = 0 if offset else count, lines.take_problem()
            if problem is not None:
                yield Row(self.path, number, {}, line, problem)
            elif self.format == ".txt":
                yield Row(self.path, number, {TEXT: text.strip()}, line)
            else:
                yield self._parse_json(number, line, text.strip())
            number += 1

    def _parse_json(self, number: int, line: int, text: str) -> Row:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return self._refuse(number, line, f"is not JSON ({error}): {shorten(text, 60)}.")
        return self._json_row(number, line, value)

    def _json_row(self, number: int, line: int, value: Any) -> Row:
        if isinstance(value, (str, Mapping)):
            values = {TEXT: value} if isinstance(value, str) else value
            return Row(self.path, number, values, line)
        sentence = f"is neither a text nor an object: {shorten(value, 60)}."
        return self._refuse(number, line, sentence)

    def _json(self) -> list[Any]:
        with file_errors(self.path):
            content = self.path.read_bytes().removeprefix(_BOM)
        try:
            values = json.loads(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise _not_utf8(self.path, error.start, content[error.start]) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{shorten(str(self.path))} is not JSON ({error}).") from error
        if not isinstance(values, list):
            raise InputError(
                f"{shorten(str(self.path))} is not a list of objects or texts. One object a line "
                "is a .jsonl file: rename it if it is one."
            )
        return values

    # -- tables of text -----------------------------------------------------------------------

    def _table_rows(self, offset: int, number: int) -> Iterator[Row]:
        names, begin, header_lines = self._header()
        lines = _Lines(self.path, offset or begin)
        for count, fields in self._fields(lines):
            line = 0 if offset else header_lines + count
            problem = lines.take_problem()
            if problem is not None:
                yield Row(self.path, number, {}, line, problem)
            elif len(fields) != len(names):
                yield self._refuse(
                    number,
                    line,
                    f"has {len(fields)} fields and the header {len(names)} "
                    f"({', '.join(names)}): {shorten(fields, 60)}. Put quotes around a field that "
                    "holds the sign between fields.",
                )
            else:
                yield Row(self.path, number, dict(zip(names, fields, strict=True)), line)
            number += 1

    def _header(self) -> tuple[list[str], int, int]:
        """Return the names of the columns, the byte where the rows begin, and the lines before."""
        lines = _Lines(self.path)
        count, names = next(self._fields(lines), (0, []))
        problem = lines.take_problem()
        if problem is not None:
            raise problem
        return [name.strip() for name in names], lines.offset, count

    def _table_starts(self, lines: _Lines) -> Iterator[int]:
        begin = 0
        for number, _ in enumerate(self._fields(lines)):
            if number:
                yield begin
            begin = lines.offset

    def _fields(self, lines: _Lines) -> Iterator[tuple[int, list[str]]]:
        """Yield the fields of each row, and how many lines were read up to its end."""
        if self._is_quoted():
            return _quoted_fields(lines, _DELIMITERS[self.format])
        return (
            (count, [_without_quotes(each) for each in fields])
            for count, fields in _divide_at_tabs(lines.decode())
        )

    def _is_quoted(self) -> bool:
        if self.format == ".csv":
            return True
        with file_errors(self.path):
            status = self.path.stat()
        return _is_quoted(self.path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _is_quoted(path: Path, changed: int, size: int) -> bool:
    """Return whether a csv writer must have put the quotes of a .tsv.

    That is so where the header has some, or where lines divided at their tabs are not all as long
    as the header and the csv module makes a whole table of them. A lone quote is a part of a text.
    """
    rows = (fields for _, fields in _divide_at_tabs(_Lines(path).decode()))
    header = next(rows, [])
    if any('"' in name for name in header):
        return True
    if all(len(row) == len(header) for row in rows):
        return False
    try:
        return all(len(row) == len(header) for _, row in _quoted_fields(_Lines(path), "\t"))
    except InputError:
        return False


def _quoted_fields(lines: _Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    if csv.field_size_limit() < _LONGEST_FIELD:
        csv.field_size_limit(_LONGEST_FIELD)
    table = csv.reader(lines.decode(), delimiter=delimiter, strict=True)
    try:
        yield from ((table.line_num, fields) for fields in table if fields)
    except csv.Error as error:
        name = shorten(str(lines.path))
        message = f"Line {table.line_num} of {name} is no part of a table: {error}."
        raise InputError(message) from error


def _divide_at_tabs(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for count, line in enumerate(lines, start=1):
        if line.strip(" \r\n"):
            yield count, line.rstrip("\r\n").split("\t")


def _without_quotes(field: str) -> str:
    """Return a field of a .tsv; quotes that a csv writer must have put are taken off."""
    return field[1:-1].replace('""', '"') if _DOUBLED.fullmatch(field) else field


class _Lines:
    """The lines of a file as bytes, each with the byte it begins at; lines end at \\n alone."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.digest = hashlib.sha256()
        self._problem: FileError | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with file_errors(self.path), self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                begin = self.offset
                self.offset += len(line)
                self.digest.update(line)
                yield begin, line.removeprefix(_BOM) if begin == 0 else line

    def decode(self) -> Iterator[str]:
        """Yield the lines as text; the first byte that is no UTF-8 is a problem to take."""
        for begin, line in self:
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                if self._problem is None:
                    self._problem = _not_utf8(self.path, begin + error.start, line[error.start])
                yield line.decode("utf-8", "replace")

    def take_problem(self) -> FileError | None:
        """Return what was wrong with the lines since the last call."""
        problem, self._problem = self._problem, None
        return problem


def _not_utf8(path: Path, offset: int, byte: int) -> FileError:
    name = shorten(str(path))
    return FileError(
        f"{name} is not UTF-8 text: byte {offset} of it is 0x{byte:02x}. Save it as UTF-8 (a file "
        f"of Excel: 'CSV UTF-8'; one in Latin-1: iconv -f latin1 -t utf-8)."
    )


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Say of a file or a folder that it cannot be read, and why."""
    try:
        yield
    except OSError as error:
        message = f"{shorten(str(path))} cannot be read: {error.strerror or error}."
        raise FileError(message) from error
