"""A server left running: who may call, a full queue, clients that go, another server behind."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import torture_serving
from attnflow.cli.app import _run
from attnflow.errors.progress import tell
from attnflow.tokens.documents import compose_prompt, named_documents
from attnflow_connect.doors import conversation
from attnflow_connect.server.models import Access, Limits, OfferedModel
from attnflow_connect.server.replicas import share_of_cores
from later import Later
from serving import JSON, Client, serving
from test_doors_http import (
    CHAT,
    NAME,
    QUESTION,
    TEXTS,
    certain,
    check_records,
    client,
    expected,
    model,
    question,
)

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = map(Later, ("anthropic", "openai"))

__all__ = ["certain", "client", "expected", "model"]  # fixtures

TOKEN = "a-token-that-is-long"
BODY = {k: v for k, v in CHAT.items() if k != "extra_body"} | CHAT["extra_body"]
BODY |= {"max_tokens": 12}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def offer(model: Any) -> OfferedModel:
    return OfferedModel(NAME, "", explains=True, generates=True, chats=True, load=lambda: model)


# -- who may call ---------------------------------------------------------------------------------


def test_a_token_is_asked_for_in_each_api_s_form(offer: OfferedModel) -> None:
    with serving([offer], access=Access(token=TOKEN)) as server:
        refused = server.post(PATH, BODY)
        assert refused.status == 401
        assert "Authorization: Bearer TOKEN" in refused.json["error"]["message"]
        assert server.get("/").status == server.get("/metrics").status == 401
        assert server.post("/v1/messages", {}).json["error"]["type"] == "authentication_error"
        for header in ({"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}):
            headers = {**header, "host": "gpu.example:8765"}
            assert server.send("GET", "/v1/models", headers=headers).status == 200
        wrong = {"authorization": f"Bearer {TOKEN}x"}
        assert server.send("GET", "/v1/models", headers=wrong).status == 401


def test_other_machines_need_a_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATTNFLOW_TOKEN", raising=False)
    assert _run(["serve", "--no-open", "--host", "0.0.0.0"]) == 2
    assert "lets other machines in: set ATTNFLOW_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("ATTNFLOW_TOKEN", "short")
    assert _run(["serve", "--no-open", "--host", "0.0.0.0"]) == 2
    assert "at least 16 characters" in capsys.readouterr().err
    monkeypatch.setenv("ATTNFLOW_TOKEN", TOKEN)
    assert _run(["serve", "--no-open", "--upstream", "localhost:8000"]) == 2
    assert "--upstream is an address such as" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--replicas", "2"], "--replicas '2' is for --engine ray"),
        (["--engine", "ray", "--replicas", "0"], "--replicas is a number of at least 1, or 'auto'"),
        (["--engine", "rai"], "Did you mean 'ray'"),
    ],
)
def test_replicas_are_ray_s(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["serve", "--no-open", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra: `make torture` has it")
def test_a_replica_that_dies_loses_no_request_in_silence() -> None:
    assert torture_serving.run_script("replicas", 40) == (40, [])


def test_replicas_share_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert [share_of_cores(count, None) for count in (1, 2, 3, 40, "auto")] == [16, 8, 5, 1, 1]
    assert share_of_cores(2, "ray-head:6379") == 1


def test_a_replica_has_no_page_and_no_numbers(offer: OfferedModel) -> None:
    with serving([offer], access=Access(replica=True)) as server:
        assert [server.get(path).status for path in ("/", "/api/models", "/metrics")] == [404] * 3
        assert server.post(PATH, BODY).status == 200


# -- load, logs, numbers --------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_again(offer: OfferedModel) -> None:
    with serving([offer], Limits(waiting=0)) as server:
        for path, body in ((PATH, BODY), ("/v2/chat", BODY), ("/v1/messages", BODY)):
            answer = server.post(path, body)
            assert (answer.status, answer.headers["retry-after"]) == (429, "5")
        with (
            openai.OpenAI(base_url=f"{server.address}v1", api_key="x", max_retries=0) as gpt,
            pytest.raises(openai.RateLimitError, match="requests are waiting"),
        ):
            gpt.chat.completions.create(**CHAT)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_stops_its_work(
    offer: OfferedModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    states: list[str] = []

    def endless(*_: Any) -> Any:
        states.append("begun")
        try:
            while True:
                time.sleep(0.01)
                tell("writing", 0, 0, "word ")
        finally:
            states.append("ended")

    monkeypatch.setattr(conversation, "answer_conversation", endless)
    with serving([offer]) as server:
        body = json.dumps({**BODY, "stream": stream}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: "begun" in states)
        wait_for(lambda: "ended" in states)


def wait_for(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines that the server logs, at any level."""
    lines: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("attnflow.serve")
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield lines
    log.setLevel(level)
    log.removeHandler(handler)


