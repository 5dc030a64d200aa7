"""A table of numbers with what is known of each: as lines of text, as Markdown, as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from attnflow.evaluation.metrics import PairedDifference, Summary

T = TypeVar("T")


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

    @classmethod
    def of_mean(cls, mean: Summary, paper: tuple[float, float] | None = None) -> Cell:
        """Return a mean over examples, with the paper's mean and deviation if it has one."""
        theirs = paper or (None, None)
        return cls(mean.mean, mean.std, mean.low, mean.high, None, mean.n, mean.undefined, *theirs)

    @classmethod
    def of_share(cls, mean: Summary) -> Cell:
        """Return a mean without its standard deviation, which says nothing of a yes or no."""
        return replace(cls.of_mean(mean), std=None)

    @classmethod
    def of_difference(cls, pairs: PairedDifference) -> Cell:
        """Return a mean difference over pairs, with its p."""
        return cls(pairs.difference, None, pairs.low, pairs.high, pairs.p, pairs.n, pairs.undefined)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.value - self.paper


@dataclass(frozen=True)
class Table:
    """Cells by row and column under a title; of many columns only some are printed, CSV has all."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    note: str = ""
    in_figure: bool = False
    columns_to_print: tuple[int, ...] | None = None
    digits: int = 2
    signed: bool = False

    def lines(self) -> list[str]:
        """Return text, columns as wide as they need to be: a terminal may wrap, nothing is cut."""
        lines = [("", self._printed(self.columns)), *self._rows_as_text()]
        label = max(len(name) for name, _ in lines)
        widths = [max(map(len, cells)) for cells in zip(*(row for _, row in lines), strict=True)]
        return [
            "  ".join([name.ljust(label), *map(str.rjust, cells, widths)]).rstrip()
            for name, cells in lines
        ]

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table."""
        headings = self._printed(self.columns)
        head = [f"| | {' | '.join(headings)} |", "|---|" + "---|" * len(headings)]
        return head + [
            f"| {name.strip()} | {' | '.join(cells)} |" for name, cells in self._rows_as_text()
        ]

    def interval_panels(self) -> list[dict[str, object]]:
        """Return plain numbers for one panel of intervals for each column."""
        return [
            {
                "title": column,
                "names": list(self.rows),
                "cells": [(c.value, c.low, c.high) for c in (row[k] for row in self.rows.values())],
            }
            for k, column in enumerate(self.columns)
        ]

    def _printed(self, cells: Sequence[T]) -> list[T]:
        numbers = range(len(cells)) if self.columns_to_print is None else self.columns_to_print
        return [cells[k] for k in numbers]

    def _rows_as_text(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each row: value, interval, the paper's number and how far ours is from it."""
        for name, row in self.rows.items():
            cells = self._printed(row)
            yield name, [self._value(cell) for cell in cells]
            if any(cell.low is not None for cell in cells):
                yield "  95 % interval", [self._interval(cell) for cell in cells]
            if any(cell.p is not None for cell in cells):
                yield "  p", ["" if cell.p is None else _p(cell.p) for cell in cells]
            if any(cell.paper is not None for cell in cells):
                yield "  paper", [_with_std(cell.paper, cell.paper_std) for cell in cells]
                yield "  ours − paper", [_signed(cell.difference) for cell in cells]
            if any(cell.undefined for cell in cells):
                yield "  undefined", [str(cell.undefined) for cell in cells]

    def _value(self, cell: Cell) -> str:
        return self._number(cell.value) if cell.std is None else _with_std(cell.value, cell.std)

    def _interval(self, cell: Cell) -> str:
        if cell.low is None or cell.high is None or not math.isfinite(cell.low):
            return ""
        return f"{self._number(cell.low)}…{self._number(cell.high)}"

    def _number(self, value: float) -> str:
        return _signed(value, self.digits) if self.signed else decimals(value, self.digits)


def markdown_of(tables: Iterable[Table]) -> list[str]:
    """Return the lines of a page: each table under its title, and its note under it."""
    lines: list[str] = []
    for table in tables:
        lines += ["", f"## {table.title}", "", *table.markdown()]
        lines += ["", table.note] if table.note else []
    return lines


def decimals(value: float | None, digits: int = 2) -> str:
    """Return a number without the zero in front, as the paper prints it."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "undefined"
    zero = f"{0:.{digits}f}"
    text = f"{value:.{digits}f}".replace(f"-{zero}", zero)
    return text.replace("0.", ".", 1) if abs(value) < 1 and "0." in text else text


def _with_std(value: float | None, std: float | None) -> str:
    return decimals(value) if std is None else f"{decimals(value)}±{decimals(std)}"


def _signed(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return decimals(value, digits)
    return f"+{decimals(value, digits)}" if value >= 0 else f"−{decimals(-value, digits)}"


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
