"""The options that several commands share: each is declared once, with its check.

Names are those of the Python functions (`--targets`, `--layers`, `--answer`, `--max-new-tokens`).
The spellings of 0.1.0 go on working beside them. Declarations of options look alike because typer
has one shape for them; each says something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from attnflow.errors import InputError, optional_import
from attnflow.methods import Method, make_method, trace_methods
from attnflow.tokens import TokenRef
from attnflow.tokens.pictures import names_picture

__all__ = [
    "AnswerOption",
    "CarefulOption",
    "ChatOption",
    "ConfirmOption",
    "DecoderTextOption",
    "FileOption",
    "ImagesOption",
    "FolderOption",
    "JsonOption",
    "LayersOption",
    "MaxNewTokensOption",
    "MessageOption",
    "MethodOption",
    "MethodsOption",
    "ModelOption",
    "ModelsOption",
    "OptionOption",
    "OutputOption",
    "ProtocolOption",
    "RatherThanOption",
    "SamplingSeedOption",
    "SeedOption",
    "TableOption",
    "TargetsOption",
    "WordsOption",
    "check_model_name",
    "check_text",
    "check_texts_model",
    "parse_method",
    "parse_span",
    "parse_target",
    "prepare_models",
]

_LONGEST_NAME = 1000  # characters of a model's name or path; file systems take less
_LARGEST_SEED = 2**32 - 1  # what numpy's and torch's generators take alike
_SYNTAX = "NAME[:KEY=VALUE,...]"


def check_model_name(name: str | None) -> str | None:
    """That a name may be one: of a sensible length."""
    if name is not None and (len(name) > _LONGEST_NAME or "\0" in name):
        raise InputError(
            f"--model is a Hugging Face name or a folder, of up to {_LONGEST_NAME:,} characters; "
            f"got {len(name):,} that begin with {name[:40]!r}."
        )
    return name


def _check_models(names: list[str] | None) -> list[str] | None:
    for name in names or []:
        check_model_name(name)
    return names


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
        "--image",
        metavar="FILE",
        help="An image that the text is about, for a vision-language model. May be repeated.",
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
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|FOLDER",
        callback=_check_models,
        help="A Hugging Face name or a local folder to offer beside the embedded models. May be "
        "repeated. Visitors can reach no other model.",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar=_SYNTAX,
        help=f"One of {', '.join(trace_methods())}. Options follow a colon, as in "
        "rollout:residual=0.4,heads=max. `attnflow methods` lists them.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar=_SYNTAX,
        help="A method with its options, as in gradient-flow:residual=0.5. May be repeated. The "
        f"methods are {', '.join(trace_methods())}.",
    ),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="The old form of --method NAME:KEY=VALUE. It will be removed in the next release.",
    ),
]
TargetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--targets",
        "--target",
        metavar="POSITION|TOKEN",
        help="The position or token to explain. Positions count from 0, negative ones from the "
        "end. May be repeated with --json or --output. Default: where the answer is read.",
    ),
]
LayersOption = Annotated[
    list[int] | None,
    typer.Option(
        "--layers",
        "--layer",
        metavar="NUMBER",
        help="Only this layer, counted from 1. May be repeated. Default: all layers.",
    ),
]
AnswerOption = Annotated[
    int | None,
    typer.Option(
        "--answer",
        "--of",
        metavar="NUMBER",
        help="With a gradient method: the class or token to explain, by its number. Default: the "
        "model's answer.",
    ),
]
MaxNewTokensOption = Annotated[
    int,
    typer.Option("--max-new-tokens", "--tokens", help="How many tokens the model writes, at most."),
]
CarefulOption = Annotated[
    bool,
    typer.Option(
        "--careful",
        help="Run a language model up to ten times for each target, for a surer explanation.",
    ),
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm",
        help="Hide the strongest three words together and say what the answer loses. This costs "
        "one more pass of a language model.",
    ),
]
RatherThanOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="With a gradient method: explain why the model gives its answer rather than this.",
    ),
]
DecoderTextOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="For an encoder-decoder: what its decoder has written so far."
    ),
]
WordsOption = Annotated[
    bool, typer.Option("--words", help="Merge the pieces of a word into the word.")
]
ChatOption = Annotated[
    bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")
]
MessageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--message",
        metavar="ROLE=TEXT",
        help="Instead of PROMPT: a message of a conversation, whose role is system, user or "
        "assistant. May be repeated. Or one .json file with a list of messages.",
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


def parse_method(text: str, options: Sequence[str] | None = None) -> Method:
    """A method written as NAME:key=value,key=value.

    `options` are those of the old --option; they and the old colons between options go in the
    next release.

    >>> parse_method("rollout:residual=0.4,heads=max").residual
    0.4
    """
    for option in options or ():
        if not re.match(r"\s*[\w-]+\s*=", option):
            raise InputError(f"--option {option!r} must read KEY=VALUE, for example residual=0.4.")
    name, colon, rest = text.partition(":")
    parts = [re.sub(r":(?=[\w-]+=)", ",", rest)] if colon else []
    parts += options or []
    if options:
        typer.echo(
            f"attnflow: --option is now written behind the method, --method {name}:"
            f"{','.join(parts)}; --option will be removed in the next release.",
            err=True,
        )
    return make_method(f"{name}:{','.join(parts)}" if parts else name)


def parse_target(text: str) -> TokenRef:
    """A position, or else a token.

    >>> parse_target("-1"), parse_target("key")
    (-1, 'key')
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else text


def parse_span(text: str) -> int | str | slice:
    """A part of a completion: a token's number, numbers START:END, or else a text.

    >>> parse_span("2"), parse_span("2:5"), parse_span("45 days")
    (2, slice(2, 5, None), '45 days')
    """
    ends = re.fullmatch(r"([0-9]{0,9}):([0-9]{0,9})", text)
    if ends is None or text == ":":
        return parse_target(text)
    start, stop = (int(end) if end else None for end in ends.groups())
    return slice(start, stop)


def check_text(text: str, purpose: str = "explain") -> str:
    """That there is a text, in valid Unicode, and that it is no image's path."""
    if not text.strip():
        raise InputError(f"There is nothing to {purpose}: the text is {text!r}.")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise InputError(
            "The text is not valid Unicode: it holds bytes that the terminal could not decode. "
            "Save it as UTF-8 and try again."
        )
    if names_picture(text):
        raise InputError(
            f"{text!r} is an image, and this command takes text. Photos: attnflow explain, report "
            "and evaluate, with --model FOLDER of a vision model."
        )
    return text


def check_texts_model(name: str | None, tokenizer: object) -> None:
    """That a model reads text: what the command line can hand it."""
    if tokenizer is None:
        raise InputError(
            f"--model {name!r} reads no text: it has no tokenizer. A vision model takes the path "
            "of an image: attnflow explain --model FOLDER photo.jpg --output overlay.png."
        )


def prepare_models() -> None:
    """What every command that runs a model does first: torch must be there, hosts are quiet."""
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.hosts.load import quiet_hosts

    quiet_hosts()
