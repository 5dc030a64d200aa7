"""Every error attnflow raises on purpose.

    AttnflowError
    ├── InputError (also ValueError)     what was handed in cannot be used
    │   ├── WeightsError                 attention arrays: rank, shape, sign, rows
    │   ├── TokensError                  tokens, texts, words
    │   ├── TargetError                  a position or token that is not there, or there twice
    │   └── MethodError                  a method or an option that does not exist
    ├── ModelError                       a model cannot be loaded, run or explained
    │   ├── UnsupportedModelError        the host is known not to have a fixed attention graph
    │   └── CaptureError                 what was recorded failed its own check
    ├── FileError                        a file that is not ours, or cannot be written
    ├── StoppedError                     a long run was interrupted; what is kept and how to go on
    └── MissingDependencyError (also ImportError)   an optional package is not installed

AttributionWarning (a UserWarning) is no error: a result that says less than it seems to.

Each message says what happened, the value, what is allowed, and what to do about it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "AttnflowError",
    "AttributionWarning",
    "CaptureError",
    "FileError",
    "InputError",
    "MethodError",
    "MissingDependencyError",
    "ModelError",
    "StoppedError",
    "TargetError",
    "TokensError",
    "UnsupportedModelError",
    "WeightsError",
    "did_you_mean",
    "optional_import",
]


class AttnflowError(Exception):
    """The root: catch this to catch everything attnflow raises on purpose."""


class InputError(AttnflowError, ValueError):
    """What was handed in cannot be used as it is."""


class WeightsError(InputError):
    """Attention weights of the wrong rank, shape or sign, or rows that are not distributions."""


class TokensError(InputError):
    """Tokens, texts or words that do not fit."""


class TargetError(InputError):
    """A target or source that is not there, or is there more than once."""


class MethodError(InputError):
    """A method or one of its options that does not exist or is out of range."""


class ModelError(AttnflowError):
    """A model that cannot be loaded, run or explained."""


class UnsupportedModelError(ModelError):
    """A model without a fixed token-to-token attention graph, refused by name."""


class CaptureError(ModelError):
    """What was recorded during the forward pass failed its own check."""


class FileError(AttnflowError):
    """A file that is not ours, is damaged, or cannot be read or written."""


class StoppedError(AttnflowError):
    """A long run was interrupted; the message says what is kept and how to go on."""


class MissingDependencyError(AttnflowError, ImportError):
    """An optional package is needed and not installed."""


class AttributionWarning(UserWarning):
    """A result that says less than it seems to: its rows no longer depend on the target."""


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """`" Did you mean 'flow'?"` for the nearest allowed name, or nothing if none is near."""
    near = difflib.get_close_matches(value.lower(), list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def optional_import(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package, or say which extra installs it and what it was needed for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which could not be imported "
            f"({error}). Install it with: pip install 'attnflow[{extra}]'"
        ) from error
