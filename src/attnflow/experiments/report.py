"""What an experiment found: protocol, tables beside the paper's, CSV, Markdown, a figure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from attnflow.errors import FileError
from attnflow.evaluation.metrics import PairedDifference, Summary

__all__ = ["Cell", "Report", "Table", "compared", "decimals", "panel_of", "summarized"]


@dataclass(frozen=True)
class Cell:
    """One number with what is known of it; `paper` is the number the paper prints for it."""

    value: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    n: int | None = None
    undefined: int = 0
    paper: float | None = None
    paper_std: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.value - self.paper


def summarized(found: Summary, paper: tuple[float, float] | None = None) -> Cell:
    """A mean over examples, with the paper's mean and standard deviation if it has one."""
    mean, std = paper or (None, None)
    return Cell(
        found.mean, found.std, found.low, found.high, None, found.n, found.undefined, mean, std
    )


def compared(found: PairedDifference) -> Cell:
    """A mean difference over pairs."""
    return Cell(found.difference, None, found.low, found.high, found.p, found.n, found.undefined)


@dataclass(frozen=True)
class Table:
    """Cells by row and column. `name` is for files; `drawn` puts it into the figure.

    `shown` are the columns that are printed, where all are too many; CSV and figure have all.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    note: str = ""
    drawn: bool = False
    shown: tuple[int, ...] | None = None

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns that are printed."""
        return tuple(self.columns[k] for k in self._printed())

    def _printed(self) -> Sequence[int]:
        return range(len(self.columns)) if self.shown is None else self.shown

    def lines(self) -> Iterator[tuple[str, list[str]]]:
        """Each row as text: the value, its interval, and the paper's number and the difference."""
        for name, every in self.rows.items():
            cells = [every[k] for k in self._printed()]
            yield name, [_with_std(cell.value, cell.std) for cell in cells]
            if any(cell.low is not None for cell in cells):
                yield "  95 % interval", [_interval(cell) for cell in cells]
            if any(cell.p is not None for cell in cells):
                yield "  p", ["" if cell.p is None else _p(cell.p) for cell in cells]
            if any(cell.paper is not None for cell in cells):
                yield "  paper", [_with_std(cell.paper, cell.paper_std) for cell in cells]
                yield "  ours − paper", [_signed(cell.difference) for cell in cells]
            if any(cell.undefined for cell in cells):
                yield "  undefined", [str(cell.undefined) for cell in cells]


@dataclass(frozen=True)
class Report:
    """An experiment's result; `protocol` and `findings` are sentences.

    `figure` draws the figure to a file; without it the tables that are `drawn` make one.
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
            for line in _aligned(table):
                dim = "dim" if line.startswith("  ") else None
                console.print(line, style=dim, soft_wrap=True, markup=False)
            if table.note:
                console.print(escape(table.note), style="dim", soft_wrap=True)
        console.print()
        for sentence in self.findings:
            console.print(f"→ {escape(sentence)}", soft_wrap=True)

    def to_csv(self) -> str:
        """Every cell of every table, one a line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [f.name for f in fields(Cell)]
        writer.writerow(["table", "row", "column", *names, "difference"])
        for table in self.tables:
            for row, cells in table.rows.items():
                for column, cell in zip(table.columns, cells, strict=True):
                    values = [getattr(cell, name) for name in names]
                    record = [_csv(value) for value in (*values, cell.difference)]
                    writer.writerow([table.name, row, column, *record])
        return out.getvalue()

    def to_markdown(self) -> str:
        """The whole report, as a page for people."""
        parts = [f"# {self.title}", *(f"- {sentence}" for sentence in self.protocol)]
        if self.command:
            parts += ["", f"`{self.command}`"]
        for table in self.tables:
            parts += ["", f"## {table.title}", "", *_markdown(table)]
            parts += ["", table.note] if table.note else []
        parts += ["", *(f"- {sentence}" for sentence in self.findings)]
        return "\n".join(parts) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """CSV, Markdown and the figure, if any, in a folder; the files that were written."""
        from attnflow.show import plots

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The folder {str(folder)!r} cannot be made: {error}.") from error
        paths = [folder / f"{self.name}.{ending}" for ending in ("csv", "md", "png")]
        paths[0].write_text(self.to_csv(), encoding="utf-8")
        paths[1].write_text(self.to_markdown(), encoding="utf-8")
        panels = [panel_of(table) for table in self.tables if table.drawn]
        if self.figure is not None:
            self.figure(paths[2])
        elif panels:
            plots.layer_curves(panels, paths[2])
        else:
            return paths[:2]
        return paths


def decimals(value: float | None) -> str:
    """Two decimals without the zero in front, as the paper prints them."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "undefined"
    shown = f"{value:.2f}".replace("-0.00", "0.00")
    return shown.replace("0.", ".", 1) if abs(value) < 1 and "0." in shown else shown


def _with_std(value: float | None, std: float | None) -> str:
    return decimals(value) if std is None else f"{decimals(value)}±{decimals(std)}"


def _interval(cell: Cell) -> str:
    return "" if cell.low is None else f"{decimals(cell.low)}…{decimals(cell.high)}"


def _signed(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return decimals(value)
    return f"+{decimals(value)}" if value >= 0 else f"−{decimals(-value)}"


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _csv(value: object) -> object:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def _aligned(table: Table) -> list[str]:
    """Columns of text as wide as they need to be: a terminal may wrap them, nothing is cut off."""
    lines = [("", list(table.headings)), *table.lines()]
    label = max(len(name) for name, _ in lines)
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
    return [
        "  ".join([name.ljust(label), *map(str.rjust, cells, widths)]).rstrip()
        for name, cells in lines
    ]


def _markdown(table: Table) -> Sequence[str]:
    head = [f"| | {' | '.join(table.headings)} |", "|---|" + "---|" * len(table.headings)]
    rows = [f"| {name.strip()} | {' | '.join(values)} |" for name, values in table.lines()]
    return [*head, *rows]


def panel_of(table: Table) -> dict[str, object]:
    """Plain numbers for the figure."""
    return {
        "title": table.title,
        "columns": table.columns,
        "series": {
            name: {
                "value": [cell.value for cell in cells],
                "low": [cell.low for cell in cells],
                "high": [cell.high for cell in cells],
                "paper": [cell.paper for cell in cells],
            }
            for name, cells in table.rows.items()
        },
    }
