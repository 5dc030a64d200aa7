"""Findings of an evaluation: the records of its examples, summarized and compared row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from attnflow.errors import InputError
from attnflow.errors.arguments import check_named
from attnflow.evaluation.metrics import Floats, PairedDifference, Summary, compare_paired, summarize
from attnflow.evaluation.records import Record
from attnflow.evaluation.subjects.base import FAITHFULNESS, Metric, Subject

_LEVEL: Final = 0.05  # of the sign-flip test, divided by the number of methods


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Results:
    """The rows of scores on the same examples, and what follows from them."""

    subject: Subject
    methods: tuple[str, ...]
    baselines: tuple[str, ...]
    records: tuple[Record, ...]
    refused: Mapping[str, str]
    examples: tuple[str, ...]
    labels: tuple[str | None, ...]
    settings: Mapping[str, Any]
    _comparisons: dict[tuple[str, str, str], PairedDifference] = field(
        default_factory=dict, init=False
    )

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
        check_named("row", row, list(present), InputError)
        check_named("metric", metric, [each.name for each in self.subject.metrics], InputError)
        scores = [record.scores.get(row, {}).get(metric, math.nan) for record in self.used]
        return np.array(scores, dtype=np.float64)

    def summary(self, row: str, metric: str) -> Summary:
        """Return the mean over examples with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """Return the mean difference on the same examples with its 95 % interval: row − other."""
        key = (row, other, metric)
        if key not in self._comparisons:
            pair = self.values(row, metric), self.values(other, metric)
            self._comparisons[key] = compare_paired(*pair)
        return self._comparisons[key]

    def rank_rows(self, rows: Sequence[str], metric: str) -> list[str]:
        """Return rows by their means, best first; those that are undefined come last."""
        sign = -1 if self.is_higher_better(metric) else 1
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
        return pairs.low > 0 if self.is_higher_better(metric) else pairs.high < 0

    def is_level(self, row: str, other: str, metric: str) -> bool:
        """Return whether chance could make the difference of two rows."""
        return not self.is_better(row, other, metric) and not self.is_better(other, row, metric)

    def is_higher_better(self, metric: str) -> bool:
        """Return whether a larger number is the better one."""
        return all(each.higher_is_better for each in self.subject.metrics if each.name == metric)

    # -- what follows -------------------------------------------------------------------------

    def seconds(self, row: str) -> float:
        """Return mean seconds of an example by this row alone, its own capture included."""
        times, captures = self._numbers("seconds", row), self._numbers("capture", row)
        return float(np.mean(times or [math.nan]) + np.median(captures or [0.0]))

    def saturation(self, method: str) -> float | None:
        """Return the mean share of saturated values at the highest layer; None if it is no flow."""
        shares = self._numbers("saturated", method)
        return float(np.mean(shares)) if shares else None

    def collapse(self, method: str) -> float:
        """Return the share of the texts in which a method's rows hardly depend on the target."""
        return float(np.mean(self._numbers("collapsed", method) or [0.0]))

    def _numbers(self, name: str, row: str) -> list[float]:
        """Return what the records hold of a row under this name, where they do."""
        columns = [getattr(record, name) for record in self.used]
        return [column[row] for column in columns if row in column]

    def accuracy(self) -> float | None:
        """Return how often the answer is the label; None where labels say nothing of it."""
        known = [(r, label) for r in self.used if (label := self.labels[r.number]) is not None]
        right = [label in (r.answer, str(r.choice)) for r, label in known]
        return float(np.mean(right)) if any(right) else None
