"""`attnflow generate`: the completion as it is made, then what each new token drew on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS, MESSAGES, statements_of
from attnflow.attribution.rescaling import Span
from attnflow.cli.documents import read_messages, read_text
from attnflow.cli.options import (
    CarefulOption,
    ChatOption,
    ConfirmOption,
    FileOption,
    ImagesOption,
    JsonOption,
    MaxNewTokensOption,
    MessageOption,
    MethodOption,
    ModelOption,
    OptionOption,
    OutputOption,
    RatherThanOption,
    SamplingSeedOption,
    TableOption,
    check_text,
    parse_method,
    parse_span,
    parse_target,
    prepare_models,
)
from attnflow.cli.output import (
    PICTURES,
    check_output,
    print_how_sure,
    print_json,
    write_figure,
    write_result,
)
from attnflow.errors import InputError
from attnflow.errors.progress import Progress, listening
from attnflow.show import terminal
from attnflow.show.sentences import (
    TABLE_LEGENDS,
    answer_sentence,
    reading_place,
    sources_sentence,
    unit_of,
)
from attnflow.tokens.common_words import common_tokens

__all__ = ["generate", "say_if_preparing"]

_MAPS = 4  # words of an answer about images whose maps the terminal shows
_SENTENCES = 8  # words of a completion that get a sentence
_ROW_LEGENDS = {
    **TABLE_LEGENDS,
    "share": "The numbers of a line are what the token draws on each source.",
}


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue, or - for standard input.")
    ] = None,
    file: FileOption = None,
    message: MessageOption = None,
    images: ImagesOption = None,
    model: ModelOption = None,
    max_new_tokens: MaxNewTokensOption = 20,
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
            "or 'answer' for all of it as one. May be repeated.",
        ),
    ] = None,
    rather_than: RatherThanOption = None,
    careful: CarefulOption = False,
    confirm: ConfirmOption = True,
    method: MethodOption = None,
    option: OptionOption = None,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            "--layer",
            help="The layer to show: a number, or 'mean' for the mean of all. -1 is the highest.",
        ),
    ] = "-1",
    top: Annotated[int, typer.Option(help="How many sources to show for each token.")] = 5,
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
            help="Sum the values over a span of the prompt, named by positions or as NAME=TEXT. "
            "May be repeated.",
        ),
    ] = None,
    chat: ChatOption = False,
    seed: SamplingSeedOption = None,
    temperature: Annotated[
        float | None, typer.Option(help="The temperature of sampling (--seed).")
    ] = None,
    table: TableOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Continue PROMPT and show what each new token draws on.

    With --image a vision-language model answers PROMPT. Its sources are patches of the image and
    words together, and a figure (--output) shows the image under each word. --model scenes is a
    small model of this kind that comes with attnflow.

    Without --method it uses the default of `attnflow.generate`: the method that agrees best with
    ablations.
    """
    prompt, messages = _prompt(prompt, file, message)
    _check_numbers(top, temperature, seed)
    if option and method is None:
        raise InputError("--option is for a method you name; add --method rollout.")
    applied = None if method is None else parse_method(method, option)
    sampling = {"seed": seed, "temperature": temperature}
    writing = {name: value for name, value in sampling.items() if value is not None}
    spans = dict(map(_parse_span, span or []))
    _check_spans(spans, prompt)
    if output is not None:
        check_output(output)
    prepare_models()
    from attnflow.explainers.completions import generate as run
    from attnflow.explainers.prompts import as_chat

    console = Console(highlight=False)
    say_if_preparing(model)
    with listening(None if as_json else _Echo(console, prompt)):
        conversation = messages or (as_chat(prompt) if chat else None)
        result: Attribution = run(
            model,
            conversation or prompt,
            "careful" if careful else applied,
            max_new_tokens=max_new_tokens,
            targets=None if targets is None else [parse_span(target) for target in targets],
            contrast=rather_than,
            confirm=confirm and not images,
            images=images or None,
            **writing,
        )
    for remark in result.provenance.get("image_remarks", ()):
        typer.echo(f"attnflow: {remark}.", err=True)
    result = result.spans(spans) if spans else result
    if as_json:
        print_json(result.to_dict())
    else:
        words = None if common is None else common.split()
        look = _Look(select, layers, top, words, hide_common, table)
        _show(result, console, look)
    if output is not None:
        _write(result, output, select)


