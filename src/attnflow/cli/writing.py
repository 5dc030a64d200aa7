"""Outputs of commands: files checked before the work, JSON that any terminal takes, and how long a
command will take, from how long the last one took on this machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.attribution.carrying import Step
from attnflow.errors import FileError, InputError, listing
from attnflow.show import terminal
from attnflow.show.sentences import answer_sentence, answer_subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
ENDINGS = (".json", ".safetensors", ".html", *PICTURES)
ANIMATION = ".gif"
_MAPS = 4  # words of an answer about images whose maps the terminal shows
_LETTERS = 4  # of a token, in the mean
_FILE = "pace.json"
# Seconds until a model runs, and then for each token: `ask` and `explain` on two slow cores.
_SHIPPED = {"smollm2": (7.0, 0.03), "verb-number": (7.0, 0.03)}


def check_output(output: Path | None, *, animated: bool = False, as_json: bool = False) -> None:
    """Check that the result can be written there, before any work is done."""
    if output is None:
        return
    if as_json:
        raise InputError("--json prints the result and --output writes it to a file: choose one.")
    allowed = (*ENDINGS, ANIMATION) if animated else ENDINGS
    if output.suffix not in allowed:
        raise InputError(
            f"--output {str(output)!r}: the ending decides the format and must be "
            f"{listing(allowed, 'or')}."
        )
    if not output.absolute().parent.is_dir():
        raise InputError(f"--output {str(output)!r}: there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise InputError(f"--output {str(output)!r} is a folder; name a file in it.")


def make_folder(folder: Path) -> Path:
    """Make the folder that results are written to, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{str(folder)!r} cannot be written to: {error}.") from error
    return folder


def print_json(record: Any) -> None:
    """Print a record on one line; what the terminal's encoding lacks as JSON's own escape of it."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(record, ensure_ascii=True)
    typer.echo(text)


def print_verdict(result: Attribution, console: Console) -> None:
    """Say what the answer rests on, and draw its probability, where something was hidden."""
    for verdict in result.verdicts:
        for line in () if verdict is None else terminal.verdict_lines(verdict, console.width):
            is_bare = verdict is not None and verdict.kind == "none" and not line.startswith(" ")
            console.print(Text(line, style="bold yellow" if is_bare else ""), soft_wrap=True)


def print_path(path: Step, console: Console) -> None:
    """Print the way back from what was written, a line for each step, indented."""
    console.print()
    console.print(Text(f'"{path.text}"'), soft_wrap=True)
    for line in path.lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def print_maps(result: Attribution, console: Console) -> None:
    """Print a sentence and a map of characters for each of the first words about images."""
    for position in result.targets.positions[:_MAPS]:
        word = result.row(position)
        sentence = answer_sentence(word, subject=answer_subject(word))
        console.print(Text(sentence), soft_wrap=True)
        console.print(terminal.picture_map(word, console=console))
    if len(result.targets) > _MAPS:
        more = len(result.targets) - _MAPS
        console.print(f"… and {more} more words; --output map.png shows them.")


def print_shaded(result: Attribution, console: Console) -> None:
    """Print the text shaded by its values, where there is something to see."""
    shaded = terminal.shaded_text(result, console=console)
    if shaded is not None:
        console.print(shaded)
        console.print()


def print_dim(text: str, console: Console) -> None:
    """Print what a reader may pass over."""
    console.print(Text(text, style="dim"), soft_wrap=True)


def draw_result(result: Attribution, kind: Any = None) -> Figure | None:
    """Draw a result: over images a map for each word, else the kind that is named, else the layers
    of one target or all pairs of several.
    """
    if result.sources.images:
        from attnflow.show import plots

        return plots.image_words_figure(result)
    return result.plot(kind).get_figure(root=True)


def write_result(
    result: Attribution,
    output: Path,
    draw: Callable[[Attribution], Figure | None] = draw_result,
    page: Callable[[], str] | None = None,
) -> None:
    """Write a result in the format its ending says; `draw` makes its figure, `page` its page."""
    if output.suffix in PICTURES:
        write_figure(draw(result), output)
        return
    if output.suffix == ".html":
        storage.write_text(output, (page or result.to_html)())
    else:
        result.save(output)
    tell_written(output)


def write_figure(figure: Figure | None, output: Path) -> None:
    """Write a figure, whole or not at all, and say so."""
    from attnflow.show import plots

    assert figure is not None  # axes that a function of ours drew on stand in a figure
    plots.save_figure(figure, output)
    tell_written(output)


def tell_remarks(result: Attribution) -> None:
    """Say what had to be done to images, on standard error."""
    for remark in result.provenance.get("image_remarks", ()):
        typer.echo(f"attnflow: {remark}.", err=True)


def tell_written(output: Path) -> None:
    """Say which file was written, on standard error."""
    typer.echo(f"wrote {output}", err=True)


# -- how long it takes ----------------------------------------------------------------------------


class Pace:
    """The time of one command: announced when it is made, measured while it is entered."""

    def __init__(self, model: str, text: str, new_tokens: int = 0) -> None:
        self._model, self._begin = model, time.monotonic()
        self._startup, self._is_first = 0.0, "torch" not in sys.modules
        count = max(1, len(text) // _LETTERS)
        self._tokens = count + new_tokens
        writes = f" and writes up to {new_tokens:,}" if new_tokens else ""
        rates = {**_SHIPPED, **_read_rates()}
        startup, rate = rates.get(model, (None, 0.0))
        known = "how long is not known before its first run here"
        if startup is not None:
            known = f"about {tell_seconds(startup + rate * self._tokens)}"
        tokens = f"{count:,} token{'s' if count > 1 else ''}"
        typer.echo(f"attnflow: {model} reads about {tokens}{writes}: {known}.", err=True)

    def __enter__(self) -> None:
        self._startup = time.monotonic() - self._begin

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_first:  # else the next process takes longer to begin
            seconds = time.monotonic() - self._begin - self._startup
            rates = {**_read_rates(), self._model: (self._startup, seconds / self._tokens)}
            with suppress(OSError):  # a cache that cannot be written to costs an estimate
                _file().parent.mkdir(parents=True, exist_ok=True)
                storage.write_text(_file(), json.dumps(rates))


def tell_seconds(seconds: float) -> str:
    """Return a time in words, as exact as it can be known."""
    if seconds < 90:
        return f"{max(1, round(seconds))} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes"


def _file() -> Path:
    from attnflow.models.smollm2 import prepared_folder

    return prepared_folder().parent / _FILE


def _read_rates() -> dict[str, tuple[float, float]]:
    with suppress(OSError, ValueError, TypeError, AttributeError):  # whatever the file holds
        record = json.loads(_file().read_text(encoding="utf-8"))
        return {str(name): (float(first), float(rate)) for name, (first, rate) in record.items()}
    return {}
