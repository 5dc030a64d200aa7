"""What the journals of a bench hold, scored: the values of every method on every item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell
from attnflow_experiments.bench.cases import as_reference, score_item
from attnflow_experiments.bench.plan import REFERENCE, BenchPlan, read_jobs, record_name

Job = tuple[str, str]
COSTS = ("passes", "seconds", "memory")


@dataclass(frozen=True)
class Observation:
    """The values of one method on one item by one model."""

    model: str
    data_set: str
    item: str
    method: str
    values: Mapping[str, float]
    cost: Mapping[str, float]
    note: Mapping[str, int]


@dataclass(frozen=True)
class Findings:
    """All observations of a run, and why methods could not be run where they could not."""

    observations: Sequence[Observation]
    refused: Mapping[tuple[str, ...], str]
    training: Sequence[str] = ()

    def values(self, data_set: str, method: str, metric: str, **note: int) -> dict[Job, float]:
        """Return a metric by model and item; `note` takes those with this place or length."""
        return {
            (each.model, each.item): each.values[metric]
            for each in self.observations
            if each.data_set == data_set
            and each.method == method
            and metric in each.values
            and all(each.note.get(k) == v for k, v in note.items())
        }

    def of_model(self, model: str) -> Findings:
        """Return those of one model."""
        own = [each for each in self.observations if each.model == model]
        return Findings(own, self.refused)


def gather(plan: BenchPlan) -> Findings:
    """Read every journal of a plan, and score what it holds."""
    observations: list[Observation] = []
    refused: dict[tuple[str, ...], str] = {}
    training = []
    for (model, data_set), records in read_jobs(plan).items():
        for record in records.values():
            if record["name"].startswith("training | "):
                training.append(
                    f"AT2 was trained on {record['items']} items of {data_set} for {model}: "
                    f"{record['passes']} passes, {record['seconds']:.0f} seconds."
                )
            method = record.get("method")
            if method is None or method not in plan.methods:
                continue
            if "refused" in record:
                where = (data_set, model) if len(plan.models) > 1 else (data_set,)
                refused[(method, *where)] = record["refused"]
                continue
            reference = records[record_name(record["item"], REFERENCE)]
            observations.append(_observe(model, data_set, record, reference))
    return Findings(observations, refused, training)


def _observe(
    model: str, data_set: str, record: Mapping[str, Any], reference: Mapping[str, Any]
) -> Observation:
    values = record.get("values")
    if values is None:
        responses = reference.get("responses")
        values = score_item(
            np.array(record["scores"]),
            tuple(reference["right"]),
            reference["top"],
            None if responses is None else as_reference(responses),
            {name: np.array(each) for name, each in record.get("measured", {}).items()},
            reference["completion"],
            reference.get("loss"),
        )
    cost = {name: float(record.get(name, math.nan)) for name in COSTS}
    note = reference.get("note", {})
    return Observation(model, data_set, record["item"], record["method"], values, cost, note)


def share(values: Mapping[Job, float]) -> Cell:
    """Return the mean of a metric, with its interval."""
    return Cell.of_share(summarize(np.array(list(values.values()), dtype=np.float64)))


def difference(findings: Findings, data_set: str, one: str, other: str, metric: str) -> Cell:
    """Return the paired difference of two methods where both have a value."""
    first = findings.values(data_set, one, metric)
    second = findings.values(data_set, other, metric)
    keys = [key for key in first if key in second]
    pairs = compare_paired([first[k] for k in keys], [second[k] for k in keys])
    return Cell.of_difference(pairs)
