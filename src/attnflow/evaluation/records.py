"""A record for each example of an evaluation, and the file that keeps them while a run goes on.

The first line of the file says what the run is, every further line is one example's record. A line
is written whole or cut off, never both: what follows the last line end is what an interruption
left, and is dropped. While a run has the file open it is locked: two runs would write the same
examples twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from attnflow import storage
from attnflow.errors import FileError, InputError, shorten
from attnflow.errors.arguments import check_fields
from attnflow.hosts.fingerprint import digest_settings

RANDOM: Final = "random"
"""The row of random orders, which stands beside the methods in every evaluation."""

_FORMAT = "attnflow evaluation 1"
_BEGINNING = b'{"format": "attnflow evaluation'
_BINARY: int = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One example: what each ranking (row) scores by each metric, and what each method took.

    seconds: of the method alone; capture: of capturing what it needs, on the first texts only.
    saturated: the share of a flow's values that do not depend on the target.
    collapsed: 1 where a method's rows are nearly the same for every target, 0 where they are not.
    left_out: why this example could not be used; then there are no scores.

    >>> Record(number=3, left_out="There are fewer than two words to rank.").scores
    {}
    """

    number: int
    answer: str = ""
    choice: int = -1
    probability: float = math.nan
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    capture: Mapping[str, float] = field(default_factory=dict)
    saturated: Mapping[str, float] = field(default_factory=dict)
    collapsed: Mapping[str, float] = field(default_factory=dict)
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no nan: what is undefined is null."""
        scores = {
            row: {metric: or_none(value) for metric, value in columns.items()}
            for row, columns in self.scores.items()
        }
        return {**asdict(self), "probability": or_none(self.probability), "scores": scores}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Record:
        """Return the inverse of `to_dict`; a ValueError where a value is not of its kind."""
        if set(record) != {each.name for each in fields(cls)}:
            raise ValueError(f"{dict(record)!r} is not a record of an evaluation.")
        scores = {
            row: {metric: _or_nan(value) for metric, value in columns.items()}
            for row, columns in record["scores"].items()
        }
        probability = _or_nan(record["probability"])
        example = cls(**{**record, "scores": scores, "probability": probability})
        check_fields(example)
        return example


def or_none(value: float) -> float | None:
    """Return a number for JSON, which has no nan."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class Journal:
    """The file of a run, open and locked; `settings` are all that the records depend on."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._name = shorten(str(path))
        if settings.get("weights") is None:
            raise InputError(
                f"{self._name}: a run can be kept only where all weights of the model are "
                "in memory, since others cannot be told from those of another model. Load the "
                "model without offloading, or leave out journal=."
            )
        self.settings = settings
        self._file = self._open(path)
        try:
            storage.lock(self._file, path)
            self._lines = self._begin()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # every record was flushed already
            self._file.close()

    def records(self, fits: Callable[[Record], bool]) -> list[Record]:
        """Return the records that are there already, each held to what its run expects of one."""
        return [self._read_record(number, line, fits) for number, line in enumerate(self._lines)]

    def append(self, record: Record) -> None:
        """Keep one more record."""
        self._write(record.to_dict())

    def _open(self, path: Path) -> BinaryIO:
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Created where it is not there, never emptied: whether it is ours is seen later.
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666), "r+b")

    def _write(self, values: Mapping[str, Any]) -> None:
        line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        with self._writing():
            self._file.write(line)
            self._file.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # a name that no file can have is the latter
            if isinstance(error, InputError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise FileError(f"{self._name} cannot be written: {reason}.") from error

    def _begin(self) -> list[bytes]:
        """Return the lines of records; a new file gets its first, half a line at the end goes."""
        with self._writing():
            self._file.seek(0)
            content = self._file.read()
            lines = content.split(b"\n")[:-1]
            if lines:
                self._check_header(lines[0])
            elif content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
                raise self._not_ours()
            self._file.truncate(sum(len(line) + 1 for line in lines))
            self._file.seek(0, os.SEEK_END)
        if not lines:
            about = {"format": _FORMAT, "fingerprint": digest_settings(self.settings)}
            self._write({**about, "settings": dict(self.settings)})
        return lines[1:]

    def _check_header(self, line: bytes) -> None:
        """Refuse a file of something else, or of another run, and say in what it differs."""
        header = _parse(line)
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

    def _read_record(self, number: int, line: bytes, fits: Callable[[Record], bool]) -> Record:
        try:
            record = Record.from_dict(_parse(line))
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


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON.")
