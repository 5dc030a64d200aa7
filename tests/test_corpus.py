"""Corpora: what a text gets in a corpus is what it gets alone, and nothing is lost or doubled."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import torture_corpus
from attnflow import corpus, explain, generate
from attnflow.cli.app import _run
from attnflow.corpus import Local, Ray, Settings
from attnflow.corpus.corpus_run import ProgressCounter
from attnflow.corpus.engines import BatchBegun, JobSpec
from attnflow.corpus.folder import Corpus, PartNotes
from attnflow.corpus.local_engine import _Assignments
from attnflow.corpus.plan import Plan, Shard, ShardReader
from attnflow.corpus.ray_engine import ShardActor
from attnflow.corpus.settings import Columns
from attnflow.corpus.worker import InlineEngine, ShardWorker
from attnflow.data import DataFile, find_files
from attnflow.errors import FileError, InputError, MethodError, ModelError, StoppedError
from attnflow.errors.progress import Progress, listening
from attnflow.explainers import batches
from attnflow.explainers.answer_rows import ALL_POSITIONS
from attnflow.explainers.writer import write
from attnflow.hosts.load import as_model
from attnflow.hosts.model import Model
from attnflow.methods import quiet_about_limits
from attnflow.models.verb_number import load_verb_number
from attnflow.testing import tiny_decoder, tiny_encoder

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [
    "the key to the cabinets is",
    "some people in the old city",
    "the keys",
    "the officers that the king saw near the river",
    "the author of the books",
    "the king",
    "a book about the old river in the city",
]


def write_texts(folder: Path, texts: list[str] = TEXTS) -> Path:
    path = folder / "texts.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_jsonl(folder: Path, rows: list[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def classifier() -> Model:
    """A tiny encoder that has an answer, so that a text has one row for each method."""
    return tiny_encoder(head="SequenceClassification")


def run(model: Any, data: Path, output: Path, engine: Any = None, **settings: Any) -> Corpus:
    return corpus.run(model, data, output, settings=Settings(**settings), engine=engine)


def rows_of(result: Corpus) -> list[dict[str, Any]]:
    return result.to_arrow().to_pylist()


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))}


def close(one: float, other: float) -> bool:
    return one == pytest.approx(other, rel=1e-5, abs=1e-7)


def same_top(row: dict[str, Any], result: Any, k: int) -> None:
    """The row holds what `top` lists, and the shares that `normalize` gives."""
    expected = result.top(k)
    shares = result.normalize().top(k)
    assert [source["position"] for source in row["sources"]] == [c.position for c in expected]
    for source, value, share in zip(row["sources"], expected, shares, strict=True):
        assert close(source["value"], value.value)
        assert close(source["share"], share.value)


# -- the same as alone ------------------------------------------------------------------------


def test_each_text_gets_what_explain_gives_it_alone(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    methods, data = ["rollout", "raw:heads=max", "flow"], write_texts(tmp_path)
    options: Any = {"methods": methods, "shard_size": 3, "top": 3}
    result = run((model, tokenizer), data, tmp_path / "out", **options)
    rows = rows_of(result)
    assert [(row["row"], row["method"]) for row in rows] == [
        (number, method) for number in range(len(TEXTS)) for method in methods
    ]
    with quiet_about_limits():
        for row in rows:
            alone = explain(
                (model, tokenizer), TEXTS[row["row"]], row["method"], targets=0, layers=-1
            )
            same_top(row, alone, 3)
            assert row["target"] == alone.targets.text[0]
            assert row["layer"] == alone.layers[-1]
            assert row["error"] is None
            if row["method"] == "flow":
                first = row["sources"][0]
                assert first["lower"] <= first["value"] <= first["upper"]


def test_rows_carry_text_and_verdict_and_a_flat_table_lies_beside_them(tmp_path: Path) -> None:
    model = classifier()
    options: Any = {"methods": ["rollout", "raw"], "check": True, "top": 2, "shard_size": 3}
    result = run(model, write_texts(tmp_path), tmp_path / "out", **options)
    rows = rows_of(result)
    for row in rows:
        assert row["text"] == TEXTS[row["row"]]
        alone = explain(model, row["text"], row["method"], layers=-1)
        verdict = alone.verdicts[0] if row["method"] == "rollout" else None  # of the first method
        assert row["verdict"] == (verdict and verdict.kind)
        assert verdict is None or row["claim"].startswith(verdict.claim)
    with (tmp_path / "out" / "_sources.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    expected = [
        (str(row["row"]), row["text"], row["method"], str(rank), source["text"])
        for row in rows
        for rank, source in enumerate(row["sources"], 1)
    ]
    names = ("row", "text", "method", "rank", "source")
    assert [tuple(line[name] for name in names) for line in lines] == expected
    kinds = Counter(row["verdict"] for row in rows if row["verdict"])
    assert corpus.summarize(result).verdicts == kinds


@pytest.mark.parametrize("method", [None, "gradient-attention"])
def test_a_language_model_is_explained_as_by_explain(tmp_path: Path, method: str | None) -> None:
    model, tokenizer = tiny_decoder()
    data = write_texts(tmp_path)
    options = {} if method is None else {"methods": [method]}
    result = run((model, tokenizer), data, tmp_path / "out", values=True, **options)
    assert result.methods == (method or "balanced",)
    for row in rows_of(result):
        with quiet_about_limits():
            alone = explain((model, tokenizer), TEXTS[row["row"]], method, layers=-1)
        assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-4, abs=1e-8)
        assert row["prediction"] == alone.prediction.label
        assert close(row["probability"], alone.prediction.probability)
        assert row["target_position"] == alone.targets.positions[0]
        assert row["flags"] == (["collapsed"] if alone.collapsed else [])
        assert close(row["elsewhere"], 0 if alone.elsewhere is None else alone.elsewhere[0, 0])


@pytest.mark.parametrize("method", [None, "rollout"])
def test_completions_get_what_explain_completion_gives(tmp_path: Path, method: str | None) -> None:
    model, tokenizer = tiny_decoder()
    pairs = [("the keys to", "the cabinets are"), ("the king", "saw"), ("a book of the", "key is")]
    data = write_jsonl(tmp_path, [{"prompt": p, "completion": c} for p, c in pairs])
    methods = [method] if method else []
    rows = rows_of(run((model, tokenizer), data, tmp_path / "out", methods=methods))
    assert [row["row"] for row in rows] == [0, 0, 0, 1, 2, 2]
    for number, (prompt, completion) in enumerate(pairs):
        own = [row for row in rows if row["row"] == number]
        with quiet_about_limits():
            alone = generate(
                (model, tokenizer), prompt, completion=completion, method=method
            ).layer(-1)
        for k, row in enumerate(own):
            same_top(row, alone.row(alone.targets.positions[k]), 5)
            assert close(row["elsewhere"], alone.elsewhere[0, k])
            assert row["prediction"] == alone.provenance["completion"]


def test_completions_are_made_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_decoder()
    prompts = ["the keys to", "a book about the cabinets of", "the king"]
    pairs = [{"prompt": p, "completion": "saw her" if p == "the king" else None} for p in prompts]
    options: Any = {"max_new_tokens": 3, "methods": ["rollout", "raw"]}
    data, lengths = write_jsonl(tmp_path, pairs), list[int]()

    def write_together(reader: Any, batch: Any, *more: Any) -> Any:
        lengths.append(len(batch))
        return write(reader, batch, *more)

    monkeypatch.setattr(batches, "write", write_together)
    rows = rows_of(run((model, tokenizer), data, tmp_path / "out", **options))
    assert lengths == [2]  # written together
    for number, prompt in enumerate(prompts):
        for method in ("rollout", "raw"):
            own = [row for row in rows if (row["row"], row["method"]) == (number, method)]
            written = {"max_new_tokens": 3} if prompt != "the king" else {"completion": "saw her"}
            with quiet_about_limits():
                alone = generate((model, tokenizer), prompt, method, **written)
            assert [row["target"] for row in own] == list(alone.targets.text)
            for k, row in enumerate(own):
                same_top(row, alone.layer(-1).row(alone.targets.positions[k]), 5)


def test_all_targets_and_chosen_ones(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path, ["the key", "the king"])
    pair, methods = (model, tokenizer), ["raw", "rollout"]
    every = run(pair, data, tmp_path / "all", targets="all", methods=methods)
    order = [(row["target_position"], row["method"]) for row in rows_of(every) if not row["row"]]
    length = len(order) // 2
    assert order == [(k, name) for k in range(length) for name in ("raw", "rollout")]
    some = run(pair, data, tmp_path / "some", targets=["key"], methods=methods)
    by_text = {row["row"]: row["error"] for row in rows_of(some)}
    assert by_text[0] is None
    assert "'key'" in by_text[1]


def test_sources_are_grouped_to_words_and_documents(tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    documents = ["sara talked to the author", "The keys are HIS"]
    row = {"prompt": "the book of", "documents": documents, "completion": "her"}
    data = write_jsonl(tmp_path, [row])
    options: Any = {"methods": ["rollout"], "values": True, "level": "document"}
    result = run((model, tokenizer), data, tmp_path / "out", **options)
    [grouped] = rows_of(result)
    assert grouped["source_texts"] == documents
    prompt = "\n\n".join([*documents, "the book of"])
    with quiet_about_limits():
        alone = generate((model, tokenizer), prompt, completion="her", method="rollout")
    values = alone.values[-1, 0]
    assert grouped["values"] == pytest.approx([values[:5].sum(), values[5:9].sum()])
    assert [s["position"] for s in sorted(grouped["sources"], key=lambda s: s["position"])] == [
        0,
        5,
    ]
    total = sum(grouped["values"]) + grouped["elsewhere"]
    assert close(total, values.sum() + alone.elsewhere[-1, 0])


@pytest.mark.parametrize("method", ["rollout", "gradient-attention"])
def test_a_classifier_that_reads_the_mean_gets_the_row_of_all_positions(
    tmp_path: Path, method: str
) -> None:
    _, tokenizer = classifier()
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=tokenizer.pad_token_id, num_labels=3,
        cls_token_id=tokenizer.cls_token_id, sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
        classifier_pooling="mean", initializer_range=0.3, reference_compile=False,
    )  # fmt: skip
    model = transformers.ModernBertForSequenceClassification(config).eval()
    data, pair = write_texts(tmp_path), (model, tokenizer)
    rows = rows_of(run(pair, data, tmp_path / "out", values=True, methods=[method]))
    for row in rows:
        alone = explain((model, tokenizer), TEXTS[row["row"]], method, layers=-1)
        assert row["target"] == ALL_POSITIONS == alone.targets.text[0]
        assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-3, abs=1e-6)
        assert row["prediction"] == alone.prediction.label


@pytest.mark.parametrize("targets", [None, [2]])
def test_a_token_classifier_is_explained_by_the_answer_of_the_target(
    tmp_path: Path, targets: Any
) -> None:
    model, tokenizer = tiny_encoder(head="TokenClassification")
    options: Any = {"values": True, "methods": ["gradient-attention"], "targets": targets}
    rows = rows_of(run((model, tokenizer), write_texts(tmp_path), tmp_path / "out", **options))
    for row in rows:
        options = {"targets": targets, "layers": -1}
        alone = explain((model, tokenizer), TEXTS[row["row"]], "gradient-attention", **options)
        assert row["target_position"] == alone.targets.positions[0]
        assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-3, abs=1e-6)


def test_the_default_is_that_of_explain(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    result = run((model, tokenizer), data, tmp_path / "out", values=True)
    for row in rows_of(result):
        alone = explain((model, tokenizer), TEXTS[row["row"]], layers=-1)
        assert row["method"] == alone.method.label
        assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-4, abs=1e-7)


def test_without_an_answer_every_position_is_explained_as_by_explain(tmp_path: Path) -> None:
    decoder, words = tiny_decoder()
    encoder, pieces = tiny_encoder(head="")
    data = write_texts(tmp_path)
    for name, model in (("causal", (decoder.model, words)), ("encoder", (encoder, pieces))):
        options: Any = {"methods": ["rollout"], "values": True}
        rows = rows_of(run(model, data, tmp_path / name, **options))
        assert {row["prediction"] for row in rows} == {None}
        for number, text in enumerate(TEXTS):
            with quiet_about_limits():
                alone = explain(model, text, "rollout", layers=-1)
            values = [row["values"] for row in rows if row["row"] == number]
            assert len(values) == len(alone.sources)
            np.testing.assert_allclose(values, alone.values[0], rtol=1e-5, atol=1e-7)


def vision_model(folder: Path) -> Path:
    """A tiny ViT as people have one on disk, beside what its images are prepared with."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=32, patch_size=8, initializer_range=0.5,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder / "vit")
    preparation = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(preparation))
    return folder / "vit"


