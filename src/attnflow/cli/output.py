"""What commands write and print: files checked before the work, JSON that any terminal takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.errors import InputError, did_you_mean
from attnflow.methods import Flow, Method, MixingMethod
from attnflow.show.terminal import certainty_lines
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from attnflow.attribution import Confirmation

__all__ = [
    "ANIMATION",
    "FIGURES",
    "PICTURES",
    "check_figure",
    "check_output",
    "print_how_sure",
    "print_json",
    "tell_written",
    "write_cut",
    "write_figure",
    "write_graph",
    "write_result",
]

PICTURES = (".png", ".svg", ".pdf")
ANIMATION = ".gif"
FIGURES = ("layers", "pairs", "bars", "graph")


def check_output(output: Path, *, animated: bool = False) -> None:
    """That the result can be written there, before any work is done."""
    allowed = (".json", ".safetensors", ".html", *PICTURES, *([ANIMATION] if animated else []))
    if output.suffix not in allowed:
        raise InputError(
            f"--output {str(output)!r}: the ending decides the format and must be "
            f"{', '.join(allowed[:-1])} or {allowed[-1]}."
        )
    if not output.absolute().parent.is_dir():
        raise InputError(f"--output {str(output)!r}: there is no folder {str(output.parent)!r}.")
    if output.is_dir():
        raise InputError(f"--output {str(output)!r} is a folder; name a file in it.")


def print_how_sure(confirmation: Confirmation, console: Console) -> None:
    """What the answer loses without its sources, drawn."""
    from rich.text import Text

    for line in certainty_lines(confirmation):
        console.print(Text(line), soft_wrap=True)


def check_figure(
    figure: str | None,
    output: Path | None,
    method: Method | None,
    *,
    cut: str | None,
    words: bool,
    several: bool,
    layers: list[int] | None,
) -> None:
    """That this figure can be drawn and written there, before any work is done."""
    if figure is not None and figure not in FIGURES:
        hint = did_you_mean(figure, FIGURES)
        raise InputError(f"Unknown figure {figure!r}.{hint} Allowed: {', '.join(FIGURES)}.")
    suffix = None if output is None else output.suffix
    if (figure or cut) and output is not None and suffix not in PICTURES:
        raise InputError(f"A figure is written as {', '.join(PICTURES)}; got {str(output)!r}.")
    if figure is not None and output is None:
        raise InputError(f"--figure {figure} needs a file: --output {figure}.png.")
    if figure is not None and cut is not None:
        raise InputError("--cut draws a figure of its own; leave out --figure.")
    if several and (suffix == ANIMATION or figure in ("layers", "bars", "graph")):
        raise InputError("This figure shows one target; leave out --all-targets.")
    if suffix == ANIMATION and layers:
        raise InputError(
            "A .gif is built up from the lowest layer to the highest; leave out --layers."
        )
    if layers and len(layers) > 1 and (cut or figure == "graph"):
        raise InputError("This figure goes up to one layer; give --layers once.")
    if figure == "graph" and (words or not isinstance(method, MixingMethod)):
        name = None if method is None else method.name
        raise InputError(
            "--figure graph draws attention weights between tokens: use it with --method raw, "
            f"rollout or flow (now {name!r}) and without --words."
        )


def print_json(record: Any) -> None:
    """A record on one line; where the terminal's encoding lacks a sign, JSON's own escape of it."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(record, ensure_ascii=True)
    typer.echo(text)


def write_result(
    result: Attribution, output: Path, *, figure: str | None, trace: AttentionTrace | None
) -> None:
    """Write a result in the format its ending says."""
    if output.suffix in PICTURES:
        kind: Any = figure or ("pairs" if len(result.targets) > 1 else "layers")
        write_figure(result.plot(kind).get_figure(root=True), output)
        return
    if output.suffix == ANIMATION:
        from attnflow.show import plots

        drawable = isinstance(result.method, MixingMethod)
        plots.build_up(result, output, trace=trace if drawable else None)
    elif output.suffix == ".html":
        storage.write_text(output, result.to_html())
    else:
        result.save(output)
    tell_written(output)


def write_graph(
    method: Method, trace: AttentionTrace, target: TokenRef, layer: int | None, output: Path
) -> None:
    """Draw the attention graph with the paths of one target."""
    from attnflow.show import plots

    if layer is not None and layer not in trace.layers:
        numbers = ", ".join(map(str, trace.layers))
        raise InputError(f"--layers {layer}: choose from {numbers}.")
    layers = [number for number in trace.layers if layer is None or number <= layer]
    mixing = method if isinstance(method, MixingMethod) else None
    axes = plots.attention_graph(trace, target=target, layers=layers, mixing=mixing)
    write_figure(axes.get_figure(root=True), output)


def write_cut(
    method: Flow,
    trace: AttentionTrace,
    target: TokenRef,
    source: TokenRef,
    layer: int,
    output: Path,
) -> None:
    """Draw the minimum cut between a target and a source in the graph."""
    from attnflow.show import plots

    axes = plots.cut_graph(method, trace, target=target, source=source, layer=layer)
    write_figure(axes.get_figure(root=True), output)


def write_figure(figure: Figure | None, output: Path) -> None:
    """Write a figure, whole or not at all, and say so."""
    from attnflow.show import plots

    assert figure is not None  # axes that a function of ours drew on stand in a figure
    plots.save_figure(figure, output)
    tell_written(output)


def tell_written(output: Path) -> None:
    """Say which file was written, on standard error."""
    typer.echo(f"wrote {output}", err=True)
