"""What `attnflow explain --output` writes: a result, a figure, or an animation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.cli.options import ANIMATION, PICTURES
from attnflow.errors import InputError, did_you_mean
from attnflow.methods import Flow, Method, MixingMethod
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

__all__ = ["FIGURES", "check_figure", "write_cut", "write_graph", "write_result"]

FIGURES = ("layers", "pairs", "bars", "graph")
_DOTS_PER_INCH = 160


def check_figure(
    figure: str | None,
    output: Path | None,
    method: Method,
    *,
    cut: str | None,
    words: bool,
    all_targets: bool,
    layer: int | None,
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
    if all_targets and (suffix == ANIMATION or figure in ("layers", "bars", "graph")):
        raise InputError("This figure shows one target; leave out --all-targets.")
    if suffix == ANIMATION and layer is not None:
        raise InputError(
            "A .gif is built up from the lowest layer to the highest; leave out --layer."
        )
    if figure == "graph" and (words or not isinstance(method, MixingMethod)):
        raise InputError(
            "--figure graph draws attention weights between tokens: use it with --method raw, "
            f"rollout or flow (now {method.name!r}) and without --words."
        )


def write_result(
    result: Attribution, output: Path, *, figure: str | None, trace: AttentionTrace | None
) -> None:
    """Write a result in the format its ending says."""
    if output.suffix == ANIMATION:
        from attnflow.show import plots

        drawable = isinstance(result.method, MixingMethod)
        plots.build_up(result, output, trace=trace if drawable else None)
    elif output.suffix in PICTURES:
        kind: Any = figure or ("pairs" if len(result.targets) > 1 else "layers")
        _save(result.plot(kind), output)
        return
    elif output.suffix == ".html":
        storage.write_text(output, result.to_html())
    else:
        result.save(output)
    _say(output)


def write_graph(
    method: Method, trace: AttentionTrace, target: TokenRef, layer: int | None, output: Path
) -> None:
    """Draw the attention graph with the paths of one target."""
    from attnflow.show import plots

    if layer is not None and layer not in trace.layers:
        numbers = ", ".join(map(str, trace.layers))
        raise InputError(f"--layer {layer}: choose from {numbers}.")
    layers = [number for number in trace.layers if layer is None or number <= layer]
    mixing = method if isinstance(method, MixingMethod) else None
    _save(plots.attention_graph(trace, target=target, layers=layers, mixing=mixing), output)


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
    _save(axes, output)


def _save(axes: Any, output: Path) -> None:
    axes.figure.savefig(output, dpi=_DOTS_PER_INCH)
    _say(output)


def _say(output: Path) -> None:
    typer.echo(f"wrote {output}", err=True)
