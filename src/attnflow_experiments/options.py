"""Parts of all commands of the experiments: options, a model on a device, what becomes of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.cli.writing import tell_written
from attnflow.errors import InputError, StoppedError
from attnflow.models import WRITER
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from attnflow.hosts.model import Model
    from attnflow_experiments.report import Report

_NOT_OF_NUMBERS = ("output", "resume", "device")  # options that change no number


@dataclass(frozen=True)
class Output:
    """The folder for what a command makes, if one is given, and the command that runs."""

    folder: Path | None = None
    context: typer.Context | None = None

    def journal(self, name: str) -> Path | None:
        """Return the file in the folder that keeps the run."""
        return None if self.folder is None else self.folder / name

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Show progress; an interruption says where what is done is kept."""
        try:
            with progress_bars():
                yield
        except KeyboardInterrupt:
            if self.folder is None:
                raise
            raise StoppedError(
                f"interrupted; what is done is kept in {str(self.folder)!r}, and the same command "
                "goes on from there."
            ) from None

    def finish(self, report: Report) -> Report:
        """Show a report, and write it if a folder is given; return it with the command."""
        from rich.console import Console

        report.show(Console(highlight=False))
        report = replace(report, command=self._command_line())
        for path in report.write(self.folder) if self.folder is not None else ():
            tell_written(path)
        return report

    def _command_line(self) -> str:
        """Return what to type to get the same numbers; of paths only the last part."""
        assert self.context is not None  # the option's callback puts it there
        parts = ["attnflow", *_command_names(self.context)]
        for option in self.context.command.params:
            value = self.context.params.get(str(option.name))
            if option.name in _NOT_OF_NUMBERS or value is None or value is False:
                continue
            for each in value if isinstance(value, (list, tuple)) else [value]:
                parts += [option.opts[0], *([] if each is True else [_last_part(each)])]
        return shlex.join(parts)


NOWHERE = Output()


def _command_names(context: Any) -> list[str]:
    """Return the names of a command and of those above it, without the program's."""
    if context.parent is None:
        return []
    return [*_command_names(context.parent), str(context.info_name)]


def _last_part(value: object) -> str:
    is_path = isinstance(value, Path) or (isinstance(value, str) and Path(value).exists())
    return Path(str(value)).name if is_path else str(value)


def _parse_output(value: str | Output) -> Output:
    return value if isinstance(value, Output) else Output(Path(value))


def _add_command(context: typer.Context, value: Output) -> Output:
    return replace(value, context=context)


def output_option(help_text: str, default: str | None = None) -> Any:
    """Return the option whose value is an `Output`. default: its folder, as the help names it."""
    return typer.Option(
        metavar="FOLDER",
        parser=_parse_output,
        callback=_add_command,
        show_default=default or False,
        help=help_text,
    )


FolderOption = Annotated[
    Output, output_option("Write CSV, Markdown and the figure to this folder.")
]
LanguageModelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FOLDER", help="A causal language model. Default: SmolLM2."),
]
PartOption = Annotated[
    str, typer.Option(help="'development', to choose by, or 'held-out', to report once.")
]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda or mps.")]
KeptFolderOption = Annotated[
    Output,
    output_option(
        "Write CSV and Markdown to this folder, and keep the run in it. The same command goes on "
        "from where it stopped."
    ),
]
ProtocolOption = Annotated[
    str, typer.Option(help="'sound', or 'paper' for the paper's own with its oddities.")
]


def load_on(device: str, model: str | None) -> Model:
    """Return a language model in single precision on a device."""
    from attnflow.hosts.load import as_model

    loaded = as_model(model, default=WRITER)
    try:
        loaded.module.float().to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise InputError(f"--device {device!r} cannot be used: {error}") from error
    return loaded
