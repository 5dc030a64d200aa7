"""How far a corpus is: texts, tokens in a second, failures, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnflow.corpus.engine import BatchBegun, PartDone
from attnflow.corpus.output_folder import PartNotes

__all__ = ["CorpusProgress", "CorpusProgressCallback", "Tally"]


@dataclass(frozen=True)
class CorpusProgress:
    """The state of a run. `resumed` texts were there already; `seconds` is since it began.

    >>> progress = CorpusProgress(300, total=500, resumed=100, errors=1, tokens=4000, seconds=8)
    >>> progress.texts_per_second, progress.tokens_per_second, progress.seconds_left
    (25.0, 500.0, 8.0)
    """

    texts: int
    total: int
    resumed: int
    errors: int
    tokens: int
    seconds: float

    @property
    def texts_per_second(self) -> float:
        """Of this run, without the texts that were there already."""
        return (self.texts - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of texts, padding left out."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this run; None where there is none yet."""
        pace = self.texts_per_second
        return (self.total - self.texts) / pace if pace else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, paces and times rounded."""
        left = self.seconds_left
        return {
            "texts": self.texts,
            "total": self.total,
            "resumed": self.resumed,
            "errors": self.errors,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "texts_per_second": round(self.texts_per_second, 2),
            "seconds": round(self.seconds, 1),
            "seconds_left": None if left is None else round(left, 1),
        }


CorpusProgressCallback = Callable[[CorpusProgress], None]


@dataclass
class Tally:
    """Adds up what an engine tells. A batch counts when it begins, which is never far off; when
    the part is done, or its shard is begun again, what counts is exact.
    """

    total: int
    resumed: int
    errors: int
    texts: int = 0
    tokens: int = 0
    begin: float = field(default_factory=time.monotonic)
    _open: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, event: BatchBegun | PartDone) -> CorpusProgress:
        """Count an event, and say how far the run is."""
        if isinstance(event, PartDone):
            self._finish(event.notes)
        else:
            texts, tokens = self._open.get(event.shard, (0, 0))
            self._open[event.shard] = (texts + event.texts, tokens + event.tokens)
        return self.progress()

    def _finish(self, notes: PartNotes) -> None:
        self._open.pop(notes.shard, None)
        self.texts += notes.texts
        self.tokens += notes.tokens
        self.errors += notes.errors

    def progress(self) -> CorpusProgress:
        """The state now."""
        texts = self.texts + sum(texts for texts, _ in self._open.values())
        return CorpusProgress(
            texts=min(self.total, self.resumed + texts),
            total=self.total,
            resumed=self.resumed,
            errors=self.errors,
            tokens=self.tokens + sum(tokens for _, tokens in self._open.values()),
            seconds=time.monotonic() - self.begin,
        )
