"""The tables of the ablation experiment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.ablation import CompletionEvaluation
from attnflow.evaluation.ablation.judge import LEAVE_ONE_DOCUMENT_OUT
from attnflow.evaluation.ablation.metrics import bootstrap_ratio
from attnflow.evaluation.metrics import summarize
from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.ablation.observe import KINDS

__all__ = ["differences_table", "kind_table"]

Floats = NDArray[np.float64]
REFERENCE = "leave-one-out"
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "facts": {
        "lds": "LDS",
        "drop": "drop",
        "share": "share of leave-one-out's drop",
        "first": "true word first",
        "top": "in the top 3",
        "sentence": "right sentence",
        "any sentence": "of all sentences",
    },
    "text": {"lds": "LDS", "drop": "drop", "share": "share of leave-one-out's drop"},
    "documents": {
        "sentence": "right sentence",
        "document": "right document",
        "agreed": "right document, where leaving out agrees",
    },
}


def kind_table(kind: str, evaluation: CompletionEvaluation) -> Table:
    """One kind of data: methods × figures, with 95 % intervals over prompts."""
    columns = dict(_COLUMNS[kind])
    if REFERENCE not in evaluation.methods:
        columns.pop("share", None)
    rows = {
        row: (*(_cell(evaluation, row, name) for name in columns), Cell(evaluation.seconds(row)))
        for row in evaluation.methods
    }
    headings = (*columns.values(), "seconds")
    return Table(kind, KINDS[kind].title, headings, rows, _note(kind, evaluation))


def _cell(evaluation: CompletionEvaluation, row: str, name: str) -> Cell:
    if name == "share":
        ratio, low, high = bootstrap_ratio(
            evaluation.values(row, "drop"), evaluation.values(REFERENCE, "drop")
        )
        return Cell(ratio, low=low, high=high, n=len(evaluation.used))
    if name == "agreed":
        values = evaluation.values(row, "document")
        return Cell.of_share(summarize(values[_agreed(evaluation)]))
    return Cell.of_share(evaluation.summary(row, name))


def _agreed(evaluation: CompletionEvaluation) -> NDArray[np.bool_]:
    """Prompts whose true document matters most when each is hidden: there the truth is certain."""
    return np.asarray(evaluation.values(LEAVE_ONE_DOCUMENT_OUT, "document") == 1)


def _note(kind: str, evaluation: CompletionEvaluation) -> str:
    note = f"{len(evaluation.used)} of {len(evaluation.records)} prompts that were run count."
    if kind == "documents":
        note += f" Leaving out one document at a time agrees on {int(_agreed(evaluation).sum())}."
    for row, reason in evaluation.refused.items():
        note += f" Left out, {row}: {reason}"
    return note


def differences_table(kind: str, evaluation: CompletionEvaluation) -> Table:
    """The first method less each other, on the same prompts, with the sign-flip test's p."""
    first, *others = evaluation.methods
    compared_names = [n for n in ("lds", "drop", "first", "document") if n in _COLUMNS[kind]]
    names = [name for name in compared_names if _has(evaluation, name)]
    rows = {
        f"{first} − {other}": tuple(
            Cell.of_difference(evaluation.compare(first, other, name)) for name in names
        )
        for other in others
    }
    return Table(
        f"{kind}-differences",
        f"{KINDS[kind].title}: {first} against the others",
        tuple(_COLUMNS[kind][name] for name in names),
        rows,
    )


def _has(evaluation: CompletionEvaluation, metric: str) -> bool:
    return metric in {each.name for each in evaluation.metrics}
