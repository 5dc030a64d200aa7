"""An evaluation as tables: for a terminal of 80 columns, and as a page in Markdown.

Agreement and faithfulness are two tables: side by side they would not fit. Under each mean stands
its 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from attnflow.evaluation.results import FAITHFUL, RANDOM, Evaluation, Metric, agreement

__all__ = ["Table", "heading", "markdown_of", "panels_of", "tables_of"]

_PLAIN: Final = ("rollout", "flow")


@dataclass(frozen=True)
class Cell:
    """A number, and its interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Table:
    """Cells by row; `note` is a sentence that stands under it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    note: str = ""
    signed: bool = False

    def lines(self) -> list[str]:
        """As text, columns aligned: each row, and its intervals under it."""
        written = [("", self.columns)]
        for name, cells in self.rows:
            written.append((name, tuple(self._number(cell.value) for cell in cells)))
            if any(cell.low is not None for cell in cells):
                written.append(("", tuple(self._interval(cell, "…") for cell in cells)))
        names = max(len(name) for name, _ in written)
        widths = [max(len(row[k]) for _, row in written) for k in range(len(self.columns))]
        return [
            "  ".join([name.ljust(names), *map(str.rjust, row, widths)]).rstrip()
            for name, row in written
        ]

    def markdown(self) -> list[str]:
        """As a Markdown table, each interval beside its number."""
        head = [f"| | {' | '.join(self.columns)} |", "|---|" + "---|" * len(self.columns)]
        return head + [
            f"| {name} | {' | '.join(self._with_interval(cell) for cell in cells)} |"
            for name, cells in self.rows
        ]

    def _with_interval(self, cell: Cell) -> str:
        interval = f" [{self._interval(cell, ', ')}]" if cell.low is not None else ""
        return self._number(cell.value) + interval

    def _interval(self, cell: Cell, between: str) -> str:
        if cell.low is None or cell.high is None or not math.isfinite(cell.low):
            return ""
        return f"{self._number(cell.low)}{between}{self._number(cell.high)}"

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "undefined"
        shown = f"{value:+.3f}" if self.signed else f"{value:.3f}"
        return shown.replace("0.", ".", 1) if abs(value) < 1 else shown


def tables_of(found: Evaluation) -> tuple[Table, ...]:
    """Faithfulness, agreement, differences from the plain methods and from chance, costs."""
    faithful = _means(found, FAITHFUL, "Faithfulness: the strongest words taken away, or only them")
    agreed = _means(found, agreement(found.measures), "Agreement with importance, over the words")
    note = (
        "compr. (comprehensiveness): p lost without the strongest 10 to 50 % of the words; suff. "
        "(sufficiency): p lost with only these; deletion, insertion: areas under the curves. In "
        "brackets: what was measured, as a ranking of its own."
    )
    tables = [replace(faithful, note=note), agreed, *_differences(found), _costs(found)]
    return tuple(tables)


def _means(found: Evaluation, metrics: Sequence[Metric], title: str) -> Table:
    rows = (*found.methods, RANDOM, *found.references)
    return Table(
        title,
        tuple(metric.title for metric in metrics),
        tuple((row, tuple(_mean(found, row, metric) for metric in metrics)) for row in rows),
    )


def _mean(found: Evaluation, row: str, metric: Metric) -> Cell:
    summary = found.summary(row, metric.name)
    return Cell(summary.mean, summary.low, summary.high)


def _differences(found: Evaluation) -> Iterator[Table]:
    """From plain rollout, plain flow and random orders, on the same texts."""
    others = [name for name in (*_PLAIN, RANDOM) if name in (*found.methods, RANDOM)]
    for metric in FAITHFUL[:2]:
        better = "higher" if metric.higher_is_better else "lower"
        yield Table(
            f"{metric.name.capitalize()} minus that of ..., on the same texts ({better} is better)",
            tuple(others),
            tuple(
                (row, tuple(_difference(found, row, other, metric) for other in others))
                for row in found.methods
            ),
            signed=True,
        )


def _difference(found: Evaluation, row: str, other: str, metric: Metric) -> Cell:
    compared = found.compare(row, other, metric.name)
    return Cell(compared.difference, compared.low, compared.high)


def _costs(found: Evaluation) -> Table:
    seconds = {method: found.seconds(method) for method in found.methods}
    least = min(seconds.values())
    rows = tuple((name, (Cell(s), Cell(s / least))) for name, s in seconds.items())
    note = "Of a text by this method alone: the forward pass, all it needs, and the method."
    return Table("Cost", ("seconds", "times the cheapest"), rows, note)


def markdown_of(found: Evaluation, *, command: str, source: str) -> str:
    """The whole evaluation as a page."""
    parts = [f"# Which attribution to trust: {found.settings['model']}", "", heading(found, source)]
    parts += ["", f"`{command}`", "", *(f"- {sentence}" for sentence in found.verdict())]
    for table in tables_of(found):
        parts += ["", f"## {table.title}", "", *table.markdown()]
        parts += ["", table.note] if table.note else []
    return "\n".join(parts) + "\n"


def heading(found: Evaluation, source: str) -> str:
    """What was evaluated, in a sentence."""
    return (
        f"{len(found.used):,} texts from {source}; words blanked by {found.settings['by']!r}; the "
        "row of the position the answer is read from, at the highest layer; means with 95 % "
        "bootstrap intervals."
    )


def panels_of(found: Evaluation) -> list[dict[str, Any]]:
    """Plain numbers for the figure: two metrics of faithfulness and agreement with each measure."""
    chosen = (*FAITHFUL[:2], *agreement(found.measures)[::2])
    table = _means(found, chosen, "")
    return [
        {
            "title": metric.title,
            "names": [name for name, _ in table.rows],
            "cells": [(cells[k].value, cells[k].low, cells[k].high) for _, cells in table.rows],
        }
        for k, metric in enumerate(chosen)
    ]
