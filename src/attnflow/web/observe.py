"""The operator's view of a server: a line for each request, and numbers for Prometheus.

Neither holds a word of a document, a question or an answer: addresses that are not the server's own
are called "other".
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attnflow.errors import optional_import
from attnflow.web.doors.errors import is_door

LOG = logging.getLogger("attnflow.serve")
METRICS = "/metrics"
_SECONDS = (0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300)


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
            "attnflow_request_seconds", "Seconds until the end", ("path",), buckets=_SECONDS, **own
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
        path = scope["path"] if scope["path"] in self._paths else "other"

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
            # The page asks often how far its work is: its requests are no news.
            level = logging.INFO if is_door(path) else logging.DEBUG
            LOG.log(level, "%s %s %s %d %.3fs", name, scope["method"], path, status, seconds)
            if self._metrics is not None:
                self._metrics.note(path, status, seconds)
