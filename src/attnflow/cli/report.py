"""`attnflow report`: a text or a completion as one HTML file that anyone can open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow import storage
from attnflow.cli.inputs import check_text, load_for_photo, load_for_text, tell_preparation
from attnflow.cli.options import (
    ChatOption,
    ImagesOption,
    MaxNewTokensOption,
    MethodsOption,
    ModelOption,
    prepare_models,
)
from attnflow.cli.output import check_output, tell_written
from attnflow.cli.progress import progress_bars
from attnflow.errors import InputError
from attnflow.methods import make_method
from attnflow.show.page import page
from attnflow.tokens.patches import names_picture

if TYPE_CHECKING:
    from attnflow.explainers.comparison import Comparison


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
    methods: MethodsOption = None,
    max_new_tokens: MaxNewTokensOption = 20,
    chat: ChatOption = False,
    title: Annotated[str | None, typer.Option(help="The heading. Default: the text.")] = None,
) -> None:
    """Write an interactive page about a text, photo or prompt.

    The page is one file, and it needs no network.

    Without --methods a text or a photo is explained by the default of `attnflow explain`, then by
    rollout, raw attention and, up to 128 tokens, flow. A prompt is explained by the default of
    `attnflow generate`. With --images a vision-language model answers --prompt, and the page shows
    the image's map under each word.
    """
    _check_request(output, text, prompt, images)
    method_list = [make_method(name) for name in methods or []]
    prepare_models()
    if text is not None:
        comparison = _compare(model, text, method_list)
    else:
        messages: Any = [{"role": "user", "content": prompt}] if chat else prompt
        comparison = _compare_completions(
            model, messages, method_list, max_new_tokens=max_new_tokens, images=images or None
        )
    storage.write_text(output, page(comparison.view(title=title)))
    tell_written(output)


def _check_request(
    output: Path, text: str | None, prompt: str | None, images: list[Path] | None
) -> None:
    if (text is None) == (prompt is None):
        raise InputError('A report is about one thing: give TEXT, or --prompt "...".')
    if text is None or not names_picture(text):
        check_text(text if text is not None else prompt or "")
    if output.suffix != ".html":
        raise InputError(f"--output {str(output)!r}: a report is a page; its ending is .html.")
    check_output(output)
    if images and prompt is None:
        raise InputError(
            "--images go with --prompt: the question that a vision-language model answers. A "
            "photo alone is given as TEXT."
        )


def _compare(model: str | None, text: str, methods: list[Any]) -> Comparison:
    from attnflow.explainers.comparison import compare

    is_photo = names_picture(text)
    loaded = load_for_photo(model, text) if is_photo else load_for_text(model)
    with progress_bars("running the model"):
        return compare(loaded, text, methods or None, confirm=not is_photo)


def _compare_completions(
    model: str | None, prompt: Any, methods: list[Any], **request: Any
) -> Comparison:
    from attnflow.explainers.comparison import compare_completions

    tell_preparation(model)
    confirm = request["images"] is None
    with progress_bars("loading the model"):
        return compare_completions(model, prompt, methods or [None], confirm=confirm, **request)
