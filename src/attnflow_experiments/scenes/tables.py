"""What the records of a run say, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.records import Record
from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.scenes.contenders import BASELINES
from attnflow_experiments.scenes.observe import METRICS, Floats

__all__ = ["differences_table", "kinds_table", "means_table"]

_TITLES = {"most": "points at it ↑", "share": "share of mass ↑", "deletion": "deletion ↓"}


def means_table(records: Sequence[Record]) -> Table:
    """Every method and baseline by every metric."""
    rows = {
        row: tuple(Cell.of_share(summarize(_values(records, row, metric))) for metric in METRICS)
        for row in records[0].scores
    }
    note = (
        "points at it: the true object's box has the most mass per area of all objects; share of "
        "mass: what of all mass on patches falls on its box; deletion: the area under the "
        "answer's probability as patches are painted over, the strongest first."
    )
    columns = tuple(_TITLES[metric] for metric in METRICS)
    return Table("scenes", "Drawn scenes", columns, rows, note, digits=3)


def kinds_table(records: Sequence[Record]) -> Table:
    """How often each method points at the true object, by the kind of question."""
    kinds = sorted({record.answer for record in records})
    rows = {
        row: tuple(
            Cell.of_share(summarize(_values([r for r in records if r.answer == kind], row, "most")))
            for kind in kinds
        )
        for row in records[0].scores
    }
    return Table("kinds", "Points at the true object, by the kind of question", tuple(kinds), rows)


def differences_table(records: Sequence[Record], method: str) -> Table:
    """The deletion area and the pointing of one method, less those of each baseline."""
    rows = {
        f"{method} − {baseline}": tuple(
            Cell.of_difference(
                compare_paired(_values(records, method, metric), _values(records, baseline, metric))
            )
            for metric in METRICS
        )
        for baseline in BASELINES
    }
    columns = tuple(_TITLES[metric] for metric in METRICS)
    title = "The default against the baselines, pair by pair"
    return Table("differences", title, columns, rows, "95 % intervals.", digits=3)


def _values(records: Sequence[Record], row: str, metric: str) -> Floats:
    return np.array([record.scores[row][metric] for record in records])
