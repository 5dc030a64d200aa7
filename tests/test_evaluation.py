"""Evaluation against plain loops of single passes and scipy; runs that stop and go on; verdicts."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from attnflow import Flow, Rollout, capture, evaluate
from attnflow.cli.app import _run
from attnflow.errors import FileError, InputError, ModelError, progress
from attnflow.errors.progress import Progress, ProgressCallback, listening
from attnflow.evaluation import Evaluation, Record, Texts
from attnflow.evaluation.importance import BlankOut
from attnflow.evaluation.records import Journal
from attnflow.evaluation.report import beating
from attnflow.evaluation.run import draw_examples
from attnflow.evaluation.subjects import base as judging
from attnflow.evaluation.subjects import texts
from attnflow.evaluation.subjects.examples import LabelledText, read_texts
from attnflow.hosts.fingerprint import digest_bytes, digest_tokenizer, digest_weights
from attnflow.hosts.model import Model
from attnflow.methods import make_method, trace_methods
from attnflow.models.verb_number import load_verb_number
from attnflow.testing import tiny_encoder
from attnflow_experiments.verb_number import data as agreement
from attnflow_experiments.verb_number.data import template_examples
from torture_evaluation import run_script

TEXTS = [
    "the key to the cabinets",
    "some people in the old city",
    "the officers that the king saw near the river",
    "the author of the books",
    "the reports about the school",
]
QUICK: dict[str, Any] = {"methods": ["rollout", "alti"], "samples": 3}


@pytest.fixture(scope="module")
def embedded() -> Model:
    return Model(*load_verb_number())


@pytest.fixture(scope="module")
def found(embedded: Model) -> Evaluation:
    methods = ["rollout", "alti", Flow()]
    return evaluate(embedded, TEXTS, methods)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def probability(model: Any, ids: list[int], choice: int) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0].double().softmax(-1)[choice])


def scores_of(result: Evaluation) -> list[Any]:
    return [(r.number, r.answer, r.probability, r.scores, r.left_out) for r in result.records]


# -- the numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method"), [("rollout", Rollout()), ("alti", make_method("alti"))]
)
def test_every_number_is_that_of_a_plain_loop(
    found: Evaluation, embedded: Model, name: str, method: Any
) -> None:
    model, vocabulary = embedded
    assert sorted(found.examples) == sorted(TEXTS)
    for record in found.records:
        ids, _ = vocabulary.encode(found.examples[record.number])
        whole = [probability(model, ids, choice) for choice in (0, 1)]
        answer = int(np.argmax(whole))
        assert (record.choice, record.answer) == (answer, model.labels[answer])
        assert record.probability == pytest.approx(whole[answer], abs=1e-6)

        def hiding(
            places: Any, ids: list[int] = ids, unk: int = vocabulary.unk_id, answer: int = answer
        ) -> float:
            return probability(
                model, [unk if i in places else x for i, x in enumerate(ids)], answer
            )

        words = list(range(1, len(ids) - 1))
        blanked = [abs(whole[answer] - hiding([i])) for i in words]
        trace = capture(
            (model, vocabulary),
            found.examples[record.number],
            record=method.requires.record,
        )
        row = method(trace).values[-1, 0, words]
        scores = record.scores[name]
        expected = stats.spearmanr(row, blanked).statistic
        assert scores["blank-out spearman"] == pytest.approx(expected, abs=1e-9)
        expected = stats.kendalltau(row, blanked).statistic
        assert scores["blank-out kendall"] == pytest.approx(expected, abs=1e-9)

        order = [words[k] for k in np.argsort(-row, kind="stable")]
        counts = [int(np.ceil(k * len(words) / 10 - 1e-9)) for k in range(11)]
        without = np.array([hiding(order[:count]) for count in counts])
        only = np.array([hiding(order[count:]) for count in counts])
        assert scores["comprehensiveness"] == pytest.approx(
            np.mean(whole[answer] - without[1:6]), abs=1e-5
        )
        assert scores["sufficiency"] == pytest.approx(np.mean(whole[answer] - only[1:6]), abs=1e-5)
        assert scores["deletion"] == pytest.approx(np.trapezoid(without, dx=0.1), abs=1e-5)
        assert scores["insertion"] == pytest.approx(np.trapezoid(only, dx=0.1), abs=1e-5)


def test_the_gradient_is_autograds(found: Evaluation, embedded: Model) -> None:
    model, vocabulary = embedded
    record = found.records[0]
    ids, _ = vocabulary.encode(found.examples[0])
    vectors: list[torch.Tensor] = []

    def keep(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        vectors.append(output.detach().requires_grad_())
        return vectors[0]

    handle = model.word_embedding.register_forward_hook(keep)
    model(torch.tensor([ids])).logits[0].softmax(-1)[record.choice].backward()
    handle.remove()
    assert vectors[0].grad is not None
    norms = vectors[0].grad[0].norm(dim=-1)[1:-1].numpy()
    row = Rollout()(capture((model, vocabulary), found.examples[0])).values[-1, 0, 1:-1]
    expected = stats.spearmanr(row, norms).statistic
    assert record.scores["rollout"]["gradient spearman"] == pytest.approx(expected)


def test_random_orders_differ_from_text_to_text(embedded: Model) -> None:
    """The same text twice: methods score the same, random orders are drawn anew."""
    twice = [TEXTS[2], TEXTS[2]]
    result = evaluate(embedded, twice, ["rollout"])
    first, second = result.records
    assert first.scores["rollout"] == second.scores["rollout"]
    for metric in ("comprehensiveness", "blank-out spearman"):
        assert first.scores["random"][metric] != second.scores["random"][metric]


def test_a_text_is_captured_once_for_all_methods(
    embedded: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append([method.name for method in options["methods"]])
        return capture(*arguments, **options)

    monkeypatch.setattr(judging, "capture", counted)
    monkeypatch.setattr(texts, "_TIMED", 0)
    methods = ["rollout", "gradient-rollout", "alti"]
    evaluate(embedded, TEXTS, methods)
    assert asked[:3] == [[method] for method in methods]  # each tried
    assert asked[3:] == [methods] * len(TEXTS)


def test_costs_and_saturation(found: Evaluation) -> None:
    for method in found.methods:
        own = np.mean([record.seconds[method] for record in found.records])
        capturing = np.median([record.capture[method] for record in found.records])
        assert found.seconds(method) == pytest.approx(own + capturing)
    assert found.saturation("rollout") is None
    assert found.collapse("flow") == 0  # of a flow saturation is said
    share = found.saturation("flow")
    assert share is not None
    assert share > 0.5
    assert any("flow is saturated" in sentence for sentence in found.verdict())


def test_what_happens_inside_a_slow_text_is_told(
    embedded: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stages(patience: float) -> set[str]:
        monkeypatch.setattr(progress, "_PATIENCE", patience)
        steps: list[Progress] = []
        with listening(steps.append):
            evaluate(embedded, TEXTS, **QUICK)
        return {step.stage for step in steps}

    outside = {"fingerprint of the weights", "trying the methods", "texts"}
    assert stages(1e9) == outside
    assert stages(0) >= outside | {"blank-out", "input-gradient", "faithfulness"}


# -- what is drawn --------------------------------------------------------------------------------


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    texts = [
        LabelledText(t) for t in ["one", *(f"text number {k}" for k in range(20)), "two words"]
    ]
    subject = Texts(min_words=3)
    every = draw_examples(subject, texts, seed=0, skip=0)
    assert sorted(every, key=texts.index) == texts[1:21]
    assert draw_examples(subject, texts, seed=0, skip=5) == every[5:]
    assert draw_examples(subject, texts, seed=1, skip=0) != every
    with pytest.raises(InputError, match=r"22 texts 20 can be drawn .*min_words=3.* 20 of these"):
        draw_examples(subject, texts, seed=0, skip=20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is a whole number from 1 to 1,000,000; got 0"),
        ({"skip": -1}, "skip is a whole number of at least 0; got -1"),
        ({"subject": lambda: Texts(min_words=0)}, "min_words is a whole number of at least 1"),
        ({"methods": []}, "at least one is needed"),
        ({"methods": ["rollout", Rollout()]}, "each once"),
        ({"methods": ["rolout"]}, "Did you mean 'rollout'"),
        ({"subject": lambda: Texts(by="mask")}, "by='mask': this tokenizer has no such token"),
    ],
)
def test_bad_requests(embedded: Model, options: Any, message: str) -> None:
    subject = options.pop("subject", Texts)
    with pytest.raises((InputError, ModelError), match=message):
        evaluate(embedded, TEXTS, subject=subject(), **options)


def test_rows_are_named_by_what_is_not_default() -> None:
    assert Flow().label == "flow"
    assert Flow(capacities="gradients", residual=0.5, heads="max").label == (
        "gradient-flow:heads=max,residual=0.5"
    )


def test_methods_a_model_cannot_run_are_left_out_with_the_reason(embedded: Model) -> None:
    methods = ["rollout", Rollout(matrices="norms-layernorm")]
    result = evaluate(embedded, TEXTS[:2], methods)
    assert result.methods == ("rollout",)
    assert list(result.refused) == ["norm-rollout:matrices=norms-layernorm"]
    assert any(
        s.startswith("Left out, norm-rollout:matrices=norms-layernorm: ") for s in result.verdict()
    )
    with pytest.raises(ModelError, match="No method can be run on this model"):
        evaluate(embedded, TEXTS[:2], methods[1:])


def test_texts_that_cannot_be_used_are_left_out_with_the_reason() -> None:
    loaded = tiny_encoder("bert", head="MaskedLM")
    texts = ["the author talked to [MASK]", "no mask in here", "[MASK] key", "her [MASK] book"]
    result = evaluate(loaded, texts, ["rollout"], subject=Texts(min_words=1))
    reasons = {result.examples[r.number]: r.left_out for r in result.records}
    assert "gives no answer" in reasons["no mask in here"]
    assert "fewer than two words" in reasons["[MASK] key"]  # the mask is no word
    assert [reasons[texts[0]], reasons[texts[3]]] == ["", ""]
    assert len(result.values("rollout", "sufficiency")) == 2
    assert "2 of 4 texts were left out" in result.verdict()[-1]
    with pytest.raises(ModelError, match=r"on the first 1 texts: .*no answer"):
        evaluate(loaded, texts[1:2])


def test_a_causal_model_is_read_at_its_last_token() -> None:
    import transformers

    tokenizer = tiny_encoder().tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_attention_heads=4, num_key_value_heads=2, **sizes
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    texts = ["the author talked to sara", "her book about the key"]
    result = evaluate((model, tokenizer), texts, ["rollout", "gradient-rollout", "alti"])
    assert result.methods == ("rollout", "gradient-rollout", "alti")
    assert all(np.isfinite(result.values(m, "comprehensiveness")).all() for m in result.methods)


# -- stopping and going on ------------------------------------------------------------------------


def interrupt_after(texts: int) -> ProgressCallback:
    def interrupt(step: Progress) -> None:
        if (step.stage, step.done) == ("texts", texts):
            raise KeyboardInterrupt

    return interrupt


def test_a_run_that_was_stopped_goes_on(embedded: Model, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    methods = ["rollout", "gradient-rollout"]
    whole = evaluate(embedded, TEXTS, methods)

    def run(callback: Any = None, samples: int | None = None) -> Evaluation:
        with listening(callback):
            return evaluate(embedded, TEXTS, methods, samples=samples, journal=path)

    with pytest.raises(KeyboardInterrupt):
        run(interrupt_after(2))
    assert len(path.read_text().splitlines()) == 3
    with path.open("a") as lines:
        lines.write('{"number": 2, "answ')  # what an interruption in the middle of a line leaves
    steps: list[Progress] = []
    resumed = run(steps.append)
    assert [step[1:3] for step in steps if step.stage == "texts"] == [(3, 5), (4, 5), (5, 5)]
    assert Progress("trying the methods", 1, 2) in steps
    assert any(step.stage == "fingerprint of the weights" for step in steps)
    assert scores_of(resumed) == scores_of(whole)
    assert resumed.settings == whole.settings
    assert scores_of(run(interrupt_after(0))) == scores_of(whole)  # nothing is left to do
    assert scores_of(run(samples=2)) == scores_of(whole)[:2]
    assert len(path.read_text().splitlines()) == 6


def test_another_run_is_not_gone_on_with(embedded: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def run(**changed: Any) -> Evaluation:
        options = {**QUICK, "samples": 1, "journal": path, **changed}
        return evaluate(embedded, options.pop("texts", TEXTS), **options)

    run()
    kept = path.read_bytes()
    for changed, message in (
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"methods": ["flow"]}, r"methods was \['rollout', 'alti'\] and is \['flow'\]"),
        ({"subject": Texts(by="pad")}, "by was 'unk' and is 'pad'"),
        ({"skip": 1}, "skip was 0 and is 1"),
        ({"texts": TEXTS[:3]}, "texts was 5 and is 3"),
        ({"texts": [*TEXTS[:4], "other words here"]}, "data was '[0-9a-f]+' and is"),
    ):
        with pytest.raises(InputError, match=message):
            run(**changed)
    changed_model, _ = load_verb_number()
    with torch.no_grad():
        changed_model.word_embedding.weight[0, 0] += 1
    with pytest.raises(InputError, match="holds another run: weights was"):
        evaluate((changed_model, embedded.tokenizer), TEXTS, **QUICK, journal=path)
    assert path.read_bytes() == kept


def test_a_file_that_is_not_ours_or_damaged_is_left_alone(embedded: Model, tmp_path: Path) -> None:
    def run(path: Path) -> Evaluation:
        return evaluate(embedded, TEXTS, **QUICK, journal=path)

    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\nare here, without a last line end")
    with pytest.raises(FileError, match="was not written by `attnflow evaluate`"):
        run(notes)
    assert notes.read_text() == "my notes\nare here, without a last line end"
    path = tmp_path / "run.jsonl"
    run(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2], lines[3]]) + "\n")
    with pytest.raises(FileError, match=r"Line 2 of .* should be the record of example 0"):
        run(path)
    path.write_text("\n".join([lines[0], "{}", lines[3]]) + "\n")
    with pytest.raises(FileError, match=r"Line 2 of .* is damaged"):
        run(path)
    path.write_text(lines[0][:40])  # stopped while the first line was written
    assert len(run(path).records) == 3
    with pytest.raises(FileError, match="cannot be written"):
        run(notes / "run.jsonl")


# -- what follows ---------------------------------------------------------------------------------


def test_a_journal_is_locked_while_a_run_writes_it(embedded: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    options: Any = {**QUICK, "journal": path}
    refusals: list[str] = []

    def second_run(step: Progress) -> None:
        if step == Progress("texts", 1, 3):
            with pytest.raises(FileError, match="is being written by another run") as refusal:
                evaluate(embedded, TEXTS, **options)
            refusals.append(str(refusal.value))

    with listening(second_run):
        first = evaluate(embedded, TEXTS, **options)
    assert "name another place" in refusals[0]
    assert scores_of(evaluate(embedded, TEXTS, **options)) == scores_of(first)
    assert len(path.read_text().splitlines()) == 4


ONE: Any = {**QUICK, "samples": 1}


@pytest.fixture(scope="module")
def journal_of_one(embedded: Model, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The header and the only record of a run."""
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    evaluate(embedded, TEXTS, **ONE, journal=path)
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["scores"]["alti"].pop("sufficiency"),
        lambda r: r["scores"]["alti"].update(sufficiency="much"),
        lambda r: r["scores"].pop("random"),
        lambda r: r["scores"].update(other={}),
        lambda r: r["seconds"].pop("alti"),
        lambda r: r["seconds"].update(alti=None),
        lambda r: r.update(left_out=1),
        lambda r: r.update(left_out="because"),
        lambda r: r.update(left_out=True, scores={}),
        lambda r: r.update(number=True),
        lambda r: r.update(number=0.0),
        lambda r: r.update(answer=3),
        lambda r: r.update(probability="high"),
        lambda r: r.update(extra=1),
        lambda r: r.pop("capture"),
        lambda r: r.update(scores=[]),
    ],
)
def test_a_changed_line_of_a_journal_is_refused(
    embedded: Model, journal_of_one: list[str], tmp_path: Path, change: Any
) -> None:
    header, line = journal_of_one
    record = json.loads(line)
    change(record)
    path = tmp_path / "run.jsonl"
    path.write_text(f"{header}\n{json.dumps(record)}\n")
    with pytest.raises(FileError, match=r"Line 2 of .* should be the record of example 0, with"):
        evaluate(embedded, TEXTS, **ONE, journal=path)


