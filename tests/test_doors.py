"""One table of cases through every door: Python, command line, page, report and corpus agree.

Each door is given the same model, text, method and targets, and hands back its rows at the highest
layer by the position they explain. What a page carries is rounded to four digits of a row's
strongest value; everything else agrees to 1e-6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner, Result

import attnflow
from attnflow import corpus
from attnflow.cli.app import app
from attnflow.errors import AttnflowError
from attnflow.show.view import results_of
from attnflow.testing import tiny_decoder, tiny_encoder, tiny_vision_model
from attnflow_connect.server.models import named_models
from serving import Client, serving

Rows = dict[int, list[float]]
"""The values of every source, by the position that is explained."""

PAGE_DIGITS = 1e-4  # of a row's strongest value
EXACT = 1e-6


# --- models, each written once --------------------------------------------------------------------


def tiny_jamba() -> Any:
    """A causal model whose attention is known and whose row gradients are not."""
    loaded = tiny_decoder()
    torch.manual_seed(0)
    config = transformers.JambaConfig(
        vocab_size=len(loaded.tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return attnflow.load(transformers.JambaForCausalLM(config).eval(), tokenizer=loaded.tokenizer)


def headless_decoder() -> Any:
    """A causal model without an answer: hidden states, no words."""
    loaded = tiny_decoder()
    return attnflow.load(loaded.module.model, tokenizer=loaded.tokenizer)


MODELS: dict[str, Callable[[], Any]] = {
    "classifier": lambda: tiny_encoder(head="SequenceClassification"),
    "masked": tiny_encoder,
    "tagger": lambda: tiny_encoder(head="TokenClassification"),
    "headless": lambda: tiny_encoder(head=""),
    "headless-decoder": headless_decoder,
    "decoder": tiny_decoder,
    "jamba": tiny_jamba,
    "vision": tiny_vision_model,
}


class Folders:
    """The models as folders, each written when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __getitem__(self, name: str) -> Path:
        folder = self.root / name
        if not folder.exists():
            loaded = MODELS[name]()
            for tool in (loaded.module, loaded.tokenizer, loaded.processor):
                if tool is not None:
                    tool.save_pretrained(folder)
        return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folders: Folders) -> Iterator[Client]:
    names = [str(folders[name]) for name in MODELS if name != "vision"]
    with serving(named_models(names)) as running:
        yield running


# --- the cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, what it reads, and what is asked."""

    model: str
    text: str = "the author talked to sara about the keys"
    method: str | None = None
    target: int | None = None  # None: where the answer is read from

    def __str__(self) -> str:
        target = "" if self.target is None else f" at {self.target}"
        return f"{self.model} {self.method or 'default'}{target}"


CASES = [
    *(Case("classifier", method=name) for name in (None, "rollout:residual=0.4", "flow", "alti")),
    *(Case("classifier", method=name) for name in ("gradient-rollout", "gradient-attention")),
    Case("masked", text="the author talked to [MASK]"),
    Case("masked", text="the author talked to [MASK]", method="gradient-rollout"),
    *(Case("decoder", method=name) for name in (None, "rollout", "gradient-rollout")),
    # A token classifier answers for each token: the gradient is that of the token asked for.
    *(
        Case("tagger", method=name, target=target)
        for name in ("gradient-rollout", "gradient-attention", "gradient-flow", "rollout")
        for target in (None, 2)
    ),
    # A model without an answer: every position is explained, by whichever door.
    Case("headless"),
    Case("headless", method="rollout"),
    Case("headless-decoder"),
    Case("headless-decoder", method="rollout"),
    # A causal model without row gradients has one default.
    Case("jamba"),
]


@cache  # each door is compared with it
def python_rows(case: Case, folder: Path) -> Rows:
    options = {} if case.target is None else {"targets": case.target}
    result = attnflow.explain(str(folder), case.text, case.method, layers=-1, **options)
    return rows_of(result)


def rows_of(result: Any) -> Rows:
    values = np.asarray(result.values)[-1]
    return dict(zip(result.targets.positions, values.tolist(), strict=True))


