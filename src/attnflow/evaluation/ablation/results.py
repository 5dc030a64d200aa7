"""What an evaluation on completions gave: a record for each prompt, and what follows from all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from attnflow.evaluation.ablation.metrics import bootstrap_ratio
from attnflow.evaluation.ablation.rankings import RANDOM
from attnflow.evaluation.records import FEW, Metric, clear_sign, omissions
from attnflow.evaluation.scored_records import ScoredRecords
from attnflow.evaluation.table import Table

__all__ = ["METRICS", "CompletionEvaluation"]

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
class CompletionEvaluation(ScoredRecords):
    """Methods held against ablations of the same prompts.

    methods: the rows. records: one for each prompt, in order. prompts: their texts.
    refused: methods that could not be run, with the reason.
    settings: everything the numbers depend on.

    >>> from attnflow.evaluation.records import Record
    >>> records = (Record(number=0, scores={"rollout": {"lds": 0.5}}),)
    >>> evaluation = CompletionEvaluation(
    ...     methods=("rollout",), records=records, prompts=("Hi",), refused={}, settings={}
    ... )
    >>> evaluation.summary("rollout", "lds").mean
    0.5
    """

    prompts: tuple[str, ...]

    all_metrics = METRICS
    example_name = "prompt"
    cost_title = "seconds a prompt"

    def share(self, row: str, other: str, metric: str = "drop") -> tuple[float, float, float]:
        """The mean of one row as a share of another's, on the same prompts, with its interval."""
        return bootstrap_ratio(self.values(row, metric), self.values(other, metric))

    def tables(self) -> tuple[Table, ...]:
        """Agreement with ablations, known answers, differences from random, costs."""
        names = set(self.metrics)
        parts = (("Against ablations", _ABLATED), ("Known answers", _KNOWN))
        tables = [
            self.means(title, tuple(metric for metric in group if metric in names))
            for title, group in parts
            if names & set(group)
        ]
        return (*tables, self.costs())

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

    def to_csv(self) -> str:
        """One line for each prompt and row, with every metric."""
        return self.csv_of(
            ("number", "prompt", "completion"),
            lambda record: (record.number, self.prompts[record.number], record.answer),
        )
