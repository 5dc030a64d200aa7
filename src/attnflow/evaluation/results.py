"""What an evaluation found: a record for each example, and what follows from all of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, did_you_mean
from attnflow.evaluation import verdict
from attnflow.evaluation.metrics import (
    PairedDifference,
    Summary,
    bootstrap_ratio,
    compare_paired,
    summarize,
)
from attnflow.evaluation.records import FAITHFULNESS, RANDOM, Metric, Record, or_none
from attnflow.evaluation.subjects.base import Subject
from attnflow.evaluation.table import Cell, Table, markdown_of

Floats = NDArray[np.float64]
_LEVEL: Final = 0.05  # of the sign-flip test, divided by the number of methods
_DIGITS: Final = 3
_COMPARED: Final = ("rollout", "flow")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation:
    """Methods held against what a model uses, on the same examples; printed, it is a summary.

    subject: what was evaluated, with all its settings. methods: the rows that are methods, as
        `name option=value`. baselines: the rows beside them: "random" and what the subject adds.
    records: one for each example, in order. refused: methods that this model cannot be explained
        by, with the reason. examples, labels: by the records' numbers; a label is None where none
        was given. settings: everything the numbers depend on.

    >>> from attnflow import evaluate
    >>> texts = ["the key to the cabinets", "some people in the old city"]
    >>> evaluation = evaluate(None, texts, ["raw", "rollout"])
    >>> evaluation
    <Evaluation of raw, rollout on 2 texts>
    >>> print(evaluation.verdict()[0])
    2 texts are too few to tell any method from a random order.
    """

    subject: Subject
    methods: tuple[str, ...]
    baselines: tuple[str, ...]
    records: tuple[Record, ...]
    refused: Mapping[str, str]
    examples: tuple[str, ...]
    labels: tuple[str | None, ...]
    settings: Mapping[str, Any]
    _comparisons: dict[tuple[str, str, str], PairedDifference] = field(default_factory=dict)

    def __repr__(self) -> str:
        count = f"{len(self.used)} {self.subject.plural}"
        return f"<Evaluation of {', '.join(self.methods)} on {count}>"

    def __str__(self) -> str:
        """Return each row by the metric that orders them, and the verdict."""
        lines, metric = [repr(self)], self.subject.headline
        if self.has(metric):
            best_first = self.rank_rows(self.rows, metric)
            width = max(map(len, best_first))
            title = "faithfulness (comprehensiveness − sufficiency)"
            lines.append(f"{title if metric == FAITHFULNESS else metric}, 95 % interval:")
            for row in best_first:
                mean = self.summary(row, metric)
                interval = f"{mean.low:+.3f} to {mean.high:+.3f}"
                lines.append(f"  {row.ljust(width)}  {mean.mean:+.3f}  ({interval})")
        return "\n".join([*lines, *self.verdict()])

    # -- rows and metrics ---------------------------------------------------------------------

    @property
    def used(self) -> tuple[Record, ...]:
        """The records of examples that could be used."""
        return tuple(record for record in self.records if not record.left_out)

    @property
    def rows(self) -> tuple[str, ...]:
        """Every ranking: the methods, and the baselines beside them."""
        return (*self.methods, *self.baselines)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that were measured on some example."""
        names = {name for r in self.used for row in r.scores.values() for name in row}
        return tuple(metric for metric in self.subject.metrics if metric.name in names)

    def has(self, metric: str) -> bool:
        """Return whether a metric was measured on some example."""
        names = {each.name for each in self.metrics}
        return metric in names or (metric == FAITHFULNESS and "sufficiency" in names)

    def values(self, row: str, metric: str) -> Floats:
        """Return one value for each example that was used; nan where it is undefined.

        "faithfulness" of texts is comprehensiveness − sufficiency: the score with only the
        strongest words minus the score without them, so that one number orders the methods.
        """
        if metric == FAITHFULNESS:
            return self.values(row, "comprehensiveness") - self.values(row, "sufficiency")
        present = dict.fromkeys([*self.rows, *(name for r in self.used for name in r.scores)])
        _check_name("row", row, list(present))
        _check_name("metric", metric, [each.name for each in self.subject.metrics])
        scores = [record.scores.get(row, {}).get(metric, math.nan) for record in self.used]
        return np.array(scores, dtype=np.float64)

    def summary(self, row: str, metric: str) -> Summary:
        """Return the mean over examples with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """Return the mean difference on the same examples with its 95 % interval: row − other.

        Kept once made: thousands of texts take a moment, and a verdict asks for the same again.
        """
        key = (row, other, metric)
        if key not in self._comparisons:
            pair = self.values(row, metric), self.values(other, metric)
            self._comparisons[key] = compare_paired(*pair)
        return self._comparisons[key]

    def share(self, row: str, other: str, metric: str) -> tuple[float, float, float]:
        """Return the mean of a row as a share of another's, with its 95 % interval."""
        return bootstrap_ratio(self.values(row, metric), self.values(other, metric))

    def rank_rows(self, rows: Sequence[str], metric: str) -> list[str]:
        """Return rows by their means, best first; those that are undefined come last."""
        sign = -1 if self._is_higher_better(metric) else 1
        means = {row: self.summary(row, metric).mean for row in rows}
        return sorted(rows, key=lambda row: sign * means[row] if means[row] == means[row] else 9.0)

    def rank_methods(self, metric: str) -> list[str]:
        """Return the methods by their means, best first."""
        return self.rank_rows(self.methods, metric)

    def is_better(self, row: str, other: str, metric: str) -> bool:
        """Return whether a row is clearly better than another, and not by chance."""
        pairs = self.compare(row, other, metric)
        if not pairs.n or pairs.p >= _LEVEL / max(1, len(self.methods)):
            return False
        return pairs.low > 0 if self._is_higher_better(metric) else pairs.high < 0

    def is_level(self, row: str, other: str, metric: str) -> bool:
        """Return whether chance could make the difference of two rows."""
        return not self.is_better(row, other, metric) and not self.is_better(other, row, metric)

    def _is_higher_better(self, metric: str) -> bool:
        return all(each.higher_is_better for each in self.subject.metrics if each.name == metric)

    # -- what follows -------------------------------------------------------------------------

    def seconds(self, row: str) -> float:
        """Return mean seconds of an example by this row alone, its own capture included."""
        times = [record.seconds[row] for record in self.used if row in record.seconds]
        capture = [record.capture[row] for record in self.used if row in record.capture]
        own = float(np.mean(times)) if times else math.nan
        return own + float(np.median(capture)) if capture else own

    def saturation(self, method: str) -> float | None:
        """Return the mean share of saturated values at the highest layer; None if it is no flow."""
        shares = [r.saturated[method] for r in self.used if method in r.saturated]
        return float(np.mean(shares)) if shares else None

    def collapse(self, method: str) -> float:
        """Return the share of the texts in which a method's rows hardly depend on the target."""
        shares = [r.collapsed[method] for r in self.used if method in r.collapsed]
        return float(np.mean(shares)) if shares else 0.0

    def accuracy(self) -> float | None:
        """Return how often the answer is the label; None where labels say nothing of it."""
        known = [(r, label) for r in self.used if (label := self.labels[r.number]) is not None]
        right = [label in (r.answer, str(r.choice)) for r, label in known]
        return float(np.mean(right)) if any(right) else None

    def verdict(self) -> tuple[str, ...]:
        """Return plain sentences: which method to trust here, and how sure that is."""
        return verdict.sentences(self)

    # -- tables and files ---------------------------------------------------------------------

    def table(self) -> dict[str, dict[str, Summary]]:
        """Return the means: rows × metrics."""
        return {row: {m.name: self.summary(row, m.name) for m in self.metrics} for row in self.rows}

    def tables(self) -> tuple[Table, ...]:
        """Return what is shown and written: means, differences, costs."""
        there = set(self.metrics)
        groups = [
            (group, tuple(metric for metric in group.metrics if metric in there))
            for group in self.subject.groups
        ]
        means = [
            replace(self.means(group.title, metrics), note=group.note)
            for group, metrics in groups
            if metrics
        ]
        return (*means, *map(self._differences, self.subject.differences), self._costs())

    def means(self, title: str, metrics: Sequence[Metric]) -> Table:
        """Return a table of means with their intervals, a line for each row."""
        rows = {
            row: tuple(Cell.of_share(self.summary(row, metric.name)) for metric in metrics)
            for row in self.rows
        }
        name = title.split(":")[0].lower().replace(" ", "-")
        return Table(name, title, tuple(metric.title for metric in metrics), rows, digits=_DIGITS)

    def _differences(self, metric: str) -> Table:
        """Return differences from plain rollout, plain flow and random orders."""
        others = [name for name in (*_COMPARED, RANDOM) if name in self.rows]
        better = "higher" if self._is_higher_better(metric) else "lower"
        rows = {
            row: tuple(
                replace(Cell.of_difference(self.compare(row, other, metric)), p=None)
                for other in others
            )
            for row in self.methods
        }
        same = f"on the same {self.subject.plural} ({better} is better)"
        title = f"{metric.capitalize()} minus that of ..., {same}"
        name = f"{metric}-differences"
        return Table(name, title, tuple(others), rows, digits=_DIGITS, signed=True)

    def _costs(self) -> Table:
        times = {row: self.seconds(row) for row in self.rows}
        seconds = {row: time for row, time in times.items() if math.isfinite(time)}
        least = min(seconds.values(), default=math.nan)
        rows = {row: (Cell(time), Cell(time / least)) for row, time in seconds.items()}
        columns = ("seconds", "times the cheapest")
        return Table("cost", "Cost", columns, rows, self.subject.cost_note, digits=_DIGITS)

    def panels(self) -> list[dict[str, object]]:
        """Return plain numbers for the figure: a panel of intervals for each metric."""
        metrics = [m for m in self.subject.figure_metrics if m in self.metrics]
        return self.means("figure", metrics).interval_panels()

    def heading(self, source: str) -> str:
        """Return what was evaluated, in a sentence; `source` is where the examples are from."""
        about = [f"{len(self.used):,} {self.subject.plural} from {source}", self.subject.heading()]
        return "; ".join([*filter(None, about), "means with 95 % bootstrap intervals."])

    def to_markdown(self, *, source: str = "memory", command: str = "") -> str:
        """Return the whole evaluation as a page."""
        lines = [f"# Which attribution to trust: {self.settings['model']}", ""]
        lines += [self.heading(source), "", *([f"`{command}`", ""] if command else [])]
        lines += [f"- {sentence}" for sentence in self.verdict()]
        return "\n".join([*lines, *markdown_of(self.tables())]) + "\n"

    def to_csv(self) -> str:
        """Return one line for each example and row, with every metric."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [metric.name for metric in self.metrics]
        about = ["number", self.subject.name, "answer", "probability", "row"]
        writer.writerow([*about, *names, "seconds"])
        for record in self.used:
            for row, scores in record.scores.items():
                numbers = [record.probability, *(scores.get(name, math.nan) for name in names)]
                cells = [f"{x:.6g}" if math.isfinite(x) else "" for x in numbers]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                example = [record.number, self.examples[record.number], record.answer]
                writer.writerow([*example, cells[0], row, *cells[1:], seconds])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: settings, summaries, costs and the verdict."""
        return {
            "settings": dict(self.settings),
            self.subject.plural: len(self.used),
            "left_out": [record.left_out for record in self.records if record.left_out],
            "refused": dict(self.refused),
            "accuracy": self.accuracy(),
            "table": {
                row: {
                    metric: {name: or_none(value) for name, value in asdict(summary).items()}
                    for metric, summary in columns.items()
                }
                for row, columns in self.table().items()
            },
            "seconds": {row: time for row in self.rows if (time := or_none(self.seconds(row)))},
            "verdict": list(self.verdict()),
        }


def _check_name(kind: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise InputError(f"No {kind} {value!r}.{hint} There are {', '.join(allowed)}.")
