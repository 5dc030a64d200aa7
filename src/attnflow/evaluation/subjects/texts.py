"""Texts that a model reads: words are taken away in the order of a method, and the answer loses.

The row that is judged is that of the position the model's answer is read from, at the highest
layer; only words are ranked. Each text is captured once for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, get_args

import numpy as np

from attnflow.errors import InputError, ModelError, shorten
from attnflow.errors.arguments import check_count, check_named
from attnflow.errors.progress import patiently
from attnflow.evaluation.faithfulness import Curves, Faithfulness
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.metrics import Floats, kendall, spearman
from attnflow.evaluation.passes import Passes
from attnflow.evaluation.records import RANDOM, Record
from attnflow.evaluation.subjects import base
from attnflow.evaluation.subjects.base import RANDOM_ORDERS, Metric, MetricGroup
from attnflow.evaluation.subjects.examples import LabelledText, read_texts
from attnflow.explainers.blanks import BlankToken
from attnflow.hosts.load import ModelLike, as_model
from attnflow.methods import Flow, Requirements, trace_methods

FAITHFUL = (
    Metric("comprehensiveness", "compr. ↑"),
    Metric("sufficiency", "suff. ↓", higher_is_better=False),
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
)
_NOTE = (
    "compr. (comprehensiveness): p lost without the strongest 10 to 50 % of the words; suff. "
    "(sufficiency): p lost with only these; deletion, insertion: areas under the curves. In "
    "brackets: what was measured, as a ranking of its own."
)
_SIGNS = {"spearman": "ρ", "kendall": "τ"}
_BLANKS: tuple[BlankToken, ...] = ("unk", "mask", "pad")
_TIMED = 5  # texts on which each method is also captured alone, for its cost
_TRIED = 20  # texts after which a model that could answer none is given up


@dataclass(frozen=True, kw_only=True)
class Texts(base.Subject):
    """Texts, and how what a model uses of them is measured.

    column: where a file holds them; default: `text` or `sentence`.
    by: what a word is blanked by, "unk", "mask", "pad" or "delete"; default: the first there is.
    min_words: texts with fewer words, as spaces divide them, are not drawn.
    measures: what methods are correlated with, by a name; default: blank-out and input gradients.
    batch_size: how many changed texts go through the model at once.

    >>> Texts(by="mask").by
    'mask'
    """

    name: ClassVar[str] = "text"
    example_type: ClassVar[type] = LabelledText
    headline: ClassVar[str] = base.FAITHFULNESS
    differences: ClassVar[tuple[str, ...]] = ("comprehensiveness", "sufficiency")
    cost_note: ClassVar[str] = (
        "Of a text by this method alone: the forward pass, all it needs, and the method."
    )

    column: str | None = None
    by: BlankToken | None = None
    min_words: int = 2
    measures: Mapping[str, Measure] | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.by is not None:
            check_named("by", self.by, get_args(BlankToken))
        check_count("min_words", self.min_words, 1)

    @property
    def heading(self) -> str:
        """How words are taken away and which row is judged."""
        return (
            f"words blanked by {self.by!r}; the row of the position the answer is read from, at "
            "the highest layer"
        )

    @property
    def groups(self) -> tuple[MetricGroup, ...]:
        """Faithfulness, and two rank correlations with each measure of importance."""
        agreement = tuple(
            Metric(f"{measure} {name}", f"{measure} {sign}")
            for measure in self.measures or ("blank-out", "gradient")
            for name, sign in _SIGNS.items()
        )
        return (
            MetricGroup(
                "Faithfulness: the strongest words taken away, or only them", FAITHFUL, _NOTE
            ),
            MetricGroup("Agreement with importance, over the words", agreement),
        )

    @property
    def figure_metrics(self) -> tuple[Metric, ...]:
        """Two metrics of faithfulness, and Spearman's correlation with each measure."""
        return (*FAITHFUL[:2], *self.groups[1].metrics[::2])

    def read_file(self, path: base.PathLike) -> list[LabelledText]:
        """Return the texts of a file, of the column that is named."""
        return read_texts(path, column=self.column)

    def as_example(self, value: Any) -> LabelledText:
        """Return an example of a text."""
        if not isinstance(value, (str, LabelledText)):
            raise InputError(f"A list of texts is needed; one of them is {shorten(value)}.")
        return super().as_example(value)

    def can_draw(self, example: LabelledText) -> bool:
        """Return whether a text has enough words."""
        return len(example.text.split()) >= self.min_words

    def judge(
        self, model: ModelLike, examples: Sequence[Any], methods: Any, seed: int
    ) -> TextJudge:
        """Return what judges texts, by default by all methods of one pass."""
        loaded = as_model(model)
        blanks = Passes.over(loaded, self.batch_size).ids.blanks
        there: BlankToken = next((name for name in _BLANKS if name in blanks), "delete")
        by = self.by or there
        measures = self.measures or {"blank-out": BlankOut(by=by), "gradient": InputGradient()}
        return TextJudge(
            subject=replace(self, by=by, measures=dict(measures)),
            model=loaded,
            methods=base.label_methods(trace_methods() if methods is None else methods),
            baselines=(RANDOM, *(f"({name})" for name in measures)),
            seed=seed,
        )

    def describe(self, example: LabelledText) -> tuple[str, str | None]:
        """Return the text and its label."""
        return example.text, example.label

    def content(self, example: LabelledText) -> bytes:
        """Return the text; its label changes no number but the accuracy."""
        return example.text.encode("utf-8", "surrogatepass")

    def settings(self) -> dict[str, Any]:
        """Return the fields in words."""
        measures = {name: repr(measure) for name, measure in (self.measures or {}).items()}
        return {**super().settings(), "measures": measures, "random_orders": RANDOM_ORDERS}