def command_rows(case: Case, folder: Path) -> Rows:
    arguments = ["explain", case.text, "--model", str(folder), "--json"]
    if case.method is not None:
        arguments += ["--method", case.method]
    if case.target is not None:
        arguments += ["--targets", str(case.target)]
    record = json.loads(run(arguments).stdout)
    values = np.asarray(record["values"])[-1]
    return dict(zip(record["targets"]["positions"], values.tolist(), strict=True))


def run(arguments: list[str]) -> Result:
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output + str(outcome.exception or "")
    return outcome


def page_rows(case: Case, client: Client) -> Rows:
    if ":" in str(case.method):
        pytest.skip("the page offers methods without options")
    methods = [case.method or "default"]
    fields = {"model": case.model, "text": case.text, "methods": methods, "check": False}
    sent = client.post("/api/explain", fields)
    assert sent.status == 202, sent.body
    job = client.finished(sent.json["id"])
    assert job["state"] == "done", job
    return rows_of(results_of(client.get(f"/api/results/{job['result']}.json").json)[0])


def report_rows(case: Case, folder: Path, output: Path) -> Rows:
    arguments = ["report", case.text, "--model", str(folder), "--output", str(output)]
    if case.method is not None:
        arguments += ["--methods", case.method]
    run(arguments)
    return rows_in(output)


