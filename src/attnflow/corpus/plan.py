"""A corpus divided into shards: the same rows in the same shards, whoever does them and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attnflow.corpus.files import DataFile, Problem, RawRow
from attnflow.errors import FileError, InputError
from attnflow.errors.progress import tell
from attnflow.evaluation.fingerprint import digest_of

__all__ = ["Plan", "Shard", "ShardReader"]


@dataclass(frozen=True)
class Shard:
    """Some rows of a corpus that follow each other.

    first: the number of the first in the corpus. file, row, offset: where it stands, by the number
    of its file, its number in the file, and its byte where the file has lines.
    """

    number: int
    first: int
    count: int
    file: int
    row: int
    offset: int

    def to_dict(self) -> dict[str, int]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """All shards of a corpus. `digest` is the same for the same content in the same order.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.txt"
    >>> _ = path.write_text("one\\ntwo\\nthree\\n", encoding="utf-8")
    >>> plan = Plan.of([DataFile(path)], shard_size=2)
    >>> [(shard.first, shard.count) for shard in plan.shards]
    [(0, 2), (2, 1)]
    """

    files: tuple[DataFile, ...]
    shards: tuple[Shard, ...]
    rows: int
    digest: str

    @classmethod
    def of(cls, files: Sequence[DataFile], shard_size: int) -> Plan:
        """One pass over all files."""
        starts: list[tuple[int, int, int]] = []
        digests: list[bytes] = []
        total = 0
        for number, file in enumerate(files):
            before = total
            scan = file.scan(_Marks(before, shard_size))
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
        return cls(tuple(files), shards, total, digest_of(digests))


@dataclass(frozen=True)
class _Marks:
    """Whether a shard begins at a row of a file that has so many rows before it."""

    before: int
    shard_size: int

    def __call__(self, row: int) -> bool:
        return (self.before + row) % self.shard_size == 0


class ShardReader:
    """Reads the rows of shards; fastest when their numbers rise, as a table goes on from there."""

    def __init__(self, paths: Sequence[str | Path], columns: Sequence[str]) -> None:
        self._files = [DataFile(Path(path)) for path in paths]
        self._columns = list(columns)
        self._rows: Iterator[RawRow] = iter(())
        self._place = (-1, 0)  # the file, and the row in it that comes next

    def read(self, shard: Shard) -> list[RawRow]:
        """Its rows, in order; the columns that are missing in a row are its own problem."""
        self._go_to(shard)
        rows: list[RawRow] = []
        while len(rows) < shard.count:
            row = next(self._rows, None)
            if row is None:
                self._open(self._place[0] + 1, 0, 0)
                continue
            rows.append(self._checked(row))
            self._place = (self._place[0], self._place[1] + 1)
        return rows

    def _go_to(self, shard: Shard) -> None:
        file, row = self._place
        if file != shard.file or row > shard.row or shard.offset:
            self._open(shard.file, shard.row, shard.offset)
            return
        for _ in range(shard.row - row):
            next(self._rows, None)
        self._place = (shard.file, shard.row)

    def _open(self, file: int, row: int, offset: int) -> None:
        if file >= len(self._files):
            raise FileError("The data have become shorter while they were read; start again.")
        self._rows = self._files[file].rows(row, offset, self._columns)
        self._place = (file, row)

    def _checked(self, row: RawRow) -> RawRow:
        if isinstance(row, Problem):
            return row
        return {name: row.get(name) for name in self._columns}
