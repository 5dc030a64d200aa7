"""`attnflow serve`: the page on this machine, and the doors for clients that people have."""

from __future__ import annotations

import contextlib
import os
import socket
import webbrowser
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.cli import options
from attnflow.errors import InputError, optional_import, shorten
from attnflow.errors.arguments import check_named
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from attnflow_connect.server.models import Access

app = typer.Typer(name="serve")

_HOST = "127.0.0.1"
_LOCAL = (_HOST, "localhost")
_SHORTEST_TOKEN = 16  # characters
_SECONDS_TO_OPEN = 0.3  # after which the page is opened, unless the server could not start


@app.command()
@options.described
def serve(
    model: Annotated[list[str] | None, typer.Option(metavar="NAME|FOLDER")] = None,
    host: str = _HOST,
    port: int = 8765,
    upstream: Annotated[str | None, typer.Option(metavar="URL")] = None,
    device: str | None = None,
    engine: str = "local",
    replicas: Annotated[str | None, typer.Option(metavar="N|auto")] = None,
    address: str | None = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Serve a page on this machine to try things on.

    Type a question, a prompt or a sentence, and see what the answer draws on. Nothing leaves the
    machine. Clients of OpenAI (/v1), Anthropic and Cohere (/v2) are answered with citations; with
    --upstream another server answers and this one cites.

    The default method of the page is the one of each command: balanced for answers, which is
    nearest to leaving sentences out. Citations for clients are gradient attention, checked.

    Examples:
      attnflow serve
      attnflow serve --model ./my-model --port 0 --no-open

    model: A Hugging Face name or a local folder to offer beside the embedded models. May be
        repeated. Visitors can reach no other model.
    host: The address to listen on. Any other than this machine's own needs a token, which is read
        from the environment: ATTNFLOW_TOKEN.
    port: The port. 0 takes a free one.
    upstream: The address of a server with chat completions, such as http://localhost:8000/v1, which
        answers in place of a model here.
    device: Where the models that are named run, such as 'cuda'. Default: the CPU.
    engine: 'local' for one server, or 'ray' for replicas of it on a Ray cluster, without the page.
    replicas: How many replicas Ray starts, or 'auto' for as many as there is work. Default: 2.
    address: The address of a Ray cluster. Default: one on this machine.
    open_page: Open the page in a browser.
    """
    for name in model or []:
        options.check_model_name(name)
    token = os.environ.get("ATTNFLOW_TOKEN") or None
    check_access(host, token, upstream)
    check_named("engine", engine, ["local", "ray"], InputError)
    for name, value in (("replicas", replicas), ("address", address)):
        if engine == "local" and value is not None:
            raise InputError(f"--{name} {shorten(value)} is for --engine ray.")
    from attnflow_connect.server.models import Access

    access = Access(token=token, upstream=upstream)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        if engine == "ray":
            _prepare()
            _serve_on_ray(model or [], replicas, access, host, port, address, device)
        else:
            _serve_here(model or [], access, host, port, device, open_page)


def _prepare() -> None:
    """Load what takes seconds to import, or say what is missing."""
    options.prepare_models()
    optional_import("fastapi", extra="web", purpose="`attnflow serve`")


def _serve_here(
    names: Sequence[str],
    access: Access,
    host: str,
    port: int,
    device: str | None,
    open_page: bool,
) -> None:
    """Serve in this process: the page at once, the rest when the models are loaded."""
    listening = _listen(host, port)
    url = f"http://{host}:{listening.getsockname()[1]}/"
    typer.echo(f"attnflow: {url} (Ctrl-C ends it)", err=True)
    for package in ("uvicorn", "starlette"):
        optional_import(package, extra="web", purpose="`attnflow serve`")
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are drawn outside the main thread
    from attnflow.models.smollm2 import missing_packages
    from attnflow_connect.server.entrance import EarlyServer, guarded_app
    from attnflow_connect.server.guard import log_requests, server_settings

    log_requests()
    loading: Future[Starlette] = Future()
    entrance = guarded_app(loading, access=access, with_example=not missing_packages())
    build = partial(_build, names, access, device)
    server = EarlyServer(server_settings(entrance), loading, build)
    opening = Timer(_SECONDS_TO_OPEN, webbrowser.open, [url])
    if open_page and access.token is None:
        opening.start()
    try:
        with contextlib.suppress(KeyboardInterrupt), listening, _shown(loading):
            server.run(sockets=[listening])
    finally:
        opening.cancel()
    # Not every end is an interrupt: SIGINT is ignored by a job that a script put in the background,
    # SIGTERM by the first process of a container, once the server has closed for it.
    if not loading.cancelled():
        if loading.done():
            loading.result()  # raises what went wrong
    elif server.is_loading:  # with half of torch imported the interpreter takes seconds to end
        os._exit(0)


def _build(names: Sequence[str], access: Access, device: str | None) -> Starlette:
    """Import what takes seconds, load the models that are named, and return the application."""
    _prepare()
    from attnflow_connect.server.app import create_app
    from attnflow_connect.server.models import embedded_models, named_models

    return create_app([*embedded_models(), *named_models(names, device)], access=access)


@contextlib.contextmanager
def _shown(loading: Future[Starlette]) -> Iterator[None]:
    """Show in the terminal that the models are being loaded, from a thread of its own."""
    over = Event()
    loading.add_done_callback(lambda _: over.set())

    def show() -> None:
        with progress_bars("loading the models"):
            over.wait()

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _serve_on_ray(
    names: Sequence[str],
    count: str | None,
    access: Access,
    host: str,
    port: int,
    address: str | None,
    device: str | None,
) -> None:
    """Serve from replicas on a Ray cluster."""
    from attnflow_connect.server.replicas import parse_replicas, running_replicas, wait_for_end

    number = parse_replicas(count)
    with _listen(host, port) as listening:  # then it is free for Ray
        place = host, listening.getsockname()[1]
    with running_replicas(names, number, access, place, address=address, device=device):
        typer.echo(f"attnflow: http://{host}:{place[1]}/v1 (Ctrl-C ends it)", err=True)
        wait_for_end()


def check_access(host: str, token: str | None, upstream: str | None) -> None:
    """Refuse to listen to other machines without a token, and an upstream that is no address."""
    if host not in _LOCAL and token is None:
        raise InputError(
            f"--host {host!r} lets other machines in: set ATTNFLOW_TOKEN to a secret that they "
            "must show, or leave --host out."
        )
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
        raise InputError(
            f"ATTNFLOW_TOKEN must have at least {_SHORTEST_TOKEN} characters of ASCII; "
            'python -c "import secrets; print(secrets.token_urlsafe())" makes one.'
        )
    if upstream is not None and not upstream.startswith(("http://", "https://")):
        raise InputError(
            f"--upstream is an address such as http://localhost:8000/v1; got {shorten(upstream)}."
        )


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before models are loaded: that it is in use is told at once."""
    if not 0 <= port <= 65_535:
        raise InputError(f"--port is a number from 0 to 65535; got {str(port)[:40]}.")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(256)  # a visitor may come before the server is awake
    except OSError as error:
        listening.close()
        raise InputError(
            f"Port {port} of {host} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for a free one."
        ) from error
    return listening
