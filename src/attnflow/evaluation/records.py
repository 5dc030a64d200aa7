"""A record for each text of an evaluation, its metrics, and what is said of any such records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from attnflow.errors import InputError, did_you_mean
from attnflow.errors.percent import percent
from attnflow.evaluation.metrics import PairedDifference

__all__ = [
    "FAITHFUL",
    "FAITHFULNESS",
    "FEW",
    "RANDOM",
    "Metric",
    "Record",
    "agreement",
    "check_name",
    "clear_sign",
    "metrics_of",
    "or_none",
    "omissions",
    "remarks",
    "references_of",
]

FEW: Final = 30  # records below which intervals are too wide to tell much
_LEVEL: Final = 0.05
RANDOM: Final = "random"
FAITHFULNESS: Final = "faithfulness"


@dataclass(frozen=True)
class Metric:
    """A number for each text and ranking; `title` is the heading of its column.

    >>> [metric.name for metric in metrics_of(["blank-out"])][:3]
    ['blank-out spearman', 'blank-out kendall', 'comprehensiveness']
    """

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


def metrics_of(measures: Sequence[str]) -> tuple[Metric, ...]:
    """Every metric of a run with these measures, agreement first."""
    return (*agreement(measures), *FAITHFUL)


def references_of(measures: Sequence[str]) -> tuple[str, ...]:
    """The measures as rankings: what a method could reach if it knew them."""
    return tuple(f"({measure})" for measure in measures)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One text: what each ranking (row) scores by each metric, and what each method took.

    seconds: of the method alone; capture: of capturing what it needs, on the first texts only.
    saturated: the share of a flow's values that do not depend on the target.
    collapsed: 1 where a method's rows are nearly the same for every target, 0 where they are not.
    left_out: why this text could not be used; then there is nothing else.

    >>> Record(number=3, left_out="There are fewer than two words to rank.").scores
    {}
    """

    number: int
    answer: str = ""
    choice: int = -1
    probability: float = math.nan
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    capture: Mapping[str, float] = field(default_factory=dict)
    saturated: Mapping[str, float] = field(default_factory=dict)
    collapsed: Mapping[str, float] = field(default_factory=dict)
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no nan: what is undefined is null."""
        return {
            **asdict(self),
            "probability": or_none(self.probability),
            "scores": {
                row: {metric: or_none(value) for metric, value in columns.items()}
                for row, columns in self.scores.items()
            },
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Record:
        """The inverse of `to_dict`; a ValueError where a value is not of its kind."""
        plain = (
            _is_count(record["number"])
            and isinstance(record["choice"], int)
            and isinstance(record["answer"], str)
            and isinstance(record["left_out"], str)
            and all(_is_number(x) for name in _BY_METHOD for x in record[name].values())
        )
        if not plain:
            raise ValueError(f"{dict(record)!r} is not a record of an evaluation.")
        scores = {
            row: {metric: _or_nan(value) for metric, value in columns.items()}
            for row, columns in record["scores"].items()
        }
        return cls(**{**record, "scores": scores, "probability": _or_nan(record["probability"])})


_BY_METHOD: Final = ("seconds", "capture", "saturated", "collapsed")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def or_none(value: float) -> float | None:
    """A number for JSON, which has no nan."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    if value is not None and not _is_number(value):
        raise ValueError(f"{value!r} is neither a finite number nor null.")
    return math.nan if value is None else value


def check_name(kind: str, value: str, allowed: Sequence[str]) -> None:
    """That there is a row or a metric of this name."""
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise InputError(f"No {kind} {value!r}.{hint} There are {', '.join(allowed)}.")


def clear_sign(difference: PairedDifference, comparisons: int) -> int:
    """1 or -1 where a difference is clearly above or below zero, 0 where chance could make it.

    comparisons: how many are made at once; the level is divided by it.
    """
    if not difference.n or difference.p >= _LEVEL / comparisons:
        return 0
    return 1 if difference.low > 0 else -1 if difference.high < 0 else 0


def remarks(count: int, accuracy: float | None, examples: str) -> list[str]:
    """What to know of the sample: whether it is small, and how often the model was right."""
    sentences = []
    if count < FEW:
        sentences.append(f"Intervals are wide with {count} {examples}: add some.")
    if accuracy is not None:
        sentences.append(
            f"The model's answer is the label of {percent(accuracy, 1)} of the {examples}; what is "
            "explained is its answer, right or wrong."
        )
    return sentences


def omissions(refused: Mapping[str, str], records: Sequence[Record], plural: str) -> list[str]:
    """Sentences: which methods could not be run, and how many texts were left out."""
    sentences = [f"Left out, {method}: {reason}" for method, reason in refused.items()]
    reasons = [record.left_out for record in records if record.left_out]
    if reasons:
        count = f"{len(reasons)} of {len(records)} {plural}"
        sentences.append(f"{count} were left out; the first: {reasons[0]}")
    return sentences
