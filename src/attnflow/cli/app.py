"""The command line: explain, generate, report, serve, evaluate, experiment, check, methods, demo.

Answers go to standard output, everything else to standard error. Exit status: 0 done, 2 bad
usage (an option, a text, a target), 1 failure (a model, a file), 130 interrupted. A traceback is
shown only with ATTNFLOW_DEBUG=1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as ProgressBar
from rich.table import Table

from attnflow._version import __version__
from attnflow.attribution import Attribution
from attnflow.cli.ablation import ablation
from attnflow.cli.evaluate import evaluate
from attnflow.cli.experiment import app as experiments
from attnflow.cli.figures import (
    FIGURES,
    check_figure,
    write_cut,
    write_graph,
    write_result,
)
from attnflow.cli.generate import generate
from attnflow.cli.options import (
    OptionOption,
    check_output,
    parse_option,
    parse_target,
    prepare_models,
)
from attnflow.cli.report import report
from attnflow.cli.serve import serve
from attnflow.errors import AttnflowError, InputError, StoppedError
from attnflow.methods import METHODS, Flow, Method, describe_options, make_method
from attnflow.progress import Progress
from attnflow.show import terminal
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

__all__ = ["app", "main"]

app = typer.Typer(
    name="attnflow",
    help="Which input did this output come from? Attention rollout and flow for any transformer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

experiments.command(name="ablation")(ablation)
app.add_typer(experiments)

_WORTH_AN_ESTIMATE = 50_000  # pairs of one layer: below this, flow takes seconds
_LONG = 20.0  # seconds after which people want to know how many more

_INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended

_CHECK_TEXT = "The author talked to Sara about the key to the cabinets."

_MARKS = {True: "[green]ok[/green]", False: "[red]NO[/red]", None: "[dim]--[/dim]"}

_SENTENCES = (
    "the key to the cabinets",
    "the author talked to Sara about [MASK] book",
    "Mary convinced John of [MASK] love",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="The text to explain.")],
    model: Annotated[
        str | None,
        typer.Option(help="A Hugging Face name or a local folder; default: the embedded model."),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"One of {', '.join(METHODS)}; see `attnflow methods`.")
    ] = "rollout",
    target: Annotated[
        str | None,
        typer.Option(
            help="The position (a number, from 0; negative: from the end) or token to explain; "
            "default: where the model's prediction is read from."
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Only this layer, counted from 1; default: all.")
    ] = None,
    option: OptionOption = None,
    words: Annotated[bool, typer.Option("--words", help="Merge word pieces to words.")] = False,
    decoder_text: Annotated[
        str | None,
        typer.Option(help="For an encoder-decoder: what its decoder has written so far."),
    ] = None,
    answer: Annotated[
        int | None,
        typer.Option(
            "--answer",
            "--of",
            help="With a gradient method: the class or token id to explain; default: the answer.",
        ),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="With --method flow: show the minimum cut between the target and this source "
            "(a position or a token): the edges that hold the flow back.",
        ),
    ] = None,
    all_targets: Annotated[
        bool,
        typer.Option("--all-targets", help="Explain every position; needs --json or --output."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a table.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the result to this file: .json, .safetensors; a page: .html; a figure: "
            ".png, .svg, .pdf; built up layer by layer: .gif."
        ),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help=f"Which figure --output is, one of {', '.join(FIGURES)}; default: layers, with "
            "--all-targets pairs, with --cut the cut in the graph."
        ),
    ] = None,
) -> None:
    """Show which tokens of TEXT the model's output draws on."""
    chosen = make_method(method, dict(map(parse_option, option or [])))
    all_targets = all_targets or figure == "pairs"
    _check_request(chosen, text, target, cut, all_targets, as_json, output)
    check_figure(figure, output, chosen, cut=cut, words=words, all_targets=all_targets, layer=layer)
    trace = _captured(model, text, decoder_text, chosen, answer)
    every = all_targets or (target is None and output is not None and output.suffix == ".html")
    wanted = None if every else [_target_or_prediction(target, trace)]
    if isinstance(chosen, Flow) and cut is not None and wanted is not None:
        _show_cut(chosen, trace, wanted[0], parse_target(cut), layer, output)
        return
    if output is not None and figure == "graph" and wanted is not None:
        write_graph(chosen, trace, wanted[0], layer, output)
        return
    result = _applied(chosen, trace, wanted, layer)
    result = result.merge_words() if words else result
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    elif output is not None:
        write_result(result, output, figure=figure, trace=None if words else trace)
    else:
        _show(result)


app.command()(generate)
app.command()(evaluate)
app.command()(report)
app.command()(serve)


