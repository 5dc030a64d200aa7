"""`attnflow report`: a text or a completion as one HTML file that anyone can open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow import storage
from attnflow.cli import inputs, options, writing
from attnflow.errors import InputError
from attnflow.methods import make_method
from attnflow.models import READER, WRITER
from attnflow.show.page import page
from attnflow.show.progress import progress_bars
from attnflow.tokens.patches import names_picture


@options.described
def report(
    output: Annotated[Path, typer.Option(metavar="FILE")],
    text: Annotated[str | None, typer.Argument()] = None,
    words: options.Words = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    images: options.Images = None,
    model: options.Model = None,
    methods: options.Methods = None,
    max_new_tokens: options.MaxNewTokens = 20,
    chat: options.Chat = False,
    title: str | None = None,
) -> None:
    """Write an interactive page about a text, photo or prompt.

    The page is one file, and it needs no network.

    Without --methods a text or a photo is explained by the default of `attnflow explain`, then by
    rollout, raw attention and, up to 128 tokens, flow. A prompt is explained by the default of
    `attnflow generate`. With --images a vision-language model answers --prompt, and the page shows
    the image's map under each word. These defaults are what agrees best with ablations.

    Examples:
      attnflow report "the keys to the cabinet" --output report.html
      attnflow report --prompt "My name is Putin, I am from" --output putin.html

    output: The .html file to write.
    text: The text to explain, a file that holds it, or the path of a photo.
    prompt: Instead of TEXT: a prompt to continue and explain.
    title: The heading. Default: the text.
    """
    _check_request(output, text or words, prompt, images)
    if words is not None or (text is not None and not names_picture(text)):
        text = inputs.read_text(text, words)
    method_list = [make_method(name) for name in methods or []]
    name = model or (READER if prompt is None else WRITER)
    pace = writing.Pace(name, text or prompt or "", max_new_tokens if prompt is not None else 0)
    options.prepare_models()
    from attnflow.explainers.comparison import compare, compare_completions

    if text is not None:
        is_photo = names_picture(text)
        loaded = inputs.load_for_photo(model, text) if is_photo else inputs.load_for_text(model)
        with pace, progress_bars("running the model"):
            comparison = compare(loaded, text, method_list or None)
    else:
        inputs.tell_preparation(model)
        with pace, progress_bars("loading the model"):
            comparison = compare_completions(
                model,
                [{"role": "user", "content": prompt}] if chat else prompt,
                method_list or [None],
                max_new_tokens=max_new_tokens,
                images=images or None,
            )
    storage.write_text(output, page(comparison.view(title=title)))
    writing.tell_written(output)


def _check_request(
    output: Path, text: str | None, prompt: str | None, images: list[Path] | None
) -> None:
    if (text is None) == (prompt is None):
        raise InputError('A report is about one thing: give TEXT, or --prompt "...".')
    if prompt is not None:
        inputs.check_text(prompt, "continue")
    if output.suffix != ".html":
        raise InputError(f"--output {str(output)!r}: a report is a page; its ending is .html.")
    writing.check_output(output)
    if images and prompt is None:
        raise InputError(
            "--images go with --prompt: the question that a vision-language model answers. A "
            "photo alone is given as TEXT."
        )
