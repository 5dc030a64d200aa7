"""Is an answer from the documents told from memory? The cases, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import attnflow
from attnflow.attribution.verdict import Verdict
from attnflow.errors import FileError, InputError
from attnflow.testing import tiny_decoder
from attnflow_experiments.journal import append_record
from attnflow_experiments.verdicts.data import KINDS, GroundedCase, grounded_cases
from attnflow_experiments.verdicts.experiment import (
    VerdictsExperiment,
    auroc,
    calibration_error,
    fit,
)

PLACES = ("Rome", "Oslo", "Lima", "Cairo", "Paris", "Kyoto", "Quito", "Delhi")


def facts(folder: Path) -> Path:
    lines = [
        {"prompt": f"Person {k} lives in", "subject": f"Person {k}", "answer": place,
         "relation": "P1"}
        for k, place in enumerate(PLACES)
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    (folder / "known-facts.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_each_fact_is_asked_in_three_ways(tmp_path: Path) -> None:
    folder = facts(tmp_path)
    found = {
        part: list(grounded_cases(folder, part, KINDS[:3], None))
        for part in ("development", "held-out")
    }
    assert sorted(len(cases) for cases in found.values()) != [0, 3 * len(PLACES)]
    assert not {c.name for c in found["development"]} & {c.name for c in found["held-out"]}
    by_kind: dict[str, GroundedCase] = {case.kind: case for case in found["held-out"][:3]}
    agreeing, contradicting, unrelated = (by_kind[kind] for kind in KINDS[:3])
    true = agreeing.question.answers[0]
    (wrong,) = contradicting.question.answers
    assert agreeing.rests(f"It is {true}.") is True
    assert contradicting.rests(f"It is {wrong}.") is True
    assert contradicting.rests(f"It is {true}.") is False
    assert unrelated.rests(f"It is {true}.") is False
    assert unrelated.rests("I do not know.") is None
    other = next(p for p in PLACES if any(p in text for _, text in unrelated.question.documents))
    assert unrelated.rests(f"It is {true}, or {other}.") is None  # a word of a document


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"known-facts\.jsonl.*--data"):
        list(grounded_cases(tmp_path, "held-out", KINDS[:1], None))
    with pytest.raises(InputError, match="rumours"):
        VerdictsExperiment(kinds=("rumours",))  # type: ignore[arg-type]


def test_numbers_are_those_of_scipy_and_of_a_known_curve() -> None:
    rng = np.random.default_rng(0)
    support = rng.uniform(-4, 8, 4000)
    rests = rng.uniform(size=4000) < 1 / (1 + np.exp(-1.5 * (support - 2)))
    wins = mannwhitneyu(support[rests], support[~rests]).statistic
    expected = wins / (rests.sum() * (~rests).sum())
    assert auroc(support[rests], support[~rests]) == pytest.approx(expected)
    exact = 1 / (1 + np.exp(-1.5 * (support - 2)))
    assert calibration_error(exact, rests.astype(float)) < 0.02
    assert calibration_error(1 - exact, rests.astype(float)) > 0.5
    records = [
        {"rests": bool(r), "verdict": Verdict("rests", ("a",), 1, 0.0, -float(x)).to_dict()}
        for x, r in zip(support, rests, strict=True)
    ]
    middle, slope = fit(records)
    assert (middle, slope) == pytest.approx((2, 1.5), abs=0.1)  # the curve that drew them


def test_a_model_has_a_curve_of_its_own(tmp_path: Path) -> None:
    """Fitted to answers that were kept, it lies in the model's folder, and verdicts follow it."""
    module, tokenizer = tiny_decoder()
    module.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rng = np.random.default_rng(0)
    records = []
    for k, x in enumerate(rng.uniform(-2, 8, 400).tolist()):
        verdict = Verdict("rests", ("a",), 1, 0.0, -x, -9.0, -9.0).to_dict()
        rests = bool(rng.uniform() < 1 / (1 + np.exp(-2 * (x - 4))))
        records.append({"name": str(k), "rests": rests, "verdict": verdict})
    journal = tmp_path / "kept.jsonl"
    experiment = VerdictsExperiment()
    for record in records[:5]:
        append_record(journal, record)
    with pytest.raises(InputError, match="at least 10"):
        experiment.calibrate(journal, tmp_path / "model")
    for record in records[5:]:
        append_record(journal, record)
    file = experiment.calibrate(journal, tmp_path / "model")
    loaded = attnflow.load(str(tmp_path / "model"))
    assert loaded.calibration == pytest.approx(fit(records))
    texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    (statement,) = attnflow.grounded(loaded, "the cabinets", texts, question="the keys")
    verdict = statement.verdict
    assert verdict is not None
    assert verdict.curve == loaded.calibration
    middle, slope = fit(records)
    expected = 1 / (1 + np.exp(-slope * (verdict.support - middle)))
    assert verdict.rests_on_documents == pytest.approx(expected)
    for broken in ("{}", '{"middle": NaN, "slope": 1}', '{"middle": 1, "slope": -2}'):
        file.write_text(broken, encoding="utf-8")
        with pytest.raises(FileError, match=r"attnflow-verdicts\.json"):
            _ = attnflow.load(str(tmp_path / "model")).calibration
