"""The bench as tables: methods × metrics, differences from the default, places, lengths, cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from attnflow.evaluation.table import Cell, Table
from attnflow.storage import write_text
from attnflow_experiments.bench.cases import METRICS
from attnflow_experiments.bench.data import DATA_SETS
from attnflow_experiments.bench.findings import COSTS, Findings, difference, share
from attnflow_experiments.bench.methods import DEFAULT, NOT_RUN
from attnflow_experiments.bench.overview import overviews, stands
from attnflow_experiments.bench.plan import BenchPlan
from attnflow_experiments.report import Report

_HEADINGS: Mapping[str, str] = {
    **METRICS,
    "deletion": "deletion ↓",
    "insertion": "insertion",
    "pointing": "pointing",
    "grid": "grid pointing",
    "quarter": "strongest quarter",
}
_LEFT_OUT = (
    "Metrics that reward larger scores are left out, because a method's scale is no merit: the sum "
    "of scores on the right source, infidelity, and the correlation of raw values across prompts. "
    "Share of mass is left out, too, where scores may be negative."
)


def bench_report(plan: BenchPlan, findings: Findings) -> Report:
    """Return every table of a run, for the terminal, Markdown and CSV."""
    tables: list[Table] = list(overviews(plan, findings))
    models = list(plan.models)
    for name in plan.data_sets:
        for label in (None, *(models if len(models) > 1 else ())):
            own = findings if label is None else findings.of_model(label)
            tables += _tables_of(plan, own, name, label, len(models))
    tables.append(_costs(plan, findings))
    missing = [f"{' on '.join(key)}: {why}" for key, why in findings.refused.items()]
    missing += [f"{method}: {why}." for method, why in NOT_RUN.items()]
    return Report(
        name="bench",
        title=f"The bench: {len(plan.methods)} methods, {', '.join(models)}, {plan.part}",
        protocol=(
            "Each method gives a score for each source (a word, a sentence, a document). Sources "
            "are taken away by hiding their keys from every query in every layer; words of texts "
            "by a token in their place.",
            "LDS: Spearman, over ablations, of the kept sources' summed scores and the log odds of "
            "the answer. Drop: log odds lost without the strongest (three words, or as many as "
            "support the answer). Hold: log odds gained by them alone over no source. AOPC: the "
            "mean loss of a token's probability while the strongest go first.",
            "Right first: a right source is ranked first. Recall: of the right ones, at their "
            "number. Ties count against a method. Over documents the right answer is read.",
            _LEFT_OUT,
            "95 % bootstrap intervals over prompts; differences from the default are paired.",
        ),
        tables=tuple(tables),
        findings=(*_verdict(plan, findings), *findings.training, *missing),
    )


def _tables_of(
    plan: BenchPlan, findings: Findings, name: str, label: str | None, models: int
) -> Iterator[Table]:
    """Yield the means of a data set, the differences from the default, and places or lengths."""
    metrics = [m for m in _HEADINGS if findings.values(name, plan.methods[0], m)]
    methods = [m for m in plan.methods if any(findings.values(name, m, k) for k in metrics)]
    if not metrics or not methods:
        return
    whose = label or ("all models" if models > 1 else next(iter(plan.models)))
    title = f"{DATA_SETS[name].title} ({whose})"
    key = name if label is None else f"{name}-{label}"
    rows = {m: tuple(share(findings.values(name, m, k)) for k in metrics) for m in methods}
    counts = sorted({len(findings.values(name, m, metrics[0])) for m in methods})
    count = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    headings = tuple(_HEADINGS[k] for k in metrics)
    yield Table(key, title, headings, rows, f"{count} prompts.")
    if label is None and DEFAULT in methods:
        others = [m for m in methods if m != DEFAULT]
        differences = {
            f"{m} − default": tuple(difference(findings, name, m, DEFAULT, k) for k in metrics)
            for m in others
        }
        if differences:
            yield Table(
                f"{key}-differences", f"{title}: less the default", headings, differences,
                signed=True,
            )  # fmt: skip
    if label is None:
        yield from _divided(findings, name, title, methods)


def _divided(findings: Findings, name: str, title: str, methods: Sequence[str]) -> Iterator[Table]:
    """Yield how often the right source is first at every place of so many, or at every length."""
    notes = [each.note for each in findings.observations if each.data_set == name]
    for outer, inner in (("documents", "place"), ("", "length")):
        outers = sorted({note[outer] for note in notes if outer in note}) if outer else [None]
        for among in outers:
            own = [note for note in notes if among is None or note.get(outer) == among]
            places = sorted({note[inner] for note in own if inner in note})
            if not places:
                continue
            outside = {} if among is None else {outer: among}
            columns = tuple(f"{inner} {p + 1 if inner == 'place' else p}" for p in places)
            suffix = f", {among} documents" if among is not None else ""
            for metric, of in (("first", ""), ("needed", "-needed")):
                rows = {
                    m: tuple(
                        share(findings.values(name, m, metric, **outside, **{inner: p}))
                        for p in places
                    )
                    for m in methods
                }
                heading = f"{title}: {METRICS[metric]}{suffix}"
                yield Table(f"{name}-{inner}-{among or ''}{of}", heading, columns, rows)


def _costs(plan: BenchPlan, findings: Findings) -> Table:
    rows = {}
    for method in plan.methods:
        own = [each.cost for each in findings.observations if each.method == method]
        if own:
            rows[method] = tuple(
                Cell(float(np.nanmean([each[k] for each in own] or [math.nan]))) for k in COSTS
            )
    note = (
        "Means over all prompts. Passes: rows forward and calls backward, each counted whole, "
        "though a cache may have spared a part. Memory: megabytes at the peak above the model's."
    )
    return Table("cost", "Cost of a prompt", ("passes", "seconds", "memory"), rows, note)


def _verdict(plan: BenchPlan, findings: Findings) -> Iterator[str]:
    """Yield where another method is ahead of the default by more than its interval; then places."""
    ahead = []
    for name in plan.data_sets:
        for method in plan.methods:
            for metric in ("lds", "first", "recall"):
                side, cell = stands(findings, name, method, metric)
                if side > 0 and cell is not None:
                    ahead.append(
                        f"{method} is ahead of the default on {name} in {_HEADINGS[metric]}: "
                        f"{cell.value:+.2f} ({cell.low:+.2f} … {cell.high:+.2f}), n={cell.n}."
                    )
    yield from ahead or ["No method is ahead of the default by more than its interval."]
    for metric, which in (("first", ""), ("needed", ", where the answer needs it")):
        yield from _over_places(findings, metric, which)


def _over_places(findings: Findings, metric: str, which: str) -> Iterator[str]:
    """Yield how far the default's rate differs from place to place, and at the ends of lengths."""
    notes = [each.note for each in findings.observations]
    for among in sorted({note["documents"] for note in notes if "documents" in note}):
        values = _rates(findings, "positions", metric, "place", documents=among).values()
        if values:
            yield (
                f"Right first by the default over the places of {among}{which}: "
                f"{min(values):.2f} to {max(values):.2f}, a spread of "
                f"{max(values) - min(values):.2f}."
            )
    lengths = _rates(findings, "lengths", metric, "length")
    if len(lengths) > 1:
        (short, most), *_, (long, least) = lengths.items()
        yield (
            f"Right first by the default{which}: {most:.2f} at {short} tokens, {least:.2f} at "
            f"{long}."
        )


