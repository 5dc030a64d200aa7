"""The addresses of the doors: requests go through the server's queue, answers may be streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError

from attnflow.errors import AttnflowError, InputError, shorten
from attnflow.explainers.questions import STOPS, cut_at_stop
from attnflow_connect.doors import conversation as door
from attnflow_connect.doors.anthropic_messages import MessagesRequest
from attnflow_connect.doors.cohere_chat import CohereRequest
from attnflow_connect.doors.conversation import CitedAnswer, Conversation, DoorRequest, Reply
from attnflow_connect.doors.errors import error_body, error_response, is_door
from attnflow_connect.doors.openai_chat import ChatRequest
from attnflow_connect.doors.openai_responses import ResponsesRequest
from attnflow_connect.server.jobs import Job, QueueFullError
from attnflow_connect.server.models import OfferedModel
from attnflow_connect.server.service import Server

_PAUSE = 0.02  # seconds between two looks at a job
_USUAL_TOKENS = 256  # of an answer, where the client does not say


DOORS: dict[str, type[DoorRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v2/chat": CohereRequest,
}


Write = Callable[[Request, Conversation], Awaitable[str | Response]]
"""Lets somebody else write the answer to a request; a response is an error of theirs."""


def add_doors(app: FastAPI, server: Server, write: Write | None = None) -> None:
    """Add the addresses that clients of these APIs call. write: by default the model here does."""
    for path, kind in DOORS.items():
        app.post(path)(_answering(server, kind, write))

    @app.post("/v1/messages/count_tokens")
    async def token_count(request: Request) -> Response:
        conversation = read_door(MessagesRequest, await request.body())
        model = offered(server, conversation.model).loaded
        return JSONResponse({"input_tokens": len(door.prompt_of(model, conversation).ids)})

    @app.get("/v1/models")
    async def models() -> Any:
        names = [model.name for model in server.models.values() if model.generates]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        records = [_model_record(name) for name in names]
        return {"object": "list", "data": records, "has_more": False, **ends}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Any:
        return _model_record(offered(server, name).name)


def _model_record(name: str) -> dict[str, Any]:
    """Return a model as OpenAI's and Anthropic's clients read it."""
    ours = {"id": name, "object": "model", "created": 0, "owned_by": "attnflow"}
    return {**ours, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _answering(server: Server, kind: type[DoorRequest], write: Write | None) -> Callable[..., Any]:
    async def answer(request: Request) -> Response:
        body = await request.body()
        conversation = read_door(kind, body)
        model = offered(server, conversation.model if write is None else "")
        text = None if write is None else await write(request, conversation)
        if isinstance(text, Response):
            return text
        name = model.name if write is None else conversation.model
        reply: Reply = kind.model_validate_json(body).reply(name)
        job = submit(server, model, conversation, text)
        if conversation.stream:
            # Without a chat template the model writes on behind its answer: that is not sent.
            stops = conversation.options.get(STOPS, ())
            hear = (lambda: before_stops(job.text, stops).strip()) if model.chats else str
            events = stream_job(server, job, hear, reply, request.url.path)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(reply.whole(await job_answer(server, job, request)))

    return answer


def read_door(kind: type[DoorRequest], body: bytes) -> Conversation:
    """Read a request, or raise an InputError that says what is wrong with it."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise InputError(f"{place}: {first['msg']}; got {shorten(first['input'])}.") from None
    conversation = request.conversation(_USUAL_TOKENS)
    if any("\ud800" <= sign <= "\udfff" for text in conversation.texts for sign in text):
        raise InputError("A text is not valid Unicode: it holds half of a surrogate pair.")
    return conversation


def offered(server: Server, name: str) -> OfferedModel:
    """Return the model of this name; without a name, the last one, which was asked for last."""
    able = {model.name: model for model in server.models.values() if model.generates}
    if name in able:
        return able[name]
    if not name and able:
        return list(able.values())[-1]
    raise UnknownModelError(
        f"There is no model {shorten(name)} here; this server offers {', '.join(able) or 'none'}."
    )


class UnknownModelError(InputError):
    """A model that is not offered."""


def submit(
    server: Server, model: OfferedModel, conversation: Conversation, text: str | None = None
) -> Job:
    """Put an answer into the queue, or raise QueueFullError."""

    def work() -> CitedAnswer:
        fitting = door.fitted(conversation, model.loaded, server.limits)
        return door.answer_conversation(model.loaded, fitting, text)

    return server.jobs.submit(work)


async def job_answer(server: Server, job: Job, request: Request) -> CitedAnswer:
    """Wait for an answer; whoever leaves stops it."""
    try:
        while job.state in ("waiting", "running"):
            if await request.is_disconnected():
                raise asyncio.CancelledError
            await asyncio.sleep(_PAUSE)
        return job.outcome()
    finally:
        server.jobs.forget(job)


async def stream_job(
    server: Server, job: Job, hear: Callable[[], str], reply: Reply, path: str
) -> AsyncIterator[str]:
    """Yield the events of an answer: its text while it is written, its citations at the end.

    hear: returns what is written so far.
    Spaces around the answer are no part of it, so those at the end of a piece wait for the next.
    """
    try:
        for event in reply.opening():
            yield event
        length = 0
        while job.state in ("waiting", "running"):
            text = hear()
            if len(text) > length:
                for event in reply.piece(text[length:]):
                    yield event
                length = len(text)
            await asyncio.sleep(_PAUSE)
        answer: CitedAnswer = job.outcome()
        if rest := answer.text[length:]:
            for event in reply.piece(rest):
                yield event
        for event in reply.closing(answer):
            yield event
    except AttnflowError as error:
        yield door.sse(error_body(path, 500, str(error)), "error")
    finally:  # also when the client has gone
        server.jobs.forget(job)


def before_stops(text: str, stops: Sequence[str]) -> str:
    """Return what of a text that is being written stands before a stop, begun ones too.

    >>> before_stops("It takes 45 days. En", ["END", "Enough"])
    'It takes 45 days. '
    """
    text, stop = cut_at_stop(text, stops)
    if stop is not None:
        return text
    begun = (k for each in stops for k in range(1, len(each)) if text.endswith(each[:k]))
    return text[: len(text) - max(begun, default=0)]


async def tell_error(request: Request, error: Exception) -> Response:
    """Tell an error in the form of the API that was called, and with its status."""
    path, status = request.url.path, 500
    if isinstance(error, UnknownModelError):
        status = 404
    elif isinstance(error, InputError):
        status = 400 if is_door(path) else 422
    elif isinstance(error, QueueFullError):
        status = 429 if is_door(path) else 503
    return error_response(path, status, str(error))