def test_a_line_without_an_end_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("one line of notes, without a line end")
    with pytest.raises(FileError, match="was not written by `attnflow evaluate`"):
        Journal(notes, {"weights": "1f"})
    assert notes.read_text() == "one line of notes, without a line end"
    ours = tmp_path / "ours.jsonl"
    for beginning in ("", '{"form', '{"format": "attnflow evaluation 1", "fing'):
        ours.write_text(beginning)  # killed while the first line was written
        with Journal(ours, {"weights": "1f"}) as journal:
            assert journal.records(bool) == []
        assert ours.read_text().endswith('"settings": {"weights": "1f"}}\n')
    ours.write_text('{"format": "attnflow evaluation 1"}\n')
    with pytest.raises(FileError, match="was not written by"):
        Journal(ours, {"weights": "1f"})
    ours.write_text("[" * 100_000 + "\n")
    with pytest.raises(FileError, match="was not written by"):
        Journal(ours, {"weights": "1f"})


def test_every_weight_counts_in_the_fingerprint() -> None:
    model, _ = load_verb_number()
    before = digest_weights(model)
    assert digest_weights(load_verb_number()[0]) == before
    weight = model.word_embedding.weight
    with torch.no_grad():
        weight[-1, -1] = torch.nextafter(weight[-1, -1], torch.tensor(9.0))  # one bit, the last
    assert digest_weights(model) != before
    half = torch.nn.Linear(2, 2).to(torch.bfloat16)
    assert digest_weights(half) != digest_weights(half.float())
    with pytest.raises(InputError, match="only where all weights of the model are in memory"):
        Journal(Path("never.jsonl"), {"weights": digest_weights(half.to("meta"))})


