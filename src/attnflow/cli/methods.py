"""`attnflow methods`: every method with its options."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnflow.methods import METHODS, describe_options, summary_of


def methods() -> None:
    """List every method with its options and their defaults."""
    console = Console(highlight=False)
    for name in METHODS:
        console.print(f"[bold]{name}[/bold]  {escape(summary_of(name))}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for option in describe_options(name):
            table.add_row(option.name, escape(repr(option.default)), escape(option.help))
        console.print(table)
        console.print()
