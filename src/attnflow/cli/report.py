"""`attnflow report`: a text or a completion as one HTML file that anyone can open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress as ProgressBar

from attnflow import storage
from attnflow.cli.options import check_output, prepare_models
from attnflow.errors import InputError
from attnflow.methods import METHODS, Method, make_method
from attnflow.progress import Progress
from attnflow.show.page import page

if TYPE_CHECKING:
    from attnflow.compare import Comparison

__all__ = ["report"]


def report(
    output: Annotated[Path, typer.Option(help="The .html file to write.")],
    text: Annotated[str | None, typer.Argument(help="The text to explain.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Instead of TEXT: a prompt to continue and explain.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A Hugging Face name or a local folder; default: the embedded model, or SmolLM2 "
            "(attnflow[demo]) with --prompt."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(METHODS)}; repeatable. Default: rollout, raw and, for texts "
            "of up to 128 tokens, flow; with --prompt the default of `attnflow generate`."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="With --prompt: how many to make, at most.")] = 12,
    chat: Annotated[
        bool, typer.Option("--chat", help="With --prompt: put it into the chat template.")
    ] = False,
    title: Annotated[str | None, typer.Option(help="The heading; default: the text.")] = None,
) -> None:
    """Write the interactive viewer with TEXT (or --prompt) explained: one file, no network."""
    methods = _checked(output, text, prompt, method)
    prepare_models()
    if prompt is None:
        found = _explained(model, text or "", methods)
    else:
        found = _written(model, prompt, methods, tokens, chat)
    storage.write_text(output, page(found.view(title=title)))
    typer.echo(f"wrote {output}", err=True)


def _checked(
    output: Path, text: str | None, prompt: str | None, names: list[str] | None
) -> list[Method]:
    if (text is None) == (prompt is None):
        raise InputError('A report is about one thing: give TEXT, or --prompt "...".')
    if not (text or prompt or "").strip():
        raise InputError("There is nothing to explain: the text is empty.")
    if output.suffix != ".html":
        raise InputError(f"--output {str(output)!r}: a report is a page; its ending is .html.")
    check_output(output)
    return [make_method(name) for name in names or []]


def _explained(model: str | None, text: str, methods: list[Method]) -> Comparison:
    from attnflow.compare import compare
    from attnflow.hosts.load import load_model

    console = Console(stderr=True)
    with ProgressBar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("running the model", total=None)

        def tell(progress: Progress) -> None:
            stage, done, total = progress
            bar.update(task, description=stage, completed=done, total=total)

        return compare(load_model(model), text, methods or None, progress=tell)


def _written(
    model: str | None, prompt: str, methods: list[Method], tokens: int, chat: bool
) -> Comparison:
    from attnflow.compare import continued
    from attnflow.hosts.load import load_language_model

    loaded = load_language_model(model)
    return continued(loaded, prompt, methods or [None], max_new_tokens=tokens, chat=chat)