def test_the_tokenizer_counts_in_the_fingerprint() -> None:
    tokenizer = tiny_encoder().tokenizer
    before = digest_tokenizer(tokenizer)
    tokenizer(["one", "two words"], padding=True, truncation=True, max_length=3)
    assert digest_tokenizer(tokenizer) == before  # how it was called last does not matter
    assert digest_tokenizer(tiny_encoder().tokenizer) == before
    tokenizer.add_tokens(["another"])
    assert digest_tokenizer(tokenizer) != before
    _, vocabulary = load_verb_number()
    words = list(vocabulary.tokens)
    words[-1], words[-2] = words[-2], words[-1]
    other = type(vocabulary)(tuple(words), vocabulary.max_length)
    assert digest_tokenizer(other) != digest_tokenizer(vocabulary)
    assert digest_bytes([b"ab"]) == digest_bytes([b"a", b"b"])


def test_kills_and_runs_at_once_lose_nothing() -> None:
    assert run_script("kills,together", 2, seed=1) == (4, [])


def made(
    n: int = 60, *, saturated: float = 0.9, labels: Any = None, **rows: tuple[float, float]
) -> Evaluation:
    """An evaluation with known comprehensiveness and sufficiency, and noise of size .1."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(n):
        scores = {}
        for row, (comprehensive, sufficient) in {"random": (0.2, 0.3), **rows}.items():
            noise = rng.normal(size=3) * 0.1
            scores[row] = {
                "comprehensiveness": comprehensive + noise[0],
                "sufficiency": sufficient + noise[1],
                "deletion": 0.5,
                "insertion": 0.5,
                "blank-out spearman": comprehensive + noise[2],
                "blank-out kendall": np.nan,
            }
        scores["(blank-out)"] = scores["random"]
        records.append(
            Record(
                number=number, answer="yes", choice=1, probability=0.9, scores=scores,
                seconds=dict.fromkeys(rows, 0.1), capture=dict.fromkeys(rows, 0.2),
                saturated={"flow": saturated} if "flow" in rows else {},
            )
        )  # fmt: skip
    return Evaluation(
        subject=Texts(by="unk", measures={"blank-out": BlankOut()}), methods=tuple(rows),
        baselines=("random", "(blank-out)"), records=tuple(records), refused={},
        examples=tuple(f"text {k}" for k in range(n)), labels=tuple(labels or [None] * n),
        settings={"model": "m"},
    )  # fmt: skip


def test_a_clear_winner_is_named() -> None:
    result = made(rollout=(0.3, 0.2), flow=(0.25, 0.25), alti=(0.5, 0.05))
    said = result.verdict()
    assert said[0].startswith("Trust alti most here")
    assert "clearly ahead of the next, rollout" in said[1]
    assert said[2].startswith("alti beats plain rollout and plain flow in both")
    assert "alti agrees best with blank-out: Spearman 0.5" in said[3]
    assert said[3].endswith("clearly.")
    assert any("flow is saturated: 90 %" in sentence for sentence in said)
    assert beating(result, ["rollout", "flow"]) == ["alti"]
    assert not any("saturated" in s for s in made(flow=(0.3, 0.2), saturated=0.1).verdict())


def test_better_in_one_metric_only_is_not_better() -> None:
    result = made(rollout=(0.3, 0.2), alti=(0.5, 0.2), raw=(0.3, 0.05), flow=(0.2, 0.4))
    assert beating(result, ["rollout", "flow"]) == []
    assert beating(result, ["flow"]) == ["rollout", "alti", "raw"]
    said = result.verdict()
    assert said[0].startswith("Trust alti most here")
    together = "alti and raw are clearly more faithful than plain rollout and plain flow by "
    assert any(s.startswith(together) and s.endswith("the two alone.") for s in said)
    assert not any(s.startswith("No other method") for s in said)


def test_that_no_method_beats_the_plain_ones_is_said_only_where_none_is_ahead() -> None:
    said = made(rollout=(0.5, 0.05), flow=(0.5, 0.05), raw=(0.3, 0.2)).verdict()
    assert "No other method is clearly more faithful than plain rollout and plain flow." in said


def test_printed_an_evaluation_is_a_summary(found: Evaluation) -> None:
    assert repr(found) == "<Evaluation of rollout, alti, flow on 5 texts>"
    lines = str(found).splitlines()
    assert lines[0] == repr(found)
    assert len(lines) == 2 + len(found.rows) + len(found.verdict())
    assert all(len(line) < 400 for line in lines)
    best = max(found.rows, key=lambda row: found.summary(row, "faithfulness").mean)
    assert lines[2].split()[0] == best


def test_limits_are_told_by_the_verdict_and_not_by_warnings(embedded: Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = evaluate(embedded, TEXTS[:2], ["flow", "rollout"])
    assert any("flow is saturated" in sentence for sentence in result.verdict())
    records = [replace(record, collapsed={"rollout": 1.0}) for record in result.records]
    collapsed = replace(result, records=tuple(records))
    assert collapsed.collapse("rollout") == 1
    assert any(s.startswith("Collapsed at the highest") for s in collapsed.verdict())


def test_nothing_to_trust_is_said() -> None:
    said = made(rollout=(0.2, 0.3), alti=(0.21, 0.3)).verdict()
    assert said[0].startswith("Trust none of these methods here")
    assert any(s.startswith("No method clearly agrees with blank-out") for s in said)
    said = made(rollout=(0.4, 0.1), alti=(0.4, 0.1)).verdict()
    assert said[1].startswith("All methods are within noise of each other")
    said = made(rollout=(0.4, 0.1), alti=(0.4, 0.1), raw=(0.0, 0.6), flow=(0.2, 0.3)).verdict()
    assert re.match(r"Its lead over \w+ could be chance", said[1])
    assert "Less faithful here than a random order: raw." in said
    assert "Not clearly more faithful here than a random order: flow." in said
    said = made(n=4, rollout=(0.2, 0.3), alti=(0.2, 0.3)).verdict()
    assert said[0] == "4 texts are too few to tell any method from a random order."


def test_accuracy_is_of_labels_by_name_or_number() -> None:
    rows: Any = {"rollout": (0.3, 0.2)}
    assert made(n=4, labels=["yes", "no", "yes", None], **rows).accuracy() == pytest.approx(2 / 3)
    assert made(n=4, labels=["1", "0", "1", "1"], **rows).accuracy() == pytest.approx(3 / 4)
    assert made(n=2, labels=["VBZ", "VBP"], **rows).accuracy() is None  # labels of something else


def test_comparisons_and_summaries_are_those_of_the_values(found: Evaluation) -> None:
    one, other = (found.values(m, "sufficiency") for m in ("alti", "rollout"))
    compared = found.compare("alti", "rollout", "sufficiency")
    assert compared.difference == pytest.approx(np.mean(one - other))
    assert found.table()["alti"]["sufficiency"].mean == pytest.approx(one.mean())
    faithful = found.values("alti", "faithfulness")
    assert faithful == pytest.approx(found.values("alti", "comprehensiveness") - one)
    with pytest.raises(InputError, match=r"metric='suficiency': Did you mean 'sufficiency'"):
        found.values("alti", "suficiency")
    with pytest.raises(InputError, match="row='raw'"):
        found.values("raw", "sufficiency")


def test_csv_and_json_hold_every_number(found: Evaluation) -> None:
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == len(TEXTS) * 6
    alti = [float(row["sufficiency"]) for row in rows if row["row"] == "alti"]
    assert alti == pytest.approx(found.values("alti", "sufficiency").tolist(), rel=1e-5)
    undefined = made(n=3, rollout=(0.3, 0.2))
    record = json.loads(json.dumps(undefined.to_dict(), allow_nan=False))
    assert record["table"]["rollout"]["blank-out kendall"]["mean"] is None
    again = Record.from_dict(json.loads(json.dumps(undefined.records[0].to_dict())))
    assert np.isnan(again.scores["rollout"]["blank-out kendall"])


def test_tables_fit_eighty_columns_even_with_long_names() -> None:
    rows: Any = {"gradient-flow:residual=0.5": (-0.3, -0.2), "flow": (0.3, 0.2)}
    for table in made(**rows).tables():
        assert all(len(line) <= 80 for line in table.lines())
    names = [line.split("  ")[0] for line in made(**rows).tables()[0].lines()]
    assert [name for name in names if name] == [*rows, "random", "(blank-out)"]


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return str(path)


def test_the_command_on_the_embedded_model(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    chosen = ["--methods", "rollout", "--methods", "gradient-flow:residual=0.5"]
    arguments = ["evaluate", "--data", data, *chosen, "--samples", "3", "--output", str(folder)]
    assert _run(arguments) == 0
    shown = capsys.readouterr()
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert "3 texts from texts.txt; words blanked by 'unk'" in shown.out
    assert "gradient-flow:residual=0.5" in shown.out
    assert "→ 3 texts are too few" in shown.out
    assert "\x1b" not in shown.out
    assert sorted(p.name for p in folder.iterdir()) == [
        f"evaluation.{ending}" for ending in ("csv", "jsonl", "md", "png")
    ]
    page = (folder / "evaluation.md").read_text(encoding="utf-8")
    assert (
        "`attnflow evaluate --data texts.txt --methods rollout "
        "--methods gradient-flow:residual=0.5 "
        "--skip 0 --samples 3 --seed 0`"
    ) in page
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert len((folder / "evaluation.jsonl").read_text().splitlines()) == 4
    assert _run([*arguments, "--seed", "1"]) == 2  # the folder holds another run
    assert "seed was 0 and is 1" in capsys.readouterr().err


def test_the_command_on_a_classifier_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = tiny_encoder("bert", head="SequenceClassification")
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    data = tmp_path / "data.csv"
    lines = ["the author talked to sara,0", "her book about the key,1", "the key of sara,0"]
    data.write_text("\n".join(["review,label", *lines]), encoding="utf-8")
    arguments = ["evaluate", "--model", str(tmp_path), "--data", str(data), "--json"]
    assert _run(arguments) == 2
    assert "The columns are 'review', 'label'" in capsys.readouterr().err
    assert _run([*arguments, "--column", "review"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["texts"] == 3
    assert 0 < record["accuracy"] <= 1
    assert record["refused"] == {}
    assert list(record["table"])[:3] == ["raw", "rollout", "flow"]
    assert len(record["table"]) == len(trace_methods()) + 1 + 2
    assert set(record["seconds"]) == set(list(record["table"])[: len(trace_methods())])


def test_an_interrupted_command_says_how_to_go_on(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    arguments = ["evaluate", "--data", data, "--methods", "raw", "--journal", str(path), "--json"]

    @contextmanager
    def stopping(*_: str) -> Iterator[None]:
        with listening(interrupt_after(2)):
            yield

    with monkeypatch.context() as patched:
        patched.setattr("attnflow.cli.evaluate.progress_bars", stopping)
        assert _run(arguments) == 130
        assert f"interrupted; 2 texts are kept in '{path}'" in capsys.readouterr().err
        assert _run(arguments[:5]) == 130  # nothing is kept where no file was named
        assert "nothing was written" in capsys.readouterr().err
    assert _run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 5


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--by", "blank"], 2, "by='blank'"),
        (["--methods", "flow:residual"], 2, "NAME:key=value,key=value"),
        (["--samples", "0"], 2, "samples is a whole number from 1"),
    ],
)
def test_bad_usage_of_the_command(
    data: str, arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["evaluate", "--data", data, *arguments]) == status
    assert message in capsys.readouterr().err


def test_the_held_out_part_is_what_training_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("NATURAL_DISTINCT", 10), ("DEV", 2), ("TEST", 5)):
        monkeypatch.setattr(agreement, name, number)
    path = tmp_path / "numpred.val"
    lines = [f"{'VBZ' if k % 2 else 'VBP'}\tthe key number {k}" for k in range(10)]
    path.write_text("\n".join(lines), encoding="utf-8")
    expected = agreement.held_out(agreement.read_agreement(path))
    table = tmp_path / "held-out.tsv"
    assert _run(["experiment", "held-out", str(path), str(table)]) == 0
    read = read_texts(table)
    assert len(read) == 5
    assert [(x.text, x.label) for x in read] == [
        (" ".join(e.words), str(e.label)) for e in expected
    ]


def test_gradients_beat_rollout_and_flow_on_the_embedded_model() -> None:
    """On template sentences, by what hiding their strongest words takes away and leaves."""
    texts = [" ".join(example.words) for example in template_examples(24)]
    balanced, relative = "balanced:readings=inputs", Flow(capacities="gradients", residual=0.5)
    methods = ["rollout", Flow(), relative, "alti", balanced]
    result = evaluate(None, texts, methods, subject=Texts(batch_size=256))
    for other in ("rollout", "flow"):
        assert result.compare(balanced, other, "comprehensiveness").low > 0
        assert result.compare(balanced, other, "sufficiency").high < 0
        assert result.compare("gradient-flow:residual=0.5", other, "sufficiency").high < 0
        assert result.compare("alti", other, "comprehensiveness").low > 0
