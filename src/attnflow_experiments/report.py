"""The parts that experiments share: a protocol, a sample by seed, and the report with its files."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar, get_args

from rich.console import Console
from rich.markup import escape

from attnflow.errors import FileError, InputError
from attnflow.errors.arguments import check_named
from attnflow.evaluation.table import Cell, Table, markdown_of
from attnflow.storage import write_text

Protocol = Literal["sound", "paper"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment by one of two protocols.

    protocol: "sound", or "paper" for theirs with its oddities.
    """

    protocol: Protocol = "sound"

    def __post_init__(self) -> None:
        check_named("protocol", self.protocol, get_args(Protocol))


@dataclass(frozen=True, kw_only=True)
class SampledExperiment(Experiment):
    """An experiment on a sample of texts.

    samples: how many texts, drawn by `seed` if there are more.
    """

    samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples is a number of at least 1; got {self.samples!r}.")

    def sample(
        self, examples: Sequence[T], fits: Callable[[T], bool], kind: str
    ) -> tuple[list[T], str]:
        """The examples that are used, and what is to be remarked of the others."""
        fitting = [example for example in examples if fits(example)]
        if not fitting:
            raise InputError(f"No {kind} is short enough for the model; nothing can be measured.")
        long = len(examples) - len(fitting)
        remarks = f" {long} longer than the model's positions left out." if long else ""
        if len(fitting) < self.samples:
            remarks += f" There are no more; {self.samples:,} were asked for."
        if len(fitting) <= self.samples:
            return fitting, remarks
        return random.Random(self.seed).sample(fitting, self.samples), remarks


@dataclass(frozen=True)
class Report:
    """An experiment's result; `protocol` and `findings` are sentences.

    `figure` draws the figure to a file; without it the tables that are `in_figure` make one.
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
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [field.name for field in fields(Cell)]
        writer.writerow(["table", "row", "column", *names, "difference"])
        for table in self.tables:
            for row, cells in table.rows.items():
                for column, cell in zip(table.columns, cells, strict=True):
                    values = (*(getattr(cell, name) for name in names), cell.difference)
                    writer.writerow([table.name, row, column, *map(_in_csv, values)])
        return out.getvalue()

    def to_markdown(self) -> str:
        """All of the report, as a page for people."""
        lines = [f"# {self.title}", *(f"- {sentence}" for sentence in self.protocol)]
        lines += ["", f"`{self.command}`"] if self.command else []
        lines += markdown_of(self.tables)
        return "\n".join([*lines, "", *(f"- {sentence}" for sentence in self.findings)]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """CSV, Markdown and the figure, if any, in a folder; the files that were written."""
        from attnflow_experiments.curves import layer_curves

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The folder {str(folder)!r} cannot be made: {error}.") from error
        paths = [folder / f"{self.name}.{ending}" for ending in ("csv", "md", "png")]
        write_text(paths[0], self.to_csv())
        write_text(paths[1], self.to_markdown())
        panels = [curve_panel(table) for table in self.tables if table.in_figure]
        if self.figure is not None:
            self.figure(paths[2])
        elif panels:
            layer_curves(panels, paths[2])
        else:
            return paths[:2]
        return paths


def curve_panel(table: Table) -> dict[str, object]:
    """Return plain numbers for a panel with one curve for each row of a table."""
    names = ("value", "low", "high", "paper")
    return {
        "title": table.title,
        "columns": table.columns,
        "series": {
            row: {name: [getattr(cell, name) for cell in cells] for name in names}
            for row, cells in table.rows.items()
        },
    }


def _in_csv(value: object) -> object:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