def rows_in(page: Path) -> Rows:
    """The rows of the first result that a page carries."""
    found = re.search(r'id="attnflow-data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return rows_of(results_of(json.loads(found[1]))[0])


def corpus_rows(case: Case, folder: Path, place: Path) -> Rows:
    data = place / "texts.jsonl"
    data.write_text(json.dumps({"text": case.text}) + "\n", encoding="utf-8")
    methods = () if case.method is None else [case.method]
    settings = corpus.Settings(methods=methods, targets=case.target, values=True)
    corpus.run(attnflow.load(folder), data, place / "out", settings=settings)
    rows = corpus.read(place / "out").to_arrow().to_pylist()
    assert [row["error"] for row in rows] == [None] * len(rows)
    return {row["target_position"]: row["values"] for row in rows}


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_command_line_gives_the_rows_of_python(case: Case, folders: Folders) -> None:
    same_rows(command_rows(case, folders[case.model]), python_rows(case, folders[case.model]))


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_corpus_gives_the_rows_of_python(case: Case, folders: Folders, tmp_path: Path) -> None:
    folder = folders[case.model]
    same_rows(corpus_rows(case, folder, tmp_path), python_rows(case, folder))


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_report_shows_the_rows_of_python(case: Case, folders: Folders, tmp_path: Path) -> None:
    rows = report_rows(case, folders[case.model], tmp_path / "page.html")
    shown_rows(rows, python_rows(case, folders[case.model]))


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_page_shows_the_rows_of_python(case: Case, folders: Folders, client: Client) -> None:
    shown_rows(page_rows(case, client), python_rows(case, folders[case.model]))


def same_rows(rows: Rows, expected: Rows) -> None:
    assert list(rows) == list(expected)
    for position, values in expected.items():
        np.testing.assert_allclose(rows[position], values, rtol=0, atol=EXACT)


def shown_rows(rows: Mapping[int, list[float]], expected: Rows) -> None:
    """A page shows every target; among them are those that Python explains."""
    assert set(rows) >= set(expected)
    for position, values in expected.items():
        strongest = max(map(abs, values)) or 1.0
        atol = PAGE_DIGITS * strongest
        np.testing.assert_allclose(rows[position], values, rtol=0, atol=atol)


# --- what every door refuses, and in the same words -----------------------------------------------


@pytest.mark.parametrize("method", ["residual=0.4", ":residual=0.4", "rolout", "rollout:residul=1"])
def test_a_method_that_is_none_is_the_same_error_everywhere(
    method: str, folders: Folders, client: Client
) -> None:
    folder, text = str(folders["classifier"]), "the key"
    with pytest.raises(AttnflowError) as raised:
        attnflow.explain(folder, text, method)
    sentence = str(raised.value).split(";")[0].split(".")[0]
    for arguments in (
        ["explain", text, "--model", folder, "--method", method],
        ["report", text, "--model", folder, "--methods", method, "--output", "page.html"],
    ):
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code != 0
        assert sentence in " ".join((outcome.output + str(outcome.exception)).split())
    with pytest.raises(AttnflowError, match=re.escape(sentence)):
        corpus.Settings(methods=[method])
    fields = {"model": "classifier", "text": text, "methods": [method]}
    assert client.post("/api/explain", fields).status == 422


def test_options_without_a_method_are_refused(folders: Folders) -> None:
    folder = str(folders["classifier"])
    with pytest.raises((TypeError, AttnflowError)):
        attnflow.explain(folder, "the key", residual=0.4)  # type: ignore[call-arg]
    arguments = ["explain", "the key", "--model", folder, "--option", "residual=0.4"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, AttnflowError)


def test_a_causal_model_without_row_gradients_has_one_default(folders: Folders) -> None:
    """`explain` gave rollout with residual ½, `generate` one-step rollout."""
    model = attnflow.load(folders["jamba"])
    explained = attnflow.explain(model, "the keys to the")
    written = attnflow.generate(model, "the keys to the", max_new_tokens=1)
    assert explained.method == written.method


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "rollout", "gradient-attention"])
def test_an_image_is_prepared_the_same_by_every_door(
    method: str | None, folders: Folders, tmp_path: Path
) -> None:
    """At another size than the model's: the processor scales it, and there is one way to."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    photo, folder = tmp_path / "photo.png", folders["vision"]
    Image.fromarray(noise).save(photo)
    expected = rows_of(attnflow.explain(str(folder), photo, method, layers=-1))
    named = [] if method is None else ["--method", method]
    shown = run(["explain", str(photo), "--model", str(folder), "--json", *named])
    record = json.loads(shown.stdout)
    values = np.asarray(record["values"])[-1].tolist()
    same_rows(dict(zip(record["targets"]["positions"], values, strict=True)), expected)
    output = tmp_path / "page.html"
    named = [] if method is None else ["--methods", method]
    run(["report", str(photo), "--model", str(folder), "--output", str(output), *named])
    shown_rows(rows_in(output), expected)
    data = tmp_path / "images.jsonl"
    data.write_text(json.dumps({"image": str(photo)}) + "\n", encoding="utf-8")
    settings = corpus.Settings(methods=() if method is None else [method], values=True)
    result = corpus.run(attnflow.load(folder), data, tmp_path / "out", settings=settings)
    rows = result.to_arrow().to_pylist()
    same_rows({row["target_position"]: row["values"] for row in rows}, expected)


# --- files ----------------------------------------------------------------------------------------


def test_a_lone_quote_is_a_sign_like_any_other(folders: Folders, tmp_path: Path) -> None:
    """Five rows are five, whoever reads them."""
    texts = ["the keys", 'the "author', "talked to sara", 'her" book', "the cabinets are of sara"]
    for role in ("text", "prompt"):
        path = tmp_path / f"{role}.tsv"
        path.write_text("\n".join([role, *texts]) + "\n", encoding="utf-8")
        settings = corpus.Settings(methods=["rollout"], max_new_tokens=int(role == "prompt"))
        result = corpus.run(tiny_decoder(), path, tmp_path / role, settings=settings)
        assert result.texts == 5
    arguments = ["evaluate", "--data", str(tmp_path / "text.tsv"), "--methods", "rollout"]
    shown = run([*arguments, "--model", str(folders["classifier"]), "--json"])
    assert json.loads(shown.stdout)["settings"]["texts"] == 5


def test_a_byte_that_is_no_utf8_is_said_by_every_door(folders: Folders, tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_bytes("text\nthe key\nthe caf\xe9 of sara\n".encode("latin-1"))
    settings = corpus.Settings(methods=["rollout"])
    result = corpus.run(tiny_encoder(), path, tmp_path / "out", settings=settings)
    errors = {row["row"]: row["error"] for row in result.to_arrow().to_pylist()}
    assert errors[0] is None
    assert "UTF-8" in errors[1]
    arguments = ["evaluate", "--data", str(path), "--model", str(folders["classifier"])]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code != 0
    assert "UTF-8" in outcome.output + str(outcome.exception)
