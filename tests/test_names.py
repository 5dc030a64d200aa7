"""Values are named by what they are: no past participle where a noun says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attnflow
from test_layout import parsed

SOURCES = Path(attnflow.__file__).parent.parent
FILES = sorted(SOURCES.glob("attnflow*/**/*.py"))

# Words that say how a value came about and not what it is. An adjective that is true or false of
# something (`collapsed`, `signed`) and a word that is a noun too (`cut`, `read`) are none of them.
FORBIDDEN = frozenset(
    {
        *("asked", "chosen", "drawn", "found", "given", "gone", "held", "kept", "listed", "lost"),
        *("made", "moved", "named", "picked", "said", "seen", "sent", "shown", "taken", "told"),
        *("used", "wanted", "whole", "written"),
    }
)
# Public fields that carry such a name since 0.1.0, by file.
PUBLIC = {("attnflow/graph.py", "taken")}
# The solver's state is an array of counters, whose places are called by what happened to an edge.
NUMBERED_STATE = "maxflow"


def bound_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, argument and attribute that a file binds."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def participles(source: str) -> list[tuple[int, str]]:
    return [
        (line, name) for line, name in bound_names(source) if name.strip("_").lower() in FORBIDDEN
    ]


def test_values_are_named_by_what_they_are() -> None:
    offences = []
    for path in FILES:
        place = path.relative_to(SOURCES)
        if place.parts[1] != NUMBERED_STATE:
            offences += [
                f"{place}, line {line}: {name}"
                for line, name in participles(path.read_text(encoding="utf-8"))
                if (place.as_posix(), name) not in PUBLIC
            ]
    assert not offences, "values named by how they came about:\n" + "\n".join(offences)


def test_the_scan_sees_every_way_to_bind_a_name() -> None:
    source = (
        "def f(given, *, _seen=0):\n    for kept in given:\n        self.shown = (told := kept)\n"
    )
    assert [name for _, name in participles(source)] == ["given", "_seen", "kept", "shown", "told"]
    assert not participles("found.append(1)\nprint(taken)\n")
