"""A file that a long run is written to, so that it can be stopped and gone on with.

The first line says what the run is, every further line is one example's record. A line is written
whole or cut off, never both: what follows the last line end is what an interruption left, and is
dropped. While a run has the file open it is locked: two runs would write the same examples twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from attnflow import storage
from attnflow.errors import FileError, InputError, shorten
from attnflow.evaluation.records import Record
from attnflow.hosts.fingerprint import digest_settings

_FORMAT = "attnflow evaluation 1"
_BEGINNING = b'{"format": "attnflow evaluation'


class Journal:
    """The file of a run, open and locked; `settings` are all that the records depend on."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        if settings.get("weights") is None:
            raise InputError(
                f"{shorten(str(path))}: a run can be kept only where all weights of the model are "
                "in memory, since others cannot be told from those of another model. Load the "
                "model without offloading, or leave out journal=."
            )
        self.path, self.settings = path, settings
        self._name = shorten(str(path))
        self._file = self._open()
        try:
            storage.lock(self._file, self.path)
            self._lines = self._begin()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # every record was flushed already
            self._file.close()

    def records(self, fits: Callable[[Record], bool]) -> list[Record]:
        """Return the records that are there already, each held to what its run expects of one."""
        return [self._record(number, line, fits) for number, line in enumerate(self._lines)]

    def append(self, record: Record) -> None:
        """Keep one more record."""
        self._write(json.dumps(record.to_dict(), ensure_ascii=False).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError | ValueError) -> FileError:
        reason = getattr(error, "strerror", None) or error
        return FileError(f"{self._name} cannot be written: {reason}.")

    def _open(self) -> BinaryIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Created where it is not there, never emptied: whether it is ours is seen later.
            return os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666), "r+b")
        except (OSError, ValueError) as error:  # a name that no file can have is the latter
            raise self._unwritable(error) from error

    def _begin(self) -> list[bytes]:
        """Return the lines of records; a new file gets its first, half a line at the end goes."""
        try:
            self._file.seek(0)
            content = self._file.read()
            lines = content.split(b"\n")[:-1]
            if lines:
                self._check_header(lines[0])
            elif content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
                raise self._not_ours()
            self._file.truncate(sum(len(line) + 1 for line in lines))
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._unwritable(error) from error
        if not lines:
            self._write(self._header().encode() + b"\n")
        return lines[1:]

    def _header(self) -> str:
        about = {"format": _FORMAT, "fingerprint": digest_settings(self.settings)}
        return json.dumps({**about, "settings": dict(self.settings)}, ensure_ascii=False)

    def _check_header(self, line: bytes) -> None:
        """Refuse a file of something else, or of another run, and say in what it differs."""
        header = _parsed(line)
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise self._not_ours()
        before, now = header.get("settings"), self.settings
        if not isinstance(before, dict):
            raise self._not_ours()
        differing = [
            f"{name} was {shorten(before.get(name))} and is {shorten(now.get(name))}"
            for name in {**before, **now}
            if json.dumps(before.get(name)) != json.dumps(now.get(name))
        ]
        if differing:
            raise InputError(
                f"{self._name} holds another run: {'; '.join(differing)}. Go on with the "
                "same settings, name another file, or delete this one."
            )

    def _not_ours(self) -> FileError:
        return FileError(
            f"{self._name} was not written by `attnflow evaluate`: nothing was changed in "
            "it. Name another file to keep the run in."
        )

    def _record(self, number: int, line: bytes, fits: Callable[[Record], bool]) -> Record:
        try:
            record = Record.from_dict(_parsed(line))
            usable = record.number == number and fits(record)
        except (TypeError, KeyError, AttributeError, ValueError):
            usable = False
        if not usable:
            raise FileError(
                f"Line {number + 2} of {self._name} is damaged: it should be the record of "
                f"example {number}, with every metric of every row. Delete it and what follows to "
                "go on from there."
            )
        return record


_BINARY: int = getattr(os, "O_BINARY", 0)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
