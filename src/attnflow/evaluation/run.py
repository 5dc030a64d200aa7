"""Running an evaluation: every text once, for all methods together, kept as it goes."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow._version import __version__
from attnflow.errors import InputError, MethodError, MissingDependencyError, ModelError
from attnflow.evaluation.faithfulness import Curves, Faithfulness
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.importance.blanking import BlankToken
from attnflow.evaluation.importance.passes import Passes
from attnflow.evaluation.journal import Journal
from attnflow.evaluation.metrics import kendall, spearman
from attnflow.evaluation.results import RANDOM, Evaluation, Record
from attnflow.hosts.capture import capture, provenance_of
from attnflow.hosts.load import load_model
from attnflow.methods import METHODS, Flow, Method, Requirements, make_method
from attnflow.trace import AttentionTrace

__all__ = ["Progress", "evaluate_methods", "label_of"]

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

_TIMED = 5  # texts on which each method is also captured alone, for its cost
_TRIED = 20  # texts after which a model that could answer none is given up
_RANDOM_ORDERS = 5
_NO_EFFECT = ("threads",)  # options that do not change a result
_BLANKS: tuple[BlankToken, ...] = ("unk", "mask", "pad")
_CANNOT = (ModelError, MethodError, MissingDependencyError)


def evaluate_methods(
    model: nn.Module | str | os.PathLike[str] | None,
    texts: Sequence[str],
    *,
    tokenizer: Any = None,
    methods: Sequence[str | Method] | None = None,
    measures: Mapping[str, Measure] | None = None,
    labels: Sequence[str | None] | None = None,
    by: BlankToken | None = None,
    min_words: int = 2,
    skip: int = 0,
    samples: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    resume: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Which attribution agrees with what this model uses on these texts?

    The row that is judged is that of the position the model's answer is read from, at the highest
    layer; only words are ranked. Each text is captured once for all methods.

    model: a Hugging Face name, a local path, a loaded model (then pass its `tokenizer` too), or
        None for the model that ships with attnflow.
    methods: names or methods such as `Flow(residual=0.4)`; default: all. Those that the model
        cannot be explained by are left out, with the reason.
    measures: what methods are correlated with, by a name; default: blank-out and input gradients.
    labels: the right answer of each text, if known; only the model's accuracy is read from it.
    by: what a word is blanked by, "unk", "mask", "pad" or "delete"; default: the first there is.
    min_words: texts with fewer words, as spaces divide them, are not drawn.
    skip, samples: of the texts in an order drawn by `seed`, leave out so many and take so many
        (default: all). With a larger `samples` the first ones are the same.
    resume: a file that every text's result is kept in; if it is there, the run goes on after it.
    progress: called as `progress(done, total)` after each text.
    """
    if model is None or isinstance(model, (str, os.PathLike)):
        model, found = load_model(model)
        tokenizer = tokenizer or found
    order = _drawn(texts, min_words=min_words, seed=seed, skip=skip)
    _check_samples(samples)
    blank = by or _blank(Passes.over(model, tokenizer, batch_size))
    run = _Run(
        model=model,
        tokenizer=tokenizer,
        methods=_named(methods if methods is not None else list(METHODS)),
        measures=measures or {"blank-out": BlankOut(by=blank), "gradient": InputGradient()},
        texts=tuple(texts[k] for k in order),
        by=blank,
        seed=seed,
        batch_size=batch_size,
    )
    settings = {**run.settings(), "min_words": min_words, "skip": skip}
    records, refused = run(len(order[:samples]), settings, resume, progress)
    return Evaluation(
        methods=tuple(name for name in run.methods if name not in refused),
        measures=tuple(run.measures),
        records=records,
        refused=refused,
        texts=run.texts,
        labels=tuple(None if labels is None else labels[k] for k in order),
        settings=settings,
    )


def _drawn(texts: Sequence[str], *, min_words: int, seed: int, skip: int) -> list[int]:
    """Which texts, in which order; the whole order is drawn, so that a longer run goes on."""
    if isinstance(texts, str) or not texts:
        raise InputError(f"A list of texts is needed; got {texts!r}.")
    if not isinstance(skip, int) or skip < 0 or not isinstance(min_words, int) or min_words < 1:
        raise InputError(f"skip={skip!r}, min_words={min_words!r}: at least 0, and at least 1.")
    order = [k for k, text in enumerate(texts) if len(text.split()) >= min_words]
    random.Random(seed).shuffle(order)
    if not order[skip:]:
        raise InputError(
            f"Of {len(texts)} texts {len(order)} have at least {min_words} words, and {skip} of "
            "these are skipped: none is left."
        )
    return order[skip:]


