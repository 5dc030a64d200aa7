"""Commands that other packages add: typer apps under the entry point group "attnflow.commands".

A package declares, in its pyproject.toml:

    [project.entry-points."attnflow.commands"]
    experiment = "attnflow_experiments.commands:app"

One that cannot be loaded leaves a command of its name, which says why; the others work.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

import typer

from attnflow.errors import MissingDependencyError

__all__ = ["GROUP", "add_plugins"]

GROUP = "attnflow.commands"
# Commands of packages that are known, by what installs them.
_KNOWN = {"experiment": 'The paper\'s experiments: pip install "attnflow[experiments]".'}
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_plugins(app: typer.Typer, points: Iterable[EntryPoint] | None = None) -> None:
    """Add the command of every plug-in; without `points`, of those that are installed."""
    points = entry_points(group=GROUP) if points is None else points
    names = set(typer.main.get_group(app).commands)
    for point in sorted(points, key=lambda point: point.name):
        if point.name in names:
            typer.echo(f"attnflow: {point.value!r} is left out: {point.name} is taken.", err=True)
            continue
        names.add(point.name)
        try:
            app.add_typer(_load(point), name=point.name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _stand_in(app, point.name, f"its plug-in {point.value!r} cannot be loaded ({reason}).")
    for name in _KNOWN.keys() - names:
        _stand_in(app, name, f"it is not installed. {_KNOWN[name]}")


def _load(point: EntryPoint) -> typer.Typer:
    plugin = point.load()
    if not isinstance(plugin, typer.Typer):
        raise TypeError(f"it is a {type(plugin).__name__}, not a typer.Typer")
    return plugin


def _stand_in(app: typer.Typer, name: str, sentence: str) -> None:
    message = f"`attnflow {name}` cannot run: {sentence}"

    def refuse() -> None:
        raise MissingDependencyError(message)

    app.command(name=name, help=message, context_settings=_ANYTHING)(refuse)