@app.command()
def methods() -> None:
    """List every method with its options and their defaults."""
    console = Console(highlight=False)
    for name, kind in METHODS.items():
        console.print(f"[bold]{name}[/bold]  {escape((kind.__doc__ or '').splitlines()[0])}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for option in describe_options(kind):
            table.add_row(option.name, escape(repr(option.default)), escape(option.help))
        console.print(table)
        console.print()


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A Hugging Face name or a local folder.")],
    text: Annotated[str, typer.Option(help="The text to check it on.")] = _CHECK_TEXT,
) -> None:
    """Check that what attnflow sees in MODEL is what the model computes."""
    prepare_models()
    from attnflow.hosts.check import check_model
    from attnflow.hosts.load import example_inputs, load_model

    loaded = load_model(model, needs_tokenizer=False)
    checks = check_model(loaded.model, example_inputs(loaded, text), tokenizer=loaded.tokenizer)
    console = Console(highlight=False)
    for found in checks:
        mark = {True: "[green]ok[/green]", False: "[red]NO[/red]", None: "[dim]--[/dim]"}[
            found.passed
        ]
        console.print(f"{mark}  {found.name}: {escape(found.detail)}", soft_wrap=True)
    if any(found.passed is False for found in checks):
        console.print("[bold]verdict: do not trust attributions of this model[/bold]")
        raise typer.Exit(1)
    console.print("[bold]verdict: attention of this model is captured faithfully[/bold]")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path(
        "attnflow-demo.png"
    ),
) -> None:
    """Explain three sentences with the embedded model; no download, no arguments."""
    from attnflow.cli.demo import run_demo

    run_demo(_SENTENCES, output, Console(highlight=False))


def _check_request(
    method: Method,
    text: str,
    target: str | None,
    cut: str | None,
    all_targets: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Everything that can be known before the work: a long run must not fail on a file name."""
    if not text.strip():
        raise InputError(f"There is nothing to explain: the text is {text!r}.")
    if as_json and output is not None:
        raise InputError("--json prints the result and --output writes it to a file: choose one.")
    if output is not None:
        check_output(output, animated=True)
    if all_targets and (target is not None or (not as_json and output is None)):
        raise InputError("--all-targets goes with --json or --output, and without --target.")
    if cut is not None and not isinstance(method, Flow):
        raise InputError(f"--cut explains a flow; add --method flow (now {method.name!r}).")
    if cut is not None and (as_json or all_targets):
        raise InputError("--cut shows one flow; leave out --json and --all-targets.")


def _captured(
    model: str | None, text: str, decoder_text: str | None, method: Method, answer: int | None
) -> AttentionTrace:
    prepare_models()
    from attnflow.hosts.capture import capture
    from attnflow.hosts.load import load_model

    loaded = load_model(model)
    return capture(
        loaded.model,
        text,
        tokenizer=loaded.tokenizer,
        decoder_text=decoder_text,
        methods=[method],
        answer=answer,
    )


def _target_or_prediction(target: str | None, trace: AttentionTrace) -> TokenRef:
    if target is not None:
        return parse_target(target)
    return trace.prediction.position if trace.prediction else 0


def _applied(
    method: Method, trace: AttentionTrace, targets: list[TokenRef] | None, layer: int | None
) -> Attribution:
    if not isinstance(method, Flow):
        return method(trace, targets=targets, layers=layer)
    if trace.length * (len(targets) if targets else trace.length) >= _WORTH_AN_ESTIMATE:
        seconds = method.estimate(trace, targets=targets, layers=layer)
        if seconds >= _LONG:
            typer.echo(f"attnflow: this will take about {_duration(seconds)}.", err=True)
    console = Console(stderr=True)
    with ProgressBar(
        *ProgressBar.get_default_columns(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("flow", total=None)

        def report(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        return method(trace, targets=targets, layers=layer, progress=report)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _show(result: Attribution) -> None:
    console = Console(highlight=False)
    if result.prediction is not None:
        console.print(f"prediction: [bold]{escape(str(result.prediction))}[/bold]")
    console.print(f"target: {result.targets.positions[0]} {escape(repr(result.targets[0]))}")
    console.print(escape(result.title), style="dim", soft_wrap=True)
    console.print()
    shaded = terminal.shaded_text(result, console=console)
    if shaded is not None:
        console.print(shaded)
        console.print()
    console.print(terminal.layers_table([result], names=[result.method.name], console=console))
    console.print(terminal.contributions(result))
    warning = terminal.saturation_warning(result)
    if warning:
        console.print(warning, style="yellow")


def _show_cut(
    method: Flow,
    trace: AttentionTrace,
    target: TokenRef,
    source: TokenRef,
    layer: int | None,
    output: Path | None,
) -> None:
    number = -1 if layer is None else layer
    if output is not None:
        write_cut(method, trace, target, source, number, output)
        return
    console = Console(highlight=False)
    found = method.minimum_cut(trace, target=target, source=source, layer=number)
    console.print(
        f"flow from {escape(repr(found.target))} at layer {found.layer} to "
        f"{escape(repr(found.source))}: [bold]{found.value:.6f}[/bold]"
    )
    console.print(f"held back {escape(found.place)}")
    console.print(terminal.cut_table(found))


def main() -> None:
    """Run the command line and leave with its status."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="attnflow", standalone_mode=True)
    except SystemExit as leaving:
        if leaving.code == _INTERRUPTED:  # the parser catches Ctrl-C before we do, and says nothing
            return _fail("interrupted; nothing was written.", _INTERRUPTED)
        return leaving.code if isinstance(leaving.code, int) else 0
    except StoppedError as error:
        return _fail(str(error), _INTERRUPTED)
    except AttnflowError as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 1, error)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written.", _INTERRUPTED)
    except BrokenPipeError:  # the reader has gone: `attnflow methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _fail(
            f"this should not have happened ({type(error).__name__}: {error}). Please report it; "
            "ATTNFLOW_DEBUG=1 shows where.",
            1,
            error,
        )
    return 0


def _fail(message: str, status: int, error: Exception | None = None) -> int:
    if error is not None and os.environ.get("ATTNFLOW_DEBUG"):
        raise error
    typer.echo(f"attnflow: {message}", err=True)
    return status
