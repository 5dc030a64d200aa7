"""The command line, assembled: every command has a file of its own beside this one.

Answers go to standard output, everything else to standard error. Exit status: 0 done, 2 bad
usage (an option, a text, a target), 1 failure (a model, a file), 130 interrupted. A traceback is
shown only with ATTNFLOW_DEBUG=1.

Other packages add commands: typer apps under the entry point group "attnflow.commands". A package
declares, in its pyproject.toml:

    [project.entry-points."attnflow.commands"]
    experiment = "attnflow_experiments.commands:app"

An app of one command is that command. One that cannot be loaded leaves a command of its name,
which says why; the others work.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.models import CommandInfo

from attnflow._version import __version__
from attnflow.cli.ask import ask
from attnflow.cli.check import check
from attnflow.cli.cite import cite
from attnflow.cli.corpus import app as corpus
from attnflow.cli.demo import demo
from attnflow.cli.doctor import doctor
from attnflow.cli.evaluate import evaluate
from attnflow.cli.explain import explain
from attnflow.cli.generate import generate
from attnflow.cli.methods import methods
from attnflow.cli.mistakes import Commands
from attnflow.cli.report import report
from attnflow.cli.trace import trace
from attnflow.errors import (
    AttnflowError,
    AttributionWarning,
    InputError,
    MissingDependencyError,
    StoppedError,
)

GROUP = "attnflow.commands"
# Commands of packages that are known, by what installs them.
_KNOWN = {
    "bench": 'Methods against each other: pip install "attnflow[experiments]".',
    "serve": 'The page on this machine: pip install "attnflow[web]".',
    "experiment": 'The paper\'s experiments: pip install "attnflow[experiments]".',
}
# The list of commands begins with these; the others stand as they were added.
_FIRST = ("ask", "cite", "explain", "generate", "trace", "report", "serve")
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_NOTHING_WRITTEN = "interrupted; nothing was written."
_INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended


def add_plugins(app: typer.Typer, points: Iterable[EntryPoint] | None = None) -> None:
    """Add the command of every plug-in; without `points`, of those that are installed."""
    points = entry_points(group=GROUP) if points is None else points
    names = set(typer.main.get_group(app).commands)
    for point in sorted(points, key=lambda point: point.name):
        if point.name in names:
            typer.echo(f"attnflow: {point.value!r} is left out: {point.name} is taken.", err=True)
            continue
        names.add(point.name)
        try:
            _add(app, point.name, _load(point))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _stand_in(app, point.name, f"its plug-in {point.value!r} cannot be loaded ({reason}).")
    for name in _KNOWN.keys() - names:
        _stand_in(app, name, f"it is not installed. {_KNOWN[name]}")


def _load(point: EntryPoint) -> typer.Typer:
    plugin = point.load()
    if not isinstance(plugin, typer.Typer):
        raise TypeError(f"it is a {type(plugin).__name__}, not a typer.Typer")
    return plugin


def _add(app: typer.Typer, name: str, plugin: typer.Typer) -> None:
    """Add an app as a group of commands, or as its command if it has just one, as typer does."""
    commands = plugin.registered_commands
    if len(commands) > 1 or plugin.registered_groups or plugin.registered_callback:
        app.add_typer(plugin, name=name)
    else:
        (command,) = commands
        command.name = name
        app.registered_commands.append(command)


def _place(command: CommandInfo) -> int:
    name = command.name or getattr(command.callback, "__name__", "")
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _stand_in(app: typer.Typer, name: str, sentence: str) -> None:
    message = f"`attnflow {name}` cannot run: {sentence}"

    def refuse() -> None:
        raise MissingDependencyError(message)

    app.command(name=name, help=message, context_settings=_ANYTHING)(refuse)


app = typer.Typer(
    name="attnflow",
    help="Which input did this output come from? Attention rollout and flow for any transformer.",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    *(ask, cite, explain, generate, trace, report),
    *(evaluate, check, methods, demo, doctor),
):
    app.command()(_command)
app.add_typer(corpus)
add_plugins(app)
app.registered_commands.sort(key=_place)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"attnflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and leave with its status."""
    # Threads of torch that wait for each other spin by default, which takes three times the
    # processor's time on a small machine and many times the clock's on a busy one. The library
    # reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        _accept_any_terminal()
        with _warnings_as_sentences():
            app(arguments, prog_name="attnflow", standalone_mode=True)
    except SystemExit as leaving:
        return _leave(leaving)
    except KeyboardInterrupt:
        return _fail(_NOTHING_WRITTEN, _INTERRUPTED)
    except StoppedError as error:
        return _fail(str(error), _INTERRUPTED)
    except AttnflowError as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 1, error)
    except OSError as error:
        return _fail_at_file(error)
    except Exception as error:
        what = f"this should not have happened ({type(error).__name__}: {error})"
        return _fail(f"{what}. Please report it; ATTNFLOW_DEBUG=1 shows where.", 1, error)
    return 0


def _leave(leaving: SystemExit) -> int:
    """Return the status that a command or the parser leaves with, once all output is written."""
    # `attnflow methods | head -1`: the parser and rich leave with 1 out of a broken pipe.
    if isinstance(leaving.__context__, BrokenPipeError):
        _forget_output()
        return 0
    if leaving.code == _INTERRUPTED:  # the parser catches Ctrl-C before we do, and says nothing
        return _fail(_NOTHING_WRITTEN, _INTERRUPTED)
    try:
        sys.stdout.flush()  # a full disk is told here, not by the interpreter at its end
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        return _fail_at_file(error)
    return leaving.code if isinstance(leaving.code, int) else 0


def _fail(message: str, status: int, error: Exception | None = None) -> int:
    if error is not None and os.environ.get("ATTNFLOW_DEBUG"):
        raise error
    with suppress(OSError):  # nobody listens: the status alone has to say it
        typer.echo(f"attnflow: {message}", err=True)
    return status


def _fail_at_file(error: OSError) -> int:
    """Tell of a file that cannot be used; without a name it was standard output."""
    reason = error.strerror or str(error)
    if error.filename is None:
        _forget_output()
        return _fail(f"the answer could not be written to standard output: {reason}.", 1, error)
    name = str(error.filename)
    name = name if len(name) <= 100 else f"{name[:97]}..."
    return _fail(f"{name!r} cannot be used: {reason}.", 1, error)


def _forget_output() -> None:
    """Let what is still in the buffer go nowhere, so that the interpreter ends in silence."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _accept_any_terminal() -> None:
    """Write what a terminal's encoding lacks (an arrow in ASCII) as an escape."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Tell of a result that says less than it seems to in a sentence, without a traceback."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, AttributionWarning):
            typer.echo(f"attnflow: {message}", err=True)
        else:
            usual(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("default", AttributionWarning)
        warnings.showwarning = show
        yield
