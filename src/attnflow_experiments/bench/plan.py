"""The plan of a bench: what is run, and where the record of each item and method is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import InputError
from attnflow.errors.arguments import check_named
from attnflow_experiments.bench.data import DATA_SETS, BenchPart
from attnflow_experiments.bench.methods import check_methods, check_photo_methods
from attnflow_experiments.journal import read_journal

REFERENCE = "reference"


@dataclass(frozen=True)
class BenchPlan:
    """The plan of a run: every method on every item of every data set, for every model.

    models: names or folders, by the label of each. peers: the folder of the peers' environments.
    samples: how many items of each data set count. processes: how many run an item each.
    """

    models: Mapping[str, str]
    data_sets: Sequence[str]
    methods: Sequence[str]
    data: Path
    output: Path
    part: BenchPart = "development"
    samples: int = 20
    peers: Path | None = None
    device: str = "cpu"
    processes: int = 1

    def __post_init__(self) -> None:
        for name in self.data_sets:
            check_named("data set", name, list(DATA_SETS))
        if self.samples < 1 or self.processes < 1:
            raise InputError(
                f"samples and processes are at least 1; got {self.samples}, {self.processes}."
            )
        kinds = {DATA_SETS[name].kind for name in self.data_sets}
        if len(kinds) > 1:
            raise InputError(
                f"{', '.join(sorted(kinds))} have other models and methods: run each alone."
            )
        if kinds == {"photos"}:
            check_photo_methods(self.methods)
        else:
            check_methods(self.methods)

    @property
    def jobs(self) -> list[tuple[str, str]]:
        """Each model with each data set; those of a model follow one another."""
        return [(label, name) for label in self.models for name in self.data_sets]

    def journal(self, label: str, data_set: str) -> Path:
        """The file that keeps a job."""
        name = re.sub(r"[^\w.-]+", "-", f"{label}-{data_set}-{self.part}")
        return self.output / "journal" / f"{name}.jsonl"


def record_name(item: str, method: str) -> str:
    """Return the name of a record, which is the same in every run."""
    return f"{item} | {method}"


def read_jobs(plan: BenchPlan) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Return the records of every job that has any, by model and data set."""
    by_job = {job: read_journal(plan.journal(*job)) for job in plan.jobs}
    return {job: records for job, records in by_job.items() if records}
