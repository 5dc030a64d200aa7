"""Which attribution of a language model agrees with ablations, on data it was not chosen by?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import FileError, InputError, did_you_mean
from attnflow.errors.progress import relaying
from attnflow.evaluation import CompletionPrompt, Evaluation, Prompts, evaluate
from attnflow.evaluation.metrics import summarize
from attnflow.evaluation.subjects.prompts import LEAVE_ONE_DOCUMENT_OUT
from attnflow.evaluation.subjects.rankings import named_rankings
from attnflow.evaluation.table import Cell, Table
from attnflow_experiments.ablation.data import PARTS, Part, facts, passages, questions
from attnflow_experiments.report import Report

DATA_FILES: Mapping[str, tuple[str, ...]] = {
    "text": ("enwik8.gz", "enwik8", "text.txt"),
    "documents": ("questions.jsonl", "squad/questions.jsonl"),
}
"""Where each kind of data is looked for in the user's folder; facts are made, not read."""


@dataclass(frozen=True)
class Kind:
    """A kind of data: its title, and how its prompts are run."""

    title: str
    samples: int
    options: Mapping[str, Any] = field(default_factory=dict)
    ablated: bool = True


_NEXT_TOKEN = {"level": "word", "exclude_last_word": True, "max_new_tokens": 1}
KINDS: Mapping[str, Kind] = {
    "facts": Kind("Facts: the word that states the answer", 96, _NEXT_TOKEN),
    "text": Kind("Running text: the next token", 60, _NEXT_TOKEN),
    "documents": Kind(
        "Questions: the paragraph among five that answers",
        60,
        {"level": "sentence", "max_new_tokens": 14, "stop": "\n", "documents": True},
        ablated=False,
    ),
}


def prompts_of(
    kind: str, part: Part, folder: Path | None, skip: int = 0
) -> list[CompletionPrompt] | None:
    """The prompts of one kind after the first `skip`; None where the folder has no file of it."""
    prompts = _all_prompts(kind, part, folder, skip)
    if prompts is not None and len(prompts) <= skip:
        raise InputError(f"There are {len(prompts)} prompts of {kind}; {skip} cannot be skipped.")
    return None if prompts is None else prompts[skip:]


def _all_prompts(
    kind: str, part: Part, folder: Path | None, skip: int
) -> list[CompletionPrompt] | None:
    if kind == "facts":
        return facts(part)
    if folder is None:
        return None
    if not folder.is_dir():
        raise FileError(f"There is no folder {str(folder)!r} to read data from.")
    path = next((folder / name for name in DATA_FILES[kind] if (folder / name).is_file()), None)
    if path is None:
        return None
    return passages(path, part, skip=skip) if kind == "text" else questions(path, part)


Floats = NDArray[np.float64]
REFERENCE = "leave-one-out"
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "facts": {
        "lds": "LDS",
        "drop": "drop",
        "share": "share of leave-one-out's drop",
        "first": "true word first",
        "top": "in the top 3",
        "sentence": "right sentence",
        "any sentence": "of all sentences",
    },
    "text": {"lds": "LDS", "drop": "drop", "share": "share of leave-one-out's drop"},
    "documents": {
        "sentence": "right sentence",
        "document": "right document",
        "agreed": "right document, where leaving out agrees",
    },
}


def kind_table(kind: str, evaluation: Evaluation) -> Table:
    """One kind of data: methods × figures, with 95 % intervals over prompts."""
    columns = dict(_COLUMNS[kind])
    if REFERENCE not in evaluation.rows:
        columns.pop("share", None)
    rows = {
        row: (*(_cell(evaluation, row, name) for name in columns), Cell(evaluation.seconds(row)))
        for row in evaluation.rows
    }
    headings = (*columns.values(), "seconds")
    return Table(kind, KINDS[kind].title, headings, rows, _note(kind, evaluation))


def _cell(evaluation: Evaluation, row: str, name: str) -> Cell:
    if name == "share":
        ratio, low, high = bootstrap_ratio(
            evaluation.values(row, "drop"), evaluation.values(REFERENCE, "drop")
        )
        return Cell(ratio, low=low, high=high, n=len(evaluation.used))
    if name == "agreed":
        values = evaluation.values(row, "document")
        return Cell.of_share(summarize(values[_agreed(evaluation)]))
    return Cell.of_share(evaluation.summary(row, name))


