"""Tables that pyarrow reads some rows at a time: Parquet files, and Arrow streams on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, optional_import, shorten

__all__ = ["TABLES", "Table", "open_table"]

_ROWS_AT_ONCE = 256  # of a table in memory


class Table(ABC):
    """A file that pyarrow reads some rows at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrow = optional_import("pyarrow", extra="corpus", purpose=f"Reading {path.name!r}")

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def count(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def _batches(self, row: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
        """Record batches from the one with this row on, each with the number of its first row."""

    def rows(self, row: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        """The rows from this number on, with these columns or with all."""
        try:
            for first, batch in self._batches(row, columns):
                if first + batch.num_rows <= row:
                    continue
                part = batch.slice(max(0, row - first))
                for start in range(0, part.num_rows, _ROWS_AT_ONCE):
                    yield from part.slice(start, _ROWS_AT_ONCE).to_pylist()
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> FileError:
        kind = "Parquet" if isinstance(self, _Parquet) else "an Arrow stream"
        return FileError(f"{shorten(str(self.path))} cannot be read as {kind}: {error}.")


class _Parquet(Table):
    def _open(self) -> Any:
        parquet = optional_import("pyarrow.parquet", extra="corpus", purpose="A .parquet file")
        try:
            return parquet.ParquetFile(self.path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def names(self) -> list[str]:
        with self._open() as file:
            return list(file.schema_arrow.names)

    def count(self) -> int:
        with self._open() as file:
            return int(file.metadata.num_rows)

    def _batches(self, row: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
        with self._open() as file:
            sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            first = skipped = 0
            while skipped < len(sizes) and first + sizes[skipped] <= row:
                first += sizes[skipped]
                skipped += 1
            groups = list(range(skipped, len(sizes)))
            present = _present(file.schema_arrow.names, columns)
            for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=present):
                yield first, batch
                first += batch.num_rows


class _Arrow(Table):
    def names(self) -> list[str]:
        try:
            with self.arrow.memory_map(str(self.path)) as source:
                return list(self.arrow.ipc.open_stream(source).schema.names)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def count(self) -> int:
        return sum(batch.num_rows for _, batch in self._batches(0, None))

    def _batches(self, row: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
        first = 0
        with self.arrow.memory_map(str(self.path)) as source:
            for batch in self.arrow.ipc.open_stream(source):
                yield first, batch.select(_present(batch.schema.names, columns))
                first += batch.num_rows


def _present(names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    return [name for name in names if columns is None or name in columns]


TABLES: dict[str, type[Table]] = {".parquet": _Parquet, ".arrow": _Arrow}
"""How a table is read, by what its file's name ends in."""


def open_table(path: Path) -> Table:
    """The table in a file that ends in .parquet or .arrow."""
    return TABLES[path.suffix.lower()](path)
