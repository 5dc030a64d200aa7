"""The options that several commands share: each is declared once, with its check.

They are called like the arguments in Python (`--targets`, `--layers`, `--max-new-tokens`).
Declarations look alike because typer has one shape for them; each says something else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from attnflow.errors import InputError, optional_import
from attnflow.methods import METHODS
from attnflow.tokens import TokenRef

_LONGEST_NAME = 1000  # characters of a model's name or path; file systems take less
_LARGEST_SEED = 2**32 - 1  # what numpy's and torch's generators take alike
_SYNTAX = "NAME[:KEY=VALUE,...]"
_NAMES = ", ".join(METHODS)


def check_model_name(name: str | None) -> str | None:
    """Refuse what cannot be the name of a model: it is too long."""
    if name is not None and (len(name) > _LONGEST_NAME or "\0" in name):
        raise InputError(
            f"--model is a Hugging Face name or a folder, of up to {_LONGEST_NAME:,} characters; "
            f"got {len(name):,} that begin with {name[:40]!r}."
        )
    return name


def _check_seed(seed: int | None) -> int | None:
    if seed is not None and not 0 <= seed <= _LARGEST_SEED:
        digits = str(seed) if abs(seed) < 10**30 else f"a number of {len(str(seed))} digits"
        raise InputError(f"--seed is a whole number from 0 to {_LARGEST_SEED:,}; got {digits}.")
    return seed


FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Read the text from this file instead."),
]
ImagesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--images",
        metavar="FILE",
        help="An image that the text asks about, for a vision-language model. May be repeated.",
    ),
]
TableOption = Annotated[
    bool, typer.Option("--table", help="Show the numbers, too, with a column for each layer.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FOLDER",
        callback=check_model_name,
        help="A Hugging Face name, a local folder, smollm2 or verb-number. The last two come with "
        "attnflow, and one of them is the default.",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar=_SYNTAX,
        help=f"One of {_NAMES}. Options follow a colon, as in rollout:residual=0.4,heads=max. "
        "`attnflow methods` lists them.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        metavar=_SYNTAX,
        help="A method with its options, as in gradient-flow:residual=0.5. May be repeated. The "
        f"methods are {_NAMES}.",
    ),
]
MaxNewTokensOption = Annotated[int, typer.Option(help="How many tokens the model writes, at most.")]
ConfirmOption = Annotated[
    bool | None,
    typer.Option(
        "--confirm/--no-confirm",
        help="Hide the strongest three words together and say what the answer loses. This costs "
        "one more pass. Default: do so for a language model.",
    ),
]
ContrastOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="With a gradient method: explain why the model gives its answer rather than this.",
    ),
]
ChatOption = Annotated[
    bool,
    typer.Option(
        "--chat", help="Put the prompt into the model's chat template, as one message of a user."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the result to this file. Its ending decides what is written: numbers (.json, "
        ".safetensors), a page (.html) or a figure (.png, .svg, .pdf). `explain` also writes a "
        ".gif, built up layer by layer.",
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FOLDER", help="Write CSV, Markdown and the figure to this folder."
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(callback=_check_seed, help="The seed of what is drawn at random."),
]
SamplingSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        callback=_check_seed,
        help="Sample with this seed. Default: always the likeliest token.",
    ),
]
ProtocolOption = Annotated[
    str, typer.Option(help="'sound', or 'paper' for the paper's own with its oddities.")
]


def parse_target(text: str) -> TokenRef:
    """Return a position, or else a token."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else text


def parse_span(text: str) -> int | str | slice:
    """Return a part of a completion: a token's number, numbers START:END, or else a text."""
    ends = re.fullmatch(r"([0-9]{0,9}):([0-9]{0,9})", text)
    if ends is None or text == ":":
        return parse_target(text)
    start, stop = (int(end) if end else None for end in ends.groups())
    return slice(start, stop)


def prepare_models() -> None:
    """Check that torch is there and quiet the hosts, before a command runs a model."""
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.hosts.load import quiet_hosts

    quiet_hosts()
