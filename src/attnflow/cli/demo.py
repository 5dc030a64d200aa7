"""The demonstration: three sentences, three methods, one table and one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from attnflow.attribution import Attribution
from attnflow.cli.options import prepare_models
from attnflow.methods import Flow, Method, Raw, Rollout
from attnflow.show import terminal

__all__ = ["run_demo"]

_METHODS: tuple[Method, ...] = (Raw(), Rollout(), Flow())


def run_demo(sentences: Sequence[str], output: Path, console: Console) -> None:
    """Explain what the embedded model says of each sentence; show it and draw it."""
    prepare_models()
    names = [method.name for method in _METHODS]
    console.print("[bold]Is the next verb singular or plural?[/bold] The embedded model reads the")
    console.print("words before it; [CLS] is where the answer is read from.\n".replace("[", r"\["))
    groups = [_explain(sentence) for sentence in sentences]
    headings = []
    for sentence, group in zip(sentences, groups, strict=True):
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
    return [method(trace, targets=["[CLS]"]) for method in _METHODS]


def _draw(
    groups: Sequence[Sequence[Attribution]],
    names: Sequence[str],
    headings: Sequence[str],
    output: Path,
) -> None:
    from attnflow.show import plots

    output.parent.mkdir(parents=True, exist_ok=True)
    figure = plots.methods_figure(groups, names=names, headings=headings)
    figure.savefig(output, dpi=160)
