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
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np

from attnflow.errors import InputError, MethodError, MissingDependencyError, ModelError
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.records import RANDOM, Metric, Record
from attnflow.hosts.load import ModelLike
from attnflow.hosts.model import Model
from attnflow.methods import Method, make_method

if TYPE_CHECKING:
    from attnflow.evaluation.results import Evaluation

PathLike = str | os.PathLike[str]
Random = np.random.Generator
Scores = dict[str, float]
T = TypeVar("T")
RANDOM_ORDERS: Final = 5
"""How many random orders are averaged, to stand beside the methods."""

CANNOT = (ModelError, MethodError, MissingDependencyError)
"""The errors by which a method says that it cannot be run on a model."""


class MetricGroup(NamedTuple):
    """Metrics that stand in one table, under its title, with a sentence under it."""

    title: str
    metrics: tuple[Metric, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """What is evaluated, and the settings of it that few people change.

    name: one example, in tables and messages. shuffled: whether the order of the examples is drawn;
    where it is not, `samples` counts only examples that can be used. headline: the metric that
    orders the methods. baselines: the rows that a method must beat to be trusted.
    """

    name: ClassVar[str]
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

    @abstractmethod
    def as_example(self, value: Any) -> Any:
        """Return what stands in a list as an example."""

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

    def heading(self) -> str:
        """Return what is judged and how, for the line above the tables."""
        return ""

    @abstractmethod
    def reason(self, evaluation: Evaluation, best: str) -> str:
        """Return the clause that says why the best method is to be trusted."""

    def findings(self, evaluation: Evaluation) -> list[str]:
        """Return the sentences of the verdict that only this subject has."""
        return []

    def settings(self) -> dict[str, Any]:
        """Return the fields in words: the same settings give the same numbers."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_NUMBERS}


_NO_NUMBERS = ("batch_size", "batch_tokens", "column")


@dataclass(eq=False, kw_only=True)
class Judge(ABC):
    """A subject bound to a model, methods by their labels, and a seed.

    refused: why methods could not be run, filled as they are tried.
    """

    subject: Subject
    model: Model
    methods: Mapping[str, Any]
    seed: int
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> dict[str, Any]:
        """The methods that were not refused."""
        return {name: each for name, each in self.methods.items() if name not in self.refused}

    @property
    @abstractmethod
    def baselines(self) -> tuple[str, ...]:
        """The rows that stand beside the methods."""

    def settings(self) -> dict[str, Any]:
        """Return everything but the examples that the numbers depend on."""
        return {**self.subject.settings(), "methods": list(self.methods), "seed": self.seed}

    def try_methods(self, examples: Sequence[Any]) -> None:
        """Run every method once; those that cannot be run are refused, with the reason.

        This also compiles what has to be compiled, so that no example is charged for it.
        """
        example = self._first_usable(examples)
        for k, (name, method) in enumerate(self.methods.items()):
            tell("trying the methods", k, len(self.methods))
            try:
                with patiently():
                    self._try_method(method, example)
            except CANNOT as error:
                self.refused[name] = str(error)
        tell("trying the methods", len(self.methods), len(self.methods))
        if not self.usable:
            reasons = " ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            raise ModelError(f"No method can be run on this model. {reasons}")

    def _first_usable(self, examples: Sequence[Any]) -> Any:
        """Return the first example that methods can be tried on."""
        return examples[0]

    @abstractmethod
    def _try_method(self, method: Any, example: Any) -> None:
        """Run one method on one example."""

    def _time_methods(self, run: Callable[[Any], T]) -> tuple[dict[str, T], dict[str, float]]:
        """Return what running each usable method gives, and its seconds."""
        results: dict[str, T] = {}
        seconds: dict[str, float] = {}
        for name, method in self.usable.items():
            start = perf_counter()
            results[name] = run(method)
            seconds[name] = perf_counter() - start
        return results, seconds

    def _mean_of_draws(self, number: int, score: Callable[[Random], Scores]) -> Scores:
        """Return the mean scores of random orders, drawn anew for each example."""
        rng = np.random.default_rng([self.seed, number])
        draws = [score(rng) for _ in range(RANDOM_ORDERS)]
        return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}

    @abstractmethod
    def record(self, number: int, example: Any) -> Record:
        """Return everything that is measured of one example, or why it cannot be used."""

    def fits(self, record: Record) -> bool:
        """Return whether a record of a journal is one that this judge could have made."""
        if record.left_out:
            return not record.scores
        return set(record.scores) == {*self.usable, *self.baselines}


def label_methods(methods: Sequence[str | Method]) -> dict[str, Method]:
    """Return methods by their labels; at least one, each once."""
    instances = [make_method(method) for method in methods]
    labelled = {method.label: method for method in instances}
    if not instances or len(labelled) < len(instances):
        raise InputError(
            f"methods={[method.label for method in instances]}: at least one is needed, each once."
        )
    return labelled