def test_logs_and_numbers_hold_no_text(client: Client, logged: list[str], expected: Any) -> None:
    answer = client.post(PATH, BODY)
    client.get("/a-secret-of-mine")
    numbers = client.get("/metrics").body.decode()
    wait_for(lambda: len(logged) >= 3)
    lines = [*logged]
    assert any(f"{answer.headers['x-request-id']} POST {PATH} 200 " in line for line in lines)
    assert 'attnflow_requests_total{path="/v1/chat/completions",status="200"}' in numbers
    assert "attnflow_waiting 0.0" in numbers
    for text in (expected.text, "secret", "Buyer", "How long", "contract.md"):
        assert text not in "\n".join(lines) + numbers


# -- another server behind ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before(client: Client, offer: OfferedModel) -> Iterator[Client]:
    """A server before the one of the other tests, which is a real one and answers."""
    with serving([offer], access=Access(upstream=f"{client.address}v1")) as server:
        yield server


def test_upstream_answers_and_we_cite(before: Client, client: Client, expected: Any) -> None:
    plain = {k: v for k, v in BODY.items() if k != "documents"}
    alone = client.post(PATH, plain).json["choices"][0]["message"]["content"]
    with openai.OpenAI(base_url=f"{before.address}v1", api_key="key", max_retries=0) as gpt:
        answer = gpt.chat.completions.create(**CHAT, max_tokens=12)
        stream = list(gpt.chat.completions.create(**CHAT, max_tokens=12, stream=True))
        bare = gpt.chat.completions.create(**plain)
        assert [each.id for each in gpt.models.list()] == [NAME]
    assert answer.choices[0].message.content == expected.text
    check_records(answer.model_extra["attnflow"]["citations"], expected.text)  # type: ignore[index]
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == expected.text
    records = [c.model_extra["attnflow"] for c in stream if "attnflow" in (c.model_extra or {})]  # type: ignore[index]
    check_records(records[-1]["citations"], expected.text)
    assert bare.choices[0].message.content == alone


def test_errors_of_upstream_come_through_unchanged(before: Client, client: Client) -> None:
    for body in ({**BODY, "model": "nobody"}, {**BODY, "messages": []}, {}):
        ours, theirs = before.post(PATH, body), client.post(PATH, body)
        assert (ours.status, ours.body) == (theirs.status, theirs.body)
        assert ours.status >= 400


class Recorder:
    """A stub of a server: it notes what it is sent."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if len(self.seen) == 2:
            return httpx.Response(
                503, text="<html>busy</html>", headers={"content-type": "text/html"}
            )
        message = {"role": "assistant", "content": "It takes 45 days.", "odd": [1]}
        return httpx.Response(200, json={"choices": [{"message": message}], "odd": {"a": None}})


def test_keys_and_fields_pass_through(offer: OfferedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, usual = Recorder(), httpx.AsyncClient

    def mocked(**options: Any) -> httpx.AsyncClient:
        return usual(**options, transport=httpx.MockTransport(recorder))

    monkeypatch.setattr(httpx, "AsyncClient", mocked)
    access = Access(token=TOKEN, upstream="http://elsewhere/v1")
    with serving([offer], access=access) as server:
        headers = {**JSON, "authorization": "Bearer sk-own", "x-attnflow-token": TOKEN}
        body = json.dumps({**BODY, "logit_bias": {"5": 1}}).encode()
        answer = server.send("POST", PATH, body, headers)
        broken = server.send("POST", PATH, body, headers)
        server.send("POST", PATH, body, {**JSON, "authorization": f"Bearer {TOKEN}"})
    assert answer.json["choices"][0]["message"]["content"] == "It takes 45 days."
    assert answer.json["odd"] == {"a": None}
    assert {r["document"] for r in answer.json["attnflow"]["citations"]} <= set(TEXTS)
    assert (broken.status, broken.body) == (503, b"<html>busy</html>")
    first, _, last = recorder.seen
    assert first.url == "http://elsewhere/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer sk-own"
    sent = json.loads(first.content)
    for text in (*TEXTS.values(), QUESTION):  # documents stand before the question
        assert text.strip() in sent["messages"][0]["content"]
    kept = {name: value for name, value in json.loads(body).items() if name != "documents"}
    assert {**sent, "messages": None} == {**kept, "messages": None}
    assert not any(TOKEN in value for each in (first, last) for value in each.headers.values())


@pytest.fixture(scope="module")
def real(
    model: Any, offer: OfferedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, Client, str]]:
    """`transformers serve`, a server before it, and the model's name there."""
    from transformers.cli.serve import Serve

    class ClosedServe(Serve):  # its own thread leaves the loop open, which fails a later test
        def start_server(self) -> None:
            self._thread = threading.Thread(target=self.server.run)
            self._thread.start()

    folder = tmp_path_factory.mktemp("writer")
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    behind = Client(torture_serving.free_port())
    served = ClosedServe(force_model=str(folder), port=behind.port, device="cpu", non_blocking=True)
    torture_serving.wait_for(behind.port)
    try:
        with serving([offer], access=Access(upstream=f"{behind.address}v1")) as server:
            yield server, behind, str(folder)
    finally:
        served.kill_server()
        served._thread.join()


