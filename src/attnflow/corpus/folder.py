"""The folder a corpus is explained into: the manifest, the lock, and the parts.

    _manifest.json       what the run is; written first
    part-00000000.parquet   the rows of one shard, for every shard that is done
    _sources.csv         their strongest sources, a line each, once all are done
    _lock                held while a run goes on

A part appears whole or not at all, under a name that only its shard has. That it is there is the
commit, so a shard is in the result once, however often it was begun. Names that begin with an
underscore are left out by pandas, DuckDB, Polars and Spark. `read` opens such a folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from attnflow import storage
from attnflow.corpus.rows import SCHEMA
from attnflow.errors import FileError, InputError, optional_import, shorten
from attnflow.hosts.fingerprint import digest_settings

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "_manifest.json"
_METADATA = b"attnflow"  # the key of a part's metadata: its run and its provenance, as JSON
_FORMAT = "attnflow corpus 1"
_LOCK = "_lock"
_PARTS = "part-*.parquet"
_SOURCES = "_sources.csv"
_FLAT = ("row", "id", "text", "method", "target", "prediction", "probability", "claim")
_LONGEST_TEXT = 200  # characters of a text in the flat table


@dataclass(frozen=True)
class PartNotes:
    """The counts that a part has in its metadata."""

    shard: int
    texts: int
    errors: int
    tokens: int

    @classmethod
    def of_metadata(cls, record: Mapping[str, Any]) -> PartNotes:
        """Return the counts among all that the metadata say."""
        return cls(*(int(record[each.name]) for each in fields(cls)))


def part_path(folder: Path, shard: int) -> Path:
    """Return where the rows of a shard stand."""
    return folder / f"part-{shard:08d}.parquet"


def write_part(folder: Path, table: pa.Table, notes: PartNotes, about: Mapping[str, Any]) -> None:
    """Commit the rows of one shard. The same rows give the same bytes."""
    record = json.dumps({**about, **vars(notes)}, sort_keys=True, ensure_ascii=False)
    stamped = table.replace_schema_metadata({_METADATA: record.encode()})

    def write(path: Path) -> None:
        pq.write_table(stamped, path, compression="zstd")
        with path.open("rb") as file:
            os.fsync(file.fileno())  # a name must never lead to a file whose content is not there

    storage.write_safely(part_path(folder, notes.shard), write)


def read_notes(path: Path) -> dict[str, Any] | None:
    """Read what a part says of itself; None where there is no whole part of ours."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        notes = json.loads(metadata.get(_METADATA, b"null"))
    except (OSError, ValueError):
        return None
    return notes if isinstance(notes, dict) else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read what the run in this folder is."""
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(
            f"{shorten(str(folder))} holds no corpus: there is no {_MANIFEST}. `attnflow corpus "
            "run --output` makes one."
        ) from None
    except (OSError, ValueError) as error:
        raise FileError(f"{shorten(str(path))} cannot be read: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise FileError(f"{shorten(str(path))} was not written by `attnflow corpus run`.")
    return manifest


@contextmanager
def open_folder(path: Path) -> Iterator[OutputFolder]:
    """Make the folder of a run and lock it while it is open."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / _LOCK).open("a+b")
    except OSError as error:
        raise FileError(
            f"{shorten(str(path))} cannot be written to: {error.strerror or error}."
        ) from error
    with file:
        storage.lock(file, path)
        yield OutputFolder(path)


@dataclass(frozen=True)
class OutputFolder:
    """The folder of a run, which `open_folder` has locked."""

    path: Path

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The manifest of the run that is here, if there is one."""
        return read_manifest(self.path) if (self.path / _MANIFEST).exists() else None

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse another run's folder and say how it differs; `settings` may be a part of all."""
        manifest = self.manifest
        if manifest is None:
            self._refuse_strangers()
            return
        before = manifest["settings"]
        differing = [
            f"{name} was {shorten(before.get(name), 80)} and is {shorten(value, 80)}"
            for name, value in settings.items()
            if json.dumps(before.get(name), sort_keys=True) != json.dumps(value, sort_keys=True)
        ]
        if differing:
            raise InputError(
                f"{shorten(str(self.path))} holds another run: {'; '.join(differing)}. Go on with "
                "the same settings, or name another folder."
            )

    def begin(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Write the manifest, or hold these settings against the one that is there."""
        self.check(settings)
        for leftover in self.path.glob(".attnflow-*"):  # of a killed run; we hold the lock
            with suppress(OSError):
                leftover.unlink()
        manifest = self.manifest
        if manifest is None:
            manifest = {
                "format": _FORMAT,
                "fingerprint": digest_settings(settings),
                "settings": dict(settings),
                "provenance": dict(provenance),
            }
            content = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False)
            storage.write_text(self.path / _MANIFEST, content + "\n")
        return manifest

    def parts(self, key: str) -> dict[int, PartNotes]:
        """Return the shards that are done, with their counts; a damaged part is deleted."""
        parts: dict[int, PartNotes] = {}
        for path in sorted(self.path.glob(_PARTS)):
            notes = read_notes(path)
            if notes is None:
                path.unlink()
                continue
            if notes.get("fingerprint") != key:
                raise FileError(
                    f"{shorten(str(path))} belongs to another run than {_MANIFEST} beside it. Move "
                    "it away, or name another folder."
                )
            parts[int(notes["shard"])] = PartNotes.of_metadata(notes)
        return parts

    def _refuse_strangers(self) -> None:
        others = [path.name for path in self.path.iterdir() if path.name != _LOCK]
        others = [name for name in others if not name.startswith(".attnflow-")]
        if others:
            raise InputError(
                f"{shorten(str(self.path))} is not empty and holds no run ({shorten(others[0])}). "
                "Name a folder that is new or empty."
            )


@dataclass(frozen=True)
class Corpus:
    """The result of a run. `settings` and `provenance` are those of its manifest.

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
        return sorted(self.path.glob(_PARTS))

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

    def write_sources(self) -> Path:
        """Write a flat table for spreadsheets beside the parts: a line for each source."""
        import pyarrow.csv

        def write(path: Path) -> None:
            schema = _flat(SCHEMA.empty_table()).schema
            with pyarrow.csv.CSVWriter(path, schema) as writer:
                for table in self.tables():
                    writer.write_table(_flat(table))

        storage.write_safely(self.path / _SOURCES, write)
        return self.path / _SOURCES

    def __repr__(self) -> str:
        total = "" if self.complete else f" of {int(self.settings['texts']):,}"
        failed = f", {self.errors:,} failed" if self.errors else ""
        return f"<Corpus {self.texts:,}{total} texts{failed}, {', '.join(self.methods)}>"


def _flat(table: pa.Table) -> pa.Table:
    """Return a row for each source, behind what its row says; texts are cut to their beginning."""
    lists = table["sources"].combine_chunks()
    owners, sources = pc.list_parent_indices(lists), pc.list_flatten(lists)
    numbers = owners.to_numpy()
    columns = {name: table[name].take(owners) for name in _FLAT}
    columns["text"] = pc.utf8_slice_codeunits(columns["text"], 0, _LONGEST_TEXT)
    columns["rank"] = pa.array(np.arange(1, len(numbers) + 1) - np.searchsorted(numbers, numbers))
    columns["source"] = pc.struct_field(sources, "text")
    columns |= {name: pc.round(pc.struct_field(sources, name), 6) for name in ("share", "value")}
    return pa.table(columns)


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