def test_images_from_paths_bytes_and_a_folder_get_what_explain_gives(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pictures = [
        image.fromarray(rng.integers(0, 255, (40, 48, 3), dtype=np.uint8)) for _ in range(3)
    ]
    for k, picture in enumerate(pictures):
        picture.save(tmp_path / f"{k}.png")
    model = vision_model(tmp_path)
    contents = [(tmp_path / f"{k}.png").read_bytes() for k in range(3)]
    paths = [*(str(tmp_path / f"{k}.png") for k in range(3)), "nowhere.png", ""]
    write_jsonl(tmp_path, [{"image": path} for path in paths])
    structs = [{"bytes": content, "path": None} for content in contents]
    pq.write_table(pa.table({"image": structs, "id": [7, 8, 9]}), tmp_path / "images.parquet")
    module = as_model(model).module
    (tmp_path / "folder").mkdir()
    for k, content in enumerate(contents):
        (tmp_path / "folder" / f"{k}.png").write_bytes(content)
    for name, errors in (("rows.jsonl", 2), ("images.parquet", 0), ("folder", 0)):
        out = tmp_path / f"out-{name}"
        result = run(module, tmp_path / name, out, values=True)
        assert (result.errors, result.methods) == (
            errors,
            ("gradient-attention:score=logit,lens=True",),
        )
        rows = rows_of(result)
        ids = ["7", "8", "9"] if name == "images.parquet" else [None] * 3
        assert [row["id"] for row in rows[:3]] == ids
        for row, picture in zip(rows, pictures, strict=False):
            alone = explain(module, picture, layers=-1)
            assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-4, abs=1e-7)
            assert row["source_texts"] == list(alone.sources.text)
            assert row["prediction"] == alone.prediction.label
        if errors:
            assert "There is no image 'nowhere.png' that can be read" in rows[3]["error"]
            assert "An image is a path, or the bytes of a file" in rows[4]["error"]


