"""`attnflow report`: a text or a completion as one HTML file that anyone can open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow import storage
from attnflow.cli.options import (
    ChatOption,
    ImagesOption,
    MaxNewTokensOption,
    MethodsOption,
    ModelOption,
    check_text,
    check_texts_model,
    parse_method,
    prepare_models,
)
from attnflow.cli.output import check_output, tell_written
from attnflow.cli.photos import load_vision_model
from attnflow.cli.progress import progress_bars
from attnflow.errors import InputError
from attnflow.methods import Method
from attnflow.show.page import page
from attnflow.tokens.pictures import names_picture

if TYPE_CHECKING:
    from attnflow.explainers.comparison import Comparison

__all__ = ["report"]


def report(
    output: Annotated[Path, typer.Option(metavar="FILE", help="The .html file to write.")],
    text: Annotated[
        str | None, typer.Argument(help="The text to explain, or the path of a photo.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Instead of TEXT: a prompt to continue and explain."),
    ] = None,
    images: ImagesOption = None,
    model: ModelOption = None,
    method: MethodsOption = None,
    max_new_tokens: MaxNewTokensOption = 20,
    chat: ChatOption = False,
    title: Annotated[str | None, typer.Option(help="The heading. Default: the text.")] = None,
) -> None:
    """Write an interactive page about a text, photo or prompt.

    The page is one file, and it needs no network.

    Without --method a text is explained by rollout, raw attention and, up to 128 tokens, flow. A
    prompt is explained by the default of `attnflow generate`. With --image a vision-language model
    answers --prompt, and the page shows the image's map under each word.
    """
    _check_request(output, text, prompt)
    if images and prompt is None:
        raise InputError(
            "--image goes with --prompt: the question that a vision-language model answers. A "
            "photo alone is given as TEXT."
        )
    methods = [parse_method(name) for name in method or []]
    prepare_models()
    if prompt is None:
        comparison = _explain(model, text or "", methods)
    else:
        comparison = _continue(model, prompt, methods, max_new_tokens, chat, images or None)
    storage.write_text(output, page(comparison.view(title=title)))
    tell_written(output)


def _check_request(output: Path, text: str | None, prompt: str | None) -> None:
    if (text is None) == (prompt is None):
        raise InputError('A report is about one thing: give TEXT, or --prompt "...".')
    if text is None or not names_picture(text):
        check_text(text if text is not None else prompt or "")
    if output.suffix != ".html":
        raise InputError(f"--output {str(output)!r}: a report is a page; its ending is .html.")
    check_output(output)


def _explain(model: str | None, text: str, methods: list[Method]) -> Comparison:
    from attnflow.explainers.comparison import compare
    from attnflow.hosts.load import load

    if names_picture(text):
        loaded = load_vision_model(model, text)
        with progress_bars("running the model"):
            return compare(loaded, text, methods or None)
    with progress_bars("loading the model"):
        loaded = load(model)
        check_texts_model(model, loaded.tokenizer)
        return compare(loaded, text, methods or None, confirm=True)


def _continue(
    model: str | None,
    prompt: str,
    methods: list[Method],
    max_new_tokens: int,
    chat: bool,
    images: list[Path] | None,
) -> Comparison:
    from attnflow.explainers.comparison import compare_completions
    from attnflow.explainers.prompts import as_chat
    from attnflow.hosts.load import as_model

    with progress_bars("loading the model"):
        loaded = as_model(model, default="smollm2")
        check_texts_model(model, loaded.tokenizer)
        return compare_completions(
            loaded,
            as_chat(prompt) if chat else prompt,
            methods or [None],
            max_new_tokens=max_new_tokens,
            images=images,
            confirm=images is None,
        )
