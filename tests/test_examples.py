"""Examples run, every public name has one, and public modules alone list their names."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib import pyplot

import attnflow
from public_surface import PUBLIC_MODULES

SOURCES = Path(attnflow.__file__).parent.parent
FILES = sorted(SOURCES.glob("attnflow*/**/*.py"))
INTERNAL = sorted((Path(__file__).parent / "examples").rglob("*.txt"))


def module_names() -> list[str]:
    """Every module of the packages but those that run when they are imported."""
    modules = pkgutil.walk_packages([str(SOURCES)])
    names = [module.name for module in modules if module.name.startswith("attnflow")]
    return [name for name in names if not name.endswith("__main__")]


def room_of(name: str) -> str:
    """Return the folder or file right under the package that a module stands in."""
    return ".".join(name.split(".")[:2])


def imported(name: str) -> ModuleType | None:
    """Return the module, or None where a package it needs is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if str(error.name).startswith("attnflow"):
                raise
            return None


@pytest.mark.parametrize("room", sorted({room_of(name) for name in module_names()}))
def test_examples_run(room: str) -> None:
    report: list[str] = []
    for name in module_names():
        module = imported(name) if room_of(name) == room else None
        if module is not None:
            runner = doctest.DocTestRunner(verbose=False)
            for test in doctest.DocTestFinder().find(module, name):
                if test.examples and not _is_imported(module, test):
                    runner.run(test, out=report.append)
            pyplot.close("all")  # examples draw and do not clean up: they are for reading
    assert not report, "".join(report)


@pytest.mark.parametrize("path", INTERNAL, ids=lambda path: path.stem)
def test_examples_of_internal_functions_run(path: Path) -> None:
    report: list[str] = []
    text = path.read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, path.stem, str(path), 0)
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    pyplot.close("all")
    assert not report, "".join(report)


def _is_imported(module: ModuleType, test: doctest.DocTest) -> bool:
    return test.filename is not None and Path(test.filename) != Path(module.__file__ or "")


def _is_error(value: object) -> bool:
    """An exception or a warning without a part of its own: its root has the example."""
    return inspect.isclass(value) and issubclass(value, (Exception, Warning))


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    without = []
    for public in module.__all__:
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isroutine(value)) or _is_error(value):
            continue  # a constant, a type, a module
        if value.__module__.startswith("attnflow") and ">>>" not in (value.__doc__ or ""):
            without.append(f"{value.__module__}.{value.__qualname__}")
    assert not without, f"no example: {without}"


def test_public_modules_alone_list_their_names() -> None:
    listed = {module_name(path) for path in FILES if _has_list(path)}
    assert listed == set(PUBLIC_MODULES), "elsewhere what has no underscore is for other modules"


def module_name(path: Path) -> str:
    """Return the name by which a file of the packages is imported."""
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


def _has_list(path: Path) -> bool:
    return re.search(r"^ *__all__ =", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
