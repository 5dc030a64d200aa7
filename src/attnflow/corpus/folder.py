"""The folder a corpus is explained into: the manifest, the lock, and the parts.

    _manifest.json       what the run is; written first
    part-00000000.parquet   the rows of one shard, for every shard that is done
    _lock                held while a run goes on

A part appears whole or not at all, under a name that only its shard has. That it is there is the
commit, so a shard is in the result once, however often it was begun. Names that begin with an
underscore are left out by pandas, DuckDB, Polars and Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnflow import storage
from attnflow.errors import FileError, InputError, shorten
from attnflow.hosts.fingerprint import digest_settings

_MANIFEST = "_manifest.json"
_METADATA = b"attnflow"  # the key of a part's metadata: its run and its provenance, as JSON
_FORMAT = "attnflow corpus 1"
_LOCK = "_lock"


@dataclass(frozen=True)
class PartNotes:
    """What a part says of itself in its metadata."""

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
        """Refuse a folder that holds another run, and say in what it differs.

        `settings` may be a part of all: what is known before the model is loaded.
        """
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
        for path in sorted(self.path.glob("part-*.parquet")):
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
