"""What the README and the docs tell people to type: it runs, on small models where one is named.

Every page is found by itself, wherever it lies under docs/. Every command is parsed by the real
command line and run, and the blocks of Python of a page are run one after the other. Models that a
page names are tiny ones, and so is its data; what is not run is listed here with the reason.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import attnflow
from attnflow.cli.app import _run, app
from attnflow.data.example import DOCUMENTS
from attnflow.hosts import load
from attnflow.testing import random_attention, tiny_decoder, tiny_encoder, tiny_vision_model
from test_documents import write_pdf

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_ORDER = {"corpora.md"}  # whose commands need what earlier ones left; a test of its own runs it
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"attnflow(\.\w+)+")
# What is parsed but not run here: how it begins, and why.
NOT_RUN = {
    "attnflow serve": "it serves until it is stopped; tests/test_server.py and the browser's tests",
    "attnflow doctor": "it imports all that is installed; tests/test_doctor.py",
    "attnflow demo": "it takes a minute of SmolLM2; tests/test_cli.py",
    "attnflow experiment": "data or minutes; tests/test_experiments.py, test_sst2.py, "
    "test_pronouns.py and test_ablation_experiment.py run every experiment on little data",
    "pip install": "it changes the machine",
    "python training/": "hours of training; tests/test_sst2_training.py",
    "make ": "the Makefile is what continuous integration runs",
}
# A masked language model answers at its mask; for others it is an unknown word.
TEXTS = ["the [MASK] to the cabinets", "the author talked to [MASK] about his book"]
# Blocks of Python that need a package that is not among ours: a line of theirs, and why.
NOT_RUN_PYTHON = {
    "duckdb.sql": "duckdb and polars are other people's readers of the same files",
    "OpenAI(": "it calls a server; tests/test_doors_http.py does",
}


def blocks(path: Path, kind: str) -> list[str]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [body for language, body in found if language == kind]


def typed_lines(path: Path) -> list[str]:
    """The lines of a page that a person is told to type."""
    bodies = [body for kind in ("", "bash", "console", "shell") for body in blocks(path, kind)]
    lines = [line.removeprefix("$ ") for body in bodies for line in body.splitlines()]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    typed = ("attnflow ", "pip ", "python ", "make ")
    return [line.split("  #")[0].strip() for line in joined if line.startswith(typed)]


def commands(path: Path) -> list[str]:
    return [line for line in typed_lines(path) if line.startswith("attnflow ")]


def test_what_is_not_run_has_a_reason() -> None:
    """Every line to type is a command of ours, or of a kind that is listed; no kind is idle."""
    lines = [line for path in PAGES for line in typed_lines(path)]
    for line in lines:
        assert line.startswith(("attnflow ", *NOT_RUN)), line
    for beginning in NOT_RUN:
        assert any(line.startswith(beginning) for line in lines), beginning


def listed_commands() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for line in commands(path):
            yield path.name, line


def writer() -> Any:
    """A tiny language model with room for documents; its positions are rotary, so it has it."""
    loaded = tiny_decoder()
    loaded.module.config.max_position_embeddings = 2048
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
    return load.Model(T5ForConditionalGeneration(config).eval(), tokenizer)


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models and files that pages name, written once; each test gets a copy."""
    folder = tmp_path_factory.mktemp("pages")
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("text.txt", "prompt.txt"):
        (folder / name).write_text("the keys to the cabinets are old", encoding="utf-8")
    shutil.copy(ROOT / "docs" / "scene.png", folder)
    write_pdf(folder / "contract.pdf", [["the keys are old."]])
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("the author is here", encoding="utf-8")
    _write_data(folder)
    return folder


