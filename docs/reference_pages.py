"""The pages of the reference that are made from the code: the public names, the command line.

Files of the project that lie outside docs/ (the changelog, licences) are pages there as well.

They are written beside the pages of docs/reference each time the site is built, and are not kept.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from attnflow.cli.app import app
from public_surface import PUBLIC_MODULES

WIDTH = 88  # characters of a help page


def write(folder: Path) -> None:
    """Write every generated page; one that has not changed keeps its date and is not built anew."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Every generated page, by its path below the reference."""
    result = {f"api/{module}.rst": module_page(module) for module in PUBLIC_MODULES}
    result["api/index.rst"] = _index_of_modules()
    for path, command in commands():
        result[f"cli/{'-'.join(path)}.rst"] = command_page(path, command)
    result["cli/index.rst"] = _index_of_commands()
    return result | _pages_of_the_project()


# Files outside docs/ that are pages of the site, too.
PROJECT = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "licences": "NOTICE.md",
    "model-card": "src/attnflow/models/VERB_NUMBER.md",
    "scenes-card": "src/attnflow/models/scenes/README.md",
}


def _pages_of_the_project() -> dict[str, str]:
    shown = {
        f"project/{name}.md": f"```{{include}} ../../../{file}\n:relative-docs: docs/\n```\n"
        for name, file in PROJECT.items()
    }
    index = _heading("The project", "=") + ".. toctree::\n   :maxdepth: 1\n\n"
    return shown | {"project/index.rst": index + "".join(f"   {name}\n" for name in PROJECT)}


def homes() -> dict[tuple[str, str], str]:
    """For each public module and name, the one module where the name is described in full.

    Something that several modules export is described once, in the first of the public modules;
    `attnflow` itself, which every reader imports, comes before the others.
    """
    first: dict[tuple[int, str], str] = {}
    result: dict[tuple[str, str], str] = {}
    for module in PUBLIC_MODULES:
        for name, value in members(module):
            is_object = inspect.isclass(value) or inspect.isroutine(value)
            key = (id(value), name) if is_object else (hash(module), name)
            result[module, name] = first.setdefault(key, module)
    return result


def members(module: str) -> Iterator[tuple[str, Any]]:
    """The public names of a module with their values, in the order of the alphabet."""
    loaded = importlib.import_module(module)
    for name in sorted(loaded.__all__, key=str.lower):
        yield name, getattr(loaded, name)


def _heading(text: str, sign: str) -> str:
    return f"{text}\n{sign * len(text)}\n\n"


def module_page(module: str) -> str:
    """The docstring of a module and all its names."""
    text = _heading(module, "=") + f".. automodule:: {module}\n   :no-members:\n\n"
    places = homes()
    for name, value in members(module):
        home = places[module, name]
        if home == module:
            text += _description(module, name, value)
        else:
            text += f"- :py:obj:`{name} <{home}.{name}>` is described in :py:mod:`{home}`.\n\n"
    return text


def _description(module: str, name: str, value: Any) -> str:
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    elif inspect.isroutine(value):
        kind = "autofunction"
    else:
        return f".. py:data:: {module}.{name}\n\n   {_constant(value)}\n\n"
    return f".. {kind}:: {module}.{name}\n\n"


def _constant(value: Any) -> str:
    if isinstance(value, Path):
        return "A folder of the package."  # its place is that of the machine that builds the site
    text = " ".join(repr(value).split()).replace("`", "'").replace("\\", "/")
    return f"``{text if len(text) <= 300 else text[:297] + '...'}``"


def _index_of_modules() -> str:
    text = _heading("Python", "=") + (
        "These names are public. Everything else is internal and may change without notice. Each\n"
        "example on these pages is run by the tests.\n\n.. toctree::\n   :maxdepth: 1\n\n"
    )
    return text + "".join(f"   {module}\n" for module in PUBLIC_MODULES)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and subcommand with its path, `("corpus", "run")`."""
    root: Any = typer.main.get_command(app)
    yield from _below(("attnflow",), root)


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _below((*path, name), child)


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    """What `--help` prints, without colour and at one width."""
    context = click.Context(
        command, info_name=" ".join(path), max_content_width=WIDTH, terminal_width=WIDTH
    )
    return command.get_help(context)


def command_page(path: tuple[str, ...], command: click.Command) -> str:
    """One command: its help as it is printed."""
    title = " ".join(path)
    lines = help_of(path, command).splitlines()
    block = "".join(f"   {line}".rstrip() + "\n" for line in lines)
    return _heading(title, "=") + f".. code-block:: none\n\n{block}"


def _index_of_commands() -> str:
    text = _heading("The command line", "=") + (
        "Each page is what ``--help`` prints. Answers go to standard output, everything else\n"
        "to standard error. The exit status is 0 when the work is done, 2 for bad usage (an\n"
        "option, a text, a target), 1 for a failure (a model, a file), and 130 after an\n"
        "interrupt. ``ATTNFLOW_DEBUG=1`` shows where an error came from, ``NO_COLOR`` leaves\n"
        "colours out, and ``ATTNFLOW_CACHE`` names the folder where SmolLM2 is unpacked.\n\n"
        ".. toctree::\n   :maxdepth: 1\n\n"
    )
    return text + "".join(f"   {'-'.join(path)}\n" for path, _ in commands())
