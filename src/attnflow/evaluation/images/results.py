"""What an evaluation on images gave: a record for each image, and what follows from all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from attnflow.errors.percent import percent
from attnflow.evaluation.images.judge import CENTRE, LEAVE_ONE_OUT
from attnflow.evaluation.metrics import PairedDifference
from attnflow.evaluation.records import FEW, RANDOM, Metric, clear_sign, omissions, remarks
from attnflow.evaluation.scored_records import ScoredRecords
from attnflow.evaluation.table import Table

__all__ = ["IMAGE_METRICS", "ImageEvaluation"]

IMAGE_METRICS: Final = (
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
    Metric("pointing", "pointing ↑"),
    Metric("mass", "mass in box ↑"),
    Metric("density", "mass for area ↑"),
)
_BASELINES: Final = (LEAVE_ONE_OUT, CENTRE, RANDOM)
_NOTE: Final = (
    "deletion, insertion: areas under the answer's probability while the strongest patches are "
    "hidden first, or shown first; pointing: how often the strongest patch lies in the box; mass "
    "in box: the share of a map that does; mass for area: that share, divided by the box's share "
    "of the image. In brackets: each patch hidden alone, as a ranking of its own."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageEvaluation(ScoredRecords):
    """Maps held against hidden patches and true boxes, on the same images.

    methods: the rows, baselines included. images: their names. labels: right answers, where known.

    >>> from attnflow.evaluation.records import Record
    >>> records = (Record(number=0, scores={"rollout": {"deletion": 0.2}}),)
    >>> evaluation = ImageEvaluation(
    ...     methods=("rollout",), records=records, images=("a.png",), labels=(None,), refused={},
    ...     settings={},
    ... )
    >>> evaluation.summary("rollout", "deletion").mean
    0.2
    """

    images: tuple[str, ...]
    labels: tuple[str | None, ...]

    all_metrics = IMAGE_METRICS
    example_name = "image"
    cost_title = "seconds an image, beside its passes"

    @property
    def contenders(self) -> tuple[str, ...]:
        """The rows that are methods, not baselines."""
        return tuple(row for row in self.methods if row not in _BASELINES)

    def accuracy(self) -> float | None:
        """How often the model's answer is the image's label; None where none is known."""
        known = [(r, label) for r in self.used if (label := self.labels[r.number]) is not None]
        right = [label in (r.answer, str(r.choice)) for r, label in known]
        return float(np.mean(right)) if right else None

    def tables(self) -> tuple[Table, ...]:
        """Means with intervals, and what each costs."""
        means = self.means("Maps against hidden patches", self.metrics)
        return (Table(means.name, means.title, means.columns, means.rows, _NOTE), self.costs())

    def verdict(self) -> tuple[str, ...]:
        """Plain sentences: which method to trust here, and how sure that is."""
        ranked = sorted(self.contenders, key=lambda row: self.summary(row, "deletion").mean)
        return (*self._most_faithful(ranked), *self._pointing(ranked), *self._remarks())

    def _most_faithful(self, ranked: list[str]) -> list[str]:
        """Better than chance and than the centre, by the area under the deletion curve."""
        others = [row for row in (RANDOM, CENTRE) if row in self.methods]
        clear = [row for row in ranked if all(self._better(row, other) for other in others)]
        if not clear:
            few = len(self.used) < FEW
            reason = f"{len(self.used)} images are too few to tell" if few else "chance could make"
            return [
                f"Trust none of these maps here: {reason} any method's lead over a random order "
                "and the centre of the image."
            ]
        best = clear[0]
        areas = {row: self.summary(row, "deletion").mean for row in (best, *others)}
        rest = ", ".join(f"{row} {areas[row]:.2f}" for row in others)
        sentences = [
            f"Trust {best} most here: with its strongest patches hidden first the answer keeps "
            f"{areas[best]:.2f} of its probability on average ({rest}; "
            f"{_in_numbers(self.compare(best, RANDOM, 'deletion'))} against random)."
        ]
        level = [row for row in ranked if row != best and not self._better(best, row)]
        if level:
            sentences.append(f"Its lead over {', '.join(level)} could be chance.")
        worse = [row for row in ranked if self._better(RANDOM, row)]
        if worse:
            sentences.append(f"Less faithful here than a random order: {', '.join(worse)}.")
        return sentences

    def _better(self, row: str, other: str) -> bool:
        """Whether one row's deletion area is clearly below another's."""
        return clear_sign(self.compare(row, other, "deletion"), max(1, len(self.contenders))) < 0

    def _pointing(self, ranked: list[str]) -> list[str]:
        if "pointing" not in {metric.name for metric in self.metrics}:
            return []
        best = max(ranked, key=lambda row: self.summary(row, "pointing").mean)
        hits, chance = (self.summary(row, "pointing").mean for row in (best, RANDOM))
        share = self.summary(best, "mass").mean
        return [
            f"{best} points best: its strongest patch lies in the true box in {percent(hits)} of "
            f"the images (random: {percent(chance)}), and {percent(share)} of its map does."
        ]

    def _remarks(self) -> list[str]:
        own = remarks(len(self.used), self.accuracy(), "images")
        return [*own, *omissions(self.refused, self.records, "images")]

    def to_csv(self) -> str:
        """One line for each image and row, with every metric."""
        return self.csv_of(
            ("number", "image", "answer", "probability"),
            lambda r: (r.number, self.images[r.number], r.answer, f"{r.probability:.6g}"),
        )


def _in_numbers(difference: PairedDifference) -> str:
    interval = f"{difference.low:+.3f} to {difference.high:+.3f}"
    return f"{difference.difference:+.3f}, 95 % interval {interval}"
