"""A real server on a free port, and the plainest client there is."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from attnflow.data import example
from attnflow_connect.server.app import create_app
from attnflow_connect.server.entrance import guarded_app
from attnflow_connect.server.guard import server_settings
from attnflow_connect.server.models import Access, Limits, OfferedModel

JSON = {"content-type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client(NamedTuple):
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.send("GET", path)

    def post(self, path: str, record: Any) -> Answer:
        return self.send("POST", path, json.dumps(record).encode(), JSON)

    def finished(self, name: str, seconds: float = 60) -> Any:
        """The job once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.get(f"/api/jobs/{name}").json
            if job["state"] not in ("waiting", "running"):
                return job
            time.sleep(0.02)
        raise AssertionError(f"the job did not end: {job}")


@contextmanager
def serving(
    models: Sequence[OfferedModel], limits: Limits | None = None, access: Access | None = None
) -> Iterator[Client]:
    with running(entrance(models, limits, access), limits) as client:
        yield client


def entrance(
    models: Sequence[OfferedModel], limits: Limits | None = None, access: Access | None = None
) -> ASGIApp:
    """The guarded application over models that are there."""
    loaded: Future[Starlette] = Future()
    loaded.set_result(create_app(models, limits, access))
    with_example = example.MODEL in [model.name for model in models]
    return guarded_app(loaded, limits, access, with_example=with_example)


@contextmanager
def running(app: Any, limits: Limits | None = None) -> Iterator[Client]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(256)  # callers may come before the server is awake
    server = uvicorn.Server(server_settings(app, limits))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Client(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listening.close()
