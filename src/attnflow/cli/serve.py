"""`attnflow serve`: the page on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import webbrowser
from threading import Timer
from typing import Annotated

import typer

from attnflow.cli import options, writing
from attnflow.errors import InputError, optional_import

_HOST = "127.0.0.1"


@options.described
def serve(
    model: Annotated[list[str] | None, typer.Option(metavar="NAME|FOLDER")] = None,
    port: int = 8765,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Serve a page on this machine to try things on.

    Type a question, a prompt or a sentence, and see what the answer draws on. Nothing leaves the
    machine.

    model: A Hugging Face name or a local folder to offer beside the embedded models. May be
        repeated. Visitors can reach no other model.
    port: The port on 127.0.0.1. 0 takes a free one.
    open_page: Open the page in a browser.
    """
    for name in model or []:
        options.check_model_name(name)
    options.prepare_models()
    optional_import("fastapi", extra="web", purpose="`attnflow serve`")
    uvicorn = optional_import("uvicorn", extra="web", purpose="`attnflow serve`")
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are drawn outside the main thread
    from attnflow.web.app import guarded_app
    from attnflow.web.guard import server_settings
    from attnflow.web.models import embedded_models, named_models

    with _listen(port) as listening:
        with writing.progress_bars("loading the models"):
            models = [*embedded_models(), *named_models(model or [])]
        address = f"http://{_HOST}:{listening.getsockname()[1]}/"
        typer.echo(f"attnflow: {address} (Ctrl-C ends it)", err=True)
        if open_page:
            Timer(0.8, webbrowser.open, [address]).start()
        server = uvicorn.Server(server_settings(guarded_app(models)))
        with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
            server.run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    """Take the port before models are loaded: that it is in use is told at once."""
    if not 0 <= port <= 65_535:
        raise InputError(f"--port is a number from 0 to 65535; got {str(port)[:40]}.")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        listening.listen(256)  # a visitor may come before the server is awake
    except OSError as error:
        listening.close()
        raise InputError(
            f"Port {port} of {_HOST} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for a free one."
        ) from error
    return listening