def _prompt(
    prompt: str | None, file: Path | None, turns: list[str] | None
) -> tuple[str, list[dict[str, str]]]:
    """The prompt as a text, and the messages of a conversation; one of the two is asked for."""
    if not turns:
        return check_text(read_text(prompt, file, "PROMPT"), "continue"), []
    if prompt is not None or file is not None:
        raise InputError("Give PROMPT, --file, or --message; only one of them.")
    messages = read_messages(turns)
    text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return f"{check_text(text, 'continue')}\nassistant: ", messages


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

    def __call__(self, progress: Progress) -> None:
        if not progress.text:
            return
        if self._prompt:
            self._console.print(escape(self._prompt), style="dim", end="", soft_wrap=True)
            self._prompt = ""
        self._console.print(escape(progress.text), style="bold", end="", soft_wrap=True)


class _Look(NamedTuple):
    """What is shown of a completion."""

    select: str | None
    layer: str
    top: int
    words: list[str] | None
    hide: bool
    table: bool


def _show(result: Attribution, console: Console, look: _Look) -> None:
    """What each word came from in sentences, the shaded prompt, and the tables on request."""
    console.print("\n")
    if look.hide and common_tokens(result.sources, look.words).all():
        console.print(f"All {len(result.sources)} sources are common words: none is left to show.")
        return
    if look.select is not None:
        result = result.row(parse_target(look.select))
    one = _one_layer(result, look.layer)
    if one.sources.images:
        _show_maps(one, console)
    for sentence in [] if one.sources.images else _sentences(one, look):
        console.print(Text(sentence), soft_wrap=True)
    if result.confirmation is not None:
        print_how_sure(result.confirmation, console)
    console.print()
    shaded = terminal.shaded_text(one, console=console)
    if shaded is not None:
        console.print(shaded)
        console.print()
    if look.table:
        _tables(result, one, console, look)
    legend = _ROW_LEGENDS[unit_of(one)] if look.table else "--table shows the numbers."
    about = f"{result.title}, {reading_place(one)}. {legend}"
    console.print(Text(about, style="dim"), soft_wrap=True)


def _show_maps(one: Attribution, console: Console) -> None:
    """A sentence and a map of characters for each of the first words."""
    for number in range(min(_MAPS, len(one.targets))):
        word = one if len(one.targets) == 1 else one.row(one.targets.positions[number])
        console.print(Text(answer_sentence(word)), soft_wrap=True)
        console.print(terminal.picture_map(word, console=console))
    if len(one.targets) > _MAPS:
        more = len(one.targets) - _MAPS
        console.print(f"… and {more} more words; --output map.png shows them.")


def _sentences(one: Attribution, look: _Look) -> list[str]:
    """A sentence for each statement over documents or messages, else for each telling word."""
    marked = one.provenance.get(DOCUMENTS) or one.provenance.get(MESSAGES)
    statements = statements_of(one) if marked else ()
    if statements:
        return [str(statement) for statement in statements]
    words = [list(group) for group in one.targets.groups()] if len(one.targets) > 1 else [[0]]
    common = common_tokens(one.targets, look.words)
    content = [word for word in words if not common[word].all()] or words
    skipped = (look.words or False) if look.hide else True
    sentences = [
        sources_sentence(one, word, k=min(look.top, 3), common=skipped)
        for word in content[:_SENTENCES]
    ]
    more = len(content) - len(sentences)
    return [*sentences, *([f"… and {more} more words; --table shows all."] if more > 0 else [])]


def _tables(result: Attribution, one: Attribution, console: Console, look: _Look) -> None:
    words, hide = look.words, look.hide
    if look.select is not None:
        strongest = terminal.strongest_sources(result, 3 * look.top, words=words, hide=hide)
        most = terminal.MOST_LAYERS
        console.print(terminal.layers_table(strongest, console=console, most=most))
    listing = terminal.completion_table(one, k=look.top, words=words, hide=hide, console=console)
    console.print(listing)


def _one_layer(result: Attribution, layer: str) -> Attribution:
    if layer == "mean":
        return result.mean_over_layers()
    number = parse_target(layer)
    if not isinstance(number, int):
        raise InputError(f"--layers is a number or 'mean'; got {layer!r}.")
    return result.layer(number)


def _check_spans(spans: Mapping[str, Span], prompt: str) -> None:
    """A span by its text stands in the prompt, once: known before the model runs."""
    for name, span in spans.items():
        if isinstance(span, str) and prompt.count(span) != 1:
            raise InputError(
                f"--span {name}={span!r}: this text occurs {prompt.count(span)} times in the "
                "prompt; give one that occurs once, or positions START:END."
            )


def _write(result: Attribution, output: Path, select: str | None) -> None:
    if output.suffix not in PICTURES:
        write_result(result, output, figure=None, trace=None)
        return
    from attnflow.show import plots

    if result.sources.images:
        write_figure(plots.image_words_figure(result), output)
        return
    target = None if select is None else parse_target(select)
    write_figure(plots.completion_figure(result, target), output)


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
