"""What an experiment gives: protocol, tables beside the paper's, CSV, Markdown, a figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from attnflow.cli.output import tell_written
from attnflow.errors import FileError
from attnflow.evaluation.table import Table, csv_of, markdown_of
from attnflow.storage import write_text

__all__ = ["Report", "finish"]


@dataclass(frozen=True)
class Report:
    """An experiment's result; `protocol` and `findings` are sentences.

    `figure` draws the figure to a file; without it the tables that are `in_figure` make one.

    >>> from attnflow.evaluation.table import Cell
    >>> table = Table("shares", "Shares", ("first",), {"flow": (Cell(0.5),)})
    >>> report = Report("demo", "A demonstration", ("One table.",), (table,))
    >>> report.table("shares").rows["flow"][0].value
    0.5
    >>> print(report.to_csv().splitlines()[1])
    shares,flow,first,0.5,,,,,,0,,,
    """

    name: str
    title: str
    protocol: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[str, ...] = ()
    command: str = ""
    figure: Callable[[Path], None] | None = None

    def table(self, name: str) -> Table:
        """One of its tables."""
        return next(table for table in self.tables if table.name == name)

    def show(self, console: Console) -> None:
        """As text; nothing is cut off when the terminal is narrow."""
        console.print(f"[bold]{escape(self.title)}[/bold]")
        for sentence in self.protocol:
            console.print(f"- {escape(sentence)}", soft_wrap=True)
        for table in self.tables:
            console.print()
            console.print(f"[bold]{escape(table.title)}[/bold]", soft_wrap=True)
            for line in table.lines():
                dim = "dim" if line.startswith("  ") else None
                console.print(line, style=dim, soft_wrap=True, markup=False)
            if table.note:
                console.print(escape(table.note), style="dim", soft_wrap=True)
        console.print()
        for sentence in self.findings:
            console.print(f"→ {escape(sentence)}", soft_wrap=True)

    def to_csv(self) -> str:
        """Every cell of every table, one a line."""
        return csv_of(self.tables)

    def to_markdown(self) -> str:
        """All of the report, as a page for people."""
        lines = [f"# {self.title}", *(f"- {sentence}" for sentence in self.protocol)]
        lines += ["", f"`{self.command}`"] if self.command else []
        lines += markdown_of(self.tables)
        return "\n".join([*lines, "", *(f"- {sentence}" for sentence in self.findings)]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """CSV, Markdown and the figure, if any, in a folder; the files that were written."""
        from attnflow.show import plots

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The folder {str(folder)!r} cannot be made: {error}.") from error
        paths = [folder / f"{self.name}.{ending}" for ending in ("csv", "md", "png")]
        write_text(paths[0], self.to_csv())
        write_text(paths[1], self.to_markdown())
        panels = [table.curves() for table in self.tables if table.in_figure]
        if self.figure is not None:
            self.figure(paths[2])
        elif panels:
            plots.layer_curves(panels, paths[2])
        else:
            return paths[:2]
        return paths


def finish(report: Report, output: Path | None) -> None:
    """Show a report, and write it if a folder is given."""
    report.show(Console(highlight=False))
    if output is not None:
        for path in report.write(output):
            tell_written(path)
