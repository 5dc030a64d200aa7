"""Mistakes that the parser refuses, told in one sentence that names the fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from attnflow.errors import InputError, did_you_mean, shorten
from attnflow.methods import METHODS, describe_options

# The class above it: that of click, or of the copy in newer versions of typer.
_UsageError: Any = typer.BadParameter.__bases__[0]
_KINDS = {
    "valid integer": "a whole number",
    "valid number": "a number",
    "greater than or equal to": "a number of at least",
    "less than or equal to": "a number of at most",
}
_ELSEWHERE = {
    "--file": "A file stands in the place of the text: attnflow explain contract.txt.",
    "--answer": "An answer that exists is read by attnflow cite; `attnflow cite --help` shows how.",
    "-v": "`attnflow --version` shows the version.",
    "--verbose": "Progress is shown on standard error anyway; ATTNFLOW_DEBUG=1 shows tracebacks.",
    "--device": "A model that is loaded by its name runs on the CPU; in Python, pass one of yours.",
}


class Commands(TyperGroup):
    """A group of commands whose mistakes are told as ours are: one sentence, status 2."""

    _arguments: Sequence[str] = ()

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """Read the options of the group."""
        self._arguments = list(args)
        try:
            return super().make_context(info_name, args, *rest, **more)
        except _UsageError as error:
            _retell(error, self._arguments)

    def invoke(self, ctx: Any) -> Any:
        """Read the options of a command and run it."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            _retell(error, self._arguments)


def _retell(error: Any, arguments: Sequence[str]) -> NoReturn:
    context, message = error.ctx, str(error.message)
    if message.startswith("Usage:"):  # the help of a group without a command
        raise error
    if context is None:
        raise InputError(message) from error
    path = str(context.command_path)
    if getattr(error, "option_name", None) is not None:
        sentence = _unknown_option(error, path)
    elif getattr(error, "param", None) is not None:
        sentence = _bad_value(error, path, arguments)
    elif "unexpected extra" in message:
        sentence = _extra(message, path, error.ctx.command)
    elif "No such command" in message:
        sentence = _unknown_command(message, path, error.ctx.command)
    else:
        sentence = message
    example = re.search(r"Examples:\n\s*(.*)", context.command.help or "")
    line = f" Example: {example[1]}" if example else ""
    raise InputError(f"{sentence} `{path} --help` shows what it takes.{line}") from error


def _unknown_option(error: Any, path: str) -> str:
    name = str(error.option_name)
    if "requires" in error.message:
        return f"{name} stands without its value."
    options = [
        o
        for p in error.ctx.command.params
        for o in (*p.opts, *p.secondary_opts)
        if o.startswith("-")
    ]
    sentence = f"{path} has no option {name}."
    methods = [n for n in METHODS for o in describe_options(n) if f"--{o.name}" == name]
    if name in _ELSEWHERE:
        return f"{sentence} {_ELSEWHERE[name]}"
    if methods and "--method" in options:
        return f"{sentence} Options of a method follow its name: --method NAME:{name[2:]}=VALUE."
    single = name.startswith("-") and not name.startswith("--")
    near = [o for o in options if single and o.startswith(f"-{name[:2]}")]
    near = near or get_close_matches(name, options, n=1, cutoff=0.5)
    return f"{sentence} Did you mean {' or '.join(near)}?" if near else sentence


def _bad_value(error: Any, path: str, arguments: Sequence[str]) -> str:
    """Say what an option or an argument is, and what was given."""
    names = [o for o in error.param.opts if o.startswith("-")]
    if not error.message:
        name = names[0] if names else str(error.param.name).upper()
        return f"{path} needs {name}."
    values = [
        following if word in names else word.partition("=")[2]
        for word, following in zip(arguments, [*arguments[1:], ""], strict=True)
        if word.partition("=")[0] in names
    ]
    kind = next((name for part, name in _KINDS.items() if part in error.message), None)
    if kind is None or not names:
        return f"{names[0] if names else error.param.name}: {error.message}."
    number = re.search(r"to (-?[\d.]+)$", error.message)
    bound = f" {number[1]}" if number else ""
    return f"{names[0]} is {kind}{bound}; got {', '.join(map(shorten, values))}."


def _extra(message: str, path: str, command: Any) -> str:
    words = message.partition("(s) (")[2].rstrip(")")
    if any(p.name in ("text", "prompt") and not p.opts[0].startswith("-") for p in command.params):
        return f'{words!r} is too much: a text of several words stands in quotes: {path} "...".'
    return f"{path} takes no {words!r}."


def _unknown_command(message: str, path: str, group: Any) -> str:
    name = message.partition("'")[2].partition("'")[0]
    commands = list(group.commands)
    if name == "help":
        return "There is no command 'help'."
    if not path.count(" ") and (" " in name or "." in name):
        return (
            f'{shorten(name)} is no command: attnflow explain "a text", or '
            'attnflow ask "a question" FILES.'
        )
    near = did_you_mean(name, commands)
    return f"There is no command {shorten(name)}.{near} The commands are {', '.join(commands)}."
