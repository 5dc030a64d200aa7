"""A subject says how an example is judged: which metrics it has, and what a run of it depends on.

A `Subject` is a frozen value of settings. Bound to a model, some methods and a seed it becomes a
`Judge`, which makes the record of one example after another.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from attnflow.attribution import Attribution
from attnflow.errors import FileError, InputError, MethodError, MissingDependencyError, ModelError
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.records import RANDOM, Record
from attnflow.explainers.answer_rows import answer_rows
from attnflow.hosts.capture import capture
from attnflow.hosts.load import ModelLike
from attnflow.hosts.model import Model
from attnflow.methods import Method, make_method, quiet_about_limits
from attnflow.trace import AttentionTrace

PathLike = str | os.PathLike[str]
FAITHFULNESS: Final = "faithfulness"
"""The metric that orders methods on texts: comprehensiveness − sufficiency."""

RANDOM_ORDERS: Final = 5
"""How many random orders are averaged, to stand beside the methods."""

CANNOT = (ModelError, MethodError, MissingDependencyError)
"""The errors by which a method says that it cannot be run on a model."""

_NO_NUMBERS = ("batch_size", "batch_tokens", "column")  # settings that change no number


@dataclass(frozen=True)
class Metric:
    """A number for each example and ranking; `title` is the heading of its column.

    >>> Metric("deletion", "deletion ↓", higher_is_better=False).name
    'deletion'
    """

    name: str
    title: str
    higher_is_better: bool = True


class MetricGroup(NamedTuple):
    """Metrics that stand in one table, under its title, with a sentence under it."""

    title: str
    metrics: tuple[Metric, ...]
    note: str = ""


class LeftOutError(InputError):
    """An example that does not count, and what the model answered."""

    def __init__(self, reason: str, answer: str = "") -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """The kind of examples that are evaluated, and the settings of it that few people change.

    name: one example, in tables and messages. example_type: the class of an example. shuffled:
    whether the order of the examples is drawn; where it is not, `samples` counts only examples that
    can be used. headline: the metric that orders the methods. baselines: the rows that a method
    must beat to be trusted.
    """

    name: ClassVar[str]
    example_type: ClassVar[type]
    shuffled: ClassVar[bool] = True
    headline: ClassVar[str]
    baselines: ClassVar[tuple[str, ...]] = (RANDOM,)
    differences: ClassVar[tuple[str, ...]] = ()
    cost_note: ClassVar[str] = ""

    @property
    def plural(self) -> str:
        """The name of several examples."""
        return f"{self.name}s"

    @property
    def heading(self) -> str:
        """The clause above the tables that says what is judged and how."""
        return ""

    @property
    @abstractmethod
    def groups(self) -> tuple[MetricGroup, ...]:
        """The metrics, table by table."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that a record may have."""
        return tuple(metric for group in self.groups for metric in group.metrics)

    @property
    def figure_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the figure of a report draws."""
        return self.groups[0].metrics

    def read(self, data: Any) -> list[Any]:
        """Return the examples of a file, a folder or a list."""
        if isinstance(data, (str, os.PathLike)):
            return self.read_file(data)
        examples = [self.as_example(each) for each in data]
        if not examples:
            raise InputError(f"There are no {self.plural} to evaluate on.")
        return examples

    @abstractmethod
    def read_file(self, path: PathLike) -> list[Any]:
        """Return the examples of a file or a folder."""

    def as_example(self, value: Any) -> Any:
        """Return what stands in a list as an example."""
        return value if isinstance(value, self.example_type) else self.example_type(value)

    def can_draw(self, example: Any) -> bool:
        """Return whether an example is drawn at all."""
        return True

    @abstractmethod
    def judge(self, model: ModelLike, examples: Sequence[Any], methods: Any, seed: int) -> Judge:
        """Return what judges the examples by this model, with all settings decided."""

    @abstractmethod
    def describe(self, example: Any) -> tuple[str, str | None]:
        """Return what tables call an example, and its right answer where that is known."""

    @abstractmethod
    def content(self, example: Any) -> bytes:
        """Return everything of an example that numbers depend on."""

    def settings(self) -> dict[str, Any]:
        """Return the fields in words: the same settings give the same numbers."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_NUMBERS}


