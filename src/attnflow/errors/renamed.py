"""Names of 0.1.0 that moved: old import paths and old arguments go on working for one release.

Each use warns with a DeprecationWarning that names what to write instead. In the next release this
file goes, and with it everything it keeps alive.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # what they are at run time is not needed, and importing it takes longer than all of this
    Loader = MetaPathFinder = object

__all__ = ["RENAMED_MODULES", "install", "renamed_arguments"]

P = ParamSpec("P")
R = TypeVar("R")

RENAMED_MODULES = {
    "attnflow.adapters": "attnflow.hosts",
    "attnflow.adapters.host": "attnflow.hosts.adapter",
    "attnflow.loading": "attnflow.hosts.load",
    "attnflow.importance": "attnflow.evaluation.importance",
    "attnflow.faithfulness": "attnflow.evaluation.faithfulness",
    "attnflow.metrics": "attnflow.evaluation.metrics",
    "attnflow.viewing": "attnflow.show.view",
    "attnflow.pages": "attnflow.show.page",
    "attnflow.plots": "attnflow.show.plots",
}


class _Alias(Loader):
    """Puts the module of the new name in the place of the old one."""

    def create_module(self, spec: ModuleSpec) -> None:
        """As the import system does it by default."""

    def exec_module(self, module: ModuleType) -> None:
        """The import system returns what stands in `sys.modules` when this is done."""
        sys.modules[module.__name__] = importlib.import_module(RENAMED_MODULES[module.__name__])


class _Renamed(MetaPathFinder):
    """Finds the old paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A specification that leads to the new module, with a warning."""
        if fullname not in RENAMED_MODULES:
            return None
        warnings.warn(
            f"{fullname} is now {RENAMED_MODULES[fullname]}; the old path will be removed in the "
            "next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return importlib.util.spec_from_loader(fullname, _Alias(), is_package=True)


def install() -> None:
    """Make the old import paths work, once for each process."""
    if not any(isinstance(finder, _Renamed) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Renamed())  # before a folder that an update left behind


def renamed_arguments(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function also takes these old names, each with its new one, and warns.

    `@renamed_arguments(also="record")` passes `also=x` on as `record=x`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got both {old!r} and {new!r}.")
                warnings.warn(
                    f"{function.__name__}({old}=...) is now {new}=...; the old name goes in the "
                    "next release",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
