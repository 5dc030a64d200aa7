"""What the README and the docs tell people to type: it runs, on small models where one is named.

The README, docs/tasks.md and docs/corpora.md are run line by line. Of the other pages every command
is parsed by the real command line, with its options, and every block of Python is compiled and its
names looked up.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import typer

import attnflow
from attnflow.cli.app import _run, app
from attnflow.hosts import load
from attnflow.models.house import DOCUMENTS
from attnflow.testing import random_attention, tiny_decoder, tiny_encoder

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"attnflow(\.\w+)+")
RUN = ("README.md", "tasks.md")
# Commands that need data or an hour: they are parsed, and have tests of their own.
LONG = ("experiment", "evaluate", "serve", "demo", "check")


def blocks(path: Path, kind: str) -> list[str]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [body for language, body in found if language == kind]


def commands(path: Path) -> list[str]:
    lines = [line.removeprefix("$ ") for body in blocks(path, "") for line in body.splitlines()]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in joined if line.startswith("attnflow ")]


def listed_commands() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for line in commands(path):
            yield path.name, line


def writer() -> Any:
    """A tiny language model with room for documents; its positions are rotary, so it has it."""
    loaded = tiny_decoder()
    loaded.model.config.max_position_embeddings = 2048
    return loaded


def _tiny_vision() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    return ViTForImageClassification(config).eval()


def _tiny_translator() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = tiny_decoder().tokenizer
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return load.Loaded(T5ForConditionalGeneration(config).eval(), tokenizer)


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every model that a page names is a tiny one; every file it names is there."""

    original = load._pretrained

    def named(name: str, needs_tokenizer: bool) -> Any:
        if "vit" in name:
            return original(name, needs_tokenizer)
        if "t5" in name:
            return _tiny_translator()
        return tiny_encoder() if "bert" in name or "my-" in name else writer()

    monkeypatch.setattr(load, "_pretrained", named)
    monkeypatch.setattr(load, "_smollm2", writer)
    monkeypatch.chdir(tmp_path)
    for name, text in DOCUMENTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in ("text.txt", "prompt.txt"):
        (tmp_path / name).write_text("the keys to the cabinets are old", encoding="utf-8")
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("page", "line"), list(listed_commands()), ids=lambda part: str(part)[:60])
def test_every_command_is_understood(page: str, line: str) -> None:
    """The real parser takes it: the command exists, and so does each of its options."""
    arguments = shlex.split(line)[1:]
    command: Any = typer.main.get_command(app)
    context = click.Context(command, info_name="attnflow")
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"{page}: {line}"
        command = command.commands[arguments.pop(0)]
        context = click.Context(command, parent=context, info_name="attnflow")
    allowed = {option for parameter in command.params for option in parameter.opts}
    options = [part for part in arguments if part.startswith("--")]
    unknown = [option for option in options if option.split("=")[0] not in allowed]
    secondary = {o for parameter in command.params for o in parameter.secondary_opts}
    assert not [option for option in unknown if option not in secondary], f"{page}: {line}"


def runnable() -> list[str]:
    lines = [line for name, line in listed_commands() if name in RUN]
    return [line for line in dict.fromkeys(lines) if shlex.split(line)[1] not in LONG]


