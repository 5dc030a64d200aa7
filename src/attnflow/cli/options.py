"""The options that several commands share: each is declared once, with its check.

They are called like the arguments in Python (`--targets`, `--layers`, `--max-new-tokens`). The help
of an option is a sentence of a docstring, as that of a method's options is: of the command's own
or, where several commands share it, of this one.

words: The words of the text themselves, even if a file has this name.
images: An image that the text asks about, for a vision-language model. May be repeated.
table: Show the numbers, too, with a column for each layer.
max_new_tokens: How many tokens the model writes, at most.
check: Hide what the answer draws on most, and say what it rests on. This takes one or two more
    passes.
contrast: With a gradient method: explain why the model gives its answer rather than this.
chat: Put the prompt into the model's chat template, as one message of a user.
as_json: Print the result as JSON, and nothing else.
output: Write the result to this file. Its ending decides what is written: numbers (.json,
    .safetensors), a page (.html) or a figure (.png, .svg, .pdf). `explain` also writes a .gif,
    built up layer by layer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from attnflow.errors import InputError, optional_import
from attnflow.methods import METHODS
from attnflow.methods.registry import option_sentences
from attnflow.tokens import TokenRef

_LONGEST_NAME = 1000  # characters of a model's name or path; file systems take less
_LARGEST_SEED = 2**32 - 1  # what numpy's and torch's generators take alike
_SYNTAX = "NAME[:KEY=VALUE,...]"
_NAMES = ", ".join(METHODS)


F = TypeVar("F", bound=Callable[..., None])


def described(command: F) -> F:
    """Give the options of a command their help, and leave the rest of its docstring to it."""
    text = inspect.cleandoc(command.__doc__ or "")
    hints = get_type_hints(command, include_extras=True)
    sentences = option_sentences(text)
    for name, sentence in {**option_sentences(__doc__ or ""), **sentences}.items():
        if name in hints and not hasattr(hints[name], "__metadata__"):
            hints[name] = Annotated[hints[name], typer.Option()]
        if name in hints:
            hints[name].__metadata__[0].help = sentence
    command.__annotations__.update(hints)
    first = next((name for name in sentences if name in hints), "")
    text = text.partition(f"\n{first}: ")[0].rstrip()
    command.__doc__ = text.replace("\nExamples:\n", "\n\b\nExamples:\n")  # keeps its lines
    return command


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


Words = Annotated[str | None, typer.Option("--text", metavar="TEXT")]
Images = Annotated[list[Path] | None, typer.Option(metavar="FILE")]
Table = Annotated[bool, typer.Option("--table")]
MaxNewTokens = Annotated[int, typer.Option(min=1)]
Documents = Annotated[list[str] | None, typer.Option("--documents", "--document", metavar="FILE")]
Check = Annotated[bool, typer.Option("--check/--no-check")]
Contrast = Annotated[str | None, typer.Option(metavar="TEXT")]
Chat = Annotated[bool, typer.Option("--chat")]
Json = Annotated[bool, typer.Option("--json")]
Output = Annotated[Path | None, typer.Option(metavar="FILE")]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FOLDER",
        callback=check_model_name,
        help="A Hugging Face name, a local folder, smollm2 or verb-number. The last two come with "
        "attnflow, and one of them is the default.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        metavar=_SYNTAX,
        help=f"One of {_NAMES}. Options follow a colon, as in rollout:residual=0.4,heads=max. "
        "`attnflow methods` lists them.",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        metavar=_SYNTAX,
        help="A method with its options, as in gradient-flow:residual=0.5. May be repeated. The "
        f"methods are {_NAMES}.",
    ),
]
Seed = Annotated[
    int, typer.Option(callback=_check_seed, help="The seed of what is drawn at random.")
]
SamplingSeed = Annotated[
    int | None,
    typer.Option(
        callback=_check_seed, help="Sample with this seed. Default: always the likeliest token."
    ),
]


def parse_target(text: str) -> TokenRef:
    """Return a position, or else a token."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else text


def parse_targets(targets: list[str] | None) -> Any:
    """Return the targets, "all" of them, or None where none are named."""
    if targets == ["all"]:
        return "all"
    return [parse_target(target) for target in targets] if targets else None


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
