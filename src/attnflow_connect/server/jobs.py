"""Work that takes a while, and its results.

One thread does the work in order, and everyone can see how far it is and stop it. One thread,
because the work fills the machine by itself and a model is not made for two at once. The queue is
short: whoever comes when it is full is told so at once, instead of waiting for ever. Results are
kept by id, to be linked and downloaded; the oldest are given up.
"""

from __future__ import annotations

import io
import json
import secrets
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from queue import Queue
from threading import Event, Lock, Thread
from typing import Any, Literal

from attnflow.errors import AttnflowError, AttributionWarning, InputError
from attnflow.errors.progress import Progress, listening
from attnflow.explainers.comparison import Comparison
from attnflow.show.page import page
from attnflow.show.view import View

State = Literal["waiting", "running", "done", "failed", "cancelled"]
_DRAWING = Lock()  # pyplot keeps a state of its own, for one thread at a time
_REMEMBERED = 512  # finished jobs that can still be asked about


class QueueFullError(Exception):
    """The queue is full; the message is for whoever came too late."""


class CancelledJobError(Exception):
    """Raised inside the work when its user no longer wants it."""


@dataclass(eq=False)
class Job:
    """One piece of work and where it stands. The job listens to the work, and so can stop it."""

    work: Callable[[], Any]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: State = "waiting"
    stage: str = "waiting"
    done: int = 0
    total: int = 0
    text: str = ""
    failure: AttnflowError | None = None
    result: Any = None
    _unwanted: Event = field(default_factory=Event)

    def hear(self, progress: Progress) -> None:
        """Note what is being done; raise CancelledJobError when the job is no longer wanted."""
        self.stage, self.done, self.total, text = progress
        self.text += text
        if self._unwanted.is_set():
            raise CancelledJobError

    def cancel(self) -> None:
        """Stop at the next word from the work; a job that still waits never starts."""
        self._unwanted.set()
        if self.state == "waiting":
            self.state = "cancelled"

    def run(self) -> None:
        """Do the work; whatever happens ends in a state and, if it failed, in a sentence."""
        if self._unwanted.is_set():
            self.state = "cancelled"
            return
        self.state = "running"
        try:
            with warnings.catch_warnings(), listening(self.hear):
                # The page shows a result's remarks beside it.
                warnings.simplefilter("ignore", AttributionWarning)
                self.result = self.work()
            self.state = "done"
        except CancelledJobError:
            self.state = "cancelled"
        except AttnflowError as error:
            self.failure, self.state = error, "failed"
        except Exception as error:  # the thread must live on for the next visitor
            sentence = f"This should not have happened ({type(error).__name__}: {error})."
            self.failure, self.state = AttnflowError(sentence), "failed"

    def outcome(self) -> Any:
        """Return the result of a job that has ended, or raise its error."""
        if self.state == "done":
            return self.result
        raise self.failure or AttnflowError("The request was stopped.")

    @property
    def error(self) -> str | None:
        """The sentence of what failed."""
        return None if self.failure is None else str(self.failure)

    def to_dict(self, ahead: int) -> dict[str, Any]:
        """Return plain values, for JSON; `ahead` is how many jobs come first."""
        names = ("id", "state", "stage", "done", "total", "text", "error", "result")
        return {**{name: getattr(self, name) for name in names}, "ahead": ahead}


class Jobs:
    """The queue, its thread, and the jobs that can be asked about."""

    def __init__(self, *, waiting: int) -> None:
        self.limit = waiting
        self._queue: Queue[Job | None] = Queue()
        self._known: OrderedDict[str, Job] = OrderedDict()
        self._lock = Lock()
        self._thread = Thread(target=self._work, name="attnflow-jobs", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any]) -> Job:
        """Put work into the queue, or raise QueueFullError."""
        job = Job(work)
        with self._lock:
            if len(self._waiting()) >= self.limit:
                raise QueueFullError(
                    f"{self.limit} requests are waiting already. Try again in a little while."
                )
            self._known[job.id] = job
            ended = [j for j in self._known.values() if j.state in ("done", "failed", "cancelled")]
            for old in ended[: max(0, len(self._known) - _REMEMBERED)]:
                del self._known[old.id]
        self._queue.put(job)
        return job

    def get(self, name: str) -> Job | None:
        """Return a job by its id, or None if there is none, or none any more."""
        return self._known.get(name)

    def forget(self, job: Job) -> None:
        """Stop a job that nobody will ask about any more, and keep nothing of it."""
        job.cancel()
        with self._lock:
            self._known.pop(job.id, None)

    @property
    def length(self) -> int:
        """How many jobs wait."""
        with self._lock:
            return len(self._waiting())

    def ahead_of(self, job: Job) -> int:
        """Return how many jobs come before this one."""
        with self._lock:
            waiting = self._waiting()
            running = any(other.state == "running" for other in self._known.values())
        return waiting.index(job) + running if job in waiting else 0

    def close(self) -> None:
        """Cancel everything and end the thread."""
        with self._lock:
            for job in self._known.values():
                job.cancel()
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()

    def _waiting(self) -> list[Job]:
        return [job for job in self._known.values() if job.state == "waiting"]


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
        """Draw one result: the whole completion, or one target by its index."""
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
        self._lasting: dict[str, StoredResult] = {}
        self._lock = Lock()

    def add(self, result: StoredResult) -> str:
        """Keep a result and give it an id that cannot be guessed."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._results[name] = result
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return name

    def keep(self, name: str, result: StoredResult) -> None:
        """Keep a result for good, under a name that everyone may know."""
        self._lasting[name] = result

    def get(self, name: str) -> StoredResult | None:
        """Return a result by its id; looking at it keeps it longer."""
        with self._lock:
            result = self._results.get(name)
            if result is not None:
                self._results.move_to_end(name)
        return result or self._lasting.get(name)


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
