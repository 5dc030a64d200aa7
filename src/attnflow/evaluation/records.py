"""A record for each example of an evaluation, and the metrics that it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

RANDOM: Final = "random"
"""The row of random orders, which stands beside the methods in every evaluation."""

FAITHFULNESS: Final = "faithfulness"
"""The metric that orders methods on texts: comprehensiveness − sufficiency."""


@dataclass(frozen=True)
class Metric:
    """A number for each example and ranking; `title` is the heading of its column.

    >>> Metric("deletion", "deletion ↓", higher_is_better=False).name
    'deletion'
    """

    name: str
    title: str
    higher_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Record:
    """One example: what each ranking (row) scores by each metric, and what each method took.

    seconds: of the method alone; capture: of capturing what it needs, on the first texts only.
    saturated: the share of a flow's values that do not depend on the target.
    collapsed: 1 where a method's rows are nearly the same for every target, 0 where they are not.
    left_out: why this example could not be used; then there are no scores.

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
        """Return plain values for JSON, which has no nan: what is undefined is null."""
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
        """Return the inverse of `to_dict`; a ValueError where a value is not of its kind."""
        number = record["number"]
        plain = (
            isinstance(number, int)
            and not isinstance(number, bool)
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


def or_none(value: float) -> float | None:
    """Return a number for JSON, which has no nan."""
    return value if math.isfinite(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _or_nan(value: float | None) -> float:
    if value is not None and not _is_number(value):
        raise ValueError(f"{value!r} is neither a finite number nor null.")
    return math.nan if value is None else value
