"""What several commands read and check in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.errors import InputError, optional_import
from attnflow.tokens import TokenRef

__all__ = [
    "ANIMATION",
    "PICTURES",
    "OptionOption",
    "check_output",
    "parse_option",
    "parse_target",
    "prepare_models",
]

OptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the method, e.g. residual=0.4, heads=max, heads=3; repeatable.",
    ),
]


PICTURES = (".png", ".svg", ".pdf")
ANIMATION = ".gif"


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


def parse_target(text: str) -> TokenRef:
    """A position, or else a token."""
    try:
        return int(text)
    except ValueError:
        return text


def parse_option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as a name and a Python value."""
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


def prepare_models() -> None:
    """What every command that runs a model does first: torch must be there, hosts are quiet."""
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.hosts.load import quiet_hosts

    quiet_hosts()
