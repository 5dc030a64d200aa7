"""The server before its models are there: the page at once, who waits, what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.applications import Starlette

from attnflow.data import example
from attnflow_connect.server.app import create_app
from attnflow_connect.server.entrance import EXAMPLE, example_view, guarded_app
from attnflow_connect.server.models import Limits, OfferedModel
from attnflow_connect.server.requests import AskRequest, read_request
from browser import Page
from serving import JSON, Client, running
from test_browser import settle

# `attnflow serve`, with an application that comes, or fails, when a line is written to it.
PROGRAM = """
import signal
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import attnflow_connect.command as command
from attnflow.cli.app import main
from attnflow.errors import ModelError

def build(names, access, device):
    early = {"torch", "transformers", "fastapi"} & sys.modules.keys()
    if early:
        raise ModelError(f"Imported before the page: {early}.")
    if sys.stdin.readline() == "fail\\n":
        raise ModelError("The weights are torn.")
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def echo(request):
        return Response(await request.body())

    @asynccontextmanager
    async def lifespan(app):
        print("opened", flush=True)
        yield
        print("closed", flush=True)

    app = Starlette(routes=[Route("/api/explain", echo, methods=["POST"])], lifespan=lifespan)
    app.state.server = SimpleNamespace(jobs=SimpleNamespace(length=0))
    return app

