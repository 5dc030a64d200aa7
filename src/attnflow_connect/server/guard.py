"""The guard before every request: who may call, how much may be sent, how long it may take.

uvicorn waits for the rest of half-sent headers for ever. A visitor who opens many such connections
takes every file handle the process may have, and nobody else is answered: `DeadlineProtocol` gives
up. It gives up, too, on one who does not read the answer. The body of a request has its deadline in
the `Guard`.

An operator sees a line for each request, and numbers for Prometheus. Neither holds a word of a
document, a question or an answer: addresses that are not the server's own are called "other".
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import struct
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from attnflow.errors import optional_import
from attnflow_connect.doors.errors import error_response, is_door
from attnflow_connect.server.models import Limits

# Not Starlette's TrustedHostMiddleware. Which names it lets pass depends on its version: older
# releases, which we allow, cut the header at the first colon, so that `[::1]:8765` is the host `[`
# and `127.0.0.1:80@evil.com` the host 127.0.0.1. It refuses in plain text with 400, where this
# server answers in JSON with 421. A pattern for the header is shorter than working round both.
_LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_IMAGES = ("/api/image", "/api/image-question")
_SECONDS_TO_END = 30
LOG = logging.getLogger("attnflow.serve")
METRICS = "/metrics"
_BUCKETS = (0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ONCE = ("host", "origin", "content-type", "content-length")  # two of them may mean two things
_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Wraps the application: refuses other hosts' names and origins, large, slow and foreign
    bodies, and adds the security headers to every answer.

    The host's name is checked because a page from elsewhere can point its own name at 127.0.0.1;
    the origin, because a form elsewhere can send here. With a token the caller is known by it, and
    the server may listen anywhere.
    """

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None = None) -> None:
        self._app = app
        self._limits = limits
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the server's own start and stop."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            headers = Headers(scope=scope)
            _check_caller(headers, anywhere=self._token is not None)
            if self._token is not None:
                _check_token(headers, self._token)
            body = await self._body(scope, headers, receive)
        except _RefusedError as refused:
            # What is left of the body is not read: the connection closes.
            closing = {"connection": "close"}
            answer = error_response(scope["path"], refused.status, str(refused), closing)
            await answer(scope, receive, guarded)
            return
        await self._app(scope, replaying(body, receive), guarded)

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        method = scope["method"]
        if method in ("GET", "HEAD"):
            return b""
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            raise _RefusedError(415, "Send JSON, with the content type application/json.")
        # An image has more bytes than a text, documents have more than a question.
        most = self._limits.image_bytes if scope["path"] in _IMAGES else self._limits.body_bytes
        if is_door(scope["path"]):
            most = self._limits.prompt_bytes
        announced = headers.get("content-length", "0")
        try:
            reading = _read(announced, receive, most)
            return await asyncio.wait_for(reading, self._limits.seconds_to_send)
        except TimeoutError:
            raise _RefusedError(408, "The request did not arrive in time.") from None


async def _read(announced: str, receive: Receive, most: int) -> bytes:
    too_large = _RefusedError(413, f"The request is larger than {most // 1024} KB. Send less.")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "The request ended early.")
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large
        if not message.get("more_body", False):
            return body


