"""The entrance of the server: the page is given at once, everything else when its models are there.

torch and transformers take seconds to import. Nothing here needs them: the server listens, behind
the same guard as ever, while a thread makes the application. Its saved example is in the page
before that. Who asks for more waits, and is told so if it takes long; /health says how far it is.

GET /               the page
GET /assets/{name}  its scripts and styles
GET /health         {"state": "ready"}, or "starting" with the status 503
GET /metrics        numbers for Prometheus
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from attnflow.data import example
from attnflow.show.page import SCRIPTS, STYLES, VIEWER_FOLDER, render
from attnflow.show.view import View, view
from attnflow_connect.doors.errors import error_response
from attnflow_connect.server.guard import METRICS, Guard, Metrics, Observer, replaying
from attnflow_connect.server.models import DEFAULT, Access, Limits

EXAMPLE = "example"  # the result that the page opens on
_HEALTH = "/health"
_PAGE = Path(__file__).parent / "page"
_PAGE_SCRIPTS = ("form.js", "page.js", "photo.js")
_PAGE_STYLES = ("page.css", "photo.css")
_KINDS = {".js": "text/javascript", ".css": "text/css"}
_STARTING = "The models are still being loaded. Try again in a little while."
_ENDS = "The server ends."
_FAILED = "The models could not be loaded, and the server ends: where it was started it says why."


def guarded_app(
    loading: Future[Starlette],
    limits: Limits | None = None,
    access: Access | None = None,
    *,
    with_example: bool = False,
) -> ASGIApp:
    """Return what may be put on a port: the entrance to an application behind its guard, watched.

    with_example: True if the model of the saved example is among those that are loaded.
    """
    limits, access = limits or Limits(), access or Access()
    pages = {} if access.replica else _pages(with_example)
    entrance = _Entrance(loading, limits, pages)
    metrics = None
    if find_spec("prometheus_client") is not None and not access.replica:
        metrics = Metrics(lambda: entrance.waiting)

    def numbers() -> Response:
        if metrics is None:
            reason = "Ray has them" if access.replica else 'pip install "attnflow[serve]"'
            return error_response(METRICS, 404, f"Numbers for Prometheus: {reason}.")
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    entrance.add(METRICS, numbers)
    return Observer(Guard(entrance, limits, access.token), entrance.paths, metrics)


class _Entrance:
    """What is answered without the application, and who waits for it."""

    def __init__(
        self, loading: Future[Starlette], limits: Limits, pages: dict[str, Response]
    ) -> None:
        self._loading, self._limits, self._pages = loading, limits, pages
        self._own: dict[str, Callable[[], Response]] = {_HEALTH: self._health}
        self._early = 0  # who waits for the application
        self._ready: asyncio.Task[Starlette]
        self.paths = {"/", _HEALTH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the server's own start and stop."""
        if scope["type"] == "lifespan":
            await Router(lifespan=self._lifespan).lifespan(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    def add(self, path: str, answer: Callable[[], Response]) -> None:
        """Answer at an address, at any time."""
        self._own[path] = answer
        self.paths.add(path)

    @property
    def waiting(self) -> int:
        """How many wait for a model."""
        jobs = self._ready.result().state.server.jobs.length if self._is_ready else 0
        return int(self._early + jobs)

    @property
    def _is_ready(self) -> bool:
        task = self._ready
        return task.done() and not task.cancelled() and task.exception() is None

    def _health(self) -> Response:
        if self._is_ready:
            return JSONResponse({"state": "ready"})
        return JSONResponse({"state": "starting"}, 503, {"retry-after": "1"})

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as living:
            self._ready = asyncio.create_task(self._enter(living))
            # What went wrong is told by whoever loads; asyncio would tell it, too.
            self._ready.add_done_callback(lambda task: task.cancelled() or task.exception())
            if self._loading.done():
                await asyncio.wait({self._ready})
            yield
            self._ready.cancel()

    async def _enter(self, living: AsyncExitStack) -> Starlette:
        """Start the application once it is there; it ends when the server does."""
        app = await asyncio.wrap_future(self._loading)
        await living.enter_async_context(app.router.lifespan_context(app))
        self.paths |= {route.path for route in app.routes if isinstance(route, Route)}
        return app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, answer = scope["path"], None
        if scope.get("method") == "GET":
            own = self._own.get(path)
            answer = own() if own is not None else self._pages.get(path)
        if answer is not None:
            await answer(scope, receive, send)
        elif self._is_ready:
            await self._ready.result()(scope, receive, send)
        elif self._early >= self._limits.waiting:
            await error_response(path, 503, _STARTING)(scope, receive, send)
        else:
            self._early += 1
            try:
                await self._wait(scope, receive, send)
            finally:
                self._early -= 1

    async def _wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when the application is there, unless the caller goes or it takes too long."""
        body = (await receive())["body"]  # the guard has read it
        departure = asyncio.create_task(_leave(receive))
        seconds = self._limits.seconds_to_load
        await asyncio.wait({self._ready, departure}, timeout=seconds, return_when="FIRST_COMPLETED")
        if departure.done():
            return
        departure.cancel()
        answer: ASGIApp = error_response(scope["path"], 503, _STARTING)
        if self._is_ready:
            answer = self._ready.result()
        elif self._ready.done():
            status, sentence = (503, _ENDS) if self._ready.cancelled() else (500, _FAILED)
            answer = error_response(scope["path"], status, sentence)
        await answer(scope, replaying(body, receive), send)


async def _leave(receive: Receive) -> None:
    """Return when the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EarlyServer(uvicorn.Server):
    """A server that makes its application in a thread, once it listens."""

    def __init__(
        self,
        settings: uvicorn.Config,
        loading: Future[Starlette],
        build: Callable[[], Starlette],
    ) -> None:
        super().__init__(settings)
        self._loading, self._build = loading, build
        # A daemon: an import cannot be stopped, and Ctrl-C must not wait for it.
        self._thread = Thread(target=self._load, name="attnflow-loading", daemon=True)

    @property
    def is_loading(self) -> bool:
        """True while the thread works."""
        return self._thread.is_alive()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and begin to load."""
        await super().startup(sockets)
        self._thread.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody wait any longer for an application that does not come, and end."""
        self._loading.cancel()
        await super().shutdown(sockets)

    def _load(self) -> None:
        with suppress(InvalidStateError):  # the server has ended meanwhile
            try:
                app = self._build()
            except BaseException as error:  # who started the server raises it again
                self._loading.set_exception(error)
                self.should_exit = True
            else:
                self._loading.set_result(app)


# -- what needs no model --------------------------------------------------------------------------


def _pages(with_example: bool) -> dict[str, Response]:
    """Return every file of the page; no path is ever made from what a visitor sends."""
    styles, scripts = (*STYLES, *_PAGE_STYLES), (*SCRIPTS, *_PAGE_SCRIPTS)
    files = {name: VIEWER_FOLDER / name for name in (*STYLES, *SCRIPTS)}
    files |= {name: _PAGE / name for name in (*_PAGE_STYLES, *_PAGE_SCRIPTS)}
    pages: dict[str, Response] = {
        f"/assets/{name}": Response(path.read_bytes(), media_type=_KINDS[path.suffix])
        for name, path in files.items()
    }
    values = {"styles": styles, "scripts": scripts, "example": EXAMPLE if with_example else ""}
    pages["/"] = HTMLResponse(render(_PAGE / "index.html.j2", **values))
    pages["/favicon.ico"] = Response(status_code=204)
    if with_example:
        headers = file_headers(EXAMPLE, "json")
        pages[f"/api/results/{EXAMPLE}.json"] = JSONResponse(example_view(), headers=headers)
    return pages


def file_headers(name: str, form: str) -> dict[str, str]:
    """Return what makes a result a file: a report has a policy of its own, the page another."""
    return {"content-disposition": f'attachment; filename="attnflow-{name}.{form}"'}


def example_documents() -> list[dict[str, str]]:
    """Return the documents of the example, as a request has them."""
    return [{"name": name, "text": text} for name, text in example.DOCUMENTS.items()]


def example_view() -> View:
    """Return the answer that was saved with the package, as if it had been asked for here."""
    request = {
        "task": "ask",
        "model": example.MODEL,
        "methods": [DEFAULT],
        "question": example.QUESTION,
        "documents": example_documents(),
        "tokens": example.MAX_NEW_TOKENS,
        "chat": None,
        "confirm": False,
    }
    return {**view((example.example_result(),), title=example.QUESTION), "request": request}