# -- what is wrong with a text ----------------------------------------------------------------


def test_a_bad_text_becomes_a_row_with_its_sentence(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    long = "the " * 2000
    data = write_jsonl(
        tmp_path, [{"id": 7, "text": "the key"}, {"id": 8, "text": "  "}, {"text": long}, [1]]
    )
    with data.open("ab") as file:
        file.write(b'{"text": "half\n\xff\xfe\n')
    result = run((model, tokenizer), data, tmp_path / "out")
    rows = rows_of(result)
    assert (result.texts, result.errors) == (6, 5)
    assert [row["id"] for row in rows] == ["7", "8", None, None, None, None]
    sentences = [row["error"] for row in rows]
    assert sentences[0] is None
    assert "nothing to explain" in sentences[1]
    assert "tokens and" in sentences[2]
    assert "neither a text nor an object" in sentences[3]
    assert "not JSON" in sentences[4]
    assert "not UTF-8" in sentences[5]


def test_a_table_that_is_not_utf8_says_so_in_the_row(tmp_path: Path) -> None:
    data = tmp_path / "old.csv"
    data.write_bytes("text,label\nthe key,1\nthe café,0\nthe king,1\n".encode("latin-1"))
    result = run(classifier(), data, tmp_path / "out")
    sentences = [row["error"] for row in rows_of(result)]
    assert [sentence is None for sentence in sentences] == [True, False, True]
    assert "is not UTF-8 text: byte 28 of it is 0xe9. Save it as UTF-8" in sentences[1]


def test_a_batch_that_fails_is_run_text_by_text(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    usual = type(model).forward

    def forward(self: Any, input_ids: Any = None, **inputs: Any) -> Any:
        if len(input_ids) > 1 or input_ids.shape[1] == 4:
            raise RuntimeError("out of memory\nmore")
        return usual(self, input_ids=input_ids, **inputs)

    type(model).forward = forward
    try:
        result = run((model, tokenizer), data, tmp_path / "out")
    finally:
        type(model).forward = usual
    rows = rows_of(result)
    short = [len(tokenizer(text)["input_ids"]) == 4 for text in TEXTS]
    assert any(short)
    assert [row["error"] == "RuntimeError: out of memory" for row in rows] == short
    assert {tuple(row["flags"]) for row in rows if row["error"] is None} == {("alone",)}


# -- resume -----------------------------------------------------------------------------------


def stop_after(texts: int) -> Callable[[Progress], None]:
    def stop(state: Progress) -> None:
        if state.stage == "texts" and state.done >= texts:
            raise KeyboardInterrupt

    return stop


def test_a_stopped_run_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    pair, options = (model, tokenizer), dict[str, Any](methods=["rollout"], shard_size=2)
    run(pair, data, tmp_path / "one", **options)
    out = tmp_path / "two"
    with pytest.raises(StoppedError, match="4 of 7 texts are kept"), listening(stop_after(4)):
        run(pair, data, out, **options)
    half = corpus.read(out)
    assert (half.texts, half.complete) == (4, False)
    (out / ".attnflow-1-abc.parquet").write_bytes(b"what a killed run leaves")
    (out / "part-00000000.parquet").write_bytes(b"damaged")
    result = run(pair, data, out, **options)
    assert result.complete
    assert parts_of(out) == parts_of(tmp_path / "one")
    assert not list(out.glob(".attnflow-*"))


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    place: Any = ((model, tokenizer), data, tmp_path / "out")
    run(*place, methods=["rollout"])
    before = parts_of(tmp_path / "out")
    with pytest.raises(InputError, match="top was 5 and is 3"):
        run(*place, methods=["rollout"], top=3)
    with pytest.raises(InputError, match=r"methods was \['rollout'\] and is \['raw'\]"):
        run(*place, methods=["raw"])
    model.get_input_embeddings().weight.data[0, 0] += 1
    with pytest.raises(InputError, match="weights was"):
        run(*place, methods=["rollout"])
    write_texts(tmp_path, [*TEXTS[:-1], "the city"])
    with pytest.raises(InputError, match="data was"):
        run(*place, methods=["rollout"])
    assert parts_of(tmp_path / "out") == before


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no run"):
        run((model, tokenizer), write_texts(tmp_path), tmp_path / "out")
    with pytest.raises(FileError, match=r"holds no corpus: there is no _manifest\.json"):
        corpus.read(tmp_path / "out")


def test_two_runs_into_one_folder_are_told(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    messages: list[str] = []

    def meanwhile(state: Progress) -> None:
        refused = pytest.raises(FileError, match="is being written by another run")
        with refused as refusal, listening(None):
            run((model, tokenizer), data, tmp_path / "out")
        messages.append(str(refusal.value))

    with listening(meanwhile):
        run((model, tokenizer), data, tmp_path / "out")
    assert messages


# -- data -------------------------------------------------------------------------------------


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    texts = ['one, "two"', "a line\nand another", "é ü 日本", "last"]
    table = pa.table({"other": [1, 2, 3, 4], "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([("other", "text"), *zip("1234", texts, strict=True)])
    with (tmp_path / "quoted.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writerows([("other", "text"), *zip("1234", texts, strict=True)])
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, texts)), encoding="utf-8")
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    for k in range(2):
        with pa.ipc.new_stream(dataset / f"data-{k}.arrow", table.schema) as stream:
            stream.write_table(table.slice(2 * k, 2), max_chunksize=1)
    state = {"_data_files": [{"filename": f"data-{k}.arrow"} for k in range(2)]}
    (dataset / "state.json").write_text(json.dumps(state))
    for name in ("a.parquet", "a.csv", "quoted.tsv", "a.jsonl", "dataset"):
        files = find_files(tmp_path / name)
        plan = Plan.make(files, 3)
        assert plan.rows == 4, name
        reader = ShardReader([file.path for file in plan.files], Columns(text="text"))
        for shards in (plan.shards, plan.shards[::-1]):
            rows = {shard.number: reader.read(shard) for shard in shards}
            assert [row.text for row in rows[0] + rows[1]] == texts, name


def test_shards_go_over_the_ends_of_files(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 4)):
        lines = [f"{name}{k}" for k in range(count)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    plan = Plan.make(find_files(str(tmp_path / "*.txt")), 5)
    reader = ShardReader([file.path for file in plan.files], Columns(text="text"))
    rows = [[row.text for row in reader.read(shard)] for shard in plan.shards]
    assert rows == [["a0", "a1", "a2", "b0", "c0"], ["c1", "c2", "c3"]]


def test_columns_are_found_or_named() -> None:
    assert Columns.find(["Sentence", "label"], {}).text == "Sentence"
    assert Columns.find(["prompt", "completion", "documents"], {}).completion == "completion"
    assert Columns.find(["body", "prompt"], {"text": "body"}).prompt is None
    with pytest.raises(InputError, match="Did you mean 'body'"):
        Columns.find(["body"], {"text": "bodi"})
    with pytest.raises(InputError, match="no column 'text', 'sentence', 'prompt' or 'image'"):
        Columns.find(["body"], {})
    with pytest.raises(InputError, match="A completion follows a prompt"):
        Columns.find(["text", "end"], {"completion": "end"})
    with pytest.raises(InputError, match="one of text, prompt and image"):
        Settings(columns={"text": "a", "prompt": "b"})
    with pytest.raises(InputError, match=r"A column is one of text, .*Did you mean 'prompt'"):
        Settings(columns={"promt": "b"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Local(processes=0), "processes is a whole number of at least 1; got 0"),
        (lambda: Local(threads=-1), "threads is a whole number of at least 1; got -1"),
        (lambda: Ray(gpus=-1), "gpus is a number of at least 0; got -1"),
        (lambda: Ray(actors=0), "actors is a whole number of at least 1; got 0"),
    ],
)
def test_an_engine_checks_its_numbers(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "rai"], "engine='rai': Did you mean 'ray'"),
        (["--address", "head:6379"], "--address 'head:6379' is for --engine ray"),
        (["--engine", "ray", "--processes", "2"], "--processes 2 is for --engine local"),
    ],
)
def test_where_the_work_is_done_is_checked_first(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = str(write_texts(tmp_path)), tmp_path / "out"
    assert _run(["corpus", "run", "--data", data, "--output", str(out), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


@pytest.mark.parametrize("engine", [Local(processes=2), Ray(), Local(threads=2)])
def test_a_loaded_model_runs_here_alone(tmp_path: Path, engine: Any) -> None:
    with pytest.raises(InputError, match="loaded model"):
        run(classifier(), write_texts(tmp_path), tmp_path / "o", engine)


def test_an_engine_or_settings_of_another_kind_are_refused(tmp_path: Path) -> None:
    options: Any = {"engine": "ray"}
    with pytest.raises(InputError, match=r"engine is attnflow\.corpus\.Local\(\.\.\.\) or"):
        corpus.run(None, write_texts(tmp_path), tmp_path / "o", **options)
    options = {"settings": {"top": 3}}
    with pytest.raises(InputError, match=r"settings is attnflow\.corpus\.Settings\(\.\.\.\)"):
        corpus.run(None, write_texts(tmp_path), tmp_path / "o", **options)


def test_settings_travel_as_json() -> None:
    settings = Settings(
        methods=["rollout:drop=0,the", "flow"], targets=(0, "key"), columns={"text": "body"}
    )
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(InputError, match="top is a whole number of at least 1"):
        Settings(top=0)
    with pytest.raises(InputError, match="each method once"):
        Settings(methods=["raw", "raw"])
    with pytest.raises(MethodError, match="'careful' runs the model again for every text"):
        Settings(methods=["rollout", "careful"])


def test_the_result_is_read_by_pandas_as_it_is(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    model, tokenizer = classifier()
    result = run((model, tokenizer), write_texts(tmp_path), tmp_path / "out")
    table = pandas.read_parquet(tmp_path / "out")
    assert len(table) == len(TEXTS) == len(result.to_pandas())
    metadata = pq.read_schema(result.parts[0]).metadata
    assert json.loads(metadata[b"attnflow"])["provenance"]["class"] == type(model).__name__


# -- processes --------------------------------------------------------------------------------


def test_processes_give_the_rows_of_one_and_survive_their_deaths(tmp_path: Path) -> None:
    data = write_texts(tmp_path, TEXTS * 4)
    options: Any = {"methods": ["rollout"], "shard_size": 4, "top": 50}
    run(load_verb_number(), data, tmp_path / "one", **options)
    victims: list[int] = []

    def kill_one(state: Progress) -> None:
        if not victims and state.stage == "texts" and state.done:
            victims.extend(_children(os.getpid())[:1])
            os.kill(victims[0], signal.SIGKILL)

    engine = Local(processes=2, threads=1)
    with pytest.raises(InputError, match="model was 'VerbNumberModel' and is None"):
        run(None, data, tmp_path / "one", engine, **options)
    with listening(kill_one):
        result = run(None, data, tmp_path / "two", engine, **options)
    assert victims
    assert result.complete
    same = ["row", "method", "sources", "prediction", "probability"]
    expected = corpus.read(tmp_path / "one")
    tables = [each.to_arrow(same).to_pylist() for each in (result, expected)]
    for row, other in zip(*tables, strict=True):
        shares, others = ({s["position"]: s["share"] for s in r["sources"]} for r in (row, other))
        assert shares == pytest.approx(others, abs=1e-5)  # threads decide the last digits
        assert row["probability"] == pytest.approx(other["probability"], abs=1e-5)
        assert (row["row"], row["prediction"]) == (other["row"], other["prediction"])


def _children(parent: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    ).stdout
    own = [int(line) for line in listing.split()]
    commands = {child: Path(f"/proc/{child}/cmdline") for child in own}
    return [k for k, path in commands.items() if path.exists() and b"worker" in path.read_bytes()]


def test_a_model_that_cannot_be_loaded_is_said_as_it_is_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no folder"):
        run("./nowhere", write_texts(tmp_path), tmp_path / "out", Local(processes=1))


def test_progress_counts_what_is_done() -> None:
    counter = ProgressCounter(total=10, texts=2, errors=1)
    told: dict[str, int] = {}
    with listening(lambda state: told.update({state.stage: state.done})):
        counter.add(BatchBegun(0, texts=3, tokens=30))
        counter.tell()
        assert told == {"texts": 5, "tokens": 30, "texts without a result": 1}
        counter.add(BatchBegun(0, texts=1, tokens=5))
        counter.add(PartNotes(shard=0, texts=5, errors=1, tokens=40))
        counter.tell()
    assert told == {"texts": 7, "tokens": 40, "texts without a result": 2}


def test_how_long_it_takes_is_told_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnflow.corpus.corpus_run._WORTH_MEASURING", 3)
    stages: list[tuple[str, int, int]] = []
    with listening(lambda state: stages.append((state.stage, state.done, state.total))):
        result = run(classifier(), write_texts(tmp_path), tmp_path / "out", methods=["raw"])
    told = [stage for stage, *_ in stages]
    assert told.index("expected seconds") < told.index("texts")
    [(seconds, texts)] = [(s, n) for stage, s, n in stages if stage == "expected seconds"]
    assert (texts, seconds >= 1) == (len(TEXTS), True)
    assert result.texts == len(TEXTS)  # what was timed is not there twice


class _FakeProcess:
    def __init__(self) -> None:
        self.shard: Any = None
        self.batch: tuple[int, ...] = ()
        self.messages: list[dict[str, Any]] = []
        self.last_words = "nothing"

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


def test_a_text_that_ends_processes_becomes_an_error_row_in_the_end() -> None:
    process: Any = _FakeProcess()
    shards = [Shard(0, 0, 4, 0, 0, 0), Shard(1, 4, 4, 0, 4, 0)]
    assignments = _Assignments(shards, {})

    def die_in(batch: tuple[int, ...]) -> dict[str, Any]:
        for _ in range(3):
            assignments.assign(process)
            process.batch = batch
            assignments.give_back(process, "was ended by SIGKILL")
        assignments.assign(process)
        assert process.shard == shards[0]
        return process.messages[-1]

    with pytest.raises(ModelError, match="while it read the texts from number 0 on, 3 times; it"):
        die_in(())
    assignments = _Assignments(shards, {})
    message = die_in((1, 2))
    assert (sorted(message["suspects"]), message["fatal"]) == ([1, 2], {})
    assignments.give_back(process, "ended before any batch")
    message = die_in((2,))
    assert "was ended by SIGKILL, 3 times" in message["fatal"][2]
    assignments.assign(process)
    assert process.shard == shards[1]
    assert process.messages[-1]["suspects"] == []


def test_texts_under_suspicion_are_run_alone_and_fatal_ones_not_at_all(tmp_path: Path) -> None:
    data, settings = write_texts(tmp_path), Settings(methods=["rollout"])
    plan = Plan.make([DataFile(data)], 10)
    batches: list[list[int]] = []
    job = JobSpec(None, settings, Columns(text="text"), (str(data),), tmp_path)
    worker = ShardWorker(
        job, Model(*classifier()), report=lambda *batch: batches.append([*batch[0]])
    )
    notes = worker.run(plan.shards[0], {}, {2: "It ended the process."}, suspects=[0])
    rows = pq.read_table(tmp_path / "part-00000000.parquet").to_pylist()
    assert notes.errors == 1
    assert rows[2]["error"] == "It ended the process."
    assert all(len(batch) == 1 for batch in batches)
    assert [row["flags"] for row in rows if row["row"] in (0, 1)] == [["alone"], []]


def test_a_full_disk_ends_the_run_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path)
    pair, options = (model, tokenizer), dict[str, Any](methods=["raw"], shard_size=3)
    run(pair, data, tmp_path / "one", **options)
    usual, written = pq.write_table, list[Path]()

    def write(table: Any, path: Path, **more: Any) -> None:
        written.append(path)
        usual(table, path, **more)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", write)
    with pytest.raises(FileError, match="the disk is full"):
        run(pair, data, tmp_path / "two", **options)
    assert len(parts_of(tmp_path / "two")) == 1
    monkeypatch.undo()
    run(pair, data, tmp_path / "two", **options)
    assert parts_of(tmp_path / "two") == parts_of(tmp_path / "one")


# -- the summary and the command --------------------------------------------------------------


def test_the_summary_counts_what_the_rows_say(tmp_path: Path) -> None:
    model, tokenizer = classifier()
    data = write_texts(tmp_path, [*TEXTS, "the " * 2000])
    options: Any = {"methods": ["rollout", "raw"], "level": "word", "shard_size": 3}
    result = run((model, tokenizer), data, tmp_path / "out", **options)
    summary = corpus.summarize(tmp_path / "out")
    rows = [row for row in rows_of(result) if row["error"] is None]
    tops = {
        name: [row["sources"][0] for row in rows if row["method"] == name]
        for name in ("rollout", "raw")
    }
    for name, own in tops.items():
        method = summary.methods[name]
        assert method.rows == len(TEXTS)
        assert method.strongest == Counter(source["text"] for source in own)
        several = [row for row in rows if row["method"] == name and row["source_count"] > 1]
        assert method.first == sum(row["sources"][0]["number"] == 0 for row in several)
        assert method.share == pytest.approx(sum(source["share"] for source in own) / len(own))
    same = sum(
        a["number"] == b["number"] for a, b in zip(tops["rollout"], tops["raw"], strict=True)
    )
    pair = summary.pairs["rollout", "raw"]
    assert pair.agreement == pytest.approx(same / len(TEXTS))
    assert len(pair.examples) == len(TEXTS) - same
    [(sentence, count)] = summary.errors.items()
    assert (count, "tokens and" in sentence) == (1, True)
    page = summary.to_html()
    assert "Where methods disagree" in page
    assert "<script" not in page


def test_the_command_runs_and_sums_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(job: JobSpec, options: Local, loaded: None) -> InlineEngine:
        assert options == Local(processes=2, threads=1)
        return InlineEngine(job, Model(*load_verb_number()))

    monkeypatch.setattr("attnflow.corpus.corpus_run.start_engine", start)
    data, out = write_texts(tmp_path), tmp_path / "out"
    command = ["corpus", "run", "--data", str(data), "--output", str(out), "--methods", "rollout"]
    command += ["--methods", "raw:heads=max", "--processes", "2", "--threads", "1", "--top", "2"]
    assert _run(command) == 0
    lines = capsys.readouterr().err.splitlines()
    states = [json.loads(line) for line in lines if line.startswith("{")]
    assert [state["texts"] for state in states] == [0, len(TEXTS)]
    assert states[-1]["tokens_per_second"] > 0
    assert _run(command) == 0
    assert json.loads(capsys.readouterr().err.splitlines()[0])["resumed"] == len(TEXTS)
    assert _run([*command, "--layers", "2"]) == 2
    assert "layers was -1 and is 2" in capsys.readouterr().err
    assert _run(["corpus", "summary", str(out)]) == 0
    assert "the first token is the strongest" in capsys.readouterr().out
    assert (out / "_summary.html").is_file()
    assert _run(["corpus", "summary", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == len(TEXTS)
    assert len(pq.read_table(out)) == 2 * len(TEXTS)


def test_kills_lose_and_double_nothing() -> None:
    assert torture_corpus.run_script("local", 6) == (6, [])


def test_an_actor_writes_the_parts_of_its_shards_once(tmp_path: Path) -> None:
    data, settings = write_texts(tmp_path), Settings(methods=["raw"], shard_size=4)
    run(load_verb_number(), data, tmp_path / "here", methods=["raw"], shard_size=4)
    manifest = json.loads((tmp_path / "here" / "_manifest.json").read_text())
    about = {name: manifest[name] for name in ("fingerprint", "settings", "provenance")}
    job = JobSpec(None, settings, Columns(text="text"), (str(data),), tmp_path)
    actor = ShardActor(job.to_dict(), about, torch.get_num_threads())
    shards = Plan.make([DataFile(data)], 4).shards
    batch = {name: np.array([vars(shard)[name] for shard in shards]) for name in vars(shards[0])}
    for _ in range(2):
        assert actor(batch)["texts"] == [4, 3]
        assert parts_of(tmp_path) == parts_of(tmp_path / "here")
    with pytest.raises(ModelError, match="another than that of the run: methods is"):
        ShardActor(job.to_dict(), {"settings": {**about["settings"], "methods": ["flow"]}}, 1)


def test_a_ray_with_two_nodes_gives_the_bytes_of_processes_though_one_dies() -> None:
    pytest.importorskip("ray")
    assert torture_corpus.run_script("ray", 2) == (2, [])
