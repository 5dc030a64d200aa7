"""What an evaluation on completions gave: a record for each prompt, and what follows from all."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.ablation.metrics import bootstrap_ratio
from attnflow.evaluation.ablation.rankings import RANDOM
from attnflow.evaluation.metrics import PairedDifference, Summary, compare_paired, summarize
from attnflow.evaluation.records import FEW, Metric, Record, check_name, clear_sign, omissions
from attnflow.evaluation.table import Cell, Table

__all__ = ["METRICS", "CompletionEvaluation"]

Floats = NDArray[np.float64]

METRICS: Final = (
    Metric("lds", "LDS ↑"),
    Metric("drop", "drop ↑"),
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
    Metric("first", "first ↑"),
    Metric("top", "in the top ↑"),
    Metric("sentence", "sentence ↑"),
    Metric("any sentence", "of all sentences ↑"),
    Metric("document", "document ↑"),
)
_ABLATED: Final = METRICS[:4]
_KNOWN: Final = METRICS[4:]


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletionEvaluation:
    """Methods held against ablations of the same prompts.

    methods: the rows. records: one for each prompt, in order. prompts: their texts.
    refused: methods that could not be run, with the reason.
    settings: everything the numbers depend on.

    >>> records = (Record(number=0, scores={"rollout": {"lds": 0.5}}),)
    >>> evaluation = CompletionEvaluation(
    ...     methods=("rollout",), records=records, prompts=("Hi",), refused={}, settings={}
    ... )
    >>> evaluation.summary("rollout", "lds").mean
    0.5
    """

    methods: tuple[str, ...]
    records: tuple[Record, ...]
    prompts: tuple[str, ...]
    refused: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def used(self) -> tuple[Record, ...]:
        """The records of prompts that could be used."""
        return tuple(record for record in self.records if not record.left_out)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those that were measured on some prompt."""
        names = {name for r in self.used for row in r.scores.values() for name in row}
        return tuple(metric for metric in METRICS if metric.name in names)

    def values(self, row: str, metric: str) -> Floats:
        """One value for each prompt that was used; nan where it is undefined."""
        rows = {name for record in self.used for name in record.scores}
        check_name("row", row, sorted(rows))
        check_name("metric", metric, [each.name for each in METRICS])
        scores = [record.scores.get(row, {}).get(metric, math.nan) for record in self.used]
        return np.array(scores, dtype=np.float64)

    def summary(self, row: str, metric: str) -> Summary:
        """The mean over prompts with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """The mean difference on the same prompts, row − other, with its interval and p."""
        return compare_paired(self.values(row, metric), self.values(other, metric))

    def share(self, row: str, other: str, metric: str = "drop") -> tuple[float, float, float]:
        """The mean of one row as a share of another's, on the same prompts, with its interval."""
        return bootstrap_ratio(self.values(row, metric), self.values(other, metric))

    def seconds(self, row: str) -> float:
        """Mean seconds of scoring a prompt."""
        times = [record.seconds[row] for record in self.used if row in record.seconds]
        return float(np.mean(times)) if times else math.nan

    def tables(self) -> tuple[Table, ...]:
        """Agreement with ablations, known answers, differences from random, costs."""
        names = set(self.metrics)
        parts = (("Against ablations", _ABLATED), ("Known answers", _KNOWN))
        tables = [
            self._means(title, tuple(metric for metric in group if metric in names))
            for title, group in parts
            if names & set(group)
        ]
        rows = {row: (Cell(self.seconds(row)),) for row in self.methods}
        return (*tables, Table("cost", "Cost", ("seconds a prompt",), rows))

    def _means(self, title: str, metrics: tuple[Metric, ...]) -> Table:
        rows = {
            row: tuple(Cell.of_share(self.summary(row, metric.name)) for metric in metrics)
            for row in self.methods
        }
        name = title.lower().replace(" ", "-")
        return Table(name, title, tuple(metric.title for metric in metrics), rows)

    def verdict(self) -> tuple[str, ...]:
        """Plain sentences: which method to trust here, and how sure that is."""
        return (*self._most_faithful(), *self._worse_than_random(), *self._remarks())

    def _most_faithful(self) -> list[str]:
        if "lds" not in {metric.name for metric in self.metrics}:
            return []
        ranked = sorted(
            (row for row in self.methods if row != RANDOM),
            key=lambda row: -np.nan_to_num(self.summary(row, "lds").mean, nan=-2.0),
        )
        if not ranked or self._clear(ranked[0], RANDOM) <= 0:
            return ["No method agrees with the ablations clearly better than a random order does."]
        best = self.summary(ranked[0], "lds")
        chance = self.summary(RANDOM, "lds").mean
        sentences = [
            f"Trust {ranked[0]} most here: it predicts the effect of ablations with a rank "
            f"correlation of {best.mean:.2f} ({best.low:.2f} to {best.high:.2f}; random order: "
            f"{chance:.2f})."
        ]
        level = [row for row in ranked[1:] if not self._clear(ranked[0], row)]
        if level:
            sentences.append(f"Its lead over {', '.join(level)} could be chance.")
        return sentences

    def _clear(self, row: str, other: str) -> int:
        """1 or -1 where the LDS differs clearly, 0 where chance could make the difference."""
        if row == other:
            return 0
        return clear_sign(self.compare(row, other, "lds"), max(1, len(self.methods) - 1))

    def _worse_than_random(self) -> list[str]:
        if "lds" not in {metric.name for metric in self.metrics}:
            return []
        worse = [row for row in self.methods if row != RANDOM and self._clear(row, RANDOM) < 0]
        return [f"Less faithful here than a random order: {', '.join(worse)}."] if worse else []

    def _remarks(self) -> list[str]:
        sentences = []
        if len(self.used) < FEW:
            sentences.append(f"Intervals are wide with {len(self.used)} prompts: add some.")
        return [*sentences, *omissions(self.refused, self.records, "prompts")]

    def to_markdown(self) -> str:
        """The whole evaluation as a page."""
        parts = [f"# Which attribution to trust: {self.settings['model']}", ""]
        parts += [f"{len(self.used):,} prompts; means with 95 % bootstrap intervals.", ""]
        parts += [f"- {sentence}" for sentence in self.verdict()]
        for table in self.tables():
            parts += ["", f"## {table.title}", "", *table.markdown()]
        return "\n".join(parts) + "\n"

    def to_csv(self) -> str:
        """One line for each prompt and row, with every metric."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [metric.name for metric in self.metrics]
        writer.writerow(["number", "prompt", "completion", "row", *names, "seconds"])
        for record in self.used:
            for row, scores in record.scores.items():
                values = [scores.get(name, math.nan) for name in names]
                cells = [f"{value:.6g}" if math.isfinite(value) else "" for value in values]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                about = [record.number, self.prompts[record.number], record.answer, row]
                writer.writerow([*about, *cells, seconds])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: settings, summaries, costs and the verdict."""
        return {
            "settings": dict(self.settings),
            "prompts": len(self.used),
            "refused": dict(self.refused),
            "table": {
                row: {m.name: _plain(self.summary(row, m.name)) for m in self.metrics}
                for row in self.methods
            },
            "seconds": {row: self.seconds(row) for row in self.methods},
            "verdict": list(self.verdict()),
        }


def _plain(summary: Summary) -> dict[str, float | None]:
    return {k: v if math.isfinite(v) else None for k, v in asdict(summary).items()}
