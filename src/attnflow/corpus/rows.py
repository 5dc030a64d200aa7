"""The rows of a result: one for each text, target and method (docs/corpora.md: their columns)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.passages import LOG_PROBS
from attnflow.corpus.plan import CorpusText
from attnflow.corpus.settings import Settings
from attnflow.explainers.sources import Sources

Values = NDArray[np.float64]
_MOSTLY = 0.5  # the share of saturated sources from which a row is flagged

SOURCE = pa.struct(
    [
        pa.field("text", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("value", pa.float64()),
        pa.field("share", pa.float64()),
        pa.field("lower", pa.float64()),
        pa.field("upper", pa.float64()),
        pa.field("saturated", pa.bool_()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("text", pa.string()),
        pa.field("tokens", pa.int32()),
        pa.field("method", pa.string()),
        pa.field("target", pa.string()),
        pa.field("target_position", pa.int32()),
        pa.field("layer", pa.int32()),
        pa.field("level", pa.string()),
        pa.field("prediction", pa.string()),
        pa.field("probability", pa.float64()),
        pa.field("verdict", pa.string()),
        pa.field("claim", pa.string()),
        pa.field("sources", pa.list_(SOURCE)),
        pa.field("source_count", pa.int32()),
        pa.field("elsewhere", pa.float64()),
        pa.field("flags", pa.list_(pa.string())),
        pa.field("source_texts", pa.list_(pa.string())),
        pa.field("values", pa.list_(pa.float64())),
        pa.field("error", pa.string()),
    ]
)
Row = dict[str, Any]
Members = list[list[int]]
"""For each unit of a text, the tokens it is made of."""


def error_row(text: CorpusText, sentence: str) -> Row:
    """Return the row of a text that could not be explained."""
    return {**_place(text), "error": sentence}


def _place(text: CorpusText) -> Row:
    """Return what a row is found again by: its number, its id, and the text or the image's path."""
    path = str(text.image) if isinstance(text.image, (str, Path)) else None
    return {"row": text.number, "id": text.id, "text": text.text or path}


def result_rows(
    text: CorpusText,
    results: Sequence[Attribution],
    settings: Settings,
    flags: Sequence[str] = (),
    documents: Members | None = None,
) -> list[Row]:
    """Return the rows of one text: its targets in order, and for each its methods in order."""
    tables = [_Grouped(result, text, settings, documents) for result in results]
    targets = max(len(result.targets) for result in results)
    return [
        {**_place(text), **table.row(target, flags)}
        for target in range(targets)
        for table in tables
        if target < len(table.result.targets)
    ]


class _Grouped:
    """A result read at one layer, its sources grouped to a level."""

    def __init__(
        self, result: Attribution, text: CorpusText, settings: Settings, documents: Members | None
    ) -> None:
        self.result = result.layer(settings.layers) if len(result.layers) > 1 else result
        self.settings, self.verdicts = settings, result.verdicts
        self.members: Members | None = None
        self.names = list(result.sources.text)
        self.positions = list(result.sources.positions)
        if settings.level != "token":
            self.names, self.members = self._units(text, documents)
            self.positions = [self.positions[each[0]] for each in self.members]

    def _units(self, text: CorpusText, documents: Members | None) -> tuple[list[str], Members]:
        raw, level = self.result.sources.texts, self.settings.level
        if documents is not None:
            return list(text.documents), documents
        units = Sources.of_tokens(raw, level=level, exclude_first=False)
        return list(units.names), [list(each) for each in units.positions]

    def row(self, target: int, flags: Sequence[str]) -> Row:
        result, prediction = self.result, self.result.prediction
        values = result.values[0, target]
        grouped = self._sums(values)
        answer, probability = result.provenance.get("completion"), None
        if prediction is not None:
            answer, probability = prediction.label, prediction.probability
        elif (likely := result.provenance.get(LOG_PROBS)) is not None:
            probability = math.exp(likely[target])
        verdict = next(iter(self.verdicts), None)
        return {
            "tokens": int(result.provenance.get("prompt_length", len(result.sources))),
            "method": result.method.label,
            "target": result.targets.text[target],
            "target_position": result.targets.positions[target],
            "layer": result.layers[0],
            "level": self.settings.level,
            "prediction": answer,
            "probability": probability,
            "verdict": verdict and verdict.kind,
            "claim": verdict and f"{verdict.claim}: {verdict.reason}",
            "sources": self._top(target, grouped, float(np.abs(values).sum())),
            "source_count": len(self.names),
            "elsewhere": self._elsewhere(target, values),
            "flags": [*flags, *self._limits(target)],
            "source_texts": self.names if self.settings.values else None,
            "values": grouped.tolist() if self.settings.values else None,
        }

    def _sums(self, values: Values) -> Values:
        if self.members is None:
            return values
        return np.array([values[each].sum() for each in self.members])

    def _top(self, target: int, values: Values, size: float) -> list[Row]:
        order = np.argsort(-values, kind="stable")[: self.settings.top].tolist()
        marks = None if self.result.saturated is None else self.result.saturated[0, target]
        lower, upper = (
            None if bound is None else self._sums(bound[0, target])
            for bound in (self.result.lower, self.result.upper)
        )
        return [
            {
                "text": self.names[k],
                "number": k,
                "position": self.positions[k],
                "value": float(values[k]),
                "share": float(values[k] / size) if size > 0 else 0.0,
                "lower": None if lower is None else float(lower[k]),
                "upper": None if upper is None else float(upper[k]),
                "saturated": None if marks is None else bool(marks[self._tokens(k)].all()),
            }
            for k in order
        ]

    def _tokens(self, source: int) -> list[int]:
        return [source] if self.members is None else self.members[source]

    def _elsewhere(self, target: int, values: Values) -> float:
        """Sum what the method itself puts elsewhere and what lies in no unit of the level."""
        rest = 0.0
        if self.members is not None:
            inside = sorted({k for each in self.members for k in each})
            rest = float(np.delete(values, inside).sum())
        elsewhere = self.result.elsewhere
        return rest if elsewhere is None else rest + float(elsewhere[0, target])

    def _limits(self, target: int) -> list[str]:
        result = self.result
        if result.saturated is not None and result.saturated[0, target].mean() > _MOSTLY:
            return ["saturated"]
        return ["collapsed"] if result.collapsed else []
