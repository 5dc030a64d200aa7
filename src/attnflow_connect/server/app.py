"""The application behind the entrance: FastAPI, models from a fixed list, work in a queue.

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
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from attnflow.errors import AttnflowError, InputError
from attnflow_connect.doors.errors import error_response
from attnflow_connect.doors.routes import add_doors, tell_error
from attnflow_connect.doors.upstream import add_upstream
from attnflow_connect.server.entrance import file_headers
from attnflow_connect.server.jobs import Job, QueueFullError
from attnflow_connect.server.models import Access, Limits, OfferedModel
from attnflow_connect.server.requests import REQUESTS, BaseRequest
from attnflow_connect.server.service import Server

_FORMS = {"json": "application/json", "html": "text/html; charset=utf-8", "png": "image/png"}


def create_app(
    models: Sequence[OfferedModel], limits: Limits | None = None, access: Access | None = None
) -> FastAPI:
    """Return the application over these models; `entrance.guarded_app` may be put on a port."""
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
        _add_jobs(app, server)
        _add_results(app, server)
    if access.upstream is not None:
        add_upstream(app, server, access.upstream, access.token)
    else:
        add_doors(app, server)
    return app


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
        return Response(content, media_type=_FORMS[form], headers=file_headers(name, form))


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
