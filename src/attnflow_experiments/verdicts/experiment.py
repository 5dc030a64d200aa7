"""Does an answer rest on the documents? The verdict of `ask` against what is known.

Each question is asked as `attnflow ask` asks it, and the verdict on the statement with the answer
is held against whether the answer stands in the documents, or only in the model's memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from attnflow.attribution.verdict import Verdict
from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.explainers.answers import ask
from attnflow.hosts.model import CALIBRATION, Model
from attnflow_experiments.ablation.data import PARTS, Part
from attnflow_experiments.journal import append_record, read_journal
from attnflow_experiments.report import Report
from attnflow_experiments.verdicts.data import (
    KINDS,
    OF_FACTS,
    GroundedCase,
    Kind,
    filling_texts,
    grounded_cases,
)

_MOST_WRITTEN = 24  # tokens of an answer
_FRAME = 96  # tokens of the question, the chat template and the answer
_BINS = 10
_DRAWS = 1000
_LEAST_KNOWN = 10  # answers from documents, and from memory, that a curve is fitted to
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class VerdictsExperiment:
    """The experiment.

    part: "development", to fit the calibration, or "held-out", to report once.
    kinds: which questions. questions: at most so many facts, and so many of each other kind.
    lengths: fill the documents of facts up with other passages to so many tokens; 0 adds nothing.
    """

    part: Part = "development"
    kinds: Sequence[Kind] = KINDS
    questions: int | None = None
    lengths: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise InputError(f"part={self.part!r}. The parts are {', '.join(PARTS)}.")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InputError(f"No questions {unknown[0]!r}. There are {', '.join(KINDS)}.")

    def __call__(self, model: Model, *, data: Path | None, journal: Path | None) -> Report:
        """Ask, judge, and keep each question in the journal as it is done."""
        cases = list(self._cases(model, data))
        done = read_journal(journal)
        records = []
        for number, (name, length, case) in enumerate(cases):
            tell("verdicts", number, len(cases))
            record = done.get(name)
            if record is None:
                about = {"name": name, "kind": case.kind, "length": length}
                record = {**about, **_try(model, case)}
                append_record(journal, record)
            records.append(record)
        tell("verdicts", len(cases), len(cases))
        return self._report(records)

    def _cases(self, model: Model, data: Path | None) -> Iterator[tuple[str, int, GroundedCase]]:
        @cache
        def count(text: str) -> int:
            return len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) + 2

        for case in grounded_cases(data, self.part, self.kinds, self.questions):
            for length in self.lengths if case.kind in OF_FACTS else (0,):
                question = case.question
                if length:
                    question = question.filled_up(filling_texts(data), length - _FRAME, count)
                filled = GroundedCase(case.name, case.kind, question, case.known)
                yield f"{length}-{case.name}", length, filled

    def calibrate(self, journal: Path, model: Path) -> Path:
        """Write the curve that fits the answers of a journal into the folder of their model."""
        known = _known(list(read_journal(journal).values()))
        sides = [sum(bool(record["rests"]) is side for record in known) for side in (True, False)]
        if min(sides) < _LEAST_KNOWN:
            raise InputError(
                f"{sides[0]} answers rest on the documents and {sides[1]} come from memory; a "
                f"curve is fitted to at least {_LEAST_KNOWN} of each: ask more questions."
            )
        middle, slope = fit(known)
        curve = {"middle": middle, "slope": slope, "answers": len(known)}
        file = model / CALIBRATION
        file.write_text(json.dumps(curve, indent=2) + "\n", encoding="utf-8")
        return file

    def _report(self, records: Sequence[Mapping[str, Any]]) -> Report:
        judged = [record for record in records if record["verdict"] is not None]
        middle, slope = fit(_known(judged)) if judged else (float("nan"),) * 2
        return Report(
            name="verdicts",
            title=f"From the documents or from memory, {self.part}",
            protocol=(
                "Each question is asked as `attnflow ask` asks it. An answer rests on the "
                "documents where they state it: facts beside a passage that agrees or that says "
                "something else, which the model repeats; ordinary documents. It comes from memory "
                "where the true fact is said though no document states it, or where no word of it "
                "beyond the question's stands in them.",
                "AUROC: of the probability that the statement rests on the documents. Claimed: a "
                "source is named for an answer from memory. Missed: 'no source found' is said of "
                "an answer whose document, left out, changes it. Either: of a fact that stands in "
                "two documents it is said that either is enough. Calibration: the expected error "
                f"of the probability, {_BINS} bins.",
                "95 % bootstrap intervals over answers.",
            ),
            tables=(_by_length(judged), _rates(judged), _by_kind(judged)),
            findings=(f"A curve fitted to these answers: middle {middle:.2f}, slope {slope:.2f}.",),
        )


def _try(model: Model, case: GroundedCase) -> dict[str, Any]:
    """Ask, and note the verdict on the statement with the answer."""
    documents = dict(case.question.documents)
    answer = ask(model, case.question.question, documents, max_new_tokens=_MOST_WRITTEN)
    telling = [each for each in answer.statements if case.rests(each.text) is not None]
    statement = telling[0] if telling else None
    rests = None if statement is None else case.rests(statement.text)
    needed = None
    if rests and case.kind == "ordinary":
        others = {
            k: v for n, (k, v) in enumerate(documents.items()) if n not in case.question.right
        }
        without = ask(
            model, case.question.question, others, max_new_tokens=_MOST_WRITTEN, check=False
        )
        needed = case.rests(without.text) is None
    verdict = None if statement is None else statement.verdict
    return {
        "answer": answer.text,
        "rests": rests,
        "needed": needed,
        "named": None if statement is None else [each.name for each in statement.sources[:1]],
        "verdict": None if verdict is None else verdict.to_dict(),
    }


def _known(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records of answers that have a verdict and of which it is known what is right."""
    return [each for each in records if each["verdict"] is not None and each["rests"] is not None]


