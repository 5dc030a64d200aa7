"""A server before the one that people have: it answers as it does, then attnflow cites.

What the client sends goes on with the client's own key, and what comes back comes through as it is,
errors too. Only documents beside the messages are written before the question, as attnflow asks,
since most servers know no such field. Clients of other APIs than chat completions are answered in
their own form. A citation that fails takes nothing from the answer: its reason stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from attnflow.errors import AttnflowError, InputError, optional_import
from attnflow.explainers.questions import STOPS
from attnflow.tokens.documents import compose_prompt, named_documents
from attnflow_connect.doors.conversation import CitedAnswer, Conversation, sse
from attnflow_connect.doors.errors import error_response
from attnflow_connect.doors.openai_chat import ChatRequest, sent_documents, url_citations
from attnflow_connect.doors.routes import add_doors, job_answer, offered, read_door, submit
from attnflow_connect.server.jobs import QueueFullError
from attnflow_connect.server.service import Server

if TYPE_CHECKING:
    import httpx

_CHAT = "/v1/chat/completions"
# Of one connection each, or made again by the client that sends them on.
_NOT_SENT_ON = {
    *("host", "content-length", "connection", "accept-encoding", "transfer-encoding"),
    *("origin", "referer", "cookie", "keep-alive", "upgrade", "te", "x-attnflow-token"),
}
_SENT_BACK = ("retry-after", "x-should-retry", "www-authenticate")  # beside the content's type
_SECONDS = 600.0  # for an answer to go on
_ABOUT = ("id", "object", "created", "model")  # of every piece of a stream
_END = b"data: [DONE]"


def add_upstream(app: FastAPI, server: Server, address: str, token: str | None) -> None:
    """Let another server answer, and cite what it says."""
    library: Any = optional_import("httpx", extra="serve", purpose="--upstream")
    client = library.AsyncClient(base_url=address.rstrip("/"), timeout=_SECONDS)

    async def send(request: Request, path: str, content: bytes) -> httpx.Response:
        own = {f"bearer {token}".lower(), token}
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in _NOT_SENT_ON and not (token and value.lower() in own)
        }
        headers["accept-encoding"] = "identity"
        if "x-api-key" in headers:  # Anthropic's clients show their key so
            headers.setdefault("authorization", f"Bearer {headers['x-api-key']}")
        copy = client.build_request(request.method, path, content=content, headers=headers)
        try:
            answer: httpx.Response = await client.send(copy, stream=True)
            if not _is_stream(answer):
                await answer.aread()
        except library.HTTPError as error:
            sentence = f"The server behind this one cannot be reached ({type(error).__name__})."
            refusal = error_response(request.url.path, 502, sentence)
            answer = library.Response(502, content=refusal.body)
        return answer

    async def forward(request: Request) -> Response:
        path = request.url.path
        body = await request.body()
        is_chat = path == _CHAT
        answer = await send(request, path.removeprefix("/v1"), _asking(body) if is_chat else body)
        if _is_stream(answer):
            kind = answer.headers["content-type"]
            return StreamingResponse(_stream(server, request, answer), media_type=kind)
        if is_chat and answer.status_code == 200:
            return await _cite_whole(server, request, answer)
        return _as_it_is(answer)

    async def write(request: Request, conversation: Conversation) -> str | Response:
        answer = await send(request, "/chat/completions", _chat_body(conversation))
        try:
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError):
            return _as_it_is(answer)

    app.post(_CHAT)(forward)
    app.get("/v1/models")(forward)
    app.get("/v1/models/{name:path}")(forward)
    add_doors(app, server, write)


def _is_stream(answer: httpx.Response) -> bool:
    kind = answer.headers.get("content-type", "")
    return answer.status_code == 200 and "text/event-stream" in kind


def _as_it_is(answer: httpx.Response) -> Response:
    """Return what the other server said."""
    headers = {name: answer.headers[name] for name in _SENT_BACK if name in answer.headers}
    kind = answer.headers.get("content-type", "application/json")
    return Response(answer.content, answer.status_code, headers, kind)


def _chat_body(conversation: Conversation) -> bytes:
    """Return a conversation of any door as chat completions take it."""
    options = {"temperature": 0, **conversation.options}  # as here, where nothing is asked for
    body = {
        "model": conversation.model,
        "messages": conversation.messages,
        "documents": [each.text for each in conversation.documents],
        "max_tokens": conversation.max_tokens,
        **{("stop" if name == STOPS else name): value for name, value in options.items()},
    }
    return _asking(json.dumps(body).encode())


def _asking(body: bytes) -> bytes:
    """Return a request whose documents stand before the question, in the last message of the user.

    One without documents, or that cannot be read, stays as it is.
    """
    try:
        record = json.loads(body)
        texts = [each.text for each in sent_documents(record.pop("documents"))]
        if not texts:
            return json.dumps(record).encode()
        documents = named_documents(texts)
        message = next(each for each in reversed(record["messages"]) if each["role"] == "user")
        content = message["content"]
        if isinstance(content, str):
            message["content"], _ = compose_prompt(content.strip(), documents)
        else:
            before = {"type": "text", "text": compose_prompt("", documents)[0]}
            message["content"] = [before, *content]
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, InputError):
        return body
    return json.dumps(record).encode()


async def _cite_whole(server: Server, request: Request, answer: httpx.Response) -> Response:
    """Return an answer with citations beside it; what cannot be read comes through as it is."""
    try:
        record = answer.json()
        message = record["choices"][0]["message"]
        text = message["content"]
    except (ValueError, LookupError, TypeError):
        return _as_it_is(answer)
    if not isinstance(text, str) or not text.strip():
        return _as_it_is(answer)
    cited, note = await _cite(server, request, text)
    if cited is not None:
        message["annotations"] = [*(message.get("annotations") or []), *url_citations(cited)]
    content = json.dumps({**record, "attnflow": note})  # as ASCII: any text comes through
    return Response(content, media_type="application/json")


async def _stream(server: Server, request: Request, answer: httpx.Response) -> AsyncIterator[bytes]:
    """Pass a stream on line by line; citations come before its end."""
    pieces: list[str] = []
    about: dict[str, Any] = {}
    rest = b""
    try:
        async for content in answer.aiter_bytes():
            # at line feeds alone: other signs that end lines may stand in a text
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                if line.strip() != _END:
                    yield line + b"\n"
                chunk, piece = _parse(line)
                about = {key: chunk[key] for key in _ABOUT if key in chunk} or about
                pieces.append(piece)
    finally:
        await answer.aclose()
    yield rest and rest + b"\n\n"
    text = "".join(pieces)
    if text.strip():
        cited, note = await _cite(server, request, text)
        delta = {} if cited is None else {"annotations": url_citations(cited)}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield sse({**about, "choices": [choice], "attnflow": note}).encode()
    yield _END + b"\n\n"


def _parse(line: bytes) -> tuple[dict[str, Any], str]:
    """Return a line of a stream as a record, and what it adds to the first answer."""
    try:
        chunk = dict(json.loads(line.removeprefix(b"data:")))
        first = [each for each in chunk.get("choices", ()) if not each.get("index")]
        return chunk, "".join(str(each["delta"].get("content") or "") for each in first)
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}, ""


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
