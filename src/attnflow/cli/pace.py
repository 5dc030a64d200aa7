"""How long a command will take: said at once, from how long the last one took on this machine."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import typer

from attnflow import storage

_LETTERS = 4  # of a token, in the mean
_FILE = "pace.json"
# Seconds until a model runs, and then for each token: `ask` and `explain` on two slow cores.
_SHIPPED = {"smollm2": (7.0, 0.03), "verb-number": (7.0, 0.03)}


class Pace:
    """The time of one command: announced when it is made, measured while it is entered."""

    def __init__(self, model: str, text: str, new_tokens: int = 0) -> None:
        self._model, self._begin = model, time.monotonic()
        self._startup, self._is_first = 0.0, "torch" not in sys.modules
        count = max(1, len(text) // _LETTERS)
        self._tokens = count + new_tokens
        writes = f" and writes up to {new_tokens:,}" if new_tokens else ""
        rates = {**_SHIPPED, **_read_rates()}
        startup, rate = rates.get(model, (None, 0.0))
        known = "how long is not known before its first run here"
        if startup is not None:
            known = f"about {tell_seconds(startup + rate * self._tokens)}"
        tokens = f"{count:,} token{'s' if count > 1 else ''}"
        typer.echo(f"attnflow: {model} reads about {tokens}{writes}: {known}.", err=True)

    def __enter__(self) -> None:
        self._startup = time.monotonic() - self._begin

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_first:  # else the next process takes longer to begin
            seconds = time.monotonic() - self._begin - self._startup
            rates = {**_read_rates(), self._model: (self._startup, seconds / self._tokens)}
            with suppress(OSError):  # a cache that cannot be written to costs an estimate
                _file().parent.mkdir(parents=True, exist_ok=True)
                storage.write_text(_file(), json.dumps(rates))


def tell_seconds(seconds: float) -> str:
    """Return a time in words, as exact as it can be known.

    >>> tell_seconds(14.2), tell_seconds(400)
    ('14 seconds', '7 minutes')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes"


def _file() -> Path:
    from attnflow.models.smollm2 import prepared_folder

    return prepared_folder().parent / _FILE


def _read_rates() -> dict[str, tuple[float, float]]:
    with suppress(OSError, ValueError, TypeError, AttributeError):  # whatever the file holds
        record = json.loads(_file().read_text(encoding="utf-8"))
        return {str(name): (float(first), float(rate)) for name, (first, rate) in record.items()}
    return {}
