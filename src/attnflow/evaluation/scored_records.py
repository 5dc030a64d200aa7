"""Rows × metrics of any run that keeps a record for each example: means, differences, tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.metrics import PairedDifference, Summary, compare_paired, summarize
from attnflow.evaluation.records import Metric, Record, check_name, or_none
from attnflow.evaluation.table import Cell, Table

__all__ = ["ScoredRecords"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRecords:
    """Methods held against the same examples; `all_metrics` are those a record may have.

    methods: the rows. records: one for each example, in order. refused: methods that could not be
    run, with the reason. settings: everything the numbers depend on.
    """

    methods: tuple[str, ...]
    records: tuple[Record, ...]
    refused: Mapping[str, str]
    settings: Mapping[str, Any]

    all_metrics: ClassVar[tuple[Metric, ...]] = ()
    example_name: ClassVar[str] = "example"
    cost_title: ClassVar[str] = "seconds an example"

    @property
    def used(self) -> tuple[Record, ...]:
        """The records of examples that could be used."""
        return tuple(record for record in self.records if not record.left_out)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those that were measured on some example."""
        names = {name for r in self.used for row in r.scores.values() for name in row}
        return tuple(metric for metric in self.all_metrics if metric.name in names)

    def values(self, row: str, metric: str) -> NDArray[np.float64]:
        """One value for each example that was used; nan where it is undefined."""
        rows = {name for record in self.used for name in record.scores}
        check_name("row", row, sorted(rows))
        check_name("metric", metric, [each.name for each in self.all_metrics])
        scores = [record.scores.get(row, {}).get(metric, math.nan) for record in self.used]
        return np.array(scores, dtype=np.float64)

    def summary(self, row: str, metric: str) -> Summary:
        """The mean over examples with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """The mean difference on the same examples, row − other, with its interval and p."""
        return compare_paired(self.values(row, metric), self.values(other, metric))

    def seconds(self, row: str) -> float:
        """Mean seconds of scoring an example."""
        times = [record.seconds[row] for record in self.used if row in record.seconds]
        return float(np.mean(times)) if times else math.nan

    def means(self, title: str, metrics: Sequence[Metric]) -> Table:
        """A table of means with their intervals, a line for each row."""
        rows = {
            row: tuple(Cell.of_share(self.summary(row, metric.name)) for metric in metrics)
            for row in self.methods
        }
        name = title.lower().replace(" ", "-")
        return Table(name, title, tuple(metric.title for metric in metrics), rows)

    def costs(self) -> Table:
        """Seconds of each row."""
        times = {row: self.seconds(row) for row in self.methods}
        rows = {row: (Cell(time),) for row, time in times.items() if math.isfinite(time)}
        return Table("cost", "Cost", (self.cost_title,), rows)

    def tables(self) -> tuple[Table, ...]:
        """What is shown and written."""
        return (self.means("Means", self.metrics), self.costs())

    def verdict(self) -> tuple[str, ...]:
        """Plain sentences: which method to trust here, and how sure that is."""
        return ()

    def to_markdown(self) -> str:
        """The whole evaluation as a page."""
        parts = [f"# Which attribution to trust: {self.settings['model']}", ""]
        count = f"{len(self.used):,} {self.example_name}s"
        parts += [f"{count}; means with 95 % bootstrap intervals.", ""]
        parts += [f"- {sentence}" for sentence in self.verdict()]
        for table in self.tables():
            parts += ["", f"## {table.title}", "", *table.markdown()]
        return "\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: settings, summaries, costs and the verdict."""
        return {
            "settings": dict(self.settings),
            f"{self.example_name}s": len(self.used),
            "refused": dict(self.refused),
            "table": {
                row: {m.name: _plain(self.summary(row, m.name)) for m in self.metrics}
                for row in self.methods
            },
            "seconds": {row: self.seconds(row) for row in self.methods},
            "verdict": list(self.verdict()),
        }

    def csv_of(self, columns: Sequence[str], about: Callable[[Record], Sequence[object]]) -> str:
        """One line for each example and row, with every metric; `about` fills the `columns`."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [metric.name for metric in self.metrics]
        writer.writerow([*columns, "row", *names, "seconds"])
        for record in self.used:
            for row, scores in record.scores.items():
                values = [scores.get(name, math.nan) for name in names]
                cells = [f"{value:.6g}" if math.isfinite(value) else "" for value in values]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                writer.writerow([*about(record), row, *cells, seconds])
        return out.getvalue()


def _plain(summary: Summary) -> dict[str, float | None]:
    return {name: or_none(value) for name, value in asdict(summary).items()}
