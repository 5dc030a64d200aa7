"""What stands before every request: who may call, how much may be sent, what a page may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from attnflow.web.requests import Limits

__all__ = ["Guard"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_LOCAL = {"127.0.0.1", "localhost", "::1"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Wraps the application: refuses other hosts' names and origins, large, slow and foreign
    bodies, and adds the security headers to every answer.

    The host's name is checked because a page from elsewhere can point its own name at 127.0.0.1;
    the origin, because a form elsewhere can send here.
    """

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, or the server's own start and stop."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            _check_caller(headers)
            body = await self._body(scope["method"], headers, receive)
        except _RefusedError as refused:
            await _refuse(guarded, refused)
            return
        await self._app(scope, _replaying(body, receive), guarded)

    async def _body(self, method: str, headers: dict[str, str], receive: Receive) -> bytes:
        if method in ("GET", "HEAD"):
            return b""
        if method == "POST" and headers.get("content-type", "").split(";")[0] != "application/json":
            raise _RefusedError(415, "Send JSON, with the content type application/json.")
        try:
            return await asyncio.wait_for(
                self._read(headers, receive), self._limits.seconds_to_send
            )
        except TimeoutError:
            raise _RefusedError(408, "The request did not arrive in time.") from None

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes:
        most = self._limits.body_bytes
        announced = headers.get("content-length", "0")
        too_large = _RefusedError(
            413, f"The request is larger than {most // 1024} KB. Shorten the text."
        )
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


def _check_caller(headers: dict[str, str]) -> None:
    host = headers.get("host", "")
    if urlsplit(f"//{host}").hostname not in _LOCAL:
        raise _RefusedError(421, "This server answers on 127.0.0.1 and localhost only.")
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        raise _RefusedError(403, "Requests from other pages are refused.")


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message.get("headers", [])}
            added = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in own]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return guarded


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()  # the next thing to come is that the caller has gone
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, refused: _RefusedError) -> None:
    body = json.dumps({"error": str(refused)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # what is left of the body is not read
    ]
    start = {"type": "http.response.start", "status": refused.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