@pytest.fixture
def small_models(page_files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every model that a page names is a tiny one; every file it names is there."""

    def named(name: str, needs_tokenizer: bool) -> Any:
        if Path(name).is_dir():
            return usual(name, needs_tokenizer)
        if "t5" in name:
            return _tiny_translator()
        return tiny_encoder() if "bert" in name or "my-" in name else writer()

    usual = load._pretrained
    monkeypatch.setattr(load, "_pretrained", named)
    monkeypatch.setattr(load, "_smollm2", writer)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(page_files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _write_photos(folder: Path) -> None:
    """The vision models and photos that pages name."""
    from PIL import Image

    for name in ("vit", *(f"out/scenes/{family}" for family in ("vit", "deit", "dinov2"))):
        for part in tiny_vision_model():
            part.save_pretrained(folder / name)  # type: ignore[union-attr]
    (folder / "photos").mkdir()
    (folder / "out" / "scenes" / "held-out").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    names = ("photo.jpg", "chelsea.png", "photos/a.png", "out/scenes/held-out/0012.png")
    for name in names:
        Image.fromarray(noise).save(folder / name)
    (folder / "scenes.csv").write_text("path,label,box\nphoto.jpg,cat,0 0 16 16\n")


def _write_data(folder: Path) -> None:
    """The models and the files that pages name: a few texts each."""
    import pandas

    _write_photos(folder)
    for name, (model, tokenizer) in {
        "my-model": tiny_encoder(),
        "my-language-model": writer(),
    }.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    texts = TEXTS
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "numpred.val").write_text(
        "\n".join(f"VBP\t{text}" for text in texts), encoding="utf-8"
    )
    pandas.DataFrame({"text": texts, "label": [0, 1]}).to_csv(folder / "texts.csv", index=False)
    table = pandas.DataFrame({"review": texts})
    table.to_csv(folder / "reviews.csv", index=False)
    table.rename(columns={"review": "text"}).to_parquet(folder / "reviews.parquet")
    prompts = [text.replace("[MASK]", "keys") for text in texts]
    lines = [json.dumps({"prompt": prompt, "completion": " the"}) for prompt in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "answer.txt").write_text("the keys are old", encoding="utf-8")
    row = {"answer": "the keys", "documents": texts}
    (folder / "answers.jsonl").write_text(json.dumps(row), encoding="utf-8")
    messages = [{"role": "user", "content": "the keys to the cabinets"}]
    (folder / "chat.json").write_text(json.dumps(messages), encoding="utf-8")
    call = {"function": {"name": "forward_file", "arguments": '{"to": "sara"}'}}
    turns = [
        *messages,
        {"role": "tool", "content": "the author is here"},
        {"role": "assistant", "content": "the keys", "tool_calls": [call]},
    ]
    (folder / "transcript.json").write_text(json.dumps(turns), encoding="utf-8")


def test_every_command_is_understood() -> None:
    """The real parser takes it: the command exists, and so does each of its options."""
    root = typer.main.get_command(app)
    lines = [(page, line, problem_of(line, root)) for page, line in listed_commands()]
    assert not [f"{page}: {line}: {problem}" for page, line, problem in lines if problem]


def problem_of(line: str, command: Any) -> str | None:
    """The first word of a command line that the parser does not know."""
    arguments = shlex.split(line)[1:]
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        if arguments[0] not in command.commands:
            return arguments[0]
        command = command.commands[arguments.pop(0)]
    known = {
        o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)
    }
    options = [part.split("=")[0] for part in arguments if part.startswith("--")]
    return next((option for option in options if option not in known), None)


def runnable() -> list[str]:
    lines = [line for page, line in listed_commands() if page not in IN_ORDER]
    return [line for line in dict.fromkeys(lines) if not line.startswith(tuple(NOT_RUN))]


# Tiny models know few words and have few layers: what a page asks of a word is asked of theirs.
STAND_INS = {
    "my-demo/": "",
    "--images docs/": "--images ",
    "--output docs/": "--output ",
    '--model ./vlm --images photo.jpg "what is on the table?"': (
        '--model scenes --images scene.png "what colour is the circle?"'
    ),
    "--targets Paris": "--targets the",
    "some text": "the old keys",
    "Paris is the [MASK] of France": "the [MASK] of the key",
    '--model ./my-model "the old keys" --targets the --layers 6': (
        '--model ./my-model "the old keys" --targets the --layers 2'
    ),
    "--targets Russia": "--targets 0",
    "--data held-out.tsv": "--data texts.txt",
    "--skip 600 --samples 2000": "--samples 2",
    "--samples 2000": "--samples 2",
    "--min-words 4": "",
}


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("line", runnable())
def test_every_command_runs(
    line: str,
    small_models: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words, others in STAND_INS.items():
        line = line.replace(words, others)
    if line.startswith("attnflow evaluate") and "--samples" not in line:
        line += " --samples 2"
    if "--message" in line:
        monkeypatch.setattr(load, "_smollm2", chatting_writer)
    status = _run(shlex.split(line)[1:])
    error = capsys.readouterr().err
    ended_at_once = "The model ended at once" in error  # a tiny model may have nothing to say
    assert status == 0 or ended_at_once, error


def namespace(folder: Path) -> dict[str, Any]:
    """What the blocks take for granted."""
    decoder = writer()
    tokens = ["[CLS]", "key", "to", "the", "old", "cabinets"]
    weights = random_attention(6, 2, 6, seed=0)
    ids = torch.tensor([[3, 4, 5]])
    return {
        "attnflow": attnflow,
        "model": decoder.module,
        "tokenizer": decoder.tokenizer,
        "text": "the keys to",
        "texts": TEXTS,
        "prompt": "the keys to",
        "prompts": ["the keys to", "the author"],
        "completion": "the cabinets",
        "contract": DOCUMENTS["contract.txt"],
        "faq": DOCUMENTS["faq.txt"],
        "weights": weights,
        "tokens": tokens,
        "ids": ids,
        "mask": torch.ones_like(ids),
        "trace": attnflow.AttentionTrace.from_arrays(weights, tokens),
        "vit": _tiny_vision(),
        "pixels": torch.rand(1, 3, 32, 32),
        "np": np,
        "torch": torch,
        "nn": torch.nn,
        "Tensor": torch.Tensor,
        "Mapping": Mapping,
        "Any": Any,
    }


CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def chatting_writer() -> Any:
    """The tiny language model, with a template for conversations."""
    loaded = writer()
    loaded.tokenizer.chat_template = CHAT_TEMPLATE
    return loaded


def chatty(known: dict[str, Any]) -> None:
    """A conversation, and a tokenizer with a template for it."""
    known["tokenizer"].chat_template = CHAT_TEMPLATE
    known["messages"] = [{"role": "user", "content": "the keys to"}]


def two_sided(known: dict[str, Any]) -> None:
    """The encoder-decoder that a page speaks of, in place of the language model."""
    known["model"], known["tokenizer"] = _tiny_translator()


def masked(known: dict[str, Any]) -> None:
    """An encoder, for what is measured on classifiers and masked language models."""
    known["model"], known["tokenizer"] = tiny_encoder()
    known["text"] = TEXTS[0]
    batch = attnflow.capture((known["model"], known["tokenizer"]), known["texts"])
    known["traces"] = batch


def comparing(known: dict[str, Any]) -> None:
    """A CLIP, captions and an image, in small."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.CLIPConfig(
        text_config={**sizes, "num_attention_heads": 2, "vocab_size": 9, "eos_token_id": 3},
        vision_config={**sizes, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    ids, pixels = torch.tensor([[1, 5, 3], [1, 6, 3]]), torch.randn(1, 3, 32, 32)
    known |= {
        "clip": transformers.CLIPModel(config).eval(),
        "captions": ["a cat", "a cup"],
        "image": np.zeros((32, 32, 3), np.uint8),
        "processor": lambda **_: {"input_ids": ids, "pixel_values": pixels},
    }


# Before a block in which these words stand, what it takes for granted besides.
PREPARED: dict[str, Callable[[dict[str, Any]], None]] = {
    "attnflow.generate((model, tokenizer), messages": chatty,
    'decoder_text="Das Haus"': two_sided,
    'BlankOut(by="mask")': masked,
    'record=("gradients", "alti")': masked,
    "attnflow.explain(clip": comparing,
}
# Tiny models know few words, so what a page asks of a word is asked of one they know.
WORDS = {
    "My name is Putin, I am from": "the keys to",
    '.row("Russia")': ".row(-1)",
    '"who": "My name is Putin", "rest": (4, 8)': '"who": (0, 2)',
    "translate English to German: The house": "the keys",
    "max_new_tokens=12": "max_new_tokens=3",
    '"Das"': '"the"',
    '"Das Haus"': '"the keys"',
    '" Russia."': '" the author"',
    'targets=["45 days", "answer"]': 'targets=[0, "answer"]',
    'targets="Russia", contrast="France"': 'targets=0, contrast="author"',
    'targets="Madrid", ': "targets=0, ",
    '"document 1": (0, 900), "document 2": (900, 2100)': '"document 1": (0, 2)',
}


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.name not in IN_ORDER], ids=lambda path: path.name
)
def test_python_of_every_page_runs(path: Path, small_models: Path) -> None:
    known = namespace(small_models)
    for block in blocks(path, "python"):
        if any(words in block for words in NOT_RUN_PYTHON) or lacks_package(block):
            continue
        for words, prepare in PREPARED.items():
            if words in block:
                prepare(known)
        code = block
        for words, others in WORDS.items():
            code = code.replace(words, others)
        code = code.replace("class OneHead(nn.Module):", ONE_HEAD)
        exec(compile(code, str(path), "exec"), known)


