"""Texts that a model reads: words are taken away in the order of a method, and the answer loses.

The row that is judged is that of the position the model's answer is read from, at the highest
layer; only words are ranked. Each text is captured once for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError, ModelError, shorten
from attnflow.errors.arguments import check_named
from attnflow.errors.progress import patiently
from attnflow.evaluation import verdict
from attnflow.evaluation.faithfulness import Curves, Faithfulness
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.metrics import kendall, spearman
from attnflow.evaluation.passes import Passes
from attnflow.evaluation.records import FAITHFULNESS, RANDOM, Metric, Record
from attnflow.evaluation.subjects.base import (
    RANDOM_ORDERS,
    Judge,
    MetricGroup,
    PathLike,
    Subject,
    label_methods,
)
from attnflow.evaluation.subjects.examples import LabelledText, read_texts
from attnflow.explainers.ablation import BlankToken
from attnflow.explainers.answer_rows import answer_rows
from attnflow.hosts.capture import capture
from attnflow.hosts.load import ModelLike, as_model
from attnflow.methods import Flow, Method, Requirements, quiet_about_limits, trace_methods
from attnflow.trace import AttentionTrace

if TYPE_CHECKING:
    from attnflow.evaluation.results import Evaluation

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
class Texts(Subject):
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
    headline: ClassVar[str] = FAITHFULNESS
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
        if not isinstance(self.min_words, int) or self.min_words < 1:
            raise InputError(f"min_words is at least 1; got min_words={shorten(self.min_words)}.")

    @property
    def measure_names(self) -> tuple[str, ...]:
        """The names of what methods are correlated with."""
        return ("blank-out", "gradient") if self.measures is None else tuple(self.measures)

    @property
    def groups(self) -> tuple[MetricGroup, ...]:
        """Faithfulness, and two rank correlations with each measure of importance."""
        agreement = tuple(
            Metric(f"{measure} {name}", f"{measure} {sign}")
            for measure in self.measure_names
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

    def read_file(self, path: PathLike) -> list[LabelledText]:
        """Return the texts of a file, of the column that is named."""
        return read_texts(path, column=self.column)

    def as_example(self, value: Any) -> LabelledText:
        """Return an example of a text."""
        example = LabelledText(value) if isinstance(value, str) else value
        if not isinstance(example, LabelledText):
            raise InputError(f"A list of texts is needed; one of them is {shorten(value)}.")
        return example

    def can_draw(self, example: LabelledText) -> bool:
        """Return whether a text has enough words."""
        return len(example.text.split()) >= self.min_words

    def judge(
        self, model: ModelLike, examples: Sequence[Any], methods: Any, seed: int
    ) -> TextJudge:
        """Return what judges texts; by default all methods that need one pass are compared."""
        loaded = as_model(model)
        passes = Passes.over(loaded, self.batch_size)
        there: BlankToken = next((name for name in _BLANKS if name in passes.ids.blanks), "delete")
        by: BlankToken = self.by or there
        measures = self.measures or {"blank-out": BlankOut(by=by), "gradient": InputGradient()}
        usual = trace_methods()
        return TextJudge(
            subject=replace(self, by=by, measures=dict(measures)),
            model=loaded,
            methods=label_methods(usual if methods is None else methods),
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

    def heading(self) -> str:
        """Return how words are taken away and which row is judged."""
        return (
            f"words blanked by {self.by!r}; the row of the position the answer is read from, at "
            "the highest layer"
        )

    # -- the verdict --------------------------------------------------------------------------

    def reason(self, evaluation: Evaluation, best: str) -> str:
        """Return by how much the answer hangs on the method's strongest words."""
        lead = evaluation.compare(best, RANDOM, FAITHFULNESS)
        return (
            "with only its strongest words the answer keeps "
            f"{evaluation.summary(best, FAITHFULNESS).mean:.2f} more probability than without them "
            f"(random order: {evaluation.summary(RANDOM, FAITHFULNESS).mean:.2f}; difference "
            f"{lead.in_words()})"
        )

    def findings(self, evaluation: Evaluation) -> list[str]:
        """Return who beats plain rollout and flow, who agrees with importance, and limits."""
        return [
            *verdict.against_plain(evaluation),
            *(verdict.agreement(evaluation, measure) for measure in self.measure_names),
            *verdict.limits(evaluation),
        ]


@dataclass(frozen=True, eq=False)
class _Case:
    """One text with what the model uses of it, and the words that are ranked."""

    number: int
    text: str
    importance: Mapping[str, Importance]
    words: Bools


