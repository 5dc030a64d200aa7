"""Parts of all commands of the experiments: options, a model on a device, a run that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.errors import InputError, StoppedError
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FOLDER", help="Write CSV, Markdown and the figure to this folder."
    ),
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
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Write CSV and Markdown to this folder, and keep the run in it. The same command "
        "goes on from where it stopped.",
    ),
]
ProtocolOption = Annotated[
    str, typer.Option(help="'sound', or 'paper' for the paper's own with its oddities.")
]


def load_on(device: str, model: str | None) -> Model:
    """Return a language model in single precision on a device."""
    from attnflow.hosts.load import as_model

    loaded = as_model(model, default="smollm2")
    try:
        loaded.module.float().to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise InputError(f"--device {device!r} cannot be used: {error}") from error
    return loaded


@contextmanager
def keeping(output: Path | None) -> Iterator[None]:
    """Show progress; an interruption says where what is done is kept."""
    try:
        with progress_bars():
            yield
    except KeyboardInterrupt:
        if output is None:
            raise
        raise StoppedError(
            f"interrupted; what is done is kept in {str(output)!r}, and the same command goes on "
            "from there."
        ) from None