def lacks_package(block: str) -> bool:
    """Return whether a block is for a large package that is not here: `make frameworks` has it."""
    large = ("mlflow", "ragas")
    return any(f"import {name}\n" in block and find_spec(name) is None for name in large)


ONE_HEAD = """class OneHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.randn(4, 4))
"""


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
    shutil.rmtree(small_models / "out", ignore_errors=True)  # the page begins with an empty folder
    write_corpora(small_models)
    from attnflow.corpus.worker import InlineEngine, load_for

    monkeypatch.setattr(
        "attnflow.corpus.corpus_run.start_engine",
        lambda job, _, loaded: InlineEngine(job, loaded or load_for(job)),
    )
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


def test_python_of_every_page_is_python_and_names_what_there_is() -> None:
    unknown = [
        f"{path.name}: {name}"
        for path in PAGES
        for block in blocks(path, "python")
        for name in unknown_names(block)
    ]
    assert not unknown


def unknown_names(block: str) -> Iterator[str]:
    """The names under attnflow that a block uses and that do not exist."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnflow"):
            module = importlib.import_module(str(node.module))
            yield from (alias.name for alias in node.names if not hasattr(module, alias.name))
        if isinstance(node, ast.Attribute) and DOTTED.fullmatch(ast.unparse(node)):
            value: Any = attnflow
            for part in ast.unparse(node).split(".")[1:]:
                if not hasattr(value, part):
                    yield ast.unparse(node)
                    break
                value = getattr(value, part)
