"""The files of a corpus: which they are, what they hold, and how one is read from a row on.

    .txt       one text a line, in a column called `text`
    .jsonl     one object, or one text, a line
    .csv       a table with a header; a field with a comma, a quote or a line end is quoted
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnflow.corpus.tables import TABLES, open_table
from attnflow.errors import FileError, InputError, shorten

__all__ = ["FORMATS", "DataFile", "FileScan", "Problem", "RawRow", "find_files"]

_TEXT = "text"  # what the one column of a file without columns is called
_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 20
_GLOB = "*?["
FORMATS = (".txt", ".jsonl", ".csv", *TABLES)


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
        if self._format == ".csv":
            return self._header()[0]
        first = next((row for row in self.rows() if not isinstance(row, Problem)), {_TEXT: ""})
        return list(first)

    def rows(
        self, row: int = 0, offset: int = 0, columns: Sequence[str] | None = None
    ) -> Iterator[RawRow]:
        """The rows from number `row` on, which begins at byte `offset` where lines are read."""
        if self._format in TABLES:
            return open_table(self.path).rows(row, columns)
        if self._format == ".csv":
            return self._csv_rows(offset)
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
        if self._format != ".csv":
            for begin, line in lines:
                if line.strip():
                    yield begin
            return
        table = csv.reader((_decoded(line) for _, line in lines), strict=True)
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

    def _header(self) -> tuple[list[str], int]:
        """The names of the columns, and where the rows begin."""
        lines = _Lines(self.path)
        table = csv.reader((_decoded(line) for _, line in lines), strict=True)
        with self._as_table(table):
            fields = next((fields for fields in table if fields), [])
        return [name.strip() for name in fields], lines.offset

    def _csv_rows(self, offset: int) -> Iterator[RawRow]:
        names, begin = self._header()
        lines = _Lines(self.path, offset or begin)
        table = csv.reader((_decoded(line) for _, line in lines), strict=True)
        with self._as_table(table):
            for fields in table:
                if not fields:
                    continue
                if len(fields) == len(names):
                    yield dict(zip(names, fields, strict=True))
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


def find_files(data: str | Path | Sequence[str | Path]) -> list[DataFile]:
    """The files that paths, folders and patterns name, in a fixed order: as given, then by name.

    A folder that `datasets.Dataset.save_to_disk` wrote is read in its own order.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("b.txt", "a.txt", "notes.md"):
    ...     _ = (folder / name).write_text("one text", encoding="utf-8")
    >>> [file.path.name for file in find_files(folder)]
    ['a.txt', 'b.txt']
    """
    places = [data] if isinstance(data, (str, Path)) else list(data)
    if not places:
        raise InputError("There is no data: name a file, a folder or a pattern.")
    paths = [path for place in places for path in _paths_of(Path(place).expanduser())]
    doubled = {str(path) for path in paths if paths.count(path) > 1} if len(paths) < 1000 else set()
    if doubled:
        raise InputError(f"The data name the file {sorted(doubled)[0]!r} twice; name each once.")
    return [DataFile(path) for path in paths]


def _paths_of(place: Path) -> list[Path]:
    if place.is_file():
        return [_checked_format(place)]
    if place.is_dir():
        return _stored_dataset(place) or _in_folder(place)
    if any(sign in str(place) for sign in _GLOB):
        root = Path(place.anchor) if place.is_absolute() else Path()
        matches = sorted(root.glob(str(place.relative_to(place.anchor))))
        paths = [path for match in matches for path in _paths_of(match)]
        if paths:
            return paths
        raise FileError(f"No file fits the pattern {shorten(str(place))}.")
    raise FileError(f"There is no file or folder {shorten(str(place))} to read texts from.")


def _checked_format(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{shorten(str(path))} ends in {path.suffix or 'nothing'!r}; a corpus is read from "
            f"{', '.join(FORMATS)}. The ending decides how a file is read: rename it if it is one."
        )
    return path


def _in_folder(folder: Path) -> list[Path]:
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in FORMATS
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise FileError(
            f"The folder {shorten(str(folder))} holds no file that ends in {', '.join(FORMATS)}."
        )
    return paths


def _stored_dataset(folder: Path) -> list[Path]:
    """The files of a dataset on disk in its own order; none where the folder is no such dataset."""
    splits = _json_file(folder / "dataset_dict.json").get("splits")
    if splits:
        raise InputError(
            f"{shorten(str(folder))} holds the splits {', '.join(map(repr, splits))}; name one of "
            f"them: {str(folder / str(splits[0]))!r}."
        )
    state = _json_file(folder / "state.json")
    if state.get("_indices_files"):
        raise InputError(
            f"{shorten(str(folder))} is a choice out of a larger dataset, kept as a list of row "
            "numbers. Save it with dataset.flatten_indices().save_to_disk(...) first."
        )
    return [folder / str(each["filename"]) for each in state.get("_data_files") or ()]


def _json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{shorten(str(path))} cannot be read: {error}.") from error
    return content if isinstance(content, dict) else {}