def test_a_real_server_s_answer_comes_byte_for_byte_and_is_cited(
    real: tuple[Client, Client, str], expected: Any
) -> None:
    server, behind, name = real
    turn = {"role": "user", "content": compose_prompt(QUESTION, named_documents(TEXTS))[0]}
    bare = {"model": name, "messages": [turn], "max_tokens": 12, "temperature": 0}
    theirs = behind.post(PATH, bare).json["choices"][0]["message"]["content"]
    assert theirs.strip() == expected.text  # the same model, asked as we ask
    body = {**bare, "messages": BODY["messages"], "documents": BODY["documents"]}
    ours = server.post(PATH, body).json
    assert ours["choices"][0]["message"]["content"] == theirs
    check_records(ours["attnflow"]["citations"], theirs)
    streamed = [
        line.removeprefix(b"data: ")
        for line in server.post(PATH, {**body, "stream": True}).body.split(b"\n")
        if line.startswith(b"data: {")
    ]
    chunks = [json.loads(line) for line in streamed]
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(pieces) == theirs
    check_records(chunks[-1]["attnflow"]["citations"], theirs)
    for wrong in ({**bare, "model": "nobody"}, {**bare, "nonsense": 1}):
        refused, refusal = behind.post(PATH, wrong), server.post(PATH, wrong)
        assert (refusal.status, refusal.body) == (refused.status, refused.body)
        assert refused.status >= 400


def test_clients_of_other_apis_are_answered_by_it_too(
    real: tuple[Client, Client, str], expected: Any
) -> None:
    server, _, name = real
    with anthropic.Anthropic(base_url=server.address, api_key="x", max_retries=0) as claude:
        answer = claude.messages.create(**{**question(), "model": name})
        with claude.messages.stream(**{**question(), "model": name}) as stream:
            final = stream.get_final_message()
        with pytest.raises(anthropic.BadRequestError, match="pinned"):
            claude.messages.create(**{**question(), "model": "nobody"})
    text = "".join(block.text for block in answer.content if block.type == "text")
    assert text.strip() == expected.text
    assert any(getattr(block, "citations", None) for block in answer.content)
    assert (final.content[0].text, final.model) == (text, name)  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_signs_that_end_lines_stay_in_a_stream(
    offer: OfferedModel, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    text = "It takes\u2028forty-five\x85days 😀."
    record = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]}
    content = f"data: {json.dumps(record, ensure_ascii=False)}\n\ndata: [DONE]\n\n".encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), size):
            yield content[start : start + size]

    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=chunks(), headers={"content-type": "text/event-stream"})

    usual = httpx.AsyncClient
    transport = httpx.MockTransport(respond)
    monkeypatch.setattr(httpx, "AsyncClient", lambda **rest: usual(**rest, transport=transport))
    with serving([offer], access=Access(upstream="http://elsewhere/v1")) as server:
        answer = server.post(PATH, {**BODY, "stream": True}).body
    first, cited, end = (line for line in answer.split(b"\n") if line)
    assert first == content.split(b"\n")[0]
    assert end == b"data: [DONE]"
    check_records(json.loads(cited.removeprefix(b"data: "))["attnflow"]["citations"], text)


def test_an_upstream_that_is_not_there_is_told(offer: OfferedModel) -> None:
    with serving([offer], access=Access(upstream="http://127.0.0.1:9/v1")) as server:
        answer = server.post(PATH, BODY)
    assert answer.status == 502
    assert "cannot be reached" in answer.json["error"]["message"]
