"""The served page: FastAPI on 127.0.0.1, models from a fixed list, work in a queue.

GET    /                          the page
GET    /assets/{name}             its scripts and styles
GET    /api/models                what is offered, and the limits
POST   /api/explain, /api/generate, /api/chat, /api/ask, /api/image, /api/image-question
                                  a job: {"id", "state", ...}, or {"error": sentence}
GET    /api/jobs/{id}             how far it is, what was written so far, the id of the result
DELETE /api/jobs/{id}             stop it
GET    /api/results/{id}.json, .html, .png
POST   /v1/chat/completions, /v1/responses, /v1/messages, /v2/chat, GET /v1/models
                                  for clients of these APIs: answers with citations (doors/)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from attnflow.errors import AttnflowError, InputError
from attnflow.show.page import SCRIPTS, STYLES, VIEWER_FOLDER, render
from attnflow_connect.doors.errors import error_response
from attnflow_connect.doors.routes import add_doors, tell_error
from attnflow_connect.doors.upstream import add_upstream
from attnflow_connect.server.guard import METRICS, Guard, Metrics, Observer
from attnflow_connect.server.jobs import Job, QueueFullError
from attnflow_connect.server.models import Access, Limits, OfferedModel
from attnflow_connect.server.requests import REQUESTS, BaseRequest
from attnflow_connect.server.service import Server

_PAGE = Path(__file__).parent / "page"
_PAGE_SCRIPTS = ("form.js", "page.js", "photo.js")
_PAGE_STYLES = ("page.css", "photo.css")
_KINDS = {".js": "text/javascript", ".css": "text/css"}
_FORMS = {"json": "application/json", "html": "text/html; charset=utf-8", "png": "image/png"}


def create_app(
    models: Sequence[OfferedModel], limits: Limits | None = None, access: Access | None = None
) -> FastAPI:
    """Return the application over these models; `guarded_app` is what may be put on a port."""
    server = Server(models, limits or Limits())
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.jobs.close()

    # No generated documentation pages: they load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = server
    app.add_exception_handler(AttnflowError, tell_error)
    app.add_exception_handler(QueueFullError, tell_error)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_exception_handler(404, _missing)
    app.add_exception_handler(405, _missing)
    if not access.replica:
        _add_pages(app)
        _add_jobs(app, server)
        _add_results(app, server)
    if access.upstream is not None:
        add_upstream(app, server, access.upstream, access.token)
    else:
        add_doors(app, server)
    return app


def guarded_app(
    models: Sequence[OfferedModel], limits: Limits | None = None, access: Access | None = None
) -> ASGIApp:
    """Return the application behind its guard, watched."""
    access = access or Access()
    app = create_app(models, limits, access)
    server: Server = app.state.server
    metrics = None
    if find_spec("prometheus_client") is not None and not access.replica:
        metrics = Metrics(lambda: server.jobs.length)

    @app.get(METRICS)
    async def numbers() -> Response:
        if metrics is None:
            reason = "Ray has them" if access.replica else 'pip install "attnflow[serve]"'
            return _error(404, f"Numbers for Prometheus: {reason}.")
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return Observer(Guard(app, server.limits, access.token), paths, metrics)


def _add_pages(app: FastAPI) -> None:
    # Every file that may be fetched, read once: no path is ever made from what a visitor sends.
    styles, scripts = (*STYLES, *_PAGE_STYLES), (*SCRIPTS, *_PAGE_SCRIPTS)
    files = {name: VIEWER_FOLDER / name for name in (*STYLES, *SCRIPTS)}
    files |= {name: _PAGE / name for name in (*_PAGE_STYLES, *_PAGE_SCRIPTS)}
    assets = {name: path.read_bytes() for name, path in files.items()}
    index = render(_PAGE / "index.html.j2", styles=styles, scripts=scripts).encode("utf-8")

    @app.get("/")
    async def start_page() -> Response:
        return HTMLResponse(index)

    @app.get("/favicon.ico")
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/assets/{name}")
    async def asset(name: str) -> Response:
        if name not in assets:
            return _error(404, f"There is no file {name[:60]!r}.")
        return Response(assets[name], media_type=_KINDS[Path(name).suffix])


def _add_jobs(app: FastAPI, server: Server) -> None:
    @app.get("/api/models")
    async def offers() -> Any:
        return server.offers()

    for kind in REQUESTS:
        app.post(f"/api/{kind.task}")(partial(_submit, server, kind))

    @app.get("/api/jobs/{name}")
    async def job_by_name(name: str) -> Response:
        return _job_answer(server, server.jobs.get(name))

    @app.delete("/api/jobs/{name}")
    async def cancel(name: str) -> Response:
        job = server.jobs.get(name)
        if job is not None:
            job.cancel()
        return _job_answer(server, job)


def _add_results(app: FastAPI, server: Server) -> None:
    @app.get("/api/results/{name}.{form}")
    async def result(name: str, form: str, request: Request) -> Response:
        stored = server.results.get(name)
        if form not in _FORMS:
            return _error(404, f"A result comes as {', '.join(_FORMS)}.")
        if stored is None:
            return _error(404, "This result is not kept any more. Ask again to make it anew.")
        if form == "png":
            index, target = _number(request, "result"), _number(request, "target")
            content = await run_in_threadpool(lambda: stored.png(index or 0, target))
        else:
            content = await run_in_threadpool(lambda: getattr(stored, form))
        # As a file, always: a report has a policy of its own and is not part of this page.
        headers = {"content-disposition": f'attachment; filename="attnflow-{name}.{form}"'}
        return Response(content, media_type=_FORMS[form], headers=headers)


async def _submit(server: Server, kind: type[BaseRequest], request: Request) -> Response:
    return _job_answer(server, server.submit(kind, await request.body()), 202)


def _number(request: Request, key: str) -> int | None:
    text = request.query_params.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise InputError(f"{key!r} is a whole number; got {text[:60]!r}.")
    return int(text)


def _job_answer(server: Server, job: Job | None, status: int = 200) -> Response:
    if job is None:
        return _error(404, "There is no such job, or it ended long ago.")
    return JSONResponse(job.to_dict(server.jobs.ahead_of(job)), status_code=status)


def _error(status: int, sentence: str) -> Response:
    return error_response("/api/", status, sentence)


async def _unforeseen(request: Request, error: Exception) -> Response:
    sentence = f"This should not have happened ({type(error).__name__})."
    return error_response(request.url.path, 500, sentence)


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return error_response(request.url.path, status, "There is nothing at this address.")
