"""Submodules that are imported when they are first asked for, as attributes of their package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from types import ModuleType

__all__ = ["submodules"]


def submodules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package: these of its modules need no import of their own.

    `__getattr__ = submodules(__name__, ("load", "adapter"))` makes `attnflow.hosts.load` work
    after `import attnflow`, and costs nothing until then.
    """

    def load(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