def bootstrap_ratio(values: ArrayLike, others: ArrayLike) -> tuple[float, float, float]:
    """Return mean(values) / mean(others) over the same examples, with its percentile interval.

    The mean of ratios would be ruled by examples whose denominator is near zero. Examples where
    either side is undefined are left out.

    >>> bootstrap_ratio([1.0, 1.0], [2.0, 2.0])
    (0.5, 0.5, 0.5)
    """
    pair = np.stack([np.asarray(values, float), np.asarray(others, float)])
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    count = pair.shape[1]
    if not count:
        return (math.nan,) * 3
    draws = np.random.default_rng(0).integers(count, size=(2_000, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = pair[0][draws].mean(axis=1) / pair[1][draws].mean(axis=1)
        ratio = float(pair[0].mean() / pair[1].mean())
    tail = (1 - 0.95) / 2 * 100
    low, high = np.nanpercentile(ratios, [tail, 100 - tail])
    return ratio, float(low), float(high)


def _agreed(evaluation: Evaluation) -> NDArray[np.bool_]:
    """Prompts whose true document matters most when each is hidden: there the truth is certain."""
    return np.asarray(evaluation.values(LEAVE_ONE_DOCUMENT_OUT, "document") == 1)


def _note(kind: str, evaluation: Evaluation) -> str:
    note = f"{len(evaluation.used)} of {len(evaluation.records)} prompts that were run count."
    if kind == "documents":
        note += f" Leaving out one document at a time agrees on {int(_agreed(evaluation).sum())}."
    for row, reason in evaluation.refused.items():
        note += f" Left out, {row}: {reason}"
    return note


def differences_table(kind: str, evaluation: Evaluation) -> Table:
    """The first method less each other, on the same prompts, with the sign-flip test's p."""
    first, *others = evaluation.rows
    compared_names = [n for n in ("lds", "drop", "first", "document") if n in _COLUMNS[kind]]
    names = [name for name in compared_names if _has(evaluation, name)]
    rows = {
        f"{first} − {other}": tuple(
            Cell.of_difference(evaluation.compare(first, other, name)) for name in names
        )
        for other in others
    }
    return Table(
        f"{kind}-differences",
        f"{KINDS[kind].title}: {first} against the others",
        tuple(_COLUMNS[kind][name] for name in names),
        rows,
    )


def _has(evaluation: Evaluation, metric: str) -> bool:
    return metric in {each.name for each in evaluation.metrics}


DEFAULT_METHODS = (
    "default",
    "raw-mean",
    "rollout",
    "ablation-regression",
    "leave-one-out",
)


@dataclass(frozen=True, kw_only=True)
class AblationExperiment:
    """The ablation experiment.

    part: "development", to choose by, or "held-out", to report.
    methods: names as `named_rankings` takes them; differences are those of the first.
    kinds: which data: "facts", "text", "documents".
    samples: at most so many prompts of each kind that count.
    skip: leave out the first prompts of each kind, because they were looked at already.
    ablations: how many random ablations LDS is taken over.
    seed: decides the ablations; which item is in which part never changes.
    """

    part: Part = "development"
    methods: Sequence[str] = DEFAULT_METHODS
    kinds: Sequence[str] = tuple(KINDS)
    samples: int | None = None
    skip: int = 0
    ablations: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            hint = did_you_mean(str(self.part), PARTS)
            raise InputError(f"part={self.part!r}.{hint} The parts are {', '.join(PARTS)}.")
        for kind in self.kinds:
            if kind not in KINDS:
                hint = did_you_mean(str(kind), KINDS)
                raise InputError(f"No data {kind!r}.{hint} There are {', '.join(KINDS)}.")
        samples = 1 if self.samples is None else self.samples
        if self.ablations < 2 or samples < 1 or self.skip < 0:
            raise InputError(
                "ablations is at least 2, samples at least 1 and skip at least 0; got "
                f"{self.ablations}, {self.samples} and {self.skip}."
            )
        named_rankings(self.methods)  # a long run must not fail on a name

    def __call__(self, model: Any, *, data: Path | None, journals: Path | None) -> Report:
        """Run every kind there is data for; `journals` is a folder that keeps each as it goes."""
        evaluations: dict[str, Evaluation] = {}
        missing = []
        for kind in self.kinds:
            prompts = prompts_of(kind, self.part, data, self.skip)
            if prompts is None:
                missing.append(kind)
                continue
            journal = None if journals is None else journals / self.journal_name(kind)
            evaluations[kind] = self._evaluate(kind, model, prompts, journal)
        if not evaluations:
            raise InputError(f"The folder has no data for {', '.join(missing)}.")
        return self._report(evaluations, missing)

    def _evaluate(
        self, kind: str, model: Any, prompts: Sequence[CompletionPrompt], journal: Path | None
    ) -> Evaluation:
        data = KINDS[kind]
        subject = Prompts(ablations=self.ablations if data.ablated else 0, **data.options)
        with relaying(lambda step: step._replace(stage=kind)):
            return evaluate(
                model,
                prompts,
                self.methods,
                subject=subject,
                seed=self.seed,
                samples=self.samples or data.samples,
                journal=journal,
            )

    def journal_name(self, kind: str) -> str:
        """The file that the run on one kind of data is kept in."""
        return f"ablation-{kind}-{self.part}.jsonl"

    def _report(self, evaluations: Mapping[str, Evaluation], missing: list[str]) -> Report:
        tables: list[Table] = []
        findings = []
        for kind, evaluation in evaluations.items():
            tables += [kind_table(kind, evaluation), differences_table(kind, evaluation)]
            findings += [f"{kind}: {sentence}" for sentence in evaluation.verdict()]
        findings += [f"{kind}: left out, the folder holds no such data." for kind in missing]
        model = next(iter(evaluations.values())).settings["model"]
        return Report(
            name="ablation",
            title=f"Attribution against ablations: {Path(str(model)).name}, {self.part}",
            protocol=(
                "Facts and running text: sources are words but the first token's and the last; the "
                "response is the log odds of the model's own next token; what is taken away is "
                "hidden from every query in every layer, positions kept.",
                f"LDS: Spearman, over {self.ablations} random ablations of 30 % of the words, of "
                "the kept words' summed scores and the response. Drop: log odds lost without the "
                "top three words.",
                "Facts count where the model answers rightly. Right sentence: of those that state "
                "facts, where there are several; of all sentences: the question's and the answer's "
                "beginning too.",
                "Questions: sources are the documents' sentences; a document's score is their sum; "
                "the model's whole answer is one target; prompts answered rightly count.",
                "95 % bootstrap intervals over prompts; ties count against a method.",
            ),
            tables=tuple(tables),
            findings=tuple(findings),
        )
