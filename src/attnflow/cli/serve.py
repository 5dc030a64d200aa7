"""`attnflow serve`: the page on this machine, and the doors for clients that people have."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import webbrowser
from threading import Timer
from typing import Annotated

import typer

from attnflow.cli import options, writing
from attnflow.errors import InputError, optional_import, shorten

_HOST = "127.0.0.1"
_LOCAL = (_HOST, "localhost")
_SHORTEST_TOKEN = 16  # characters


@options.described
def serve(
    model: Annotated[list[str] | None, typer.Option(metavar="NAME|FOLDER")] = None,
    host: str = _HOST,
    port: int = 8765,
    upstream: Annotated[str | None, typer.Option(metavar="URL")] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Serve a page on this machine to try things on.

    Type a question, a prompt or a sentence, and see what the answer draws on. Nothing leaves the
    machine. Clients of OpenAI (/v1), Anthropic and Cohere (/v2) are answered with citations; with
    --upstream another server answers and this one cites.

    model: A Hugging Face name or a local folder to offer beside the embedded models. May be
        repeated. Visitors can reach no other model.
    host: The address to listen on. Any other than this machine's own needs a token, which is read
        from the environment: ATTNFLOW_TOKEN.
    port: The port. 0 takes a free one.
    upstream: The address of a server with chat completions, such as http://localhost:8000/v1, which
        answers in place of a model here.
    open_page: Open the page in a browser.
    """
    for name in model or []:
        options.check_model_name(name)
    token = os.environ.get("ATTNFLOW_TOKEN") or None
    check_access(host, token, upstream)
    options.prepare_models()
    optional_import("fastapi", extra="web", purpose="`attnflow serve`")
    uvicorn = optional_import("uvicorn", extra="web", purpose="`attnflow serve`")
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are drawn outside the main thread
    from attnflow.web.app import guarded_app
    from attnflow.web.guard import server_settings
    from attnflow.web.models import Access, embedded_models, named_models

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("attnflow.serve").setLevel(logging.INFO)
    with _listen(host, port) as listening:
        with writing.progress_bars("loading the models"):
            models = [*embedded_models(), *named_models(model or [])]
        address = f"http://{host}:{listening.getsockname()[1]}/"
        typer.echo(f"attnflow: {address} (Ctrl-C ends it)", err=True)
        if open_page and token is None:
            Timer(0.8, webbrowser.open, [address]).start()
        app = guarded_app(models, access=Access(token=token, upstream=upstream))
        server = uvicorn.Server(server_settings(app))
        with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
            server.run(sockets=[listening])


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
