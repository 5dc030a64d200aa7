"""Methods that run the model again: what they are. How they are carried out is in `explainers`.

A method of a trace reads what one forward pass did. These take sources away and look what the
completion loses, so they need the model itself. Their results are `Attribution`s like any other,
with one layer, numbered 0: the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.errors.arguments import check_count, check_fields, checked_seed
from attnflow.methods.base import Execution, Method, Selection
from attnflow.tokens.units import Level
from attnflow.trace import AttentionTrace

By = Literal["hide", "replace", "delete"]
RerunScore = Literal["log-prob", "log-odds"]
_MOST_SAMPLES = 1_000_000  # passes: more is a mistake
_MOST_SOURCES = 10_000  # passes a target: likewise


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

    alone: count what a source holds alone, all others taken away, where that is more. It finds
        sources that say the same, none of which is missed; two passes for each.
    question: count what the question loses, too: all that follows the documents, as if it had been
        written from them like the answer. It finds documents that say what is asked about, which
        the answer itself does not miss. Each is hidden from the question and the answer only,
        which run again beside the cache: all of them cost little more than reading the prompt.
        Sources are documents, and stand before the question.

    >>> LeaveOneOut(by="delete").label
    'leave-one-out:by=delete'
    """

    name: ClassVar[str] = "leave-one-out"
    alone: bool = False
    question: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question and (self.level != "document" or self.by != "hide"):
            raise MethodError(
                "question=True hides whole documents from the question and the answer: take "
                f"level='document' and by='hide'; got level={self.level!r}, by={self.by!r}."
            )


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
        check_count("samples", self.samples, 2, _MOST_SAMPLES, error=MethodError)
        if not 0 < self.hidden < 1 or not 0 <= self.alpha < float("inf"):
            raise MethodError(
                "hidden is a share between 0 and 1, and alpha is a penalty of at least 0; got "
                f"hidden={self.hidden!r}, alpha={self.alpha!r}."
            )


@dataclass(frozen=True, kw_only=True)
class Careful(RerunMethod):
    """The careful method: balanced gradients, and the strongest sources left out to see.

    One balanced pass for each target says which sources count. The strongest of them are then left
    out one by one, those of one length in one batch. That is ten passes a target, whatever the
    number of sources.

    verify: how many of the strongest sources are left out.

    >>> Careful().verify + 2  # passes a target, with the one in which nothing is left out
    10
    """

    name: ClassVar[str] = "careful"
    score: RerunScore = "log-odds"
    verify: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("verify", self.verify, 1, _MOST_SOURCES, error=MethodError)
