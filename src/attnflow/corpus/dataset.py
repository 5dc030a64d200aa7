"""read(): the result of a corpus as a table, in memory or in parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnflow.corpus.folder import read_manifest, read_notes
from attnflow.corpus.rows import SCHEMA
from attnflow.errors import FileError, optional_import, shorten

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Corpus:
    """What a run wrote. `settings` and `provenance` are those of its manifest.

    >>> Corpus(Path("nowhere"), {}, {}).parts
    []
    """

    path: Path
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @cached_property
    def _notes(self) -> list[dict[str, Any]]:
        notes = []
        for path in self.parts:
            record = read_notes(path)
            if record is None:
                raise FileError(
                    f"{shorten(str(path))} is damaged. Run the same command again: it is made anew."
                )
            notes.append(record)
        return notes

    @property
    def parts(self) -> list[Path]:
        """The files with the rows, in the order of the texts."""
        return sorted(self.path.glob("part-*.parquet"))

    @property
    def texts(self) -> int:
        """The number of texts that are done."""
        return sum(int(record["texts"]) for record in self._notes)

    @property
    def errors(self) -> int:
        """The number of them that have no result but a sentence."""
        return sum(int(record["errors"]) for record in self._notes)

    @property
    def complete(self) -> bool:
        """True when all texts of the data are done."""
        return self.texts == int(self.settings["texts"])

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods as the column `method` names them."""
        return tuple(self.settings["methods"])

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows, a part at a time: a corpus may be larger than the memory."""
        for path in self.parts:
            yield pq.read_table(path, columns=None if columns is None else list(columns))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows as one table of pyarrow, in the order of the texts."""
        tables = [table.replace_schema_metadata() for table in self.tables(columns)]
        if tables:
            return pa.concat_tables(tables)
        return SCHEMA.empty_table().select(columns or SCHEMA.names)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return all rows as a table of pandas."""
        optional_import("pandas", extra="pandas", purpose="to_pandas()")
        return self.to_arrow(columns).to_pandas()

    def __repr__(self) -> str:
        total = "" if self.complete else f" of {int(self.settings['texts']):,}"
        failed = f", {self.errors:,} failed" if self.errors else ""
        return f"<Corpus {self.texts:,}{total} texts{failed}, {', '.join(self.methods)}>"


def read(path: str | os.PathLike[str]) -> Corpus:
    """Open the result that `run` wrote into a folder, complete or not.

    Anything that reads Parquet reads it too: `pandas.read_parquet(path)`, `SELECT * FROM
    'path/*.parquet'` in DuckDB, `polars.read_parquet("path/*.parquet")`.

    >>> read("nowhere")
    Traceback (most recent call last):
    attnflow.errors.FileError: 'nowhere' holds no corpus: there is no _manifest.json. \
`attnflow corpus run --output` makes one.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    return Corpus(folder, manifest["settings"], manifest["provenance"])
