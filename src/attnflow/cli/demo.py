"""`attnflow demo`: three sentences, three methods, one table and one figure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from attnflow.attribution import Attribution
from attnflow.cli.options import prepare_models
from attnflow.cli.output import PICTURES
from attnflow.errors import AttributionWarning, InputError
from attnflow.methods import Flow, Method, Raw, Rollout
from attnflow.show import terminal

__all__ = ["demo"]

_METHODS: tuple[Method, ...] = (Raw(), Rollout(), Flow())
_SENTENCES = (
    "the key to the cabinets",
    "the author talked to Sara about [MASK] book",
    "Mary convinced John of [MASK] love",
)


def demo(
    output: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path(
        "attnflow-demo.png"
    ),
) -> None:
    """Explain three sentences with the embedded model; no download, no arguments."""
    if output.suffix not in PICTURES:
        raise InputError(f"A figure is written as {', '.join(PICTURES)}; got {str(output)!r}.")
    prepare_models()
    console = Console(highlight=False)
    names = [method.name for method in _METHODS]
    console.print("[bold]Is the next verb singular or plural?[/bold] The embedded model reads the")
    console.print("words before it; [CLS] is where the answer is read from.\n".replace("[", r"\["))
    groups = [_explain(sentence) for sentence in _SENTENCES]
    headings = []
    for sentence, group in zip(_SENTENCES, groups, strict=True):
        headings.append(f"{sentence} → {group[0].prediction}")
        console.print(f"[bold]{escape(headings[-1])}[/bold]")
        console.print(terminal.layers_table(group, names=names, console=console))
    _draw(groups, names, headings, output)
    console.print(f"figure: {output}", soft_wrap=True)


def _explain(sentence: str) -> list[Attribution]:
    from attnflow.hosts.capture import capture
    from attnflow.hosts.load import load_model

    loaded = load_model(None)
    trace = capture(loaded.model, sentence, tokenizer=loaded.tokenizer)
    with warnings.catch_warnings():  # the table and the figure show all layers, beside each other
        warnings.simplefilter("ignore", AttributionWarning)
        return [method(trace, targets=["[CLS]"]) for method in _METHODS]


def _draw(
    groups: list[list[Attribution]], names: list[str], headings: list[str], output: Path
) -> None:
    from attnflow.show import plots

    output.parent.mkdir(parents=True, exist_ok=True)
    figure = plots.methods_figure(groups, names=names, headings=headings)
    plots.save_figure(figure, output)
