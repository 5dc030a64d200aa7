"""`attnflow methods`: every method with its options."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnflow.cli import options
from attnflow.errors.arguments import check_named
from attnflow.methods import METHODS, describe_options, summary_of


@options.described
def methods(names: Annotated[list[str] | None, typer.Argument(metavar="NAME")] = None) -> None:
    """List every method with its options and their defaults.

    Without --method each command uses the quick one that agrees best with ablations: balanced for
    answers and texts, gradient-attention for every written token and for photos.

    Examples:
      attnflow methods
      attnflow methods rollout flow

    names: Only these methods.
    """
    for name in names or ():
        check_named("NAME", name, tuple(METHODS))
    console = Console(highlight=False)
    for name in names or METHODS:
        console.print(f"[bold]{name}[/bold]  {escape(summary_of(name))}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for option in describe_options(name):
            table.add_row(option.name, escape(repr(option.default)), escape(option.help))
        console.print(table)
        console.print()