def _check_samples(samples: int | None) -> None:
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise InputError(f"samples is a number of at least 1; got {samples!r}.")


def _blank(passes: Passes) -> BlankToken:
    return next((name for name in _BLANKS if name in passes.ids.blanks), "delete")


def label_of(method: Method) -> str:
    """A method's name, and every option that is not as by default."""
    changed = [
        f"{field.name}={value}"
        for field in fields(method)
        if field.name not in _NO_EFFECT and (value := getattr(method, field.name)) != field.default
    ]
    return " ".join([method.name, *changed])


def _named(methods: Sequence[str | Method]) -> dict[str, Method]:
    made = [make_method(method) for method in methods]
    named = {label_of(method): method for method in made}
    if not made or len(named) < len(made):
        raise InputError(
            f"methods={[label_of(method) for method in made]}: at least one is needed, each once."
        )
    return named


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """Everything a record depends on."""

    model: nn.Module
    tokenizer: Any
    methods: Mapping[str, Method]
    measures: Mapping[str, Measure]
    texts: tuple[str, ...]
    by: BlankToken
    seed: int
    batch_size: int

    def settings(self) -> dict[str, Any]:
        """In words, for the first line of a journal: the same settings give the same numbers."""
        about = provenance_of(self.model, str(next(self.model.parameters()).dtype))
        return {
            "attnflow": __version__,
            "model": about["model"],
            "weights": _fingerprint_of(self.model),
            "data": _digest("\n".join(self.texts).encode()),
            "texts": len(self.texts),
            "methods": list(self.methods),
            "measures": {name: repr(measure) for name, measure in self.measures.items()},
            "by": self.by,
            "random_orders": _RANDOM_ORDERS,
            "seed": self.seed,
        }

    def __call__(
        self,
        count: int,
        settings: Mapping[str, Any],
        resume: str | os.PathLike[str] | None,
        progress: Progress | None,
    ) -> tuple[tuple[Record, ...], dict[str, str]]:
        """Records of the first `count` texts, and the methods that were refused."""
        journal = None if resume is None else Journal(Path(resume), settings)
        records = journal.begin() if journal else []
        refused = self._refused(count)
        usable = {name: each for name, each in self.methods.items() if name not in refused}
        for number in range(len(records), count):
            records.append(self._record(number, usable))
            if journal:
                journal.append(records[-1])
            if progress is not None:
                progress(number + 1, count)
        kept = tuple(records[:count])
        if all(record.left_out for record in kept):
            raise ModelError(f"None of {count} texts could be used: {kept[0].left_out}")
        return kept, refused

    def _refused(self, count: int) -> dict[str, str]:
        """Why methods cannot be run, seen on the first text that the model answers.

        Running each once also compiles what has to be compiled, so that no text is charged for it.
        """
        text = self._answered(count)
        refused: dict[str, str] = {}
        for name, method in self.methods.items():
            try:
                self._row(method, self._captured(text, {name: method}))
            except _CANNOT as error:
                refused[name] = str(error)
        if len(refused) == len(self.methods):
            reasons = " ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise ModelError(f"No method can be run on this model. {reasons}")
        return refused

    def _answered(self, count: int) -> str:
        reasons = []
        for text in islice(self.texts[:count], _TRIED):
            try:
                self._importance(text)
            except (InputError, ModelError) as error:
                reasons.append(error)
            else:
                return text
        raise ModelError(
            f"Importance could not be measured on the first {len(reasons)} texts: {reasons[0]}"
        ) from reasons[0]

    def _importance(self, text: str) -> dict[str, Importance]:
        return {
            name: measure(self.model, [text], tokenizer=self.tokenizer, batch_size=self.batch_size)[
                0
            ]
            for name, measure in self.measures.items()
        }

    def _captured(self, text: str, methods: Mapping[str, Method]) -> AttentionTrace:
        """One pass with everything these methods need."""
        return capture(self.model, text, tokenizer=self.tokenizer, methods=list(methods.values()))

    def _row(self, method: Method, trace: AttentionTrace) -> tuple[Floats, float | None]:
        """Values of the answer's position at the highest layer; how much of them is saturated."""
        if trace.prediction is None:
            raise ModelError("The model gives no answer, so there is no position to explain.")
        found = method(trace, targets=[trace.prediction.position], layers=-1)
        saturated = isinstance(method, Flow) and found.saturated is not None
        share = float(found.saturated[0, 0].mean()) if saturated else None  # type: ignore[index]
        return found.values[0, 0], share

    def _record(self, number: int, methods: Mapping[str, Method]) -> Record:
        text = self.texts[number]
        try:
            importance = self._importance(text)
            ranked = _ranked(list(importance.values()))
            if ranked.sum() < 2:
                return Record(number=number, left_out="There are fewer than two words to rank.")
            return self._judged(number, text, methods, importance, ranked)
        except (InputError, ModelError) as error:
            return Record(number=number, left_out=str(error))

    def _judged(
        self,
        number: int,
        text: str,
        methods: Mapping[str, Method],
        importance: Mapping[str, Importance],
        ranked: NDArray[np.bool_],
    ) -> Record:
        trace = self._captured(text, methods)
        rows: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        saturated: dict[str, float] = {}
        for name, method in methods.items():
            start = perf_counter()
            rows[name], share = self._row(method, trace)
            seconds[name] = perf_counter() - start
            if share is not None:
                saturated[name] = share
        references = {f"({name})": np.nan_to_num(each.values) for name, each in importance.items()}
        curves = self._curves(number, text, {**rows, **references})
        agreed = {name: _agreement(row, importance, ranked) for name, row in rows.items()}
        agreed |= {RANDOM: self._by_chance(number, importance, ranked)}
        agreed |= {name: _agreement(row, importance, ranked) for name, row in references.items()}
        answer = next(iter(importance.values()))
        return Record(
            number=number,
            answer=answer.answer,
            choice=answer.choice,
            probability=answer.probability,
            scores={name: {**found, **_faithful(curves[name])} for name, found in agreed.items()},
            seconds=seconds,
            capture=self._alone(text, methods) if number < _TIMED else {},
            saturated=saturated,
        )

    def _curves(self, number: int, text: str, rows: Mapping[str, Floats]) -> dict[str, Curves]:
        """Random orders are drawn anew for each text, and the same however the run is divided."""
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        return Faithfulness(by=self.by, random_orders=_RANDOM_ORDERS, seed=seed)(
            self.model,
            [text],
            {name: [row] for name, row in rows.items()},
            tokenizer=self.tokenizer,
            batch_size=self.batch_size,
        )

    def _by_chance(
        self, number: int, importance: Mapping[str, Importance], ranked: NDArray[np.bool_]
    ) -> dict[str, float]:
        """The mean correlation of random orders."""
        rng = np.random.default_rng([self.seed, number])
        found = [
            _agreement(rng.random(len(ranked)), importance, ranked) for _ in range(_RANDOM_ORDERS)
        ]
        return {metric: float(np.mean([each[metric] for each in found])) for metric in found[0]}

    def _alone(self, text: str, methods: Mapping[str, Method]) -> dict[str, float]:
        """Seconds of capturing just what each method needs; methods with equal needs share it."""
        seconds: dict[Requirements, float] = {}
        for method in methods.values():
            if method.requires not in seconds:
                start = perf_counter()
                self._captured(text, {"": method})
                seconds[method.requires] = perf_counter() - start
        return {name: seconds[method.requires] for name, method in methods.items()}


def _ranked(importance: Sequence[Importance]) -> NDArray[np.bool_]:
    """The words that every measure could measure; tokens that frame the text are no words."""
    measured = np.all([np.isfinite(each.values) for each in importance], axis=0)
    return np.asarray(measured & importance[0].is_word)


def _agreement(
    row: Floats, importance: Mapping[str, Importance], ranked: NDArray[np.bool_]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, each in importance.items():
        found[f"{name} spearman"] = spearman(row[ranked], each.values[ranked])
        found[f"{name} kendall"] = kendall(row[ranked], each.values[ranked])
    return found


def _faithful(curves: Curves) -> dict[str, float]:
    return {
        "comprehensiveness": float(curves.comprehensiveness[0]),
        "sufficiency": float(curves.sufficiency[0]),
        "deletion": float(curves.deletion_area[0]),
        "insertion": float(curves.insertion_area[0]),
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fingerprint_of(model: nn.Module) -> str:
    """From the first few numbers of every parameter: another checkpoint differs in some of them."""
    first = [
        parameter.detach().flatten()[:8].float().cpu().numpy().tobytes()
        for parameter in model.parameters()
    ]
    return _digest(b"".join(first))
