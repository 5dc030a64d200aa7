"""The bench in one table: every method on every data set, all models together and each alone."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

from attnflow.evaluation.table import Cell, Table, decimals
from attnflow.storage import write_text
from attnflow_experiments.bench.cases import METRICS
from attnflow_experiments.bench.findings import Findings, difference, share
from attnflow_experiments.bench.methods import DEFAULT
from attnflow_experiments.bench.plan import BenchPlan

_METRICS = ("lds", "first")
_CLEAR = 0.05
_NOTE = "Rows with a model's name in brackets are of that model alone."


def overviews(plan: BenchPlan, findings: Findings) -> Iterator[Table]:
    """Yield LDS and how often a right source is first: methods × data sets × models."""
    for metric in _METRICS:
        names = _data_sets(plan, findings, metric)
        if len(names) < 2:
            continue
        rows = {}
        labels = list(plan.models) if len(plan.models) > 1 else []
        for method in plan.methods:
            for label in (None, *labels):
                own = findings if label is None else findings.of_model(label)
                values = [own.values(name, method, metric) for name in names]
                if any(values):
                    name = method if label is None else f"{method} ({label})"
                    rows[name] = tuple(share(each) if each else Cell(math.nan) for each in values)
        title = f"{METRICS[metric]} on every data set"
        yield Table(f"overview-{metric}", title, tuple(names), rows, _NOTE if labels else "")


def write_sheets(plan: BenchPlan, findings: Findings, folder: Path) -> list[Path]:
    """Write the overviews as sheets for a page or a paper: all models together, and how it stands.

    ▲ stands beside what is ahead of the default by more than its interval, ▼ beside what is behind.
    """
    paths: list[Path] = []
    for metric in _METRICS:
        names = _data_sets(plan, findings, metric)
        if len(names) < 2:
            continue
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["method", *names])
        counts = [max(len(findings.values(n, m, metric)) for m in plan.methods) for n in names]
        writer.writerow(["prompts", *counts])
        for method in plan.methods:
            cells = [_marked(findings, name, method, metric) for name in names]
            if any(cells):
                writer.writerow([method, *cells])
        paths.append(folder / f"{metric}.csv")
        write_text(paths[-1], out.getvalue())
    return paths


def stands(findings: Findings, data_set: str, method: str, metric: str) -> tuple[int, Cell | None]:
    """Return 1 where a method is ahead of the default by more than its interval, −1 if behind."""
    both = (method, DEFAULT)
    if method == DEFAULT or not all(findings.values(data_set, each, metric) for each in both):
        return 0, None
    cell = difference(findings, data_set, method, DEFAULT, metric)
    if cell.low is None or cell.high is None or (cell.p or 0) >= _CLEAR:
        return 0, cell
    return (1 if cell.low > 0 else -1 if cell.high < 0 else 0), cell


def _data_sets(plan: BenchPlan, findings: Findings, metric: str) -> list[str]:
    return [
        name
        for name in plan.data_sets
        if any(findings.values(name, method, metric) for method in plan.methods)
    ]


def _marked(findings: Findings, data_set: str, method: str, metric: str) -> str:
    values = findings.values(data_set, method, metric)
    if not values:
        return ""
    side, _ = stands(findings, data_set, method, metric)
    return decimals(share(values).value).replace("-", "−") + {1: "▲", 0: "", -1: "▼"}[side]
