"""Every error attnflow raises on purpose.

    AttnflowError
    ├── InputError (also ValueError)     what was handed in cannot be used
    │   ├── WeightsError                 attention arrays: rank, shape, sign, rows
    │   ├── TokensError                  tokens, texts, words
    │   ├── TargetError                  a position or token that is not there, or there twice
    │   └── MethodError                  a method or an option that does not exist
    │       └── MatrixError              all weights at once are needed, and they are not there
    ├── ModelError                       a model cannot be loaded, run or explained
    │   ├── OutOfMemoryError             the work does not fit; how much it needs, what needs less
    │   ├── UnsupportedModelError        the host is known not to have a fixed attention graph
    │   └── CaptureError                 what was recorded failed its own check
    ├── FileError                        a file that is not ours, or cannot be written
    ├── StoppedError                     a long run was interrupted; what is kept and how to go on
    └── MissingDependencyError (also ImportError)   an optional package is not installed

And every warning:

    AttributionWarning (a UserWarning)   the numbers are right and say less than they seem to
    ├── CollapseWarning                  the rows of different targets are nearly the same
    └── SaturationWarning                most flows equal what their source passes on to anyone

Each message says what happened, the value, what is allowed, and what to do about it.
"""

from __future__ import annotations

import difflib
import importlib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

__all__ = [
    "AttnflowError",
    "AttributionWarning",
    "CaptureError",
    "CollapseWarning",
    "FileError",
    "InputError",
    "MatrixError",
    "MethodError",
    "MissingDependencyError",
    "ModelError",
    "OutOfMemoryError",
    "SaturationWarning",
    "StoppedError",
    "TargetError",
    "TokensError",
    "UnsupportedModelError",
    "WeightsError",
    "did_you_mean",
    "optional_import",
    "shorten",
    "whole_number",
]


def submodules(
    package: str, modules: Collection[str] = (), *, homes: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: these of its modules need no import of their own, nor
    do the names whose modules `homes` gives.

    `__getattr__ = submodules(__name__, ("load", "adapter"))` makes `attnflow.hosts.load` work
    after `import attnflow`, and costs nothing until then.
    """

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if homes is not None and name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


def percent(share: SupportsFloat, digits: int = 0) -> str:
    """Return a share between 0 and 1 as people read it, with a space before the sign."""
    return f"{100 * float(share):.{digits}f} %"


def listing(words: Sequence[str], last: str = "and") -> str:
    """Return words as a sentence lists them: a comma between, and "and" before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


__getattr__ = submodules(__name__, ("progress",))

_LONGEST = 200  # characters of an input that a message repeats
_LONGEST_NAME = 100  # comparing longer texts with every allowed name takes long and finds nothing


class AttnflowError(Exception):
    """The root: catch this to catch everything attnflow raises on purpose.

    >>> from attnflow import AttnflowError, Rollout
    >>> try:
    ...     Rollout(residual=2)
    ... except AttnflowError as error:
    ...     print(type(error).__name__)
    MethodError
    """


class InputError(AttnflowError, ValueError):
    """An input that cannot be used as it is."""


class WeightsError(InputError):
    """Attention weights of the wrong rank, shape or sign, or rows that are not distributions."""


class TokensError(InputError):
    """Tokens, texts or words that do not fit."""


class TargetError(InputError):
    """A target or source that is not there, or is there more than once."""


class MethodError(InputError):
    """A method or one of its options that does not exist or is out of range."""


class MatrixError(MethodError):
    """All weights at once are needed, and a trace in factors does not hold them."""


class ModelError(AttnflowError):
    """A model that cannot be loaded, run or explained."""


class OutOfMemoryError(ModelError):
    """The work does not fit into memory: how much it needs, and what needs less."""


class UnsupportedModelError(ModelError):
    """A model without a fixed token-to-token attention graph, refused by name."""


class CaptureError(ModelError):
    """A recording of the forward pass that failed its own check."""


class FileError(AttnflowError):
    """A file that is not ours, is damaged, or cannot be read or written."""


class StoppedError(AttnflowError):
    """A long run was interrupted; the message says what is kept and how to go on."""


class MissingDependencyError(AttnflowError, ImportError):
    """An optional package is needed and not installed."""


class AttributionWarning(UserWarning):
    """A result is right and says less than it seems to: the message tells what to do instead.

    To turn every such warning off, here or for good without the `with`:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", AttributionWarning)
    """


class CollapseWarning(AttributionWarning):
    """The rows of different targets are nearly the same, so a row says little about its target."""


class SaturationWarning(AttributionWarning):
    """Most flows equal what their source passes on to anyone, whatever the target."""


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """Return a question for the nearest allowed name, or nothing if none is near.

    >>> did_you_mean("rolout", ["raw", "rollout"])
    " Did you mean 'rollout'?"
    """
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        return ""
    near = difflib.get_close_matches(value.lower(), list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def shorten(value: object, most: int = _LONGEST) -> str:
    """Return the repr of a value for a message: at most `most` characters, and a count of the rest.

    >>> shorten("key")
    "'key'"
    >>> shorten("a" * 1000, most=20)
    "'aaaaaaaaaaaaaaaaaaa... (1002 characters)"
    """
    try:
        text = repr(value)  # fails for some values: deep nesting, numbers of thousands of digits
    except (ValueError, RecursionError, MemoryError) as error:
        text = f"<{type(value).__name__} that cannot be written: {str(error)[:most]}>"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def whole_number(value: object) -> int | None:
    """Return a whole number of any kind (int, numpy, torch) as an int; None for all else.

    >>> import numpy as np
    >>> whole_number(np.int64(3)), whole_number(True), whole_number("3"), whole_number(2.5)
    (3, None, None, None)
    """
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # torch raises the last two for several numbers
        return None


def optional_import(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package, or say which extra installs it and what it was needed for.

    >>> optional_import("math", extra="models", purpose="Counting").floor(2.5)
    2
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which could not be imported "
            f"({error}). Install it with: pip install 'attnflow[{extra}]'"
        ) from error
