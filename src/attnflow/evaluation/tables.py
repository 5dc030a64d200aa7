"""An evaluation as tables: for a terminal of 80 columns, and as a page in Markdown.

Agreement and faithfulness are two tables: side by side they would not fit. Under each mean stands
its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from attnflow.evaluation import table as numbers
from attnflow.evaluation.records import FAITHFUL, RANDOM, Metric, agreement
from attnflow.evaluation.results import Evaluation
from attnflow.evaluation.table import Cell, Table

__all__ = ["heading", "markdown_of", "panels_of", "tables_of"]

_PLAIN: Final = ("rollout", "flow")
_DIGITS: Final = 3
_FAITHFUL_NOTE: Final = (
    "compr. (comprehensiveness): p lost without the strongest 10 to 50 % of the words; suff. "
    "(sufficiency): p lost with only these; deletion, insertion: areas under the curves. In "
    "brackets: what was measured, as a ranking of its own."
)


def tables_of(evaluation: Evaluation) -> tuple[Table, ...]:
    """Faithfulness, agreement, differences from the plain methods and from chance, costs."""
    faithful = _means(
        evaluation,
        "faithfulness",
        FAITHFUL,
        "Faithfulness: the strongest words taken away, or only them",
    )
    agreed = _means(
        evaluation, "agreement", agreement(evaluation.measures),
        "Agreement with importance, over the words",
    )  # fmt: skip
    return (
        replace(faithful, note=_FAITHFUL_NOTE),
        agreed,
        *_differences(evaluation),
        _costs(evaluation),
    )


def _means(evaluation: Evaluation, name: str, metrics: Sequence[Metric], title: str) -> Table:
    rows = {row: tuple(_mean(evaluation, row, m) for m in metrics) for row in evaluation.rows}
    return Table(name, title, tuple(metric.title for metric in metrics), rows, digits=_DIGITS)


def _mean(evaluation: Evaluation, row: str, metric: Metric) -> Cell:
    return Cell.of_share(evaluation.summary(row, metric.name))


def _differences(evaluation: Evaluation) -> Iterator[Table]:
    """From plain rollout, plain flow and random orders, on the same texts."""
    others = [name for name in (*_PLAIN, RANDOM) if name in (*evaluation.methods, RANDOM)]
    for metric in FAITHFUL[:2]:
        better = "higher" if metric.higher_is_better else "lower"
        yield Table(
            f"{metric.name}-differences",
            f"{metric.name.capitalize()} minus that of ..., on the same texts ({better} is better)",
            tuple(others),
            {
                row: tuple(_difference(evaluation, row, other, metric) for other in others)
                for row in evaluation.methods
            },
            digits=_DIGITS,
            signed=True,
        )


def _difference(evaluation: Evaluation, row: str, other: str, metric: Metric) -> Cell:
    return replace(Cell.of_difference(evaluation.compare(row, other, metric.name)), p=None)


def _costs(evaluation: Evaluation) -> Table:
    seconds = {method: evaluation.seconds(method) for method in evaluation.methods}
    least = min(seconds.values())
    rows = {name: (Cell(s), Cell(s / least)) for name, s in seconds.items()}
    note = "Of a text by this method alone: the forward pass, all it needs, and the method."
    return Table("cost", "Cost", ("seconds", "times the cheapest"), rows, note, digits=_DIGITS)


def markdown_of(evaluation: Evaluation, *, command: str, source: str) -> str:
    """The whole evaluation as a page."""
    title = f"# Which attribution to trust: {evaluation.settings['model']}"
    verdict = [f"- {sentence}" for sentence in evaluation.verdict()]
    head = [title, "", heading(evaluation, source), "", f"`{command}`", "", *verdict]
    return "\n".join([*head, *numbers.markdown_of(tables_of(evaluation))]) + "\n"


def heading(evaluation: Evaluation, source: str) -> str:
    """What was evaluated, in a sentence."""
    return (
        f"{len(evaluation.used):,} texts from {source}; words blanked by "
        f"{evaluation.settings['by']!r}; the row of the position the answer is read from, at the "
        "highest layer; means with 95 % bootstrap intervals."
    )


def panels_of(evaluation: Evaluation) -> list[dict[str, object]]:
    """Plain numbers for the figure: two metrics of faithfulness and agreement with each measure."""
    metrics = (*FAITHFUL[:2], *agreement(evaluation.measures)[::2])
    return _means(evaluation, "figure", metrics, "").interval_panels()
