"""The server on a Ray cluster: copies of it, behind Ray Serve's own.

Replicas, their number and their restarts are Ray's. Each has the models, a queue and a guard of its
own, and answers the clients of other APIs; the page, whose work one replica would do and another be
asked about, is for one machine. A request whose replica dies ends with an error: it is not sent
again, since nothing says how much of it was done.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from attnflow.corpus.ray_engine import start_ray
from attnflow.errors import InputError, ModelError, optional_import, shorten
from attnflow_connect.server.app import create_app
from attnflow_connect.server.entrance import guarded_app
from attnflow_connect.server.guard import log_requests
from attnflow_connect.server.models import Access, Limits, embedded_models, named_models

_NAME = "attnflow"
_QUIET = {"log_level": "WARNING", "enable_access_log": False}  # the replicas log their requests
_MORE = 64  # requests beside those that wait: refusals must come from the replica, in words


def parse_replicas(text: str | None) -> int | str:
    """Return how many replicas are asked for, or "auto"."""
    if text is None or text == "auto":
        return text or 2
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"--replicas is a number of at least 1, or 'auto'; got {shorten(text)}.")
    return int(text)


def share_of_cores(count: int | str, address: str | None) -> int:
    """Return the cores that each replica computes on: its share of those of this machine.

    On a cluster, whose machines differ, and where Ray chooses how many replicas there are: one.
    """
    if address is not None or isinstance(count, str):
        return 1
    return max(1, (os.cpu_count() or 1) // count)


@contextmanager
def running_replicas(
    names: Sequence[str],
    count: int | str,
    access: Access,
    place: tuple[str, int],
    *,
    address: str | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> Iterator[None]:
    """Run replicas of the server until the block ends; inside it they answer.

    names: of models beside the embedded ones. count: how many replicas; "auto": as Ray finds best.
    place: the host and port to listen on. address: of a cluster; by default one is started here.
    device: of the models that are named; where it is "cuda" each replica has a GPU. threads: cores
    that each replica computes on; by default `share_of_cores`.
    """
    ray = optional_import("ray", extra="ray", purpose="The engine Ray")
    serve = optional_import("ray.serve", extra="ray", purpose="The engine Ray")
    models = tuple(names)
    replica_access = replace(access, replica=True)

    cores = threads or share_of_cores(count, address)

    def build() -> ASGIApp:
        log_requests()
        offered = [*embedded_models(), *named_models(models, device)]
        loaded: Future[Starlette] = Future()
        loaded.set_result(create_app(offered, access=replica_access))
        return guarded_app(loaded, access=replica_access)

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    begun = not ray.is_initialized()
    if begun:
        # one core more than replicas have is for Ray; None: as many as there are
        start_ray(ray, address, cores=count * cores + 1 if isinstance(count, int) else None)
    try:
        serve.start(http_options={"host": place[0], "port": place[1]}, logging_config=_QUIET)
        deployment = serve.deployment(
            serve.ingress(build)(),
            num_replicas=count,
            max_ongoing_requests=Limits.waiting + _MORE,
            ray_actor_options={
                "num_cpus": cores,  # Ray has it compute on as many threads
                "num_gpus": int((device or "").startswith("cuda")),
            },
            logging_config=_QUIET,
            max_constructor_retry_count=1,  # a model that cannot be loaded is told soon
        )
        try:
            serve.run(deployment.bind(), name=_NAME, route_prefix="/")
        except RuntimeError as error:
            raise ModelError(f"Ray could not start a replica: {_reason(serve)}") from error
        yield
        serve.delete(_NAME)
    finally:
        if begun:
            ray.shutdown()


def _reason(serve: Any) -> str:
    """Return the last line of the error in a replica, which is the sentence."""
    deployments = serve.status().applications[_NAME].deployments.values()
    lines = [line for each in deployments for line in each.message.splitlines() if line.strip()]
    sentences = [line for line in lines if re.match(r"\S*(Error|Exception)\S*: ", line)]
    return (sentences or lines or ["it says nothing more."])[-1].partition(": ")[2][:600]


def wait_for_end() -> None:
    """Wait until the process is asked to end."""
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
