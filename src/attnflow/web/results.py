"""Finished results: kept by id so that they can be linked and downloaded, the oldest given up."""

from __future__ import annotations

import io
import json
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from attnflow.compare import Comparison
from attnflow.errors import InputError
from attnflow.show.page import page
from attnflow.show.view import View

__all__ = ["StoredResult", "Results"]

_DRAWING = Lock()  # pyplot keeps a state of its own, for one thread at a time


@dataclass(frozen=True, eq=False)
class StoredResult:
    """One finished piece of work, in the forms it can be downloaded in."""

    comparison: Comparison
    document: View
    generated: bool

    @cached_property
    def json(self) -> bytes:
        """The view document."""
        return json.dumps(self.document, ensure_ascii=True, allow_nan=False).encode("ascii")

    @cached_property
    def html(self) -> bytes:
        """The self-contained page."""
        return page(self.document).encode("utf-8")

    def png(self, result: int = 0, target: int | None = None) -> bytes:
        """A figure of one result: of the whole completion, or of one target by its index."""
        shown = self.comparison.results
        if not 0 <= result < len(shown):
            raise InputError(f"There are results 0 to {len(shown) - 1}; got {result}.")
        chosen = shown[result]
        index = self.document["start"] if target is None else target
        if not 0 <= index < len(chosen.targets):
            raise InputError(f"There are targets 0 to {len(chosen.targets) - 1}; got {index}.")
        position = chosen.targets.positions[index]
        with _DRAWING:
            return _drawn(chosen, position, self.generated)


class Results:
    """The results that are still kept, by id."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, StoredResult] = OrderedDict()
        self._lock = Lock()

    def add(self, kept: StoredResult) -> str:
        """Keep a result and give it an id that cannot be guessed."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._kept[name] = kept
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> StoredResult | None:
        """A result by its id; looking at it keeps it longer."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
        return kept


def _drawn(result: Any, position: int, generated: bool) -> bytes:
    from attnflow.show import plots
    from attnflow.show.plots.canvas import pyplot

    if generated:
        figure = plots.completion_figure(result, position)
    else:
        figure = result.plot(target=position).get_figure(root=True)
    image = io.BytesIO()
    try:
        figure.savefig(image, format="png", dpi=160)
    finally:
        pyplot().close(figure)
    return image.getvalue()
