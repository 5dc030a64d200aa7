"""What an evaluation found: a record for each text, and what follows from all of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, did_you_mean
from attnflow.evaluation.metrics import PairedDifference, Summary, compare_paired, summarize

__all__ = ["FAITHFUL", "FAITHFULNESS", "RANDOM", "Evaluation", "Metric", "Record", "agreement"]

Floats = NDArray[np.float64]

RANDOM: Final = "random"
FAITHFULNESS: Final = "faithfulness"


@dataclass(frozen=True)
class Metric:
    """A number for each text and ranking; `title` is the heading of its column."""

    name: str
    title: str
    higher_is_better: bool = True


FAITHFUL: Final = (
    Metric("comprehensiveness", "compr. ↑"),
    Metric("sufficiency", "suff. ↓", higher_is_better=False),
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
)


def agreement(measures: Sequence[str]) -> tuple[Metric, ...]:
    """Two rank correlations with each measure of importance."""
    signs = {"spearman": "ρ", "kendall": "τ"}
    return tuple(
        Metric(f"{measure} {name}", f"{measure} {sign}")
        for measure in measures
        for name, sign in signs.items()
    )


@dataclass(frozen=True, kw_only=True)
class Record:
    """One text: what each ranking (row) scores by each metric, and what each method took.

    seconds: of the method alone; capture: of capturing what it needs, on the first texts only.
    saturated: the share of a flow's values that do not depend on the target.
    left_out: why this text could not be used; then there is nothing else.
    """

    number: int
    answer: str = ""
    choice: int = -1
    probability: float = math.nan
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    capture: Mapping[str, float] = field(default_factory=dict)
    saturated: Mapping[str, float] = field(default_factory=dict)
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no nan: what is undefined is null."""
        return {
            **asdict(self),
            "probability": _or_none(self.probability),
            "scores": {
                row: {metric: _or_none(value) for metric, value in found.items()}
                for row, found in self.scores.items()
            },
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Record:
        """The inverse of `to_dict`."""
        scores = {
            row: {metric: _or_nan(value) for metric, value in found.items()}
            for row, found in record["scores"].items()
        }
        return cls(**{**record, "scores": scores, "probability": _or_nan(record["probability"])})


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Methods held against what a model uses, on the same texts.

    methods: the rows that are methods, as `name option=value`. Beside them stand "random" and, in
        round brackets, the measures of importance as rankings of their own.
    measures: what the methods were correlated with.
    refused: methods that this model cannot be explained by, with the reason.
    texts, labels: in the order of the records' numbers; a label is None where none was given.
    settings: everything the numbers depend on.
    """

    methods: tuple[str, ...]
    measures: tuple[str, ...]
    records: tuple[Record, ...]
    refused: Mapping[str, str]
    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    settings: Mapping[str, Any]
    _compared: dict[tuple[str, str, str], PairedDifference] = field(
        default_factory=dict, repr=False
    )

    @property
    def used(self) -> tuple[Record, ...]:
        """The records of texts that could be used."""
        return tuple(record for record in self.records if not record.left_out)

    @property
    def references(self) -> tuple[str, ...]:
        """The measures as rankings: what a method could reach if it knew them."""
        return tuple(f"({measure})" for measure in self.measures)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric, agreement first."""
        return (*agreement(self.measures), *FAITHFUL)

    def values(self, row: str, metric: str) -> Floats:
        """One value for each text that was used; nan where it is undefined.

        "faithfulness" is comprehensiveness − sufficiency: the score with only the strongest words
        minus the score without them, so that one number orders the methods.
        """
        if metric == FAITHFULNESS:
            return self.values(row, "comprehensiveness") - self.values(row, "sufficiency")
        self._check(row, metric)
        return np.array([record.scores[row].get(metric, math.nan) for record in self.used])

    def _check(self, row: str, metric: str) -> None:
        rows = (*self.methods, RANDOM, *self.references)
        names = [each.name for each in self.metrics]
        for kind, value, allowed in (("row", row, rows), ("metric", metric, names)):
            if value not in allowed:
                hint = did_you_mean(value, allowed)
                raise InputError(f"No {kind} {value!r}.{hint} There are {', '.join(allowed)}.")

    def summary(self, row: str, metric: str) -> Summary:
        """The mean over texts with its 95 % interval."""
        return summarize(self.values(row, metric))

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """The mean difference on the same texts with its 95 % interval: row − other.

        Kept once made: thousands of texts take a moment, and a verdict asks for the same again.
        """
        asked = (row, other, metric)
        if asked not in self._compared:
            pair = self.values(row, metric), self.values(other, metric)
            self._compared[asked] = compare_paired(*pair)
        return self._compared[asked]

    def seconds(self, method: str) -> float:
        """Seconds a text takes by this method alone, the forward pass and all it needs included."""
        own = [record.seconds[method] for record in self.used]
        capture = [r.capture[method] for r in self.used if method in r.capture]
        return float(np.mean(own) + (np.median(capture) if capture else math.nan))

    def saturation(self, method: str) -> float | None:
        """The mean share of saturated values at the highest layer; None if it is no flow."""
        found = [r.saturated[method] for r in self.used if method in r.saturated]
        return float(np.mean(found)) if found else None

    def accuracy(self) -> float | None:
        """How often the model's answer is the text's label; None where labels say nothing of it."""
        known = [(r, label) for r in self.used if (label := self.labels[r.number]) is not None]
        right = [label in (r.answer, str(r.choice)) for r, label in known]
        return float(np.mean(right)) if any(right) else None

    def table(self) -> dict[str, dict[str, Summary]]:
        """Rows × metrics."""
        rows = (*self.methods, RANDOM, *self.references)
        return {row: {m.name: self.summary(row, m.name) for m in self.metrics} for row in rows}

    def verdict(self) -> tuple[str, ...]:
        """Plain sentences: which method to trust here, and how sure that is."""
        from attnflow.evaluation.verdict import sentences

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
                shown = [f"{x:.6g}" if math.isfinite(x) else "" for x in numbers]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                writer.writerow([*about, shown[0], row, *shown[1:], seconds])
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
                row: {metric: _plain(found) for metric, found in columns.items()}
                for row, columns in self.table().items()
            },
            "seconds": {method: self.seconds(method) for method in self.methods},
            "verdict": list(self.verdict()),
        }


def _plain(found: Summary) -> dict[str, float | None]:
    return {name: _or_none(value) for name, value in asdict(found).items()}