def _rates(
    findings: Findings, data_set: str, metric: str, divided: str, **note: int
) -> dict[int, float]:
    """Return the default's mean of a metric at each place, or length, in their order."""
    notes = [each.note for each in findings.observations if each.data_set == data_set]
    rates: dict[int, float] = {}
    for each in sorted({own[divided] for own in notes if divided in own}):
        values = findings.values(data_set, DEFAULT, metric, **note, **{divided: each})
        if values:
            rates[each] = share(values).value
    return rates


# --- the page ------------------------------------------------------------------------------------

_PAGE = Environment(autoescape=True).from_string(
    """<!doctype html><html lang="en"><meta charset="utf-8"><title>{{ report.title }}</title>
<style>body{font:15px/1.5 system-ui;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.2rem .7rem;text-align:right}
th:first-child,td:first-child{text-align:left}tr:nth-child(even){background:#8881}
svg{display:block}.line{stroke:currentColor;stroke-width:2}.note{opacity:.7}</style>
<h1>{{ report.title }}</h1><pre>{{ report.command }}</pre>
<ul>{% for each in report.findings %}<li>{{ each }}</li>{% endfor %}</ul>
{% for table in report.tables %}<h2>{{ table.title }}</h2><table><tr><th></th>
{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for name, cells in table.rows.items() %}<tr><td>{{ name }}</td>
{% for cell in cells %}<td title="{{ words(cell) }}">{{ number(cell.value) }}
{{ bar(cell, table, loop.index0) }}</td>{% endfor %}</tr>{% endfor %}</table>
<p class="note">{{ table.note }}</p>{% endfor %}
<h2>How it was measured</h2>
<ul>{% for each in report.protocol %}<li>{{ each }}</li>{% endfor %}</ul>
"""
)
_WIDTH = 70


def write_page(report: Report, path: Path) -> Path:
    """Write the report as one page, each number with its interval drawn under it."""
    write_text(path, _PAGE.render(report=report, number=_number, words=_words, bar=_bar))
    return path


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _words(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"95 % interval {cell.low:.3f} to {cell.high:.3f}, n={cell.n}"


def _bar(cell: Cell, table: Table, column: int) -> Markup:
    cells = [row[column] for row in table.rows.values()]
    ends = [v for c in cells for v in (c.low, c.high) if v is not None and math.isfinite(v)]
    if not ends or cell.low is None or cell.high is None or not math.isfinite(cell.low):
        return Markup("")
    low, high = min(ends), max(ends)
    scale = _WIDTH / ((high - low) or 1.0)
    first, last = (cell.low - low) * scale, max((cell.high - low) * scale, 1.0)
    line = f'<line class="line" x1="{first:.1f}" x2="{last:.1f}" y1="3" y2="3"/>'
    return Markup(f'<svg width="{_WIDTH}" height="6">{line}</svg>')