@dataclass(eq=False, kw_only=True)
class TextJudge(Judge):
    """One text after another: what the model uses, what each method says, how they agree."""

    subject: Texts

    @property
    def baselines(self) -> tuple[str, ...]:
        """Random orders, and the measures as rankings: what a method that knew them would reach."""
        return (RANDOM, *(f"({name})" for name in self.subject.measure_names))

    def record(self, number: int, example: LabelledText) -> Record:
        """Return every metric of every method on one text, or why it cannot be used."""
        try:
            importance = self._importance(example.text)
            words = _words(list(importance.values()))
            if words.sum() < 2:
                return Record(number=number, left_out="There are fewer than two words to rank.")
            return self._judge(_Case(number, example.text, importance, words))
        except (InputError, ModelError) as error:
            return Record(number=number, left_out=str(error))

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

    def _first_usable(self, examples: Sequence[LabelledText]) -> LabelledText:
        reasons = []
        for example in islice(examples, _TRIED):
            try:
                with patiently():
                    self._importance(example.text)
            except (InputError, ModelError) as error:
                reasons.append(error)
            else:
                return example
        raise ModelError(
            f"Importance could not be measured on the first {len(reasons)} texts: {reasons[0]}"
        ) from reasons[0]

    def _try_method(self, method: Method, example: LabelledText) -> None:
        self._row(method, self._capture(example.text, [method]))

    def _importance(self, text: str) -> dict[str, Importance]:
        return {
            name: measure(self.model, [text], batch_size=self.subject.batch_size)[0]
            for name, measure in (self.subject.measures or {}).items()
        }

    def _capture(self, text: str, methods: Sequence[Method]) -> AttentionTrace:
        """Return one pass with everything these methods need."""
        return capture(self.model, text, methods=methods)

    def _row(self, method: Method, trace: AttentionTrace) -> Attribution:
        """Return the values of the answer's position at the highest layer."""
        with quiet_about_limits():  # the verdict tells of collapse and saturation
            return answer_rows(method, trace, layers=-1)

    def _judge(self, case: _Case) -> Record:
        methods: Mapping[str, Method] = self.usable
        trace = self._capture(case.text, list(methods.values()))
        results, seconds = self._time_methods(lambda method: self._row(method, trace))
        saturated: dict[str, float] = {}
        collapsed: dict[str, float] = {}
        for name, result in results.items():
            if isinstance(methods[name], Flow) and result.saturated is not None:
                saturated[name] = float(result.saturated[0, 0].mean())
            else:
                collapsed[name] = float(bool(result.collapsed))
        rows = {name: result.values[0, 0] for name, result in results.items()}
        answer = next(iter(case.importance.values()))
        return Record(
            number=case.number,
            answer=answer.answer,
            choice=answer.choice,
            probability=answer.probability,
            scores=self._scores(case, rows),
            seconds=seconds,
            capture=self._capture_seconds(case.text, methods) if case.number < _TIMED else {},
            saturated=saturated,
            collapsed=collapsed,
        )

    def _scores(self, case: _Case, rows: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
        """Return every metric of the methods, of random orders, and of the measures themselves."""
        references = {
            f"({name})": np.nan_to_num(each.values) for name, each in case.importance.items()
        }
        curves = self._curves(case, {**rows, **references})
        agreement = {name: _agreement(row, case) for name, row in rows.items()}
        agreement[RANDOM] = self._mean_of_draws(
            case.number, lambda rng: _agreement(rng.random(len(case.words)), case)
        )
        agreement |= {name: _agreement(row, case) for name, row in references.items()}
        return {name: {**each, **_faithful(curves[name])} for name, each in agreement.items()}

    def _curves(self, case: _Case, rows: Mapping[str, Floats]) -> dict[str, Curves]:
        """Return curves; random orders are each text's own, however the run is divided."""
        seed = int(np.random.SeedSequence([self.seed, case.number]).generate_state(1)[0])
        by = self.subject.by or "unk"
        return Faithfulness(by=by, random_orders=RANDOM_ORDERS, seed=seed)(
            self.model,
            [case.text],
            {name: [row] for name, row in rows.items()},
            batch_size=self.subject.batch_size,
        )

    def _capture_seconds(self, text: str, methods: Mapping[str, Method]) -> dict[str, float]:
        """Return seconds of capturing just what each method needs; equal needs share a capture."""
        seconds: dict[Requirements, float] = {}
        for method in methods.values():
            if method.requires not in seconds:
                start = perf_counter()
                self._capture(text, [method])
                seconds[method.requires] = perf_counter() - start
        return {name: seconds[method.requires] for name, method in methods.items()}


def _words(importance: Sequence[Importance]) -> Bools:
    """Return the words that every measure could measure; tokens that frame a text are no words."""
    measurable = np.all([np.isfinite(each.values) for each in importance], axis=0)
    return np.asarray(measurable & importance[0].is_word)


def _agreement(row: Floats, case: _Case) -> dict[str, float]:
    agreement: dict[str, float] = {}
    for name, each in case.importance.items():
        pair = row[case.words], each.values[case.words]
        agreement[f"{name} spearman"] = spearman(*pair)
        agreement[f"{name} kendall"] = kendall(*pair)
    return agreement


def _faithful(curves: Curves) -> dict[str, float]:
    return {
        "comprehensiveness": float(curves.comprehensiveness[0]),
        "sufficiency": float(curves.sufficiency[0]),
        "deletion": float(curves.deletion_area[0]),
        "insertion": float(curves.insertion_area[0]),
    }
