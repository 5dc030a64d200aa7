"""An evaluation as people and programs read it: a verdict in sentences, tables, a page and files.

In the verdict, what chance could have made is said to be so. A difference is called clear when the
95 % interval of the mean difference on the same examples excludes zero and the sign-flip test's p
is below .05 divided by the number of methods: the best of many is always a little ahead.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from attnflow.errors import listing, percent
from attnflow.evaluation.metrics import Summary
from attnflow.evaluation.records import RANDOM, or_none
from attnflow.evaluation.results import Results
from attnflow.evaluation.subjects.base import FAITHFULNESS, Metric
from attnflow.evaluation.table import Cell, Table, markdown_of

_DIGITS: Final = 3
_FEW: Final = 30  # examples below which intervals are too wide to tell much
_PLAIN: Final = ("rollout", "flow")
_MOSTLY: Final = 0.5  # share of saturated values, or of collapsed texts, that is told
_NAMES: Final = {RANDOM: "a random order", "centre": "the centre of the image"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(Results):
    """Methods held against what a model uses, on the same examples; printed, it is a summary.

    subject: what was evaluated, with all its settings. methods: the rows that are methods, as
        `name option=value`. baselines: the rows beside them: "random" and what the subject adds.
    records: one for each example, in order. refused: methods that this model cannot be explained
        by, with the reason. examples, labels: by the records' numbers; a label is None where none
        was given. settings: everything the numbers depend on.

    >>> from attnflow import evaluate
    >>> texts = ["the key to the cabinets", "some people in the old city"]
    >>> evaluation = evaluate(None, texts, ["raw", "rollout"])
    >>> evaluation
    <Evaluation of raw, rollout on 2 texts>
    >>> print(evaluation.verdict()[0])
    2 texts are too few to tell any method from a random order.
    """

    def __repr__(self) -> str:
        count = f"{len(self.used)} {self.subject.plural}"
        return f"<Evaluation of {', '.join(self.methods)} on {count}>"

    def __str__(self) -> str:
        """Return each row by the metric that orders them, and the verdict."""
        lines, metric = [repr(self)], self.subject.headline
        if self.has(metric):
            best_first = self.rank_rows(self.rows, metric)
            width = max(map(len, best_first))
            title = "faithfulness (comprehensiveness − sufficiency)"
            lines.append(f"{title if metric == FAITHFULNESS else metric}, 95 % interval:")
            for row in best_first:
                mean = self.summary(row, metric)
                interval = f"{mean.low:+.3f} to {mean.high:+.3f}"
                lines.append(f"  {row.ljust(width)}  {mean.mean:+.3f}  ({interval})")
        return "\n".join([*lines, *self.verdict()])

    def verdict(self) -> tuple[str, ...]:
        """Return plain sentences: which method to trust here, and how sure that is."""
        headline = self.subject.headline
        ranked = self.rank_methods(headline) if self.has(headline) else []
        return (
            *(_most_faithful(self, ranked) if ranked else ()),
            *_findings(self),
            *_not_above_random(self, ranked),
            *_remarks(self),
        )

    def table(self) -> dict[str, dict[str, Summary]]:
        """Return the means: rows × metrics."""
        return {row: {m.name: self.summary(row, m.name) for m in self.metrics} for row in self.rows}

    def tables(self) -> tuple[Table, ...]:
        """Return what is shown and written: means, differences, costs."""
        means = [self._means(*group) for group in self.subject.groups]
        present = [table for table in means if table.columns]
        return (*present, *map(self._differences, self.subject.differences), self._costs())

    def _means(self, title: str, metrics: Sequence[Metric], note: str = "") -> Table:
        """Return the means of those metrics that were measured."""
        there = self.metrics
        metrics = [metric for metric in metrics if metric in there]
        rows = {
            row: tuple(Cell.of_share(self.summary(row, metric.name)) for metric in metrics)
            for row in self.rows
        }
        name = title.split(":")[0].lower().replace(" ", "-")
        columns = tuple(metric.title for metric in metrics)
        return Table(name, title, columns, rows, note, digits=_DIGITS)

    def _differences(self, metric: str) -> Table:
        """Return differences from plain rollout, plain flow and random orders."""
        others = [name for name in (*_PLAIN, RANDOM) if name in self.rows]
        better = "higher" if self.is_higher_better(metric) else "lower"
        rows = {
            row: tuple(
                replace(Cell.of_difference(self.compare(row, other, metric)), p=None)
                for other in others
            )
            for row in self.methods
        }
        same = f"on the same {self.subject.plural} ({better} is better)"
        title = f"{metric.capitalize()} minus that of ..., {same}"
        name = f"{metric}-differences"
        return Table(name, title, tuple(others), rows, digits=_DIGITS, signed=True)

    def _costs(self) -> Table:
        times = {row: self.seconds(row) for row in self.rows}
        seconds = {row: time for row, time in times.items() if math.isfinite(time)}
        least = min(seconds.values(), default=math.nan)
        rows = {row: (Cell(time), Cell(time / least)) for row, time in seconds.items()}
        columns = ("seconds", "times the cheapest")
        return Table("cost", "Cost", columns, rows, self.subject.cost_note, digits=_DIGITS)

    def panels(self) -> list[dict[str, object]]:
        """Return plain numbers for the figure: a panel of intervals for each metric."""
        return self._means("figure", self.subject.figure_metrics).interval_panels()

    def heading(self, source: str) -> str:
        """Return what was evaluated, in a sentence; `source` is where the examples are from."""
        about = [f"{len(self.used):,} {self.subject.plural} from {source}", self.subject.heading]
        return "; ".join([*filter(None, about), "means with 95 % bootstrap intervals."])

    def to_markdown(self, *, source: str = "memory", command: str = "") -> str:
        """Return the whole evaluation as a page."""
        lines = [f"# Which attribution to trust: {self.settings['model']}", ""]
        lines += [self.heading(source), "", *([f"`{command}`", ""] if command else [])]
        lines += [f"- {sentence}" for sentence in self.verdict()]
        return "\n".join([*lines, *markdown_of(self.tables())]) + "\n"

    def to_csv(self) -> str:
        """Return one line for each example and row, with every metric."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [metric.name for metric in self.metrics]
        about = ["number", self.subject.name, "answer", "probability", "row"]
        writer.writerow([*about, *names, "seconds"])
        for record in self.used:
            for row, scores in record.scores.items():
                numbers = [record.probability, *(scores.get(name, math.nan) for name in names)]
                cells = [f"{x:.6g}" if math.isfinite(x) else "" for x in numbers]
                seconds = f"{record.seconds[row]:.3g}" if row in record.seconds else ""
                example = [record.number, self.examples[record.number], record.answer]
                writer.writerow([*example, cells[0], row, *cells[1:], seconds])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: settings, summaries, costs and the verdict."""
        return {
            "settings": dict(self.settings),
            self.subject.plural: len(self.used),
            "left_out": [record.left_out for record in self.records if record.left_out],
            "refused": dict(self.refused),
            "accuracy": self.accuracy(),
            "table": {
                row: {
                    metric: {name: or_none(value) for name, value in asdict(summary).items()}
                    for metric, summary in columns.items()
                }
                for row, columns in self.table().items()
            },
            "seconds": {row: time for row in self.rows if (time := or_none(self.seconds(row)))},
            "verdict": list(self.verdict()),
        }


# -- the verdict -----------------------------------------------------------------------------------


def _most_faithful(results: Results, ranked: Sequence[str]) -> list[str]:
    """Say which method is clearly better than every baseline, and how far it is ahead."""
    subject, count, metric = results.subject, len(results.used), results.subject.headline
    clear = [
        method
        for method in ranked
        if all(results.is_better(method, row, metric) for row in subject.baselines)
    ]
    baselines = listing([_NAMES.get(row, row) for row in subject.baselines])
    if not clear and count < _FEW:
        return [f"{count} {subject.plural} are too few to tell any method from {baselines}."]
    if not clear:
        return [
            f"Trust none of these methods here: none is clearly more faithful than {baselines} on "
            f"these {count} {subject.plural}."
        ]
    best = clear[0]
    trust = f"Trust {best} most here: {_REASONS[metric](results, best)}."
    others = [method for method in ranked if method != best]
    level = [method for method in others if not results.is_better(best, method, metric)]
    if not others:
        return [trust]
    if len(level) == len(others):
        more = f"prefer the cheapest, or add {subject.plural}"
        return [trust, f"All methods are within noise of each other: {more}."]
    if level:
        return [trust, f"Its lead over {listing(level)} could be chance: do not choose by it."]
    lead = results.compare(best, others[0], metric)
    return [trust, f"It is clearly ahead of the next, {others[0]}: by {lead.in_words()}."]


def _why_faithful(results: Results, best: str) -> str:
    lead = results.compare(best, RANDOM, FAITHFULNESS)
    return (
        "with only its strongest words the answer keeps "
        f"{results.summary(best, FAITHFULNESS).mean:.2f} more probability than without them "
        f"(random order: {results.summary(RANDOM, FAITHFULNESS).mean:.2f}; difference "
        f"{lead.in_words()})"
    )


def _why_predictive(results: Results, best: str) -> str:
    mean, chance = results.summary(best, "lds"), results.summary(RANDOM, "lds").mean
    return (
        f"it predicts the effect of ablations with a rank correlation of {mean.mean:.2f} "
        f"({mean.low:.2f} to {mean.high:.2f}; random order: {chance:.2f})"
    )


def _why_deleting(results: Results, best: str) -> str:
    baselines = results.subject.baselines
    areas = {row: results.summary(row, "deletion").mean for row in (best, *baselines)}
    rest = ", ".join(f"{row} {areas[row]:.2f}" for row in baselines)
    lead = results.compare(best, RANDOM, "deletion")
    return (
        f"with its strongest patches hidden first the answer keeps {areas[best]:.2f} of its "
        f"probability on average ({rest}; {lead.in_words()} against random)"
    )


_REASONS: Final[dict[str, Callable[[Results, str], str]]] = {
    FAITHFULNESS: _why_faithful,
    "lds": _why_predictive,
    "deletion": _why_deleting,
}
"""The clause that says why the best method is to be trusted, by the metric that orders them."""


def _findings(results: Results) -> Iterator[str]:
    """Say what only some subjects measure: agreement with importance, limits, pointing."""
    if results.subject.headline == FAITHFULNESS:
        yield from _against_plain(results)
        for metric in results.subject.metrics:
            if metric.name.endswith(" spearman"):
                yield _agreement(results, metric.name)
        yield from _limits(results)
    if results.has("pointing"):
        best = results.rank_methods("pointing")[0]
        hits, chance = (results.summary(row, "pointing").mean for row in (best, RANDOM))
        share = results.summary(best, "mass").mean
        yield (
            f"{best} points best: its strongest patch lies in the true box in {percent(hits)} of "
            f"the images (random: {percent(chance)}), and {percent(share)} of its map does."
        )


def _not_above_random(results: Results, ranked: Sequence[str]) -> Iterator[str]:
    metric = results.subject.headline
    worse = [method for method in ranked if results.is_better(RANDOM, method, metric)]
    level = [method for method in ranked if results.is_level(method, RANDOM, metric)]
    if worse:
        yield f"Less faithful here than a random order: {listing(worse)}."
    if level and len(level) < len(ranked):
        yield f"Not clearly more faithful here than a random order: {listing(level)}."


def _remarks(results: Results) -> Iterator[str]:
    """Say how sure one can be, how often the model was right, and what was left out."""
    count, plural = len(results.used), results.subject.plural
    accuracy = results.accuracy()
    if count < _FEW:
        yield f"Intervals are wide with {count} {plural}: add some."
    if accuracy is not None:
        yield (
            f"The model's answer is the label of {percent(accuracy, 1)} of the {plural}; what is "
            "explained is its answer, right or wrong."
        )
    for method, reason in results.refused.items():
        yield f"Left out, {method}: {reason}"
    reasons = [record.left_out for record in results.records if record.left_out]
    if reasons:
        total = len(results.records)
        yield f"{len(reasons)} of {total} {plural} were left out; the first: {reasons[0]}"


# -- what is said of texts only --------------------------------------------------------------------


def beating(results: Results, others: Sequence[str]) -> list[str]:
    """Return the methods clearly better than all these in comprehensiveness and sufficiency."""
    return [
        method
        for method in results.methods
        if method not in others
        and all(
            results.is_better(method, other, metric)
            for other in others
            for metric in ("comprehensiveness", "sufficiency")
        )
    ]


def _against_plain(results: Results) -> Iterator[str]:
    """Say who is ahead of plain rollout and flow: in both metrics, or in their difference."""
    plain = [name for name in _PLAIN if name in results.methods]
    others = [name for name in results.methods if name not in plain]
    if not plain or not others:
        return
    both = beating(results, plain)
    together = [
        method
        for method in others
        if method not in both
        and all(results.is_better(method, name, FAITHFULNESS) for name in plain)
    ]
    names = " and ".join(f"plain {name}" for name in plain)
    if both:
        yield (
            f"{listing(both)} {'beat' if len(both) > 1 else 'beats'} {names} in both "
            "comprehensiveness and sufficiency; the 95 % intervals of the differences exclude zero."
        )
    if together:
        yield (
            f"{listing(together)} {'are' if len(together) > 1 else 'is'} clearly more faithful "
            f"than {names} by comprehensiveness and sufficiency together, but not clearly by each "
            "of the two alone."
        )
    if not both and not together:
        yield f"No other method is clearly more faithful than {names}."


def _agreement(results: Results, metric: str) -> str:
    measure = metric.removesuffix(" spearman")
    ranked = results.rank_methods(metric)
    best, mean = ranked[0], results.summary(ranked[0], metric)
    if not mean.n or not results.is_better(best, RANDOM, metric):
        return f"No method clearly agrees with {measure} better than a random order does."
    ahead = f"{best} agrees best with {measure}: Spearman {mean.mean:.2f} "
    ahead += f"({mean.low:.2f} to {mean.high:.2f})"
    level = [method for method in ranked[1:] if results.is_level(best, method, metric)]
    return f"{ahead}, {listing(level)} not clearly less." if level else f"{ahead}, clearly."


def _limits(results: Results) -> Iterator[str]:
    for method in results.methods:
        share = results.saturation(method)
        if share is not None and share >= _MOSTLY:
            yield (
                f"{method} is saturated: {percent(share)} of its values at the highest layer would "
                "be the same for any other target. It says which tokens pass anything on, not what "
                "was drawn on."
            )
    collapsed = [m for m in results.methods if results.collapse(m) >= _MOSTLY]
    if collapsed:
        yield (
            f"Collapsed at the highest layer in most texts: {listing(collapsed)}. Such rows are "
            "nearly the same for every target."
        )
