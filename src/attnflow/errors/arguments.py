"""Arguments of the wrong kind: one sentence at the border instead of an error from inside.

`@checked_arguments` holds every argument against the function's own annotations, so that the types
people read are the types that are checked. What it cannot know, such as a number out of range, the
function says itself.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from collections.abc import Callable as AbstractCallable
from dataclasses import fields
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from attnflow.errors import InputError, MethodError, did_you_mean, listing, shorten, whole_number

P = ParamSpec("P")
R = TypeVar("R")

_ELEMENTS = 1_000  # elements of a long list that are looked at
# What to do with a value that is nearly right, by the library it comes from.
_WAYS = {
    "PIL": " An image is prepared by the model's image processor: "
    "dict(processor(images=image, return_tensors='pt'))."
}
_UNKNOWN = object()  # an annotation that names what is not imported here


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make an argument of another type than its annotation raise an InputError."""
    signature = inspect.signature(function)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    annotations = {
        each.name: each.annotation
        for each in signature.parameters.values()
        if each.annotation is not each.empty and each.kind not in several
    }
    hints: dict[str, Any] = {}
    name = function.__name__
    label = function.__qualname__.split(".")[0] if name == "__call__" else name

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not hints:
            space = inspect.unwrap(function).__globals__
            hints.update(_hints(annotations, space))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"{label}(): {error}.") from error
        for argument, value in bound.arguments.items():
            _check(label, argument, value, hints.get(argument, _UNKNOWN))
        return function(*args, **kwargs)

    return call


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass in the same way: call it first in `__post_init__`."""
    kind = type(value)
    annotations = {
        name: hint for base in reversed(kind.__mro__) for name, hint in _own_hints(base).items()
    }
    for each in fields(value):
        hint = annotations.get(each.name, _UNKNOWN)
        _check(kind.__name__, each.name, getattr(value, each.name), hint)


def check_named(
    option: str, value: object, allowed: Sequence[str], error: type[InputError] = MethodError
) -> None:
    """Raise an error that lists the names that an option may have, for any other."""
    if not isinstance(value, str) or value not in allowed:
        hint, names = did_you_mean(value, allowed), ", ".join(map(repr, allowed))
        raise error(f"{option}={shorten(value)}:{hint} Allowed: {names}.")


def check_count(
    name: str,
    value: object,
    least: int,
    most: int | None = None,
    *,
    error: type[InputError] = InputError,
) -> int:
    """Return a whole number from `least` to `most` as an int, or raise an error of this kind."""
    number = whole_number(value)
    if number is None or number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise error(f"{name} is a whole number {allowed}; got {shorten(value)}.")
    return number


def is_number(value: object) -> bool:
    """Return whether this is one number; True and False are none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def checked_seed(seed: object, least: int = 0, *, error: type[InputError] = InputError) -> int:
    """Return a seed that every generator of random numbers takes."""
    return check_count("seed", seed, least, 2**63 - 1, error=error)


def _check(function: str, name: str, value: Any, hint: Any) -> None:
    if hint is _UNKNOWN or _fits(value, hint):
        return
    if get_origin(hint) is Literal:
        check_named(name, value, get_args(hint))
    kind = type(value)
    way = _WAYS.get(kind.__module__.split(".")[0], "")
    raise InputError(
        f"{function}({name}=...): {name} is {_words(hint)}; got {shorten(value)} "
        f"({kind.__name__}).{way}"
    )


@functools.cache
def _own_hints(kind: type) -> dict[str, Any]:
    return _hints(inspect.get_annotations(kind), vars(sys.modules[kind.__module__]))


def _hints(annotations: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _evaluated(hint, space) for name, hint in annotations.items()}


def _evaluated(annotation: Any, space: Mapping[str, Any]) -> Any:
    """Return the type an annotation names; unknown where it names what is imported for types."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(space))  # our own source, not input
    except (NameError, AttributeError, TypeError):
        return _UNKNOWN


def _fits(value: Any, hint: Any) -> bool:
    """Tell if a value is what an annotation allows; annotations not listed here allow all."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, (str, int, bool, type(None))) and value in parts
    if hint is bool:
        return isinstance(value, (bool, np.bool_))
    if hint is int:
        return _is_whole(value)
    if hint is float:
        return _is_whole(value) or isinstance(value, (float, np.floating))
    if origin is AbstractCallable or hint is AbstractCallable:
        return callable(value)
    if origin is os.PathLike:
        return isinstance(value, os.PathLike)
    kind = origin if isinstance(origin, type) else object
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(one, parts[1]) for key, one in list(value.items())
        )
    if issubclass(kind, Collection):
        is_set = isinstance(value, Set) and not issubclass(kind, Sequence)
        return (is_set or _is_sequence(value)) and _elements_fit(value, parts)
    if isinstance(hint, type) and hint not in (object, np.ndarray):
        return isinstance(value, hint)
    return True


def _elements_fit(value: Any, parts: tuple[Any, ...]) -> bool:
    elements = list(value)
    if len(parts) == 2 and parts[1] is not Ellipsis:  # a pair such as (start, end)
        return len(elements) == 2 and all(
            _fits(one, part) for one, part in zip(elements, parts, strict=True)
        )
    return all(_fits(one, parts[0]) for one in elements[:_ELEMENTS])


def _is_sequence(value: Any) -> bool:
    """Tell if it is a list in the wide sense: arrays and tensors of one axis too, but no text."""
    if isinstance(value, (str, bytes)):
        return False
    return isinstance(value, Sequence) or getattr(value, "ndim", None) == 1


def _is_whole(value: Any) -> bool:
    return getattr(value, "ndim", 0) == 0 and whole_number(value) is not None


_IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    None: "None",
    type(None): "None",
}


def _words(hint: Any) -> str:
    if hint in _IN_WORDS:
        return _IN_WORDS[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return listing(list(dict.fromkeys(_words(part) for part in parts)), "or")
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is AbstractCallable or hint is AbstractCallable:
        return "something that can be called"
    if origin is os.PathLike:
        return "a path"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    if isinstance(origin, type) and issubclass(origin, Collection):
        if len(parts) == 2 and parts[1] is not Ellipsis:
            return f"a pair ({_words(parts[0])}, {_words(parts[1])})"
        return f"a list of {_words(parts[0]).removeprefix('a ').removeprefix('an ')}s"
    return f"a {getattr(hint, '__name__', str(hint))}"
