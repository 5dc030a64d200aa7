"""`attnflow generate`: the completion as it is written, then what each new token drew on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.attribution.carrying import paths_of
from attnflow.attribution.passages import DOCUMENTS, MESSAGES, statements_of
from attnflow.cli import inputs, options, writing
from attnflow.errors import InputError
from attnflow.methods import make_method
from attnflow.models import WRITER
from attnflow.show import terminal
from attnflow.show.progress import progress_bars
from attnflow.show.sentences import TABLE_LEGENDS, reading_place, sources_sentence, unit_of
from attnflow.tokens.text import common_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SENTENCES = 8  # words of a completion that get a sentence
_ROW_LEGENDS = {
    **TABLE_LEGENDS,
    "share": "The numbers of a line are what the token draws on each source.",
}


@options.described
def generate(
    prompt: Annotated[str | None, typer.Argument()] = None,
    words: options.Words = None,
    message: Annotated[list[str] | None, typer.Option(metavar="ROLE=TEXT")] = None,
    chat: options.Chat = False,
    images: options.Images = None,
    model: options.Model = None,
    method: options.Method = None,
    completion: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    max_new_tokens: options.MaxNewTokens = 20,
    targets: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN|PHRASE|START:END|answer")
    ] = None,
    sources: Annotated[list[str] | None, typer.Option(metavar="prompt|all|NAME=START:END")] = None,
    contrast: options.Contrast = None,
    check: options.Check = True,
    seed: options.SamplingSeed = None,
    temperature: float | None = None,
    layer: str = "-1",
    top: Annotated[int, typer.Option(min=1)] = 5,
    hide_common: Annotated[bool, typer.Option("--hide-common")] = False,
    common: Annotated[str | None, typer.Option(metavar="WORDS")] = None,
    table: options.Table = False,
    as_json: options.Json = False,
    output: options.Output = None,
) -> None:
    """Continue PROMPT and show what each new token draws on.

    With --images a vision-language model answers PROMPT. Its sources are patches of the image and
    words together, and a figure (--output) shows the image under each word. --model scenes is a
    small model of this kind that comes with attnflow.

    The default method is gradient-attention:balanced=true, which takes every token at once and
    agrees best with ablations (gradient-rollout about images). --method careful takes ten passes
    for each target and is surer.

    Examples:
      attnflow generate "My name is Putin, I am from" --targets Russia
      attnflow generate prompt.txt --targets answer --output page.html
      attnflow generate --message "system=Be brief." --message "user=Where is Rome?"

    prompt: The text to continue, a file that holds it, or - for standard input.
    message: Instead of PROMPT: a message of a conversation, whose role is system, user or
        assistant. May be repeated. Or one .json file with a list of messages.
    completion: Explain this text, which was written already, instead of letting the model write.
        It is what follows the prompt, with its leading space.
    targets: Explain only this part of what is written: a token's number or text, a phrase, or
        'answer' for all of it as one. May be repeated. --table shows one target at every layer.
    sources: 'all' lists generated tokens as sources, too, and shows the way back through them,
        step by step. NAME=START:END or NAME=TEXT sums the
        values over a span of the prompt, and may be repeated. Default: prompt.
    temperature: The temperature of sampling (--seed).
    layer: The layer to show: a number, or 'mean' for the mean of all. -1 is the highest.
    top: How many sources to show for a token.
    hide_common: Leave out punctuation and function words.
    common: Your own common words, separated by spaces.
    """
    shown_prompt, conversation = _read_prompt(prompt, words, message, chat)
    explainer = None if method is None else make_method(method)
    if temperature is not None and seed is None:
        raise InputError("--temperature is for sampling; add --seed NUMBER.")
    sampling = {"seed": seed, "temperature": temperature}
    request: dict[str, Any] = {
        "completion": completion,
        "max_new_tokens": max_new_tokens,
        "targets": [options.parse_span(target) for target in targets] if targets else None,
        "sources": _parse_sources(sources),
        "contrast": contrast,
        "images": images or None,
        "check": check,
        **{name: value for name, value in sampling.items() if value is not None},
    }
    common_words = None if common is None else common.split()
    look = _Look(_parse_layer(layer), top, common_words, hide_common, table)
    writing.check_output(output)
    inputs.check_images(images)
    new_tokens = max_new_tokens if completion is None else 0
    pace = writing.Pace(model or WRITER, shown_prompt + (completion or ""), new_tokens)
    options.prepare_models()
    from attnflow.explainers.completions import generate as run

    console = Console(highlight=False)
    inputs.tell_preparation(model)
    echo = _Echo(console, shown_prompt)
    with pace, progress_bars("reading", write=None if as_json else echo.print_text):
        result: Attribution = run(model, conversation, explainer, **request)
    writing.tell_remarks(result)
    if as_json:
        writing.print_json({**result.to_dict(), "paths": [p.to_dict() for p in paths_of(result)]})
    else:
        echo.print_text(completion or "")
        _show(result, console, look)
    if output is not None:
        writing.write_result(result, output, _draw)


def _read_prompt(
    prompt: str | None, words: str | None, turns: list[str] | None, chat: bool
) -> tuple[str, Any]:
    """Return the prompt as people read it, and as `generate` takes it: a text or messages."""
    if not turns:
        text = inputs.read_text(prompt, words, "continue")
        return text, [{"role": "user", "content": text}] if chat else text
    if prompt is not None or words is not None:
        raise InputError("Give PROMPT, --text or --message; only one of them.")
    messages = inputs.read_messages(turns)
    text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return f"{inputs.check_text(text, 'continue')}\nassistant: ", messages


def _parse_sources(sources: list[str] | None) -> Any:
    """Return 'prompt', 'all', or the spans of the prompt by name."""
    if not sources or sources in (["prompt"], ["all"]):
        return sources[0] if sources else "prompt"
    spans: dict[str, tuple[int, int] | str] = {}
    for text in sources:
        name, equals, place = text.partition("=")
        if not equals or not name or not place:
            raise InputError(
                f"--sources {text!r} must read prompt, all, NAME=START:END or NAME=TEXT."
            )
        start, colon, end = place.partition(":")
        is_span = colon and start.strip().isdigit() and end.strip().isdigit()
        spans[name] = (int(start), int(end)) if is_span else place
    return spans


def _parse_layer(layer: str) -> int | None:
    """Return the number of a layer; None is the mean of all."""
    number = options.parse_target(layer)
    if not isinstance(number, int) and layer != "mean":
        raise InputError(f"--layer is a number or 'mean'; got {layer!r}.")
    return number if isinstance(number, int) else None


class _Echo:
    """Writes the prompt, then each piece of text as it comes."""

    def __init__(self, console: Console, prompt: str) -> None:
        self._console = console
        self._prompt = prompt

    def print_text(self, text: str) -> None:
        """Print a piece of the completion, behind the prompt if it is the first."""
        if text and self._prompt:
            self._console.print(escape(self._prompt), style="dim", end="", soft_wrap=True)
            self._prompt = ""
        self._console.print(escape(text), style="bold", end="", soft_wrap=True)


class _Look(NamedTuple):
    """The look of a completion; `layer` None is the mean of all, `words` the common ones."""

    layer: int | None
    top: int
    words: list[str] | None
    hide: bool
    table: bool


def _show(result: Attribution, console: Console, look: _Look) -> None:
    """Print what each word draws on in sentences, the shaded prompt, the tables on request."""
    console.print("\n")
    if look.hide and common_tokens(result.sources, look.words).all():
        console.print(f"All {len(result.sources)} sources are common words: none is left to show.")
        return
    writing.print_verdict(result, console)
    one_layer = result.mean_over_layers() if look.layer is None else result.layer(look.layer)
    if one_layer.sources.images:
        writing.print_maps(one_layer, console)
    else:
        for sentence in _sentences(one_layer, look):
            console.print(Text(sentence), soft_wrap=True)
    for path in paths_of(result):
        writing.print_path(path, console)
    console.print()
    writing.print_shaded(one_layer, console)
    if look.table:
        _print_tables(result, one_layer, console, look)
    legend = _ROW_LEGENDS[unit_of(one_layer)] if look.table else "--table shows the numbers."
    writing.print_dim(f"{result.title}, {reading_place(one_layer)}. {legend}", console)


def _sentences(result: Attribution, look: _Look) -> list[str]:
    """Return a sentence for each statement over documents or messages, else for each word."""
    marked = result.provenance.get(DOCUMENTS) or result.provenance.get(MESSAGES)
    statements = statements_of(result) if marked else ()
    if statements:
        return [f"“{statement.text}” {statement.shares}." for statement in statements]
    targets = result.targets
    words = [list(group) for group in targets.groups()] if len(targets) > 1 else [[0]]
    is_common = common_tokens(targets, look.words)
    content = [word for word in words if not is_common[word].all()] or words
    common = (look.words or False) if look.hide else True
    sentences = [
        sources_sentence(result, word, k=min(look.top, 3), common=common)
        for word in content[:_SENTENCES]
    ]
    more = len(content) - len(sentences)
    return [*sentences, *([f"… and {more} more words; --table shows all."] if more > 0 else [])]


def _print_tables(
    result: Attribution, one_layer: Attribution, console: Console, look: _Look
) -> None:
    """Print the layers of a single target, and the strongest sources of every target."""
    common: dict[str, Any] = {"words": look.words, "hide": look.hide}
    if len(result.targets) == 1:
        strongest = terminal.strongest_sources(result, 3 * look.top, **common)
        most = terminal.MOST_LAYERS
        console.print(terminal.layers_table(strongest, console=console, most=most))
    console.print(terminal.completion_table(one_layer, k=look.top, console=console, **common))


def _draw(result: Attribution) -> Figure | None:
    """Draw the images under each word, the bars of a single target, or the map of all."""
    from attnflow.show import plots

    if result.sources.images:
        return writing.draw_result(result)
    single = result.targets.positions[0] if len(result.targets) == 1 else None
    return plots.completion_figure(result, single)