@dataclass(eq=False, kw_only=True)
class TextJudge(base.Judge):
    """One text after another: what the model uses, what each method says, how they agree."""

    subject: Texts

    def fits(self, record: Record) -> bool:
        """Return whether a record has every metric of every row."""
        metrics = {metric.name for metric in self.subject.metrics}
        return super().fits(record) and (
            bool(record.left_out)
            or (
                all(set(scores) == metrics for scores in record.scores.values())
                and set(record.seconds) == set(self.usable)
            )
        )

    def _try_examples(self, examples: Sequence[LabelledText]) -> str:
        reasons = []
        for example in examples[:_TRIED]:
            try:
                with patiently():
                    self._importance(example.text)
            except (InputError, ModelError) as error:
                reasons.append(error)
            else:
                return example.text
        raise ModelError(
            f"Importance could not be measured on the first {len(reasons)} texts: {reasons[0]}"
        ) from reasons[0]

    def _importance(self, text: str) -> dict[str, Importance]:
        return {
            name: measure(self.model, [text], batch_size=self.subject.batch_size)[0]
            for name, measure in (self.subject.measures or {}).items()
        }

    def _judge(self, number: int, example: LabelledText) -> Record:
        text, importance = example.text, self._importance(example.text)
        answer = next(iter(importance.values()))
        # Words that every measure could measure; tokens that frame a text are no words.
        words = np.flatnonzero(
            np.all([answer.is_word, *(np.isfinite(m.values) for m in importance.values())], axis=0)
        )
        if len(words) < 2:
            raise base.LeftOutError("There are fewer than two words to rank.")
        measured = {name: each.values[words] for name, each in importance.items()}
        _, results, seconds = self._rows(text)
        rows = {name: result.values[0, 0] for name, result in results.items()}
        rows |= {f"({name})": np.nan_to_num(each.values) for name, each in importance.items()}
        curves = self._curves(number, text, rows)
        agreement = {name: _agreement(row[words], measured) for name, row in rows.items()}
        agreement[RANDOM] = self._mean_of_draws(
            number, lambda rng: _agreement(rng.random(len(answer.values))[words], measured)
        )
        saturated = {
            name: float(result.saturated[0, 0].mean())
            for name, result in results.items()
            if isinstance(self.methods[name], Flow) and result.saturated is not None
        }
        return Record(
            number=number,
            answer=answer.answer,
            choice=answer.choice,
            probability=answer.probability,
            scores={
                name: {**agreement[name], **_faithful(curves[name])}
                for name in (*results, *self.baselines)
            },
            seconds=seconds,
            capture=self._capture_seconds(text) if number < _TIMED else {},
            saturated=saturated,
            collapsed={
                name: float(bool(result.collapsed))
                for name, result in results.items()
                if name not in saturated
            },
        )

    def _curves(self, number: int, text: str, rows: Mapping[str, Floats]) -> dict[str, Curves]:
        faithfulness = Faithfulness(
            by=self.subject.by or "unk", random_orders=RANDOM_ORDERS, seed=self._seed(number)
        )
        rankings = {name: [row] for name, row in rows.items()}
        return faithfulness(self.model, [text], rankings, batch_size=self.subject.batch_size)

    def _capture_seconds(self, text: str) -> dict[str, float]:
        """Return seconds of capturing just what each method needs; equal needs share a capture."""
        seconds: dict[Requirements, float] = {}
        for method in self.usable.values():
            if method.requires not in seconds:
                start = perf_counter()
                self._capture(text, [method])
                seconds[method.requires] = perf_counter() - start
        return {name: seconds[method.requires] for name, method in self.usable.items()}


def _agreement(row: Floats, measured: Mapping[str, Floats]) -> dict[str, float]:
    agreement: dict[str, float] = {}
    for name, values in measured.items():
        agreement[f"{name} spearman"] = spearman(row, values)
        agreement[f"{name} kendall"] = kendall(row, values)
    return agreement


def _faithful(curves: Curves) -> dict[str, float]:
    return {
        "comprehensiveness": float(curves.comprehensiveness[0]),
        "sufficiency": float(curves.sufficiency[0]),
        "deletion": float(curves.deletion_area[0]),
        "insertion": float(curves.insertion_area[0]),
    }
