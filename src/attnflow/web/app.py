"""The served page: FastAPI on 127.0.0.1, models from a fixed list, work in a queue.

GET    /                          the page
GET    /assets/{name}             its scripts and styles
GET    /api/models                what is offered, and the limits
POST   /api/explain, /api/generate, /api/chat, /api/ask, /api/image, /api/image-question
                                  a job: {"id", "state", ...}, or {"error": sentence}
GET    /api/jobs/{id}             how far it is, what was written so far, the id of the result
DELETE /api/jobs/{id}             stop it
GET    /api/results/{id}.json, .html, .png
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response

from attnflow.attribution.words import method_in_words
from attnflow.errors import AttnflowError, InputError, TokensError
from attnflow.errors.progress import tell
from attnflow.explainers.comparison import Comparison, answered, compare, continued
from attnflow.methods import METHODS, Flow, Method, make_method
from attnflow.show.page import SCRIPTS, STYLES, VIEWER_FOLDER
from attnflow.show.view import View
from attnflow.web.guard import Guard
from attnflow.web.images import (
    ImageQuestionRequest,
    ImageRequest,
    answer_about_image,
    explain_image,
)
from attnflow.web.jobs import Job, Jobs, QueueFullError
from attnflow.web.models import OfferedModel
from attnflow.web.requests import (
    EXPLANATION_METHODS,
    GENERATION_METHODS,
    AskRequest,
    BaseRequest,
    ChatRequest,
    ExplainRequest,
    GenerateRequest,
    Limits,
    read_request,
)
from attnflow.web.results import Results, StoredResult

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

__all__ = ["Guard", "Server", "create_app", "guarded_app"]

_FOLDER = Path(__file__).parent
_PAGE_SCRIPTS = ("form.js", "page.js", "photo.js")
_PAGE_STYLES = ("page.css", "photo.css")
_KINDS = {".js": "text/javascript", ".css": "text/css"}
_FORMS = {"json": "application/json", "html": "text/html; charset=utf-8", "png": "image/png"}


class Server:
    """The models, the queue and the results behind one server."""

    def __init__(self, models: Sequence[OfferedModel], limits: Limits) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self.jobs = Jobs(waiting=limits.waiting)
        self.results = Results(most=limits.results)

    def explain(self, body: bytes) -> Job:
        """Check a request for an explanation and put it into the queue."""
        request = read_request(body, ExplainRequest, self.models, self.limits)
        return self.jobs.submit(lambda: self._explain(request))

    def generate(self, body: bytes) -> Job:
        """Check a request for a completion and put it into the queue."""
        request = read_request(body, GenerateRequest, self.models, self.limits)
        return self.jobs.submit(lambda: self._generate(request))

    def chat(self, body: bytes) -> Job:
        """Check a conversation and put it into the queue."""
        request = read_request(body, ChatRequest, self.models, self.limits)
        return self.jobs.submit(lambda: self._chat(request))

    def ask(self, body: bytes) -> Job:
        """Check a question over documents and put it into the queue."""
        request = read_request(body, AskRequest, self.models, self.limits)
        return self.jobs.submit(lambda: self._ask(request))

    def explain_image(self, body: bytes) -> Job:
        """Check a request about an image and put it into the queue."""
        request = read_request(body, ImageRequest, self.models, self.limits)
        request.content()  # what is no base64 is told at once
        return self.jobs.submit(lambda: self._explain_image(request))

    def _explain_image(self, request: ImageRequest) -> str:
        tell("loading the model", 0, 0)
        comparison = explain_image(request, self.models[request.model].loaded)
        document = comparison.view(title=request.name)
        document["request"] = request.without_image()
        return self.results.add(StoredResult(comparison, document, generated=False))

    def ask_about_image(self, body: bytes) -> Job:
        """Check a question about an image and put it into the queue."""
        request = read_request(body, ImageQuestionRequest, self.models, self.limits)
        request.content()
        return self.jobs.submit(lambda: self._ask_about_image(request))

    def _ask_about_image(self, request: ImageQuestionRequest) -> str:
        loaded = self._load(request.model, request.question, request.make_methods())
        comparison = answer_about_image(request, loaded)
        document = comparison.view(title=shorten_title(request.question.strip()))
        document["request"] = request.without_image()
        return self.results.add(StoredResult(comparison, document, generated=True))

    def _explain(self, request: ExplainRequest) -> str:
        methods = request.make_methods()
        loaded = self._load(request.model, request.text, methods)
        comparison = compare(
            loaded,
            request.text,
            methods or None,
            careful=request.careful,
            confirm=request.confirm,
        )
        return self._store(comparison, comparison.view(), request, generated=False)

    def _generate(self, request: GenerateRequest) -> str:
        loaded = self._load(request.model, request.prompt, request.make_methods())
        comparison = self._continue(loaded, request.prompt, request, chat=request.chat)
        title = shorten_title(f"{request.prompt.strip()} …")
        return self._store(comparison, comparison.view(title=title), request, generated=True)

    def _chat(self, request: ChatRequest) -> str:
        turns = request.turns()
        text = "\n".join(turn["content"] for turn in turns)
        loaded = self._load(request.model, text, request.make_methods())
        comparison = self._continue(loaded, turns, request)
        title = shorten_title(turns[-1]["content"].strip())
        return self._store(comparison, comparison.view(title=title), request, generated=True)

    def _continue(
        self,
        loaded: Model,
        prompt: Any,
        request: GenerateRequest | ChatRequest,
        *,
        chat: bool = False,
    ) -> Comparison:
        return continued(
            loaded,
            prompt,
            request.make_methods(),
            max_new_tokens=request.tokens,
            chat=chat,
            careful=request.careful,
            confirm=request.confirm,
        )

    def _ask(self, request: AskRequest) -> str:
        texts = "\n\n".join(text for _, text in request.named())
        prompt = f"{texts}\n\n{request.question}"
        methods = request.make_methods()
        loaded = self._load(request.model, prompt, methods, most=self.limits.ask_tokens)
        answer, comparison = answered(
            loaded,
            request.question,
            request.named(),
            methods,
            max_new_tokens=request.tokens,
            chat=request.chat,
            careful=request.careful,
            confirm=request.confirm,
        )
        document = comparison.view(title=request.question)
        document["lines"] = answer.lines
        return self._store(comparison, document, request, generated=True)

    def _store(
        self, comparison: Comparison, document: View, request: BaseRequest, *, generated: bool
    ) -> str:
        """Keep a result with what was asked, so that its link fills the form again."""
        document["request"] = {"task": request.task, **request.model_dump()}
        light = Comparison(comparison.results, comparison.graph)  # not the weights of every head
        return self.results.add(StoredResult(light, document, generated=generated))

    def _load(
        self,
        name: str,
        text: str,
        methods: Sequence[Method | None],
        most: int | None = None,
    ) -> Model:
        tell("loading the model", 0, 0)
        loaded = self.models[name].loaded
        flows = any(isinstance(method, Flow) for method in methods)
        self._check_length(loaded, text, flows, most or self.limits.tokens)
        return loaded

    def _check_length(self, loaded: Model, text: str, flows: bool, limit: int) -> None:
        """In tokens, where the tokenizer can be asked; the embedded model checks for itself."""
        if not callable(loaded.tokenizer):
            return
        count = len(loaded.tokenizer(text)["input_ids"])
        most = min(limit, self.limits.flow_tokens) if flows else limit
        if count > most:
            for_flow = " for flow" if most < limit else ""
            raise TokensError(
                f"The text has {count} tokens; this server takes up to {most}{for_flow}. Shorten "
                "it, or use attnflow in Python or on the command line, which have no such limit."
            )


def shorten_title(text: str) -> str:
    """A heading of at most 90 characters.

    >>> shorten_title("a short one")
    'a short one'
    """
    return text if len(text) <= 90 else f"{text[:88]}…"


def create_app(models: Sequence[OfferedModel], limits: Limits | None = None) -> FastAPI:
    """The application over these models; `guarded_app` is what may be put on a port."""
    server = Server(models, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.jobs.close()

    # No generated documentation pages: they load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = server
    app.add_exception_handler(AttnflowError, _sentence)
    app.add_exception_handler(QueueFullError, partial(_busy, server))
    app.add_exception_handler(404, _missing)
    app.add_exception_handler(405, _missing)
    _add_pages(app)
    _add_jobs(app, server)
    _add_results(app, server)
    return app


def guarded_app(models: Sequence[OfferedModel], limits: Limits | None = None) -> Guard:
    """The application behind its guard."""
    app = create_app(models, limits)
    return Guard(app, app.state.server.limits)


def _add_pages(app: FastAPI) -> None:
    assets = _assets()
    index = _index().encode("utf-8")

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
    async def offered_models() -> Any:
        models = [model.to_dict() for model in server.models.values()]
        of_completions = list(GENERATION_METHODS)
        methods = {"explain": list(EXPLANATION_METHODS)}
        methods |= dict.fromkeys(("generate", "chat", "ask"), of_completions)
        limits = {"tokens": server.limits.tokens, "new_tokens": server.limits.new_tokens}
        limits["image_bytes"] = server.limits.image_bytes
        titles = {name: method_in_words(make_method(name)) for name in METHODS}
        return {"models": models, "methods": methods, "titles": titles, "limits": limits}

    @app.post("/api/explain")
    async def explain(request: Request) -> Response:
        return _job_answer(server, server.explain(await request.body()), 202)

    @app.post("/api/generate")
    async def generate(request: Request) -> Response:
        return _job_answer(server, server.generate(await request.body()), 202)

    @app.post("/api/chat")
    async def chat(request: Request) -> Response:
        return _job_answer(server, server.chat(await request.body()), 202)

    @app.post("/api/ask")
    async def ask_documents(request: Request) -> Response:
        return _job_answer(server, server.ask(await request.body()), 202)

    @app.post("/api/image")
    async def image(request: Request) -> Response:
        return _job_answer(server, server.explain_image(await request.body()), 202)

    @app.post("/api/image-question")
    async def image_question(request: Request) -> Response:
        return _job_answer(server, server.ask_about_image(await request.body()), 202)

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


def _error(status: int, sentence: str) -> JSONResponse:
    headers = {"retry-after": "5"} if status == 503 else None
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


async def _sentence(_: Request, error: Exception) -> Response:
    return _error(422 if isinstance(error, InputError) else 500, str(error))


async def _busy(server: Server, _: Request, error: Exception) -> Response:
    limit = server.jobs.limit
    return _error(503, f"{limit} requests are waiting already. Try again in a little while.")


async def _missing(_: Request, error: Exception) -> Response:
    return _error(getattr(error, "status_code", 404), "There is nothing at this address.")


def _assets() -> dict[str, bytes]:
    """Every file that may be fetched, read once: no path is ever made from what a visitor sends."""
    files = {name: VIEWER_FOLDER / name for name in (*SCRIPTS, *STYLES)}
    files |= {name: _FOLDER / "page" / name for name in (*_PAGE_SCRIPTS, *_PAGE_STYLES)}
    return {name: path.read_bytes() for name, path in files.items()}


def _index() -> str:
    text = (_FOLDER / "page" / "index.html").read_text(encoding="utf-8")
    styles = "".join(
        f'<link rel="stylesheet" href="/assets/{n}">\n' for n in (*STYLES, *_PAGE_STYLES)
    )
    scripts = "".join(
        f'<script defer src="/assets/{n}"></script>\n' for n in (*SCRIPTS, *_PAGE_SCRIPTS)
    )
    return text.replace("<!-- styles and scripts -->\n", styles + scripts)
