"""The bench: what its metrics are, what its journal keeps, and how a method is added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil
from typer.testing import CliRunner

from attnflow import ask
from attnflow.cli.app import _run
from attnflow.errors import InputError, MethodError
from attnflow.evaluation import CompletionPrompt
from attnflow.explainers.ablation import log_odds
from attnflow.explainers.sources import strongest
from attnflow.testing import tiny_decoder, tiny_encoder
from attnflow_experiments.bench import data, images, prompts
from attnflow_experiments.bench.cases import (
    Responses,
    measure_sets,
    prepare_item,
    reference_sets,
    score_item,
)
from attnflow_experiments.bench.command import app, labelled
from attnflow_experiments.bench.data import DATA_SETS, load_items
from attnflow_experiments.bench.findings import COSTS, Findings, Observation, gather
from attnflow_experiments.bench.methods import Peer, as_request, find_method, run_here
from attnflow_experiments.bench.overview import write_sheets
from attnflow_experiments.bench.peers.functions import Case
from attnflow_experiments.bench.plan import BenchPlan
from attnflow_experiments.bench.run import run_bench
from attnflow_experiments.bench.tables import bench_report, write_page
from attnflow_experiments.journal import append_record, read_journal
from attnflow_experiments.options import load_on
from torture_bench import figures, kills, make_plan, save_tiny_model

MINE = """
import numpy as np

def longest(case):
    return np.array([len(name) for name in case.sources.names], dtype=float)