def _check_token(headers: Headers, token: str) -> None:
    """Refuse whoever does not show the token, as any of the APIs' clients would."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
    for key in (headers.get("x-attnflow-token", ""), bearer, headers.get("x-api-key", "")):
        if secrets.compare_digest(key.encode(), token.encode()):
            return
    raise _RefusedError(401, "Show the server's token: the header Authorization: Bearer TOKEN.")


def _check_caller(headers: Headers, *, anywhere: bool = False) -> None:
    for name in _ONCE:
        if len(headers.getlist(name)) > 1:
            raise _RefusedError(400, f"The header {name!r} was sent twice.")
    host = headers.get("host", "")
    if not anywhere and not _LOCAL.fullmatch(host):
        raise _RefusedError(421, "This server answers on 127.0.0.1 and localhost only.")
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        raise _RefusedError(403, "Requests from other pages are refused.")


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message.get("headers", [])}
            added = [pair for pair in _HEADERS.items() if pair[0] not in present]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return guarded


def replaying(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and then what comes after it."""
    handed_over = False

    async def again() -> Message:
        nonlocal handed_over
        if handed_over:
            return await receive()  # the next thing to come is that the caller has gone
        handed_over = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class DeadlineProtocol(H11Protocol):
    """One connection; it is closed when the headers of a request are not there in time, and when
    a visitor who is sent more than the buffers hold reads nothing.

    The clock starts when a connection opens and when the first bytes of a later request come, and
    stops when the headers are read. Between requests uvicorn's own keep-alive limit holds.
    """

    limits = Limits()
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a visitor has come."""
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Take bytes: of headers, until h11 has read them all."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._start_clock()
        else:
            self._stop_clock()

    def on_response_complete(self) -> None:
        """Start the clock if the next request's first bytes are in h11's buffer already."""
        super().on_response_complete()
        waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if waiting:
            self._start_clock()

    def pause_writing(self) -> None:
        """Start a clock of its own: the buffers are full, and what else is sent does not count."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.seconds_to_read, self._give_up)

    def resume_writing(self) -> None:
        """Stop that clock: the visitor reads."""
        self._stop_unread()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks: the visitor has gone."""
        self._stop_clock()
        self._stop_unread()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        """Hang up at once: the system would keep for minutes what the visitor does not read."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _start_clock(self) -> None:
        if self._deadline is None:
            seconds = self.limits.seconds_to_send
            self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_settings(app: Any, limits: Limits | None = None) -> uvicorn.Config:
    """Return what `uvicorn.Server` is started with."""
    protocol = type("Protocol", (DeadlineProtocol,), {"limits": limits or Limits()})
    # A stop waits for the answers under way, and then for nobody.
    return uvicorn.Config(
        app,
        log_level="warning",
        http=protocol,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=_SECONDS_TO_END,
    )


# -- what an operator sees ------------------------------------------------------------------------


def log_requests() -> None:
    """Have a line written for each request of the doors."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    LOG.setLevel(logging.INFO)


class Metrics:
    """Counts and times of requests, as Prometheus reads them."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        library: Any = optional_import("prometheus_client", extra="serve", purpose=METRICS)
        self._library, self._registry = library, library.CollectorRegistry()
        own = {"registry": self._registry}
        self._count = library.Counter(
            "attnflow_requests", "Requests by address and status", ("path", "status"), **own
        )
        self._seconds = library.Histogram(
            "attnflow_request_seconds", "Seconds until the end", ("path",), buckets=_BUCKETS, **own
        )
        gauge = library.Gauge("attnflow_waiting", "Requests that wait for the model", **own)
        gauge.set_function(waiting)

    def note(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._count.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return all of it."""
        return bytes(self._library.generate_latest(self._registry))


class Observer:
    """Wraps the application: gives each request an id, and notes how it ended."""

    def __init__(self, app: ASGIApp, paths: Collection[str], metrics: Metrics | None) -> None:
        self._app, self._paths, self._metrics = app, paths, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the server's own start and stop."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name, start, status = f"req_{secrets.token_hex(8)}", perf_counter(), 499  # the client left

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                header = [(key, name.encode()) for key in (b"x-request-id", b"request-id")]
                message = {**message, "headers": [*message.get("headers", []), *header]}
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            seconds = perf_counter() - start
            # Now, not before: the application's addresses may have become known meanwhile.
            path = scope["path"] if scope["path"] in self._paths else "other"
            # The page asks often how far its work is: its requests are no news.
            level = logging.INFO if is_door(path) else logging.DEBUG
            LOG.log(level, "%s %s %s %d %.3fs", name, scope["method"], path, status, seconds)
            if self._metrics is not None:
                self._metrics.note(path, status, seconds)