@pytest.mark.parametrize("line", runnable())
def test_commands_of_the_readme_and_the_tasks_run(
    line: str, small_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "./my-model" in line or "Paris" in line:
        line = line.replace("--targets Paris", "--targets the").replace("some text", "the old keys")
        line = line.replace("Paris is the [MASK] of France", "the [MASK] of the key")
        line = line.replace("--layers 6", "--layers 2")
    line = line.replace("--select Russia", "--select -1") if "--select" in line else line
    status = _run(shlex.split(line)[1:])
    error = capsys.readouterr().err
    ended_at_once = "The model ended at once" in error  # a tiny model may have nothing to say
    assert status == 0 or ended_at_once, error


def namespace(folder: Path) -> dict[str, Any]:
    """What the blocks take for granted."""
    decoder = writer()
    tokens = ["the", "key", "to", "the", "old", "cabinets"]
    weights = random_attention(6, 2, 6, seed=0)
    return {
        "attnflow": attnflow,
        "model": decoder.model,
        "tokenizer": decoder.tokenizer,
        "text": "the keys to the cabinets",
        "prompt": "the keys to",
        "completion": "the cabinets",
        "contract": DOCUMENTS["contract.txt"],
        "faq": DOCUMENTS["faq.txt"],
        "weights": weights,
        "tokens": tokens,
        "trace": attnflow.AttentionTrace.from_arrays(weights, tokens),
        "vit": _tiny_vision(),
        "pixels": torch.rand(1, 3, 32, 32),
        "np": np,
    }


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("name", RUN)
def test_python_of_the_readme_and_the_tasks_runs(name: str, small_models: Path) -> None:
    path = next(page for page in PAGES if page.name == name)
    known = namespace(small_models)
    for block in blocks(path, "python"):
        # Tiny models know few words, so what a page asks of a word is asked of one they know.
        code = block.replace("My name is Putin, I am from", "the keys to").replace(
            '.row("Russia")', ".row(-1)"
        )
        code = code.replace('"who": "My name is Putin", "rest": (4, 8)', '"who": (0, 2)')
        code = code.replace("translate English to German: The house", "the keys")
        code = code.replace("max_new_tokens=12", "max_new_tokens=3").replace('"Das"', '"the"')
        exec(compile(code, str(path), "exec"), known)


def write_corpora(folder: Path) -> None:
    """The files that docs/corpora.md names."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    texts = ["the keys to the cabinet", "the author of the books", "the king", "the old city"]
    verbs = ["plural", "singular", "singular", None]
    table = pa.table({"id": [1, 2, 3, 4], "text": texts, "verb": verbs})
    pq.write_table(table.set_column(0, "id", pa.array("abcd")), folder / "prefixes.parquet")
    pq.write_table(table.select(["id", "text"]), folder / "reviews.parquet")
    row = {"question": "the keys are", "context": ["the book of", "her keys"], "answer": "his"}
    (folder / "questions.jsonl").write_text(json.dumps(row), encoding="utf-8")
    image.new("RGB", (32, 32), "red").save(folder / "red.png")
    (folder / "images.csv").write_text("path\nred.png\n", encoding="utf-8")
    _tiny_vision().save_pretrained(folder / "my-vit")
    preparation = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "my-vit" / "preprocessor_config.json").write_text(json.dumps(preparation))


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
def test_the_page_on_corpora_runs(
    small_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands in their order, then its Python; in this process, where the models are tiny."""
    pytest.importorskip("pandas")
    write_corpora(small_models)
    from attnflow.corpus import place
    from attnflow.corpus.local_engine import InlineEngine
    from attnflow.corpus.shard_worker import load_for

    def inline(work: Any, processes: int | None, threads: int | None) -> InlineEngine:
        return InlineEngine(work, load_for(work.settings))

    monkeypatch.setattr(place, "LocalEngine", inline)
    page = ROOT / "docs" / "corpora.md"
    lines = commands(page)
    assert len(lines) >= 5
    for line in lines:
        assert _run(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    known: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), known)
    errors = [known["attnflow"].corpus.read(name).errors for name in ("out", "sources", "images")]
    assert errors == [0, 0, 0]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_of_every_page_is_python_and_names_what_there_is(path: Path) -> None:
    for block in blocks(path, "python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnflow"):
                module = __import__(str(node.module), fromlist=["_"])
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{path.name}: {ast.unparse(node)}"
            if isinstance(node, ast.Attribute) and DOTTED.fullmatch(ast.unparse(node)):
                value: Any = attnflow
                for part in ast.unparse(node).split(".")[1:]:
                    assert hasattr(value, part), f"{path.name}: {ast.unparse(node)}"
                    value = getattr(value, part)
