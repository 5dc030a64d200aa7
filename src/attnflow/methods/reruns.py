"""Methods that run the model again: what they are. How they are carried out is in `explainers`.

A method of a trace reads what one forward pass did. These take sources away and look what the
completion loses, so they need the model itself. Their results are `Attribution`s like any other,
with one layer, numbered 0: the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from attnflow.attribution import Attribution
from attnflow.errors import MethodError, shorten, whole_number
from attnflow.errors.arguments import check_fields, check_named, checked_seed
from attnflow.methods.base import Execution, Method, Selection
from attnflow.tokens.units import Level, check_level
from attnflow.trace import AttentionTrace

By = Literal["hide", "replace", "delete"]
RerunScore = Literal["log-prob", "log-odds"]
_MOST_SAMPLES = 1_000_000  # passes: more is a mistake
_MOST_STEPS = 10_000  # passes a target: likewise


@dataclass(frozen=True, kw_only=True)
class RerunMethod(Method):
    """A method that is carried out on a model, a prompt and its completion.

    level: what a source is: "token", "word", "sentence" or "document".
    by: how a source is taken away: "hide", "replace" or "delete".
    score: what is measured: "log-prob" or "log-odds".
    joint: whether all completion tokens are one target.

    >>> LeaveOneOut(level="sentence", joint=True).to_dict()["options"]["level"]
    'sentence'
    """

    reruns_model: ClassVar[bool] = True

    level: Level = "word"
    by: By = "hide"
    score: RerunScore = "log-prob"
    joint: bool = False

    def __post_init__(self) -> None:
        check_level(self.level)
        check_named("by", self.by, get_args(By))
        check_named("score", self.score, get_args(RerunScore))
        check_fields(self)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """Refuse: a trace does not hold the model."""
        raise MethodError(
            f"{self.name!r} runs the model again, and a trace does not hold the model. Use "
            f"attnflow.explain(model, text, {self.label!r}) or attnflow.generate(model, prompt, "
            f"method={self.label!r})."
        )


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(RerunMethod):
    """Leave one out: what the completion loses without each source, a pass for each.

    >>> LeaveOneOut(by="delete").label
    'leave-one-out:by=delete'
    """

    name: ClassVar[str] = "leave-one-out"


@dataclass(frozen=True, kw_only=True)
class AblationRegression(RerunMethod):
    """Ablation regression: a sparse linear model of random ablations, after ContextCite.

    Its cost does not grow with the number of sources.

    samples: how many random ablations, a pass each.
    hidden: the share of the sources that each of them takes away.
    alpha: how strongly small weights are drawn to zero.
    seed: decides which sources are taken away.

    >>> AblationRegression(samples=64).to_dict()["options"]["samples"]
    64
    """

    name: ClassVar[str] = "ablation-regression"
    samples: int = 32
    hidden: float = 0.3
    alpha: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_seed(self.seed)
        if not 2 <= self.samples <= _MOST_SAMPLES:
            raise MethodError(
                f"samples is a number from 2 to {_MOST_SAMPLES:,}; got {self.samples!r}."
            )
        if not 0 < self.hidden < 1 or not 0 <= self.alpha < float("inf"):
            raise MethodError(
                "hidden is a share between 0 and 1, and alpha is a penalty of at least 0; got "
                f"hidden={self.hidden!r}, alpha={self.alpha!r}."
            )


@dataclass(frozen=True, kw_only=True)
class Visibility(RerunMethod):
    """Visibility: what the completion loses while its sources fade, in log odds.

    It takes at most 16 passes a target. All sources fade together along a path that is even in the
    logarithm of their keys' weight; the gradient with respect to each key's weight, summed along
    it, is that key's part. Together is not alone: sources that stand in for each other share what
    one of them would cost. So the strongest then fade one by one. Where one source fades alone the
    sum along its path is the difference of its ends, which takes one pass.

    steps: how many points of the path are taken, each a forward and a backward pass.
    alone: how many of the strongest sources fade alone, a pass each; 0 leaves it at the path.

    >>> Visibility(steps=4).to_dict()["options"]["steps"]
    4
    """

    name: ClassVar[str] = "visibility"
    steps: int = 8
    alone: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)
        _check_count("alone", self.alone, least=0)


@dataclass(frozen=True, kw_only=True)
class Careful(RerunMethod):
    """The careful method: gradient attention and visibility, the best sources checked by hiding.

    A prediction has one third of gradient attention's share of each source and two thirds of
    visibility's, which agrees better with ablations. Each of the `verify` strongest sources is
    then hidden alone. With 4 steps and 5 checks that is ten passes a target, whatever the number
    of sources; the pass of gradient attention also tells what the unchanged prompt gives.

    steps: points of visibility's path.
    verify: how many of the strongest sources are hidden, one pass each.

    >>> Careful().steps + Careful().verify + 1  # passes a target
    10
    """

    name: ClassVar[str] = "careful"
    steps: int = 4
    verify: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)
        _check_count("verify", self.verify)


def _check_count(name: str, count: object, least: int = 1) -> None:
    number = whole_number(count)
    if number is None or not least <= number <= _MOST_STEPS:
        raise MethodError(
            f"{name} is a number from {least} to {_MOST_STEPS:,}; got {shorten(count)}."
        )