@dataclass(eq=False, kw_only=True)
class Judge(ABC):
    """A subject bound to a model, methods by their labels, and a seed."""

    subject: Subject
    model: Model
    methods: Mapping[str, Any]
    seed: int
    baselines: tuple[str, ...] = (RANDOM,)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> dict[str, Any]:
        """The methods that were not refused."""
        return {name: each for name, each in self.methods.items() if name not in self.refused}

    def settings(self) -> dict[str, Any]:
        """Return everything but the examples that the numbers depend on."""
        return {**self.subject.settings(), "methods": list(self.methods), "seed": self.seed}

    def try_methods(self, examples: Sequence[Any]) -> None:
        """Run (and compile) every method once; those that cannot be run are refused."""
        inputs = self._try_examples(examples)
        for k, (name, method) in enumerate(self.methods.items()):
            tell("trying the methods", k, len(self.methods))
            try:
                with patiently():
                    self._row(method, self._capture(inputs, [method]))
            except CANNOT as error:
                self.refused[name] = str(error)
        tell("trying the methods", len(self.methods), len(self.methods))
        if not self.usable:
            reasons = " ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            raise ModelError(f"No method can be run on this model. {reasons}")

    @abstractmethod
    def _try_examples(self, examples: Sequence[Any]) -> Any:
        """Return what the model takes of the first example that can be used."""

    def record(self, number: int, example: Any) -> Record:
        """Return everything that is measured of one example, or why it cannot be used."""
        try:
            return self._judge(number, example)
        except LeftOutError as error:
            return Record(number=number, answer=error.answer, left_out=str(error))
        except (InputError, ModelError, FileError) as error:
            return Record(number=number, left_out=str(error))

    @abstractmethod
    def _judge(self, number: int, example: Any) -> Record:
        """Return everything that is measured of one example; an error says why it is left out."""

    def fits(self, record: Record) -> bool:
        """Return whether a record of a journal is one that this judge could have made."""
        if record.left_out:
            return not record.scores
        return set(record.scores) == {*self.usable, *self.baselines}

    # -- what judges of attention share -------------------------------------------------------

    def _capture(self, inputs: Any, methods: Sequence[Method]) -> AttentionTrace:
        """Return one pass with everything these methods need."""
        trace = capture(self.model, inputs, methods=methods)
        if trace.prediction is None:
            raise ModelError("The model gives no answer, so there is no position to explain.")
        return trace

    def _row(self, method: Method, trace: AttentionTrace) -> Attribution:
        """Return the values of the answer's position at the highest layer."""
        with quiet_about_limits():  # the verdict tells of collapse and saturation
            return answer_rows(method, trace, layers=-1)

    def _rows(self, inputs: Any) -> tuple[AttentionTrace, dict[str, Attribution], dict[str, float]]:
        """Return one pass for all methods, the row that each gives, and its seconds."""
        methods = self.usable
        trace = self._capture(inputs, list(methods.values()))
        rows: dict[str, Attribution] = {}
        seconds: dict[str, float] = {}
        for name, method in methods.items():
            start = perf_counter()
            rows[name] = self._row(method, trace)
            seconds[name] = perf_counter() - start
        return trace, rows, seconds

    def _seed(self, number: int) -> int:
        """Return an example's own seed, however the run is divided."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def _mean_of_draws(
        self, number: int, score: Callable[[np.random.Generator], dict[str, float]]
    ) -> dict[str, float]:
        """Return the mean scores of random orders, drawn anew for each example."""
        rng = np.random.default_rng([self.seed, number])
        draws = [score(rng) for _ in range(RANDOM_ORDERS)]
        return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def label_methods(methods: Sequence[str | Method]) -> dict[str, Method]:
    """Return methods by their labels; at least one, each once."""
    instances = [make_method(method) for method in methods]
    labelled = {method.label: method for method in instances}
    if not instances or len(labelled) < len(instances):
        raise InputError(
            f"methods={[method.label for method in instances]}: at least one is needed, each once."
        )
    return labelled
