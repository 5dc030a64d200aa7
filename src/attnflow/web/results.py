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

from attnflow.errors import InputError
from attnflow.explainers.comparison import Comparison
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
        results = self.comparison.results
        if not 0 <= result < len(results):
            raise InputError(f"There are results 0 to {len(results) - 1}; got {result}.")
        attribution = results[result]
        index = self.document["start"] if target is None else target
        if not 0 <= index < len(attribution.targets):
            raise InputError(f"There are targets 0 to {len(attribution.targets) - 1}; got {index}.")
        position = attribution.targets.positions[index]
        with _DRAWING:
            return _draw(attribution, position, self.generated)


class Results:
    """The results that are still kept, by id."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._results: OrderedDict[str, StoredResult] = OrderedDict()
        self._lock = Lock()

    def add(self, result: StoredResult) -> str:
        """Keep a result and give it an id that cannot be guessed."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._results[name] = result
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return name

    def get(self, name: str) -> StoredResult | None:
        """A result by its id; looking at it keeps it longer."""
        with self._lock:
            result = self._results.get(name)
            if result is not None:
                self._results.move_to_end(name)
        return result


def _draw(result: Any, position: int, generated: bool) -> bytes:
    from attnflow.show import plots
    from attnflow.show.plots.canvas import pyplot

    figure: Any
    if result.sources.grid is not None and result.provenance.get("images"):
        figure = plots.image_overlay(result, target=position).get_figure(root=True)
    elif result.sources.images:
        figure = plots.image_words_figure(result)
    elif generated:
        figure = plots.completion_figure(result, position)
    else:
        figure = result.plot(target=position).get_figure(root=True)
    image = io.BytesIO()
    try:
        figure.savefig(image, format="png", dpi=160)
    finally:
        pyplot().close(figure)
    return image.getvalue()
