"""A server before the one that people have: it answers as it does, then attnflow cites.

What the client sends goes on as it is, with the client's own key; what comes back comes through as
it is, errors too. A citation that fails takes nothing from the answer: its reason stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from attnflow.errors import AttnflowError, optional_import
from attnflow.web.doors.conversation import CitedAnswer, sse
from attnflow.web.doors.errors import error_response
from attnflow.web.doors.openai_chat import ChatRequest, url_citations
from attnflow.web.doors.routes import job_answer, offered, read_door, submit
from attnflow.web.jobs import QueueFullError

if TYPE_CHECKING:
    import httpx

    from attnflow.web.app import Server

_CHAT = "/v1/chat/completions"
# Of one connection each, or made again by the client that sends them on.
_NOT_SENT_ON = {
    *("host", "content-length", "connection", "accept-encoding", "transfer-encoding"),
    *("origin", "referer", "cookie", "keep-alive", "upgrade", "te", "x-attnflow-token"),
}
_SECONDS = 600.0  # for an answer to go on


def add_upstream(app: FastAPI, server: Server, address: str, token: str | None) -> None:
    """Send chat completions and lists of models to another server, and cite what it answers."""
    library: Any = optional_import("httpx", extra="serve", purpose="--upstream")
    client = library.AsyncClient(base_url=address.rstrip("/"), timeout=_SECONDS)

    async def send(request: Request, path: str) -> httpx.Response:
        own = {f"bearer {token}".lower(), token}
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in _NOT_SENT_ON and not (token and value.lower() in own)
        }
        headers["accept-encoding"] = "identity"
        content = await request.body()
        copy = client.build_request(request.method, path, content=content, headers=headers)
        answer: httpx.Response = await client.send(copy, stream=True)
        return answer

    async def forward(request: Request) -> Response:
        path = request.url.path
        try:
            answer = await send(request, path.removeprefix("/v1"))
        except library.HTTPError as error:
            sentence = f"The server behind this one cannot be reached ({type(error).__name__})."
            return error_response(path, 502, sentence)
        kind = answer.headers.get("content-type", "")
        if path == _CHAT and answer.status_code == 200 and "text/event-stream" in kind:
            return StreamingResponse(_stream(server, request, answer), media_type=kind)
        content = await answer.aread()
        if path == _CHAT and answer.status_code == 200:
            return await _cite_whole(server, request, content, kind)
        return Response(content, answer.status_code, media_type=kind or None)

    app.post(_CHAT)(forward)
    app.get("/v1/models")(forward)
    app.get("/v1/models/{name:path}")(forward)


async def _cite_whole(server: Server, request: Request, content: bytes, kind: str) -> Response:
    """Return an answer with citations beside it; what cannot be read comes through as it is."""
    try:
        record = json.loads(content)
        message = record["choices"][0]["message"]
        text = message["content"]
    except (ValueError, LookupError, TypeError):
        return Response(content, media_type=kind)
    if not isinstance(text, str) or not text.strip():
        return Response(content, media_type=kind)
    cited, note = await _cite(server, request, text)
    if cited is not None:
        message["annotations"] = [*(message.get("annotations") or []), *url_citations(cited)]
    return JSONResponse({**record, "attnflow": note})


async def _stream(
    server: Server, request: Request, answer: httpx.Response
) -> AsyncIterator[str | bytes]:
    """Pass a stream on line by line; citations come before its end."""
    pieces: list[str] = []
    last: dict[str, Any] = {}
    try:
        async for line in answer.aiter_lines():  # each is sent on as it comes
            if line.strip() == "data: [DONE]":
                break
            yield f"{line}\n"
            chunk = _parse(line)
            if chunk.get("choices"):
                last = chunk
                pieces.append(str(chunk["choices"][0].get("delta", {}).get("content") or ""))
    finally:
        await answer.aclose()
    text = "".join(pieces)
    if text.strip():
        cited, note = await _cite(server, request, text)
        delta = {} if cited is None else {"annotations": url_citations(cited)}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield sse({**last, "choices": [choice], "attnflow": note})
    yield sse("[DONE]")


def _parse(line: str) -> dict[str, Any]:
    if not line.startswith("data:"):
        return {}
    try:
        chunk = json.loads(line.removeprefix("data:"))
    except ValueError:
        return {}
    return chunk if isinstance(chunk, dict) else {}


async def _cite(
    server: Server, request: Request, text: str
) -> tuple[CitedAnswer | None, Mapping[str, Any]]:
    """Return the cited answer and its records, or the reason why there are none."""
    try:
        conversation = read_door(ChatRequest, await request.body())
        model = offered(server, "")
        cited = await job_answer(server, submit(server, model, conversation, text), request)
    except (AttnflowError, QueueFullError) as error:
        return None, {"error": str(error)}
    return cited, {"citations": cited.records}
