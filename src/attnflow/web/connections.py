"""How the server listens: uvicorn with h11, and a deadline for the headers of a request.

uvicorn waits for the rest of half-sent headers for ever. A visitor who opens many such connections
takes every file handle the process may have, and nobody else is answered. The body of a request
has its deadline in the guard.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from attnflow.web.requests import Limits

__all__ = ["DeadlineProtocol", "server_settings"]


class DeadlineProtocol(H11Protocol):
    """One connection; it is closed when the headers of a request are not there in time.

    The clock starts when a connection opens and when the first bytes of a later request come, and
    stops when the headers are read. Between requests uvicorn's own keep-alive limit holds.
    """

    seconds_to_send = Limits.seconds_to_send
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A visitor has come."""
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: of headers, until h11 has read them all."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._start_clock()
        else:
            self._stop_clock()

    def on_response_complete(self) -> None:
        """The next request may have come already; its first bytes are in h11's buffer."""
        super().on_response_complete()
        waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if waiting:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The visitor has gone."""
        self._stop_clock()
        super().connection_lost(exc)

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds_to_send, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_settings(app: Any, limits: Limits | None = None) -> uvicorn.Config:
    """What `uvicorn.Server` is started with."""
    seconds = (limits or Limits()).seconds_to_send
    protocol = type("Protocol", (DeadlineProtocol,), {"seconds_to_send": seconds})
    return uvicorn.Config(app, log_level="warning", http=protocol, ws="none", lifespan="on")
