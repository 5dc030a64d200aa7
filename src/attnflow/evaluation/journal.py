"""A file that a long run is written to text by text, so that it can be stopped and gone on with.

The first line says what the run is, every further line is one text's record. A line is written
whole or cut off, never both: what follows the last line end is what an interruption left, and is
dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, InputError
from attnflow.evaluation.results import Record

__all__ = ["Journal", "fingerprint"]

_FORMAT = "attnflow evaluation 1"


def fingerprint(settings: Mapping[str, Any]) -> str:
    """The same for the same settings, in any order and on any machine."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Journal:
    """Where a run's records are kept; `settings` are all that the records depend on."""

    path: Path
    settings: Mapping[str, Any]

    def begin(self) -> list[Record]:
        """The records that are there already; a new file gets its first line."""
        whole = self._whole_lines()
        try:
            if not whole:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(self._header() + "\n", encoding="utf-8")
                return []
            self._check(whole[0])
            os.truncate(self.path, sum(len(line) + 1 for line in whole))
        except OSError as error:
            raise FileError(f"{str(self.path)!r} cannot be written: {error}.") from error
        return [self._record(number, line) for number, line in enumerate(whole[1:])]

    def append(self, record: Record) -> None:
        """Keep one more record."""
        try:
            with self.path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record.to_dict(), ensure_ascii=False) + "\n")
        except OSError as error:
            raise FileError(f"{str(self.path)!r} cannot be written: {error}.") from error

    def _whole_lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []
        except OSError as error:
            raise FileError(f"{str(self.path)!r} cannot be read: {error}.") from error

    def _header(self) -> str:
        about = {"format": _FORMAT, "fingerprint": fingerprint(self.settings)}
        return json.dumps({**about, "settings": dict(self.settings)}, ensure_ascii=False)

    def _check(self, line: bytes) -> None:
        """Refuse a file of something else, or of another run, and say in what it differs."""
        header = _parsed(line)
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise FileError(
                f"{str(self.path)!r} was not written by `attnflow evaluate`: nothing was changed "
                "in it. Name another file to keep the run in."
            )
        if header.get("fingerprint") == fingerprint(self.settings):
            return
        before, now = header["settings"], self.settings
        differing = [
            f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
            for name in {**before, **now}
            if json.dumps(before.get(name)) != json.dumps(now.get(name))
        ]
        raise InputError(
            f"{str(self.path)!r} holds another run: {'; '.join(differing)}. Go on with the same "
            "settings, name another file, or delete this one."
        )

    def _record(self, number: int, line: bytes) -> Record:
        try:
            record = Record.from_dict(_parsed(line))
        except (TypeError, KeyError, AttributeError):
            record = None
        if record is None or record.number != number:
            raise FileError(
                f"Line {number + 2} of {str(self.path)!r} is damaged: it should be the record of "
                f"text {number}. Delete it and what follows to go on from there."
            )
        return record


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
