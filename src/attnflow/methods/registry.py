"""Methods by name: for `explain`, for the command line, and for files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from attnflow.errors import MethodError, did_you_mean
from attnflow.methods.base import Method
from attnflow.methods.flow import Flow
from attnflow.methods.gradients import GradientFlow, GradientRollout
from attnflow.methods.measured import (
    Alti,
    MeasuredResidualRollout,
    NormRollout,
    ValueZeroingRollout,
)
from attnflow.methods.rollout import Raw, Rollout

__all__ = ["METHODS", "OptionHelp", "describe_options", "make_method", "method_from_dict"]

_BUILT_IN: tuple[type[Method], ...] = (
    Raw,
    Rollout,
    Flow,
    GradientRollout,
    GradientFlow,
    MeasuredResidualRollout,
    NormRollout,
    Alti,
    ValueZeroingRollout,
)
METHODS: Mapping[str, type[Method]] = {cls.name: cls for cls in _BUILT_IN}


def make_method(name: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """A method by name with options, or a method as it is."""
    if isinstance(name, Method):
        if options:
            raise MethodError(f"{name!r} already has its options; got {dict(options)} as well.")
        return name
    if name not in METHODS:
        raise MethodError(
            f"Unknown method {name!r}.{did_you_mean(str(name), METHODS)} "
            f"The methods are {', '.join(METHODS)}."
        )
    kind = METHODS[name]
    allowed = [f.name for f in fields(kind)]
    for option in options or {}:
        if option not in allowed:
            raise MethodError(
                f"{name!r} has no option {option!r}.{did_you_mean(option, allowed)} "
                f"Its options are {', '.join(allowed)}."
            )
    return kind(**(options or {}))


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """The inverse of `Method.to_dict`."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in record["options"].items()}
    return make_method(record["name"], options)


class OptionHelp(NamedTuple):
    """One option of a method as `attnflow methods` lists it."""

    name: str
    default: Any
    help: str


def describe_options(kind: type[Method]) -> list[OptionHelp]:
    """Every option with its default and the sentence its class's docstring gives it."""
    sentences: dict[str, str] = {}
    for ancestor in kind.__mro__:
        for name, sentence in _documented(ancestor.__doc__ or "").items():
            sentences.setdefault(name, sentence)
    return [OptionHelp(f.name, f.default, sentences.get(f.name, "")) for f in fields(kind)]


def _documented(docstring: str) -> dict[str, str]:
    """`name: sentence` paragraphs of a docstring; deeper lines go on with the sentence."""
    found: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name.isidentifier():
            current, found[name] = name, rest
        elif current and line.startswith("    "):
            found[current] += " " + line.strip()
        else:
            current = ""
    return found
