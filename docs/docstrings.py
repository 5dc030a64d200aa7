"""Docstrings of this project as the site's markup.

They are plain text: paragraphs, arguments as `name: what it is` with the following lines indented,
drawings as indented blocks, and examples. Sphinx is told which is which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

ARGUMENT = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (.+)$")


def marked_up(lines: list[str]) -> list[str]:
    """The lines of a docstring with arguments as a list of definitions and drawings as blocks."""
    result: list[str] = []
    for number, paragraph in enumerate(_paragraphs(lines)):
        if number == 0 or paragraph[0].startswith((">>>", ".. ")):
            result += paragraph
        elif all(line.startswith(" ") for line in paragraph):
            result += [".. code-block:: none", "", *(f"   {line}" for line in paragraph)]
        elif _is_list_of_arguments(paragraph):
            result += _definitions(paragraph)
        else:
            result += paragraph
        result.append("")
    return result


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    for is_text, group in groupby(lines, key=lambda line: bool(line.strip())):
        if is_text:
            yield list(group)


def _is_list_of_arguments(paragraph: list[str]) -> bool:
    return all(line.startswith(" ") or ARGUMENT.match(line) for line in paragraph)


def _definitions(paragraph: list[str]) -> Iterator[str]:
    for line in paragraph:
        argument = ARGUMENT.match(line)
        if argument:
            names = ", ".join(f"``{name}``" for name in argument[1].split(", "))
            yield from (names, f"   {argument[2]}")
        else:
            yield f"   {line.strip()}"


def process(
    app: object, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Sphinx calls this for every docstring, and reads the lines that it leaves."""
    lines[:] = marked_up(lines)
