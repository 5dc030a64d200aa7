"""`attnflow generate`: the completion as it is made, then what each new token drew on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import Span
from attnflow.cli.options import (
    PICTURES,
    OptionOption,
    check_output,
    parse_option,
    parse_target,
    prepare_models,
)
from attnflow.errors import InputError
from attnflow.methods import METHODS, make_method
from attnflow.show import terminal

__all__ = ["generate"]

_BASELINES = {"auto": None, "neutral": "neutral", "none": None}


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A Hugging Face name or a local folder; default: SmolLM2 (attnflow[demo])."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to make, at most.")] = 12,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Show this generated token (its text, or its position) at every layer.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(METHODS)}; default: what found the true source most often."
        ),
    ] = None,
    option: OptionOption = None,
    baseline: Annotated[
        str,
        typer.Option(help="What is subtracted: none, or neutral (a prompt without content)."),
    ] = "auto",
    layer: Annotated[
        str, typer.Option(help="The layer to show: a number, or 'mean' over all; default: the top.")
    ] = "-1",
    top: Annotated[int, typer.Option(help="How many prompt tokens to show for each.")] = 5,
    hide_common: Annotated[
        bool,
        typer.Option("--hide-common", help="Leave out punctuation and function words."),
    ] = False,
    common: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="Your own common words, separated by spaces."),
    ] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=START:END",
            help="Mass on a span of the prompt, by positions or NAME=TEXT; repeatable.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put it into the chat template.")] = False,
    seed: Annotated[int | None, typer.Option(help="Sample with this seed; else greedy.")] = None,
    temperature: Annotated[float | None, typer.Option(help="For sampling (--seed).")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the result to this file too: .json, .safetensors, .html, .png, .svg, .pdf."
        ),
    ] = None,
) -> None:
    """Continue PROMPT and show, for each new token, the prompt tokens it drew on."""
    if not prompt.strip():
        raise InputError(f"There is nothing to continue: the prompt is {prompt!r}.")
    if top < 1:
        raise InputError(f"--top is at least 1; got {top}.")
    if temperature is not None and seed is None:
        raise InputError("--temperature is for sampling; add --seed NUMBER.")
    if option and method is None:
        raise InputError("--option is for a method you name; add --method rollout.")
    chosen = None if method is None else make_method(method, dict(map(parse_option, option or [])))
    subtracted = _baseline(baseline)
    spans = dict(map(_parse_span, span or []))
    if output is not None:
        check_output(output)
    prepare_models()
    from attnflow.api import generate as run

    console = Console(highlight=False)
    _say_if_preparing(model)
    settings: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    result: Attribution = run(
        model,
        prompt,
        max_new_tokens=tokens,
        method=chosen,
        baseline=cast("Any", subtracted),
        chat=chat,
        seed=seed,
        stream=None if as_json else _Echo(console, prompt),
        **settings,
    )
    shown = result.spans(spans) if spans else result
    if as_json:
        typer.echo(json.dumps(shown.to_dict(), ensure_ascii=False))
    else:
        words = None if common is None else common.split()
        _show(shown, console, select=select, layer=layer, top=top, words=words, hide=hide_common)
    if output is not None:
        _write(shown, output, select)


class _Echo:
    """Writes the prompt, then each piece of text as it comes."""

    def __init__(self, console: Console, prompt: str) -> None:
        self._console = console
        self._prompt = prompt

    def __call__(self, text: str) -> None:
        if self._prompt:
            self._console.print(escape(self._prompt), style="dim", end="", soft_wrap=True)
            self._prompt = ""
        self._console.print(escape(text), style="bold", end="", soft_wrap=True)


def _show(
    result: Attribution,
    console: Console,
    *,
    select: str | None,
    layer: str,
    top: int,
    words: list[str] | None,
    hide: bool,
) -> None:
    console.print("\n")
    console.print(escape(result.title), style="dim", soft_wrap=True)
    if select is not None:
        row = result.row(parse_target(select))
        names = [row.method.name]
        strongest = terminal.strongest_sources(row, 3 * top, words=words, hide=hide)
        console.print(terminal.layers_table([strongest], names=names, console=console))
    picked = _one_layer(result, layer)
    if select is not None:
        picked = picked.row(parse_target(select))
    console.print(terminal.completion_table(picked, k=top, words=words, hide=hide, console=console))


def _one_layer(result: Attribution, layer: str) -> Attribution:
    if layer == "mean":
        return result.mean_over_layers()
    try:
        return result.layer(int(layer))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--layer is a number or 'mean'; got {layer!r}.") from None


def _write(result: Attribution, output: Path, select: str | None) -> None:
    if output.suffix in PICTURES:
        from attnflow.show import plots

        figure = plots.completion_figure(result, None if select is None else parse_target(select))
        figure.savefig(output, dpi=160)
    elif output.suffix == ".html":
        storage.write_text(output, result.to_html())
    else:
        result.save(output)
    typer.echo(f"wrote {output}", err=True)


def _baseline(name: str) -> str | None:
    if name not in _BASELINES:
        raise InputError(f"--baseline is one of {', '.join(_BASELINES)}; got {name!r}.")
    return _BASELINES[name]


def _parse_span(text: str) -> tuple[str, Span]:
    name, equals, place = text.partition("=")
    if not equals or not name or not place:
        raise InputError(f"--span {text!r} must read NAME=START:END or NAME=TEXT.")
    start, colon, end = place.partition(":")
    if colon and start.strip().isdigit() and end.strip().isdigit():
        return name, (int(start), int(end))
    return name, place


def _say_if_preparing(model: str | None) -> None:
    if model is not None:
        return
    from attnflow.models.smollm2 import prepared_folder

    if not prepared_folder().is_dir():
        typer.echo("attnflow: preparing SmolLM2 for its first use, about 30 seconds.", err=True)
