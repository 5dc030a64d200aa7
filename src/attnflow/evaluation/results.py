"""What an evaluation found: a record for each text, and what follows from all of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.metrics import PairedDifference, Summary, compare_paired, summarize
from attnflow.evaluation.records import (
    FAITHFULNESS,
    RANDOM,
    Metric,
    Record,
    check_name,
    metrics_of,
    or_none,
    references_of,
)
from attnflow.evaluation.verdict import sentences

__all__ = ["Evaluation"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation:
    """Methods held against what a model uses, on the same texts; printed, it is a summary.

    methods: the rows that are methods, as `name option=value`. Beside them stand "random" and, in
        round brackets, the measures of importance as rankings of their own.
    measures: what the methods were correlated with.
    refused: methods that this model cannot be explained by, with the reason.
    texts, labels: in the order of the records' numbers; a label is None where none was given.
    settings: everything the numbers depend on.

    >>> from attnflow import evaluate_methods
    >>> texts = ["the key to the cabinets", "some people in the old city"]
    >>> evaluation = evaluate_methods(None, texts, methods=["raw", "rollout"])
    >>> evaluation
    <Evaluation of raw, rollout on 2 texts>
    >>> print(evaluation.verdict()[0])
    2 texts are too few to tell any method from a random order.
    """

    methods: tuple[str, ...]
    measures: tuple[str, ...]
    records: tuple[Record, ...]
    refused: Mapping[str, str]
    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    settings: Mapping[str, Any]
    _comparisons: dict[tuple[str, str, str], PairedDifference] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Evaluation of {', '.join(self.methods)} on {len(self.used)} texts>"

    def __str__(self) -> str:
        """Each method's faithfulness, and the verdict."""
        best_first = sorted(self.rows, key=lambda row: -self.summary(row, FAITHFULNESS).mean)
        width = max(map(len, best_first))
        lines = [repr(self), "faithfulness (comprehensiveness − sufficiency), 95 % interval:"]
        for row in best_first:
            mean = self.summary(row, FAITHFULNESS)
            interval = f"{mean.low:+.3f} to {mean.high:+.3f}"
            lines.append(f"  {row.ljust(width)}  {mean.mean:+.3f}  ({interval})")
        return "\n".join([*lines, *self.verdict()])

    @property
    def used(self) -> tuple[Record, ...]:
        """The records of texts that could be used."""
        return tuple(record for record in self.records if not record.left_out)

    @property
    def references(self) -> tuple[str, ...]:
        """The measures as rankings: what a method could reach if it knew them."""
        return references_of(self.measures)

    @property
    def rows(self) -> tuple[str, ...]:
        """Every ranking: the methods, random orders, the measures."""
        return (*self.methods, RANDOM, *self.references)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric, agreement first."""
        return metrics_of(self.measures)

    def values(self, row: str, metric: str) -> Floats:
        """One value for each text that was used; nan where it is undefined.

        "faithfulness" is comprehensiveness − sufficiency: the score with only the strongest words
        minus the score without them, so that one number orders the methods.
        """
        if metric == FAITHFULNESS:
            return self.values(row, "comprehensiveness") - self.values(row, "sufficiency")
        check_name("row", row, self.rows)
        check_name("metric", metric, [each.name for each in self.metrics])
        return np.array([record.scores[row].get(metric, math.nan) for record in self.used])

    def summary(self, row: str, metric: str) -> Summary:
        """The mean over texts with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """The mean difference on the same texts with its 95 % interval: row − other.

        Kept once made: thousands of texts take a moment, and a verdict asks for the same again.
        """
        key = (row, other, metric)
        if key not in self._comparisons:
            pair = self.values(row, metric), self.values(other, metric)
            self._comparisons[key] = compare_paired(*pair)
        return self._comparisons[key]

    def seconds(self, method: str) -> float:
        """Seconds a text takes by this method alone, the forward pass and all it needs included."""
        own = [record.seconds[method] for record in self.used]
        capture = [r.capture[method] for r in self.used if method in r.capture]
        return float(np.mean(own) + (np.median(capture) if capture else math.nan))

    def saturation(self, method: str) -> float | None:
        """The mean share of saturated values at the highest layer; None if it is no flow."""
        shares = [r.saturated[method] for r in self.used if method in r.saturated]
        return float(np.mean(shares)) if shares else None

    def collapse(self, method: str) -> float:
        """The share of the texts in which the method's rows hardly depend on the target."""
        shares = [r.collapsed[method] for r in self.used if method in r.collapsed]
        return float(np.mean(shares)) if shares else 0.0

    def accuracy(self) -> float | None:
        """How often the model's answer is the text's label; None where labels say nothing of it."""
        known = [(r, label) for r in self.used if (label := self.labels[r.number]) is not None]
        right = [label in (r.answer, str(r.choice)) for r, label in known]
        return float(np.mean(right)) if any(right) else None

    def table(self) -> dict[str, dict[str, Summary]]:
        """Rows × metrics."""
        return {row: {m.name: self.summary(row, m.name) for m in self.metrics} for row in self.rows}

    def verdict(self) -> tuple[str, ...]:
        """Plain sentences: which method to trust here, and how sure that is."""
        return sentences(self)

    def to_csv(self) -> str:
        """One line for each text and row, with every metric."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [metric.name for metric in self.metrics]
        writer.writerow(["number", "text", "answer", "probability", "row", *names, "seconds"])
        for record in self.used:
            about = [record.number, self.texts[record.number], record.answer]
            for row, scores in record.scores.items():
                numbers = [record.probability, *(scores.get(name, math.nan) for name in names)]
                cells = [f"{x:.6g}" if math.isfinite(x) else "" for x in numbers]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                writer.writerow([*about, cells[0], row, *cells[1:], seconds])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: settings, summaries, costs and the verdict."""
        return {
            "settings": dict(self.settings),
            "texts": len(self.used),
            "texts_left_out": [asdict(r)["left_out"] for r in self.records if r.left_out],
            "refused": dict(self.refused),
            "accuracy": self.accuracy(),
            "table": {
                row: {metric: _plain(summary) for metric, summary in columns.items()}
                for row, columns in self.table().items()
            },
            "seconds": {method: self.seconds(method) for method in self.methods},
            "verdict": list(self.verdict()),
        }


def _plain(summary: Summary) -> dict[str, float | None]:
    return {name: or_none(value) for name, value in asdict(summary).items()}