command._build = build
ignores = "background" in sys.argv
signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.default_int_handler)
sys.argv = ["attnflow", "serve", "--no-open", "--port", "0"]
main()
"""


class Started:
    """A server process whose application is not there yet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.fullmatch(r"attnflow: http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", said)
        assert found is not None, said
        self.client = Client(int(found[1]))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """The status it leaves with, and what it said, once it has left."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        status = self.process.wait(20)  # less than the grace of answers under way
        return status, self.process.stdout.read(), self.process.stderr.read()


@contextmanager
def started(*how: str, **environment: str) -> Iterator[Started]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *how], text=True, env={**os.environ, **environment}, **pipes
    )
    try:
        with process:
            yield Started(process)
            process.kill()
    finally:
        process.kill()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waiting(client: Client) -> float:
    """How many wait for the models, as the server says."""
    found = re.search(r"^attnflow_waiting (\S+)$", client.get("/metrics").body.decode(), re.M)
    assert found is not None
    return float(found[1])


# -- a process ------------------------------------------------------------------------------------


def test_the_page_is_there_before_the_models_and_who_waits_is_answered() -> None:
    with started() as server, ThreadPoolExecutor() as visitors:
        client = server.client
        index = client.get("/")
        assert b"<title>attnflow</title>" in index.body
        assert "default-src 'none'" in index.headers["content-security-policy"]
        for path in re.findall(r'(?:src|href)="(/assets/[^"]+)"', index.body.decode()):
            assert client.get(path).status == 200
        assert client.send("GET", "/", headers={"host": "evil.com"}).status == 421
        assert client.send("POST", "/api/explain", b"{}").status == 415
        assert client.get("/health").status == 503
        assert client.get("/health").json == {"state": "starting"}
        asked = visitors.submit(client.post, "/api/explain", {"text": "a"})
        until(lambda: waiting(client) == 1)
        assert not asked.done()
        server.tell("go on")
        assert asked.result(20).json == {"text": "a"}
        assert client.get("/health").json == {"state": "ready"}
        assert client.post("/api/explain", {"text": "b"}).json == {"text": "b"}
        assert b"<title>attnflow</title>" in client.get("/").body
        server.process.send_signal(signal.SIGINT)
        assert server.end() == (0, "opened\nclosed\n", "")


def test_an_error_of_loading_ends_the_process_with_its_sentence() -> None:
    with started() as server, ThreadPoolExecutor() as visitors:
        asked = visitors.submit(server.client.get, "/api/models")
        until(lambda: waiting(server.client) == 1)
        server.tell("fail")
        assert asked.result(20).status == 500
        assert "where it was started it says why" in asked.result().json["error"]
        assert server.end() == (1, "", "attnflow: The weights are torn.\n")


# A job that a script puts in the background is started with SIGINT ignored.
@pytest.mark.parametrize("how", ["foreground", "background"])
def test_ctrl_c_ends_the_process_though_it_loads_and_a_visitor_waits(how: str) -> None:
    with started(how) as server, ThreadPoolExecutor() as visitors:
        asked = visitors.submit(server.client.get, "/api/models")
        until(lambda: waiting(server.client) == 1)
        server.process.send_signal(signal.SIGINT)
        assert asked.result(20).json == {"error": "The server ends."}
        assert server.end() == (0, "", "")


def test_nobody_waits_who_has_no_token() -> None:
    token = "a-token-that-is-long"
    with started(ATTNFLOW_TOKEN=token) as server:
        client = server.client
        for path in ("/", "/assets/page.js", "/health", "/metrics", "/api/models"):
            assert client.get(path).status == 401
        assert client.post("/v1/messages", {}).json["error"]["type"] == "authentication_error"
        shown = {"authorization": f"Bearer {token}"}
        assert client.send("GET", "/", headers=shown).status == 200


# -- who waits ------------------------------------------------------------------------------------


@contextmanager
def early(limits: Limits | None = None, **options: Any) -> Iterator[tuple[Client, Future[Any]]]:
    """A server whose application never comes, unless the test gives it one."""
    loading: Future[Starlette] = Future()
    with running(guarded_app(loading, limits, **options), limits) as client:
        try:
            yield client, loading
        finally:
            loading.cancel()


def test_a_wait_has_an_end() -> None:
    with early(Limits(seconds_to_load=0.05)) as (client, _):
        for path in ("/api/models", "/v1/models"):
            answer = client.get(path)
            assert answer.status == 503
            assert answer.headers["retry-after"] == "5"
            assert b"still being loaded" in answer.body
        assert waiting(client) == 0


def test_few_wait_and_those_who_leave_make_room() -> None:
    body = b'{"text": "a"}'
    head = f"POST /api/explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    request = f"{head}content-type: {JSON['content-type']}\r\n\r\n".encode() + body
    with early(Limits(waiting=1)) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port)) as visitor:
            visitor.sendall(request)
            until(lambda: waiting(client) == 1)
            assert client.post("/api/explain", {"text": "b"}).status == 503
        until(lambda: waiting(client) == 0)


# -- the example ----------------------------------------------------------------------------------


def offer() -> OfferedModel:
    """The model of the example, which is not loaded."""
    abilities = {"explains": True, "generates": True, "chats": True}
    return OfferedModel(example.MODEL, "", load=Mock(side_effect=AssertionError), **abilities)


def test_the_example_is_a_result_like_any_other() -> None:
    model = offer()
    record = example_view()["request"]
    sent = json.dumps({name: value for name, value in record.items() if name != "task"}).encode()
    request = read_request(sent, AskRequest, {model.name: model}, Limits())
    assert request.record() == record
    with early(with_example=True) as (client, loading):
        path = f"/api/results/{EXAMPLE}.json"
        before = client.get(path)
        app = create_app([model])
        kept = app.state.server.results.get(EXAMPLE)
        assert before.json == json.loads(kept.json)
        loading.set_result(app)
        assert client.get(f"/api/results/{EXAMPLE}.html").headers.keys() == before.headers.keys()


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_answer_is_in_sight_while_the_models_are_loaded(
    tab: Page, width: int, height: int, dark: bool
) -> None:
    tab.size(width, height, dark=dark)
    with early(with_example=True) as (client, loading):
        tab.go(client.address)
        tab.wait("document.querySelector('.af-spoken')?.textContent")
        tab.wait("document.getElementById('loading').hidden === false")
        settle(tab)
        for part in ("#loading", ".af-head h2", ".af-answer-text", ".af-verdict", ".af-spoken"):
            box = tab.run(f"document.querySelector('{part}').getBoundingClientRect().toJSON()")
            assert 0 <= box["top"] < box["bottom"] <= height, part
        assert tab.run("document.documentElement.scrollWidth") <= width
        said = tab.run("document.getElementById('loading').textContent")
        assert said.startswith("The models are being loaded")
        tab.run("globalThis.drawn = document.querySelector('.af-viewer')")
        loading.set_result(create_app([offer()]))
        tab.wait("document.getElementById('again').hidden === false")
        assert tab.run("document.getElementById('loading').hidden")
        assert tab.run("drawn === document.querySelector('.af-viewer')")  # nothing jumps
        assert tab.run("location.hash").startswith(f"#{EXAMPLE}?")
        tab.click("document.getElementById('edit')")
        assert tab.run("document.getElementById('text').value") == example.QUESTION
