"""Docstrings of this project in the form of NumPy's: parameters, returns, raises, examples.

In the source they are plain text: paragraphs, arguments as `name: what it is` with the following
lines indented, drawings as indented blocks, and examples. Types are read from the annotations, and
the errors from what a function itself raises; here each gets the field that Sphinx knows.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from attnflow import errors

ARGUMENT = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (.+)$")


def marked_up(lines: list[str], value: object = None) -> list[str]:
    """The lines of a docstring with arguments as fields, drawings as blocks, examples in a part."""
    result: list[str] = []
    examples: list[str] = []
    for number, paragraph in enumerate(_paragraphs(lines)):
        if paragraph[0].startswith(">>>"):
            examples += [*paragraph, ""]
            continue
        if number == 0 or paragraph[0].startswith(".. "):
            result += paragraph
        elif all(line.startswith(" ") for line in paragraph):
            result += [".. code-block:: none", "", *(f"   {line}" for line in paragraph)]
        elif _is_list_of_arguments(paragraph):
            result += _fields(paragraph)
        else:
            result += paragraph
        result.append("")
    raised = list(_raised(value))
    result += [*raised, *([""] if raised else [])]
    return result + ([".. rubric:: Examples", "", *examples] if examples else [])


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    for is_text, group in groupby(lines, key=lambda line: bool(line.strip())):
        if is_text:
            yield list(group)


def _is_list_of_arguments(paragraph: list[str]) -> bool:
    return all(line.startswith(" ") or ARGUMENT.match(line) for line in paragraph)


def _fields(paragraph: list[str]) -> Iterator[str]:
    names: list[str] = []
    text = ""
    for line in [*paragraph, "end: of it"]:
        argument = ARGUMENT.match(line)
        if argument:
            yield from (f":param {name}: {text}" for name in names)
            names, text = argument[1].split(", "), argument[2]
        else:
            text += f" {line.strip()}"


def _raised(value: object) -> Iterator[str]:
    """The errors of ours that a function raises in its own body, each with what it stands for."""
    if not inspect.isfunction(value):
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    made = [call.func for call in calls if isinstance(call, ast.Call)]
    names = {function.id for function in made if isinstance(function, ast.Name)}
    for name in sorted(names):
        error: Any = getattr(errors, name, None)
        if inspect.isclass(error) and error.__doc__:
            yield f":raises {name}: {error.__doc__.splitlines()[0]}"


def process(
    app: object, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Sphinx calls this for every docstring, and reads the lines that it leaves."""
    lines[:] = marked_up(lines, value)