def fit(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return middle and slope of the likeliest logistic curve."""
    support = np.array([Verdict.from_dict(each["verdict"]).support for each in records])
    rests = np.array([bool(each["rests"]) for each in records])
    signs = np.where(rests, -1.0, 1.0)
    support = np.clip(support, -5, 15)

    def surprise(curve: Floats) -> float:
        odds = signs * (curve[0] * support + curve[1])
        pull = 0.005 * (curve @ curve)  # a small one to 0, for classes that do not meet
        return float(np.logaddexp(0.0, odds).sum() + pull)

    steep, level = minimize(surprise, np.zeros(2)).x.tolist()
    return -level / steep, steep


def auroc(positive: Floats, negative: Floats) -> float:
    """Return how often a positive one is above a negative one; a tie counts half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return float("nan")
    differences = positive[:, None] - negative[None]
    return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def calibration_error(probabilities: Floats, outcomes: Floats) -> float:
    """Return how far the probabilities of each bin are from its share of outcomes, in the mean."""
    bins = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    gaps = [
        np.sum(bins == k) * abs(probabilities[bins == k].mean() - outcomes[bins == k].mean())
        for k in np.unique(bins)
    ]
    return float(np.sum(gaps) / len(bins)) if len(bins) else float("nan")


def _by_length(records: Sequence[Mapping[str, Any]]) -> Table:
    cells = {}
    facts = [each for each in records if each["kind"] in OF_FACTS and each["rests"] is not None]
    for length in dict.fromkeys(int(each["length"]) for each in facts):
        scores = {
            rests: np.array(
                [_support(r) for r in facts if r["rests"] is rests and r["length"] == length]
            )
            for rests in (True, False)
        }
        name = f"{length} tokens" if length else "as they are"
        counts = tuple(Cell(float(len(scores[rests]))) for rests in (True, False))
        cells[name] = (_auroc_cell(scores[True], scores[False]), *counts)
    return Table("lengths", "Known facts", ("AUROC", "from documents", "from memory"), cells)


def _auroc_cell(positive: Floats, negative: Floats) -> Cell:
    rng = np.random.default_rng(0)
    samples = [
        auroc(rng.choice(positive, len(positive)), rng.choice(negative, len(negative)))
        for _ in range(_DRAWS if len(positive) and len(negative) else 0)
    ]
    low, high = np.percentile(samples, [2.5, 97.5]) if samples else (None, None)
    count = len(positive) + len(negative)
    return Cell(auroc(positive, negative), None, low, high, n=count)


def _rates(records: Sequence[Mapping[str, Any]]) -> Table:
    known = [each for each in records if each["rests"] is not None]
    memory = [each["verdict"]["kind"] != "none" for each in known if not each["rests"]]
    missed = [each["verdict"]["kind"] == "none" for each in known if each["needed"]]
    either = [
        each["verdict"]["kind"] == "either"
        for each in known
        if each["kind"] == "doubled" and each["rests"]
    ]
    verdicts = [Verdict.from_dict(each["verdict"]) for each in known]
    probabilities = np.array([each.rests_on_documents for each in verdicts])
    outcomes = np.array([float(each["rests"]) for each in known])
    error = Cell(calibration_error(probabilities, outcomes), n=len(known))
    shares = [
        Cell.of_share(summarize(np.array(hits, dtype=float))) for hits in (memory, missed, either)
    ]
    columns = ("claimed", "missed", "either", "calibration error")
    return Table("rates", "Verdicts", columns, {"ask": (*shares, error)})


def _by_kind(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return how often each verdict is given, by kind of question and where the answer is from."""
    verdicts = ("rests", "either", "together", "partly", "none")
    cells = {}
    for kind in dict.fromkeys(str(each["kind"]) for each in records):
        for rests in (True, False):
            members = [r for r in records if r["kind"] == kind and r["rests"] is rests]
            if members:
                hits = [[r["verdict"]["kind"] == name for r in members] for name in verdicts]
                shares = [Cell.of_share(summarize(np.array(each, dtype=float))) for each in hits]
                cells[f"{kind}, {'documents' if rests else 'memory'}"] = tuple(shares)
    return Table("kinds", "What is said of them", verdicts, cells)


def _support(record: Mapping[str, Any]) -> float:
    return Verdict.from_dict(record["verdict"]).support