"""
PEER = """#!/usr/bin/env python3
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["completion"] == [0]:
        print(json.dumps({"error": "ValueError: no"}), flush=True)
        continue
    scores = [float(source[0]) for source in request["sources"]]
    cost = {"passes": 3, "seconds": 0.5, "memory": 1.0}
    print(json.dumps({"scores": scores, "log_prob": LOG_PROB, **cost}), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("bench")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # runs are forked
    save_tiny_model(path)
    yield path
    torch.set_num_threads(threads)


def test_metrics_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        count, tokens, top = 5, 3, 2
        scores = rng.integers(0, 4, count).astype(float)  # with ties
        every = [s for k in range(count + 1) for s in combinations(range(count), k)]
        log_prob = {s: -float(rng.uniform(0.1, 6)) for s in every}
        order = sorted(range(count), key=lambda k: (-scores[k], k))
        sets = measure_sets(scores, top)
        measured = {n: np.array([log_prob[s] for s in group]) for n, group in sets.items()}
        values = score_item(scores, (1, 3), top, log_prob, measured, tokens)
        assert "needed" not in values
        for loss, needed in ((0.6, {}), (0.7, {"needed": values["first"]})):  # half is ln 2
            more = score_item(scores, (1, 3), top, log_prob, measured, tokens, loss)
            assert {**values, **needed} == more

        def odds(chosen: Any, log_prob: Any = log_prob) -> float:
            p = np.exp(log_prob[tuple(sorted(chosen))])
            return float(np.log(p / (1 - p)))

        assert values["drop"] == pytest.approx(odds(()) - odds(order[:top]))
        assert values["hold"] == pytest.approx(odds(order[top:]) - odds(range(count)))
        proper = [s for s in every if 0 < len(s) < count]
        kept = [sum(scores[k] for k in range(count) if k not in s) for s in proper]
        if len(set(kept)) > 1:
            assert values["lds"] == pytest.approx(spearmanr(kept, [odds(s) for s in proper])[0])
        losses = []
        for k in range(1, count + 1):
            away = tuple(sorted(order[:k]))
            losses.append(np.exp(log_prob[()] / tokens) - np.exp(log_prob[away] / tokens))
        assert values["aopc"] == pytest.approx(np.mean(losses))
        best = max(scores[1], scores[3])
        assert values["first"] == float(all(scores[k] < best for k in (0, 2, 4)))
        pessimistic = sorted(range(count), key=lambda k: (-scores[k], k in (1, 3), k))
        assert values["recall"] == len({1, 3} & set(pessimistic[:2])) / 2


def test_references_are_all_sets_or_random_ones() -> None:
    assert len(reference_sets(5, 0)) == 2**5 - 2
    many = reference_sets(30, 0)
    assert {len(each) for each in many} == {9}
    assert many == reference_sets(30, 0)
    assert many != reference_sets(30, 1)


def test_every_data_set_has_a_sample_in_two_parts_that_share_nothing(folder: Path) -> None:
    for name, data_set in DATA_SETS.items():
        if data_set.kind == "photos":
            continue
        parts = [load_items(name, folder / "data", part, 3) for part in ("development", "held-out")]
        names = [{item.name for item in items} for items in parts]
        assert all(names), name
        assert not names[0] & names[1], name
        for item in [*parts[0], *parts[1]]:
            if item.question is None:
                continue
            sources = len(item.sentences) or len(item.question.documents)
            right = item.right if item.sentences else item.question.right
            assert all(0 <= k < sources for k in right), name
            assert bool(right) == (name != "no-source"), name


def test_the_right_passage_stands_at_every_place(folder: Path) -> None:
    items = load_items("positions", folder / "data", "development", 1)
    places = [(item.note["documents"], item.note["place"]) for item in items]
    assert places == [(n, k) for n in (5, 10, 20) for k in range(n)]
    for item in items:
        assert item.question is not None
        assert item.question.right == (item.note["place"],)
        assert len(item.question.documents) == item.note["documents"]


def test_what_ablations_say_is_asked_once(folder: Path) -> None:
    plan = make_plan(folder)
    judge = prompts.PromptJudge(plan, "tiny", "text")
    item = prepare_item(judge.model, load_items("text", plan.data, "development", 1)[0], 0)
    responses = Responses(item)
    first = responses([(), (1,), (2, 0)])
    assert set(responses.new) == {"", "1", "0 2"}
    again = Responses(item, responses.new)
    assert again([(0, 2), ()]).tolist() == [first[2], first[0]]
    assert not again.new
    positions = item.case.sources.positions
    expected = item.case.ablation.log_probs([[], positions[1], [*positions[0], *positions[2]]])
    assert first == pytest.approx(expected)


@pytest.mark.parametrize(("blank", "name"), [("unk", "[UNK]"), ("mask", "[MASK]")])
def test_words_of_a_classifier_are_blanked_and_its_answer_read(blank: Any, name: str) -> None:
    model, tokenizer = loaded = tiny_encoder(head="SequenceClassification")
    text = "the key to the cabinets"
    entry = data.BenchItem(text, prompt=CompletionPrompt(text), blank=blank)
    item = prepare_item(loaded, entry, 0)
    whole = tokenizer(text)["input_ids"]
    choice = int(model(torch.tensor([whole])).logits.argmax())

    def odds(words: tuple[int, ...]) -> float:
        ids = [tokenizer.convert_tokens_to_ids(name) if k - 1 in words else t
               for k, t in enumerate(whole)]  # fmt: skip
        p = model(torch.tensor([ids])).logits[0].detach().double().softmax(-1)[choice]
        return float((p / (1 - p)).log())

    assert item.case.sources.names == tuple(text.split())
    scores, cost = run_here(find_method("leave-one-out"), item.case)
    assert scores == pytest.approx([odds(()) - odds((k,)) for k in range(5)], abs=1e-5)
    assert cost.passes == 6
    (pair,) = Responses(item)([(1, 3)])
    assert float(np.log(np.exp(pair) / -np.expm1(pair))) == pytest.approx(odds((1, 3)), abs=1e-5)
    assert as_request(item.case)["completion"] == [choice]
    scores, _ = run_here(find_method("default"), item.case)
    assert len(set(scores.tolist())) == 5


def test_words_of_a_model_that_writes_are_replaced() -> None:
    loaded = tiny_decoder()
    for blank, token in (("unk", 2), ("mask", 0)):  # padding, where there is no mask
        entry = data.BenchItem("x", prompt=CompletionPrompt("the keys to the key"), blank=blank)
        ablation = prepare_item(loaded, entry, 0).case.ablation
        assert (ablation.by, ablation.blank) == ("replace", token)


def test_methods_that_run_again_blank_words_as_the_judge_does() -> None:
    entry = data.BenchItem("x", prompt=CompletionPrompt("the keys to the key"), blank="unk")
    item = prepare_item(tiny_decoder(), entry, 0)
    scores, _ = run_here(find_method("leave-one-out"), item.case)
    alone = [(k,) for k in range(len(item.case.sources))]
    whole, *without = log_odds(Responses(item)([(), *alone]))
    np.testing.assert_allclose(scores, whole - np.array(without), atol=1e-4)


def test_peers_blank_only_what_is_a_source(folder: Path) -> None:
    entry = load_items("text", folder / "data", "development", 1)[0]
    item = prepare_item(load_on("cpu", str(folder / "model")), entry, 0)
    case = Case(item.case.model.module, item.case.model.tokenizer, as_request(item.case))
    (blanked,) = case.blanked().tolist()
    changed = {k for k, (a, b) in enumerate(zip(case.prompt, blanked, strict=True)) if a != b}
    assert 0 < len(changed) < len(case.prompt)
    assert changed <= {k for own in case.sources for k in own}
    prompts = torch.tensor([case.prompt, blanked])
    with torch.no_grad():
        expected = log_odds(case.log_prob(prompts).double().numpy())
        np.testing.assert_allclose(case.log_odds(prompts).numpy(), expected, rtol=1e-6)


def test_a_run_is_written_resumed_and_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    mine = f"{folder / 'mine.py'}:longest"
    monkeypatch.setattr(data, "_LENGTHS", (768, 1024))
    plan = make_plan(
        folder,
        data_sets=("text", "squad", "lengths"),
        methods=("default", "balanced", "position", mine, "gim"),
        output=folder / "shown",
        samples=1,
    )
    run_bench(plan)
    files = {path: path.read_bytes() for path in (folder / "shown/journal").iterdir()}
    monkeypatch.setattr(prompts, "load_on", None)  # a run that is done needs no model
    run_bench(plan)
    assert {path: path.read_bytes() for path in files} == files
    report = bench_report(plan, gather(plan))
    assert set(report.table("squad").columns) == {
        *("LDS", "drop", "hold", "AOPC", "right first", "recall"),
    }
    assert set(report.table("squad").rows) == {"default", "balanced", "position", mine}
    assert report.table("lengths").columns == ("right first", "recall")
    for name in ("lengths-length-", "lengths-length--needed"):
        assert report.table(name).columns == ("length 768", "length 1024")
    judge = prompts.PromptJudge(plan, "tiny", "squad")
    records = read_journal(plan.journal("tiny", "squad"))
    (reference,) = [r for r in records.values() if "loss" in r]
    item = judge._prepare(reference["item"])
    whole, without = Responses(item)([(), item.right])
    assert reference["loss"] == pytest.approx(whole - without, abs=1e-4)
    passes = {name: row[0].value for name, row in report.table("cost").rows.items()}
    assert passes["balanced"] == 2  # one forward, one backward
    assert passes["default"] > 2  # documents are measured, as `ask` does
    assert any("gim on text" in each and "bench-peers" in each for each in report.findings)
    page = write_page(report, folder / "bench.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "SQuAD" in page


def test_differences_are_paired_with_the_default(folder: Path) -> None:
    plan = make_plan(folder)
    run_bench(plan)
    findings = gather(plan)
    table = bench_report(plan, findings).table("text-differences")
    ours = findings.values("text", "default", "lds")
    theirs = findings.values("text", "random", "lds")
    assert set(ours) == set(theirs)
    expected = np.mean([theirs[k] - ours[k] for k in ours])
    assert table.rows["random − default"][0].value == pytest.approx(expected)


def test_one_table_has_every_method_data_set_and_model(tmp_path: Path) -> None:
    """Values that are known: ahead on one data set, behind on another, alike on both models."""
    rng = np.random.default_rng(0)
    worth = {"default": (0.5, 0.5), "random": (0.8, 0.1)}
    cost = dict.fromkeys(COSTS, 1.0)
    observations = [
        Observation(model, data_set, f"{k}", method, {"lds": value + noise}, cost, {})
        for model in ("a", "b")
        for method, values in worth.items()
        for data_set, value in zip(("text", "squad"), values, strict=True)
        for k, noise in enumerate(0.01 * rng.standard_normal(20))
    ]
    models = {"a": "a", "b": "b"}
    plan = BenchPlan(models, ["text", "squad"], list(worth), tmp_path, tmp_path)
    findings = Findings(observations, {})
    table = bench_report(plan, findings).table("overview-lds")
    assert table.columns == ("text", "squad")
    assert list(table.rows) == [f"{m}{of}" for m in worth for of in ("", " (a)", " (b)")]
    assert [cell.n for cell in table.rows["random"]] == [40, 40]
    assert table.rows["random (b)"][1].value == pytest.approx(0.1, abs=0.01)
    (path,) = write_sheets(plan, findings, tmp_path)
    rows = path.read_text(encoding="utf-8").splitlines()
    assert rows[:2] == ["method,text,squad", "prompts,40,40"]
    assert rows[2:] == ["default,.50,.50", "random,.80▲,.10▼"]
    alone = replace(plan, methods=["random"])
    findings = Findings([each for each in observations if each.method == "random"], {})
    assert "ahead" in bench_report(alone, findings).findings[0]  # of a default that did not run
    (path,) = write_sheets(alone, findings, tmp_path)
    assert path.read_text(encoding="utf-8").splitlines()[2:] == ["random,.80,.10"]


def test_kills_lose_and_double_nothing(folder: Path) -> None:
    assert kills(3, 0, folder) == (3, [])


def test_places_and_lengths_are_told_of_all_answers_and_of_those_that_need_a_source(
    tmp_path: Path,
) -> None:
    """A miss that needs no source counts among all, and not among the others."""
    cost = dict.fromkeys(COSTS, 1.0)
    missed, named = {"first": 0.0}, {"first": 1.0, "needed": 1.0}
    observations = [
        Observation("a", name, f"{question} {note}", "default", values, cost, note)
        for question in range(4)
        for name, note, is_missed in (
            ("positions", {"documents": 5, "place": 0}, False),
            ("positions", {"documents": 5, "place": 1}, question == 0),
            ("lengths", {"length": 1024}, False),
            ("lengths", {"length": 8192}, question < 2),
        )
        for values in [missed if is_missed else named]
    ]
    plan = BenchPlan({"a": "a"}, ["positions", "lengths"], ["default"], tmp_path, tmp_path)
    told = bench_report(plan, Findings(observations, {})).findings
    assert (
        "Right first by the default over the places of 5: 0.75 to 1.00, a spread of 0.25." in told
    )
    assert any(
        "where the answer needs it: 1.00 to 1.00, a spread of 0.00." in each for each in told
    )
    assert "Right first by the default: 1.00 at 1024 tokens, 0.50 at 8192." in told
    assert any(each.endswith("needs it: 1.00 at 1024 tokens, 1.00 at 8192.") for each in told)


def test_processes_take_an_item_each(folder: Path) -> None:
    """Three of the first four count, as one is left out; they are the same from any process."""
    output, plain = folder / "together", make_plan(folder, samples=3, output=folder / "plain")
    run_bench(plain)
    plan = make_plan(folder, samples=3, output=output, processes=2)
    first = prompts.PromptJudge(plan, "tiny", "text").names()[0]
    left_out = {"name": f"{first} | reference", "item": first, "left_out": "it is too long"}
    append_record(plan.journal("tiny", "text"), left_out)
    run_bench(plan)
    together, alone = figures(plan), figures(plain)
    assert together[left_out["name"]] == left_out
    items = {record["item"] for record in together.values()}
    assert len(items) == 4
    same = [name for name in together if name in alone and not name.startswith(first)]
    assert len(same) == 2 * (1 + len(plan.methods))
    assert all(together[name] == alone[name] for name in same)


def test_a_method_comes_from_a_file(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    judge = prompts.PromptJudge(make_plan(folder), "tiny", "text")
    case = judge._prepare(judge.names()[0]).case
    scores, cost = run_here(find_method(f"{folder / 'mine.py'}:longest"), case)
    assert scores.tolist() == [len(name) for name in case.sources.names]
    assert cost.passes == 0
    with pytest.raises(InputError, match=r"has no function 'other'; it has longest"):
        find_method(f"{folder / 'mine.py'}:other")
    with pytest.raises(InputError, match="no file"):
        find_method("nowhere.py:f")


def test_checked_has_the_order_that_ask_gives(folder: Path) -> None:
    judge = prompts.PromptJudge(make_plan(folder), "tiny", "squad")
    moved = 0
    for name in judge.names()[:4]:
        item, question = judge._prepare(name), judge._items[name].question
        assert question is not None
        documents = dict(question.documents)
        answer = ask(judge.model, question.question, documents, answer=question.answers[0])
        (statement,) = answer.statements
        order = [source.passage for source in statement.sources]
        scores = find_method("checked")(item.case)
        assert list(strongest(scores, len(order))) == order
        moved += order[0] != int(np.argmax(run_here(find_method("default"), item.case)[0]))
    assert moved
    words = prompts.PromptJudge(make_plan(folder), "tiny", "text")
    with pytest.raises(MethodError, match="checks documents"):
        find_method("checked")(words._prepare(words.names()[0]).case)


def test_arc_jsd_is_the_divergence_of_two_distributions(folder: Path) -> None:
    judge = prompts.PromptJudge(make_plan(folder), "tiny", "text")
    case = judge._prepare(judge.names()[0]).case
    scores, _ = run_here(find_method("arc-jsd"), case)
    model = case.model.module

    def distribution(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()

    whole = distribution(case.prompt_ids)
    gone = set(case.sources.positions[4])
    other = distribution([t for k, t in enumerate(case.prompt_ids) if k not in gone])
    middle = (whole + other) / 2
    expected = sum(float((p * np.log(p / middle)).sum()) for p in (whole, other)) / 2
    assert len(case.completion_ids) == 1
    assert scores[4] == pytest.approx(expected, rel=1e-6)


def test_a_peer_answers_from_a_process_of_its_own(folder: Path) -> None:
    judge = prompts.PromptJudge(make_plan(folder), "tiny", "text")
    case = judge._prepare(judge.names()[0]).case
    own = float(case.ablation.log_probs([()])[0])
    python = folder / "peers/gim/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PEER.replace("LOG_PROB", str(own)), encoding="utf-8")
    python.chmod(0o755)
    peer = Peer("gim", folder / "peers", folder / "model", "cpu")
    scores, cost = peer.score(case)
    assert scores.tolist() == [positions[0] for positions in case.sources.positions]
    assert (cost.passes, cost.seconds) == (3, 0.5)
    with pytest.raises(MethodError, match="ValueError: no"):
        peer.ask({"completion": [0]})
    peer.close()
    python.write_text(PEER.replace("LOG_PROB", "-99.0"), encoding="utf-8")
    with pytest.raises(MethodError, match="another model"):
        peer.score(case)
    peer.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of noise, named by what a tiny ViT says of them, and one with a box."""
    folder = tmp_path_factory.mktemp("photos")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=64, patch_size=16, num_labels=40,
    )  # fmt: skip
    ViTForImageClassification(config).eval().save_pretrained(folder / "model")
    size = {"height": 64, "width": 64}
    ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(
        folder / "model"
    )
    for name in ("imagenet", "kangaroo"):
        (folder / "photos" / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "photos/kangaroo/1.jpg")
    row = {"file": "kangaroo/1.jpg", "boxes": [[16, 0, 96, 64]]}
    (folder / "photos/kangaroo.jsonl").write_text(json.dumps(row), encoding="utf-8")
    return folder


def test_photos_are_judged_by_hidden_patches_and_boxes(photos: Path) -> None:
    plan = BenchPlan(
        models={"vit": str(photos / "model")},
        data_sets=("boxes",),
        methods=("default", "rollout", "grad-cam", "layer-cam", "centre", "random"),
        data=photos,
        output=photos / "out",
        part="all",
        samples=1,
    )
    run_bench(plan)
    findings = gather(plan)
    assert not findings.refused
    table = bench_report(plan, findings).table("boxes")
    assert table.columns == ("deletion ↓", "insertion", "pointing")
    assert {row[2].value for row in table.rows.values()} == {1.0}  # the box is the whole square


def test_a_map_on_a_tile_has_its_share() -> None:
    values = np.zeros((4, 4))
    values[2:, :2], values[0, 0], values[3, 3] = 1.0, 1.0, -9.0
    assert [images._share(values, tile) for tile in range(4)] == [0.2, 0.0, 0.8, 0.0]
    quarters = [images._quarter(each) for each in (values, np.exp(3 * values))]
    assert quarters[0].tolist() == quarters[1].tolist()  # no scale changes it
    assert [images._share(quarters[0], tile) for tile in range(4)] == [0.25, 0.0, 0.75, 0.0]


def test_class_activation_maps_are_those_of_plain_loops() -> None:
    rng = torch.Generator().manual_seed(0)
    a, g = (torch.randn(5, 3, generator=rng) for _ in range(2))
    weights = [sum(float(g[t, d]) for t in range(5)) / 5 for d in range(3)]
    for t in range(5):
        cam = max(0.0, sum(weights[d] * float(a[t, d]) for d in range(3)))
        layer = max(0.0, sum(max(0.0, float(g[t, d])) * float(a[t, d]) for d in range(3)))
        assert float(images.grad_cam(a, g)[t]) == pytest.approx(cam, abs=1e-6)
        assert float(images.layer_cam(a, g)[t]) == pytest.approx(layer, abs=1e-6)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    invoke = CliRunner().invoke
    result = invoke(app, ["--data-set", "sqad", "--output", str(tmp_path)])
    assert "squad" in str(result.exception)
    result = invoke(app, ["--method", "gimm", "--output", str(tmp_path)])
    assert "Peers are" in str(result.exception)
    result = invoke(app, ["--data-set", "grid", "--method", "gradcam", "--output", str(tmp_path)])
    assert "grad-cam" in str(result.exception)
    result = invoke(app, ["--peers", str(tmp_path / "no"), "--output", str(tmp_path)])
    assert "make bench-peers" in str(result.exception)
    assert labelled(["a=x/y", "z/b"]) == {"a": "x/y", "b": "z/b"}
    with pytest.raises(InputError, match="same label"):
        labelled(["x/b", "y/b"])


def test_the_command_writes_tables_a_page_and_how_to_get_them_again(
    folder: Path, tmp_path: Path
) -> None:
    options = ["--model", f"tiny={folder / 'model'}", "--data", str(folder / "data")]
    options += ["--data-set", "text", "--method", "random", "--samples", "1"]
    assert _run(["bench", *options, "--output", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("bench*")} >= {"bench.md", "bench.csv"}
    for name in ("bench.md", "bench.html"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert "attnflow bench --model tiny=" in page
        assert "--data-set text --method random --data data" in page


def test_figures_leave_costs_out(folder: Path) -> None:
    plan = make_plan(folder)
    run_bench(plan)
    lines = plan.journal("tiny", "text").read_text(encoding="utf-8").splitlines()
    assert any("seconds" in json.loads(line) for line in lines)
    assert not any("seconds" in record for record in figures(plan).values())
