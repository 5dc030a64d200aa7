"""The progress of long work, told to whoever listens around it.

No function takes a callback. Work calls `tell`; whoever wants to know puts `listening` around the
call. The listener belongs to the context (a ContextVar), so two threads do not hear each other, and
a thread that does work of its own has to listen itself. A listener that raises ends the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import NamedTuple

__all__ = ["Progress", "ProgressCallback", "is_heard", "listening", "patiently", "relaying", "tell"]


class Progress(NamedTuple):
    """The step `done` of `total` in a stage, such as "flow" with 120 of 4,096 pairs.

    `text` is the piece that a model has just written, where it writes.

    >>> Progress("flow", done=120, total=4096).stage
    'flow'
    """

    stage: str
    done: int
    total: int
    text: str = ""


ProgressCallback = Callable[[Progress], None]
_LISTENER: ContextVar[ProgressCallback | None] = ContextVar("attnflow_listener", default=None)

_PATIENCE = 2.0  # seconds a short work may take before it is told of


@contextmanager
def listening(callback: ProgressCallback | None) -> Iterator[None]:
    """Call `callback` with every `Progress` of the work inside; None hears nothing.

    >>> with listening(print):
    ...     tell("flow", 1, 2)
    Progress(stage='flow', done=1, total=2, text='')
    """
    token = _LISTENER.set(callback)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def relaying(change: Callable[[Progress], Progress | None]) -> Iterator[None]:
    """Pass the progress of the work inside on to the listener around it, changed or (None) not.

    >>> with listening(print), relaying(lambda step: step._replace(stage="first half")):
    ...     tell("flow", 1, 2)
    Progress(stage='first half', done=1, total=2, text='')
    """
    outer = _LISTENER.get()

    def relay(step: Progress) -> None:
        changed = change(step)
        if outer is not None and changed is not None:
            outer(changed)

    with listening(relay if outer is not None else None):
        yield


@contextmanager
def patiently() -> Iterator[None]:
    """Pass the progress of the work inside on only once it has taken longer than two seconds.

    >>> with listening(print), patiently():
    ...     tell("flow", 1, 2)
    """
    start = perf_counter()
    with relaying(lambda step: step if perf_counter() - start > _PATIENCE else None):
        yield


def is_heard() -> bool:
    """Return true if someone listens.

    >>> with listening(print):
    ...     is_heard()
    True
    """
    return _LISTENER.get() is not None


def tell(stage: str, done: int, total: int, text: str = "") -> None:
    """Tell the listener, if there is one, how far the work is and what was written.

    >>> with listening(lambda step: print(step.text, end="")):
    ...     tell("writing", 1, 2, "Paris")
    Paris
    """
    callback = _LISTENER.get()
    if callback is not None:
        callback(Progress(stage, done, total, text))
