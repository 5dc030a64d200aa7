"""The command line: `attnflow explain`, `attnflow methods`, `attnflow demo`.

Answers go to standard output, everything else to standard error. Exit status: 0 done, 2 bad
usage (an option, a text, a target), 1 failure (a model, a file), 130 interrupted. A traceback is
shown only with ATTNFLOW_DEBUG=1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnflow import terminal
from attnflow._version import __version__
from attnflow.attribution import Attribution
from attnflow.errors import AttnflowError, InputError, optional_import
from attnflow.methods import METHODS, describe_options, make_method
from attnflow.tokens import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["app", "main"]

app = typer.Typer(
    name="attnflow",
    help="Which input did this output come from? Attention rollout and flow for any transformer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

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
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the method, e.g. residual=0.4, heads=max, heads=3; repeatable.",
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Merge word pieces to words.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a table.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the result to this file: .json, .safetensors or .png."),
    ] = None,
) -> None:
    """Show which tokens of TEXT the model's output draws on."""
    if as_json and output is not None:
        raise InputError("--json prints the result and --output writes it to a file: choose one.")
    if output is not None:
        _check_output(output)
    result = _explained(text, model, method, target, layer, option or [], words)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    elif output is not None:
        _write(result, output)
    else:
        _show(result)


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
def demo(
    output: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path(
        "attnflow-demo.png"
    ),
) -> None:
    """Explain three sentences with the embedded model; no download, no arguments."""
    from attnflow.demo import run_demo

    run_demo(_SENTENCES, output, Console(highlight=False))


def _explained(
    text: str,
    model: str | None,
    method: str,
    target: str | None,
    layer: int | None,
    options: list[str],
    words: bool,
) -> Attribution:
    chosen = make_method(method, dict(map(_parse_option, options)))
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.capturing import capture
    from attnflow.loading import load_model

    if not text.strip():
        raise InputError(f"There is nothing to explain: the text is {text!r}.")
    _quiet_hosts()
    loaded = load_model(model)
    trace = capture(loaded.model, text, tokenizer=loaded.tokenizer, heads=chosen.heads_to_capture)
    read_from = trace.prediction.position if trace.prediction else 0
    wanted: Target = read_from if target is None else _parse_target(target)
    result = chosen(trace, targets=[wanted], layers=layer)
    return result.merge_words() if words else result


def _show(result: Attribution) -> None:
    console = Console(highlight=False)
    if result.prediction is not None:
        console.print(f"prediction: [bold]{escape(str(result.prediction))}[/bold]")
    console.print(f"target: {result.targets.positions[0]} {escape(repr(result.targets[0]))}")
    console.print(escape(result.title), style="dim", soft_wrap=True)
    console.print()
    console.print(terminal.layers_table([result], names=[result.method.name], console=console))
    console.print(terminal.contributions(result))


def _check_output(output: Path) -> None:
    """Before the work, not after it: an hour's result must not fail on a file name."""
    if output.suffix not in (".json", ".safetensors", ".png"):
        raise InputError(
            f"--output {str(output)!r}: the ending decides the format and must be .json, "
            ".safetensors or .png."
        )
    if not output.absolute().parent.is_dir():
        raise InputError(f"--output {str(output)!r}: there is no folder {str(output.parent)!r}.")


def _write(result: Attribution, output: Path) -> None:
    if output.suffix == ".png":
        figure = cast("Figure", result.plot().get_figure(root=True))
        figure.savefig(output, dpi=160)
    else:
        result.save(output)
    typer.echo(f"wrote {output}", err=True)


def _parse_target(text: str) -> Target:
    try:
        return int(text)
    except ValueError:
        return text


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--option {text!r} must read NAME=VALUE, for example residual=0.4.")
    return name.strip().replace("-", "_"), _parse_value(value.strip())


def _parse_value(text: str) -> Any:
    named = {"none": None, "true": True, "false": False}
    if text.lower() in named:
        return named[text.lower()]
    if "," in text:
        return [_parse_value(part.strip()) for part in text.split(",")]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _quiet_hosts() -> None:
    """Host libraries log and draw progress bars for their own users; ours asked for an answer."""
    try:
        from transformers.utils import logging
    except ImportError:
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> None:
    """Run the command line and leave with its status."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="attnflow", standalone_mode=True)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except AttnflowError as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 1, error)
    except KeyboardInterrupt:
        return _fail("interrupted.", 130)
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
