"""A corpus divided into shards, and the texts of a shard.

The same rows are in the same shards, whoever does them and when.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.corpus.settings import Columns
from attnflow.data import DataFile, Row
from attnflow.errors import FileError, InputError, TokensError, shorten
from attnflow.errors.progress import tell
from attnflow.hosts.fingerprint import digest_bytes
from attnflow.hosts.inputs import checked_text
from attnflow.tokens.documents import BETWEEN


@dataclass(frozen=True)
class Shard:
    """Some rows of a corpus that follow each other, and where the first of them stands."""

    number: int
    first: int
    count: int
    file: int
    row: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """All shards of a corpus. `digest` is the same for the same content in the same order."""

    files: tuple[DataFile, ...]
    shards: tuple[Shard, ...]
    rows: int
    digest: str

    @classmethod
    def make(cls, files: Sequence[DataFile], shard_size: int) -> Plan:
        """Divide the files in one pass over all of them."""
        starts: list[tuple[int, int, int]] = []
        digests: list[bytes] = []
        total = 0  # rows of the files before

        def begins_shard(row: int) -> bool:
            return (total + row) % shard_size == 0

        for number, file in enumerate(files):
            scan = file.scan(begins_shard)
            starts += [(number, row, offset) for row, offset in scan.offsets.items()]
            digests.append(f"{scan.digest} {file.path.suffix.lower()}\n".encode())
            total += scan.rows
            tell("reading the data", number + 1, len(files))
        if not total:
            raise InputError(f"The data hold no text: {', '.join(str(f.path) for f in files[:5])}.")
        shards = tuple(
            Shard(k, k * shard_size, min(shard_size, total - k * shard_size), *start)
            for k, start in enumerate(starts)
        )
        return cls(tuple(files), shards, total, digest_bytes(digests))


class ShardReader:
    """Reads the rows of shards; fastest when their numbers rise, as a table goes on from there."""

    def __init__(self, paths: Sequence[str | Path], columns: Columns) -> None:
        self._files = [DataFile(Path(path)) for path in paths]
        self._columns = columns
        self._rows: Iterator[Row] = iter(())
        self._place = (-1, 0)  # the file, and the row in it that comes next

    def read(self, shard: Shard) -> list[CorpusText]:
        """Return its texts, in order; what is wrong with one stands in its place."""
        file, row_number = self._place
        if file != shard.file or row_number > shard.row or shard.offset:
            self._open(shard.file, shard.row, shard.offset)
        else:
            for _ in range(shard.row - row_number):
                next(self._rows, None)
            self._place = (shard.file, shard.row)
        texts: list[CorpusText] = []
        while len(texts) < shard.count:
            row = next(self._rows, None)
            if row is None:
                self._open(self._place[0] + 1, 0, 0)
                continue
            texts.append(make_text(shard.first + len(texts), row, self._columns))
            self._place = (self._place[0], self._place[1] + 1)
        return texts

    def _open(self, file: int, row: int, offset: int) -> None:
        if file >= len(self._files):
            raise FileError("The data have become shorter while they were read; start again.")
        self._rows = self._files[file].rows(row, offset, self._columns.names)
        self._place = (file, row)


@dataclass(frozen=True)
class CorpusText:
    """One text, its documents before it; `problem` is known before the model is asked."""

    number: int
    id: str | None = None
    text: str = ""
    completion: str | None = None
    documents: tuple[str, ...] = ()
    image: Any = None
    problem: str | None = None


def make_text(number: int, row: Row, columns: Columns) -> CorpusText:
    """Return the text of a row; one that cannot be used says why."""
    if row.problem is not None:
        # The rows of a result do not depend on the folder that the data lie in.
        return CorpusText(number, problem=str(row.problem).replace(str(row.file), row.file.name))
    key = None if columns.id is None else row.values.get(columns.id)
    key = None if key is None else str(key)
    try:
        return _read_text(number, key, row.values, columns)
    except InputError as error:
        return CorpusText(number, key, problem=str(error))


def _read_text(
    number: int, key: str | None, row: Mapping[str, Any], columns: Columns
) -> CorpusText:
    if columns.image is not None:
        return CorpusText(number, key, image=_read_image(row.get(columns.image)))
    name = columns.text or columns.prompt or ""
    if row.get(name) is None:
        raise TokensError(f"There is nothing to explain: the column {name!r} is empty here.")
    text = checked_text(row[name], name=name)
    documents = () if columns.documents is None else _read_documents(row.get(columns.documents))
    completion = None if columns.completion is None else row.get(columns.completion)
    if completion is not None and (not isinstance(completion, str) or not completion):
        raise TokensError(f"The completion is a text that is not empty; got {shorten(completion)}.")
    return CorpusText(number, key, BETWEEN.join([*documents, text]), completion, documents)


def _read_documents(value: Any) -> tuple[str, ...]:
    """Read a list of texts, or one in JSON, as a CSV file holds it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            message = f"The documents are not a list in JSON: {shorten(value, 60)}."
            raise InputError(message) from error
    texts = value or ()
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise InputError(f"The documents are a list of texts; got {shorten(value)}.")
    return tuple(checked_text(each, name="document").strip() for each in texts)


def _read_image(value: Any) -> Any:
    """Return a path or the bytes of a file; Hugging Face's columns hold both in one object."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, (str, bytes, Path)) and value:
        return value
    raise InputError(f"An image is a path, or the bytes of a file; got {shorten(value)}.")
