"""`attnflow generate`: the completion as it is made, then what each new token drew on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import Span
from attnflow.cli.options import (
    CarefulOption,
    ChatOption,
    ConfirmOption,
    JsonOption,
    MaxNewTokensOption,
    MethodOption,
    ModelOption,
    OptionOption,
    OutputOption,
    RatherThanOption,
    SamplingSeedOption,
    check_text,
    parse_completion_method,
    parse_span,
    parse_target,
    prepare_models,
)
from attnflow.cli.output import PICTURES, check_output, print_json, write_figure, write_result
from attnflow.errors import InputError
from attnflow.show import terminal
from attnflow.tokens.common_words import common_tokens

__all__ = ["generate", "say_if_preparing"]

_BASELINES = {"auto": None, "neutral": "neutral", "none": None}


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    model: ModelOption = None,
    max_new_tokens: MaxNewTokensOption = 12,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Show this generated token (its text, or its position) at every layer.",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--targets",
            "--target",
            metavar="TOKEN|PHRASE|START:END|answer",
            help="Explain only this part of what is written: a token's number or text, a phrase, "
            "or 'answer' for all of it as one; repeatable.",
        ),
    ] = None,
    rather_than: RatherThanOption = None,
    careful: CarefulOption = False,
    confirm: ConfirmOption = True,
    method: MethodOption = None,
    option: OptionOption = None,
    baseline: Annotated[
        str,
        typer.Option(help="What is subtracted: none, or neutral (a prompt without content)."),
    ] = "auto",
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            "--layer",
            help="The layer to show: a number, or 'mean' over all; default: the top.",
        ),
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
    chat: ChatOption = False,
    seed: SamplingSeedOption = None,
    temperature: Annotated[float | None, typer.Option(help="For sampling (--seed).")] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Continue PROMPT and show, for each new token, the prompt tokens it drew on.

    Without --method it is the default of `attnflow.generate`: what found the true source most
    often.
    """
    check_text(prompt, "continue")
    _check_numbers(top, temperature, seed)
    if option and method is None:
        raise InputError("--option is for a method you name; add --method rollout.")
    applied = None if method is None else parse_completion_method(method, option)
    subtracted = _baseline(baseline)
    spans = dict(map(_parse_span, span or []))
    if output is not None:
        check_output(output)
    prepare_models()
    from attnflow.api import generate as run

    console = Console(highlight=False)
    say_if_preparing(model)
    result: Attribution = run(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        method=applied,
        careful=careful,
        targets=None if targets is None else [parse_span(target) for target in targets],
        contrast=rather_than,
        confirm=confirm,
        baseline=cast("Any", subtracted),
        chat=chat,
        seed=seed,
        stream=None if as_json else _Echo(console, prompt),
        generate_kwargs=None if temperature is None else {"temperature": temperature},
    )
    result = result.spans(spans) if spans else result
    if as_json:
        print_json(result.to_dict())
    else:
        words = None if common is None else common.split()
        _show(result, console, select=select, layer=layers, top=top, words=words, hide=hide_common)
    if output is not None:
        _write(result, output, select)


def _check_numbers(top: int, temperature: float | None, seed: int | None) -> None:
    if top < 1:
        raise InputError(f"--top is at least 1; got {top}.")
    if temperature is not None and seed is None:
        raise InputError("--temperature is for sampling; add --seed NUMBER.")
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"--temperature is a finite number above 0; got {temperature}.")


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
    if hide and common_tokens(result.sources, words).all():
        console.print(f"All {len(result.sources)} sources are common words: none is left to show.")
        return
    if select is not None:
        result = result.row(parse_target(select))
        strongest = terminal.strongest_sources(result, 3 * top, words=words, hide=hide)
        names = [result.method.name]
        console.print(terminal.layers_table([strongest], names=names, console=console))
    one = _one_layer(result, layer)
    console.print(terminal.completion_table(one, k=top, words=words, hide=hide, console=console))
    if result.confirmation is not None:
        console.print(escape(str(result.confirmation)), soft_wrap=True)


def _one_layer(result: Attribution, layer: str) -> Attribution:
    if layer == "mean":
        return result.mean_over_layers()
    number = parse_target(layer)
    if not isinstance(number, int):
        raise InputError(f"--layers is a number or 'mean'; got {layer!r}.")
    return result.layer(number)


def _write(result: Attribution, output: Path, select: str | None) -> None:
    if output.suffix not in PICTURES:
        write_result(result, output, figure=None, trace=None)
        return
    from attnflow.show import plots

    target = None if select is None else parse_target(select)
    write_figure(plots.completion_figure(result, target), output)


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


def say_if_preparing(model: str | None) -> None:
    """Say so when the first use of SmolLM2 takes longer."""
    if model is not None and model.lower() != "smollm2":
        return
    from attnflow.models.smollm2 import prepared_folder

    if not prepared_folder().is_dir():
        typer.echo("attnflow: preparing SmolLM2 for its first use, about 30 seconds.", err=True)
