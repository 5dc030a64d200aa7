"""Tables that pyarrow reads some rows at a time: Parquet files, and Arrow streams on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, optional_import, shorten

FORMATS = (".parquet", ".arrow")
_ROWS_AT_ONCE = 256  # of a table in memory


def column_names(path: Path) -> list[str]:
    """Return the names of the columns."""
    with _open_table(path) as table:
        return [str(name) for name in _schema(table).names]


def count_rows(path: Path) -> int:
    """Return how many rows there are."""
    with _open_table(path) as table:
        if _is_parquet(path):
            return int(table.metadata.num_rows)
        return sum(batch.num_rows for batch in table)


def read_rows(path: Path, start: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows from this number on, with those of these columns that are there, or all."""
    with _open_table(path) as table:
        names = [name for name in _schema(table).names if columns is None or name in columns]
        first, batches = _batches(path, table, start, names)
        for batch in batches:
            rest = batch.slice(min(batch.num_rows, max(0, start - first)))
            first += batch.num_rows
            for begin in range(0, rest.num_rows, _ROWS_AT_ONCE):
                yield from rest.slice(begin, _ROWS_AT_ONCE).to_pylist()


def _batches(path: Path, table: Any, start: int, names: list[str]) -> tuple[int, Iterator[Any]]:
    """Return record batches, and the number of the first row; groups before are not read."""
    if not _is_parquet(path):
        return 0, (batch.select(names) for batch in table)
    first, groups = 0, list(range(table.num_row_groups))
    while groups and first + table.metadata.row_group(groups[0]).num_rows <= start:
        first += table.metadata.row_group(groups.pop(0)).num_rows
    return first, table.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=names)


@contextmanager
def _open_table(path: Path) -> Iterator[Any]:
    module = "pyarrow.parquet" if _is_parquet(path) else "pyarrow"
    library = optional_import(module, extra="corpus", purpose=f"Reading {path.name!r}")
    try:
        if _is_parquet(path):
            with library.ParquetFile(path) as table:
                yield table
        else:
            with library.memory_map(str(path)) as source:
                yield library.ipc.open_stream(source)
    except (OSError, ValueError) as error:
        kind = "Parquet" if _is_parquet(path) else "an Arrow stream"
        raise FileError(f"{shorten(str(path))} cannot be read as {kind}: {error}.") from error


def _schema(table: Any) -> Any:
    return table.schema_arrow if hasattr(table, "schema_arrow") else table.schema


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"
