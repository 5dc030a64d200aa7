"""One text: what the model uses, what each method says, and how well they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError, MissingDependencyError, ModelError
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.faithfulness import Curves, Faithfulness
from attnflow.evaluation.importance import Importance, Measure
from attnflow.evaluation.importance.blanking import BlankToken
from attnflow.evaluation.metrics import kendall, spearman
from attnflow.evaluation.records import RANDOM, Record
from attnflow.hosts.capture import capture
from attnflow.methods import Flow, Method, Requirements, quiet_about_limits
from attnflow.methods.rows import pooled_row
from attnflow.trace import AttentionTrace

__all__ = ["RANDOM_ORDERS", "Judge"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RANDOM_ORDERS = 5
_TIMED = 5  # texts on which each method is also captured alone, for its cost
_TRIED = 20  # texts after which a model that could answer none is given up
_CANNOT = (ModelError, MethodError, MissingDependencyError)


@dataclass(frozen=True, eq=False)
class _Case:
    """One text with what the model uses of it, and the words that are ranked."""

    number: int
    text: str
    importance: Mapping[str, Importance]
    words: Bools


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """A model, and by what methods are judged on it."""

    model: nn.Module
    tokenizer: Any
    measures: Mapping[str, Measure]
    by: BlankToken
    seed: int
    batch_size: int

    def refusals(self, texts: Sequence[str], methods: Mapping[str, Method]) -> dict[str, str]:
        """Why methods cannot be run, seen on the first text that the model answers.

        Running each once also compiles what has to be compiled, so that no text is charged for it.
        """
        text = self._first_with_an_answer(texts)
        reasons: dict[str, str] = {}
        for k, (name, method) in enumerate(methods.items()):
            tell("trying the methods", k, len(methods))
            try:
                with patiently():
                    self._row(method, self._capture(text, [method]))
            except _CANNOT as error:
                reasons[name] = str(error)
        tell("trying the methods", len(methods), len(methods))
        if len(reasons) == len(methods):
            refusals = " ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise ModelError(f"No method can be run on this model. {refusals}")
        return reasons

    def record(self, number: int, text: str, methods: Mapping[str, Method]) -> Record:
        """Everything that is measured of one text, or why it cannot be used."""
        try:
            with patiently():
                importance = self._importance(text)
                words = _words(list(importance.values()))
                if words.sum() < 2:
                    return Record(number=number, left_out="There are fewer than two words to rank.")
                return self._judge(_Case(number, text, importance, words), methods)
        except (InputError, ModelError) as error:
            return Record(number=number, left_out=str(error))

    def _first_with_an_answer(self, texts: Sequence[str]) -> str:
        reasons = []
        for text in islice(texts, _TRIED):
            try:
                with patiently():
                    self._importance(text)
            except (InputError, ModelError) as error:
                reasons.append(error)
            else:
                return text
        raise ModelError(
            f"Importance could not be measured on the first {len(reasons)} texts: {reasons[0]}"
        ) from reasons[0]

    def _importance(self, text: str) -> dict[str, Importance]:
        options = {"tokenizer": self.tokenizer, "batch_size": self.batch_size}
        return {
            name: measure(self.model, [text], **options)[0]
            for name, measure in self.measures.items()
        }

    def _capture(self, text: str, methods: Sequence[Method]) -> AttentionTrace:
        """One pass with everything these methods need."""
        return capture(self.model, text, tokenizer=self.tokenizer, methods=methods)

    def _row(self, method: Method, trace: AttentionTrace) -> Attribution:
        """Values of the answer's position at the highest layer."""
        if trace.prediction is None:
            raise ModelError("The model gives no answer, so there is no position to explain.")
        with quiet_about_limits():  # the verdict tells of collapse and saturation
            if trace.prediction.pooled:
                return pooled_row(method(trace, layers=-1))
            return method(trace, targets=[trace.prediction.position], layers=-1)

    def _judge(self, case: _Case, methods: Mapping[str, Method]) -> Record:
        trace = self._capture(case.text, list(methods.values()))
        rows: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        saturated: dict[str, float] = {}
        collapsed: dict[str, float] = {}
        for name, method in methods.items():
            start = perf_counter()
            result = self._row(method, trace)
            seconds[name] = perf_counter() - start
            rows[name] = result.values[0, 0]
            if isinstance(method, Flow) and result.saturated is not None:
                saturated[name] = float(result.saturated[0, 0].mean())
            else:
                collapsed[name] = float(bool(result.collapsed))
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
        """Every metric of the methods, of random orders, and of the measures themselves."""
        references = {
            f"({name})": np.nan_to_num(each.values) for name, each in case.importance.items()
        }
        curves = self._curves(case, {**rows, **references})
        agreement = {name: _agreement(row, case) for name, row in rows.items()}
        agreement[RANDOM] = self._agreement_by_chance(case)
        agreement |= {name: _agreement(row, case) for name, row in references.items()}
        return {name: {**each, **_faithful(curves[name])} for name, each in agreement.items()}

    def _curves(self, case: _Case, rows: Mapping[str, Floats]) -> dict[str, Curves]:
        """Random orders are drawn anew for each text, and the same however the run is divided."""
        seed = int(np.random.SeedSequence([self.seed, case.number]).generate_state(1)[0])
        return Faithfulness(by=self.by, random_orders=RANDOM_ORDERS, seed=seed)(
            self.model,
            [case.text],
            {name: [row] for name, row in rows.items()},
            tokenizer=self.tokenizer,
            batch_size=self.batch_size,
        )

    def _agreement_by_chance(self, case: _Case) -> dict[str, float]:
        """The mean correlation of random orders."""
        rng = np.random.default_rng([self.seed, case.number])
        draws = [_agreement(rng.random(len(case.words)), case) for _ in range(RANDOM_ORDERS)]
        return {metric: float(np.mean([draw[metric] for draw in draws])) for metric in draws[0]}

    def _capture_seconds(self, text: str, methods: Mapping[str, Method]) -> dict[str, float]:
        """Seconds of capturing just what each method needs; methods with equal needs share it."""
        seconds: dict[Requirements, float] = {}
        for method in methods.values():
            if method.requires not in seconds:
                start = perf_counter()
                self._capture(text, [method])
                seconds[method.requires] = perf_counter() - start
        return {name: seconds[method.requires] for name, method in methods.items()}


def _words(importance: Sequence[Importance]) -> Bools:
    """The words that every measure could measure; tokens that frame the text are no words."""
    measured = np.all([np.isfinite(each.values) for each in importance], axis=0)
    return np.asarray(measured & importance[0].is_word)


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
