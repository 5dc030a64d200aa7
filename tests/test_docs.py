"""What the README and the docs tell people to type: it runs as it is printed.

Every page is found by itself, wherever it lies under docs/. The commands of a page run one after
the other, and so do its blocks of Python, in a folder that has what pages name
(tests/stand_ins.py). What is not run is listed here with the reason.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import uvicorn

import attnflow
from attnflow.cli.app import _run, app
from attnflow.data.example import DOCUMENTS
from attnflow.hosts import load
from attnflow.testing import random_attention, tiny_vision_model
from stand_ins import BLOCK, PAGES, TEXTS, write_all

DOTTED = re.compile(r"attnflow(\.\w+)+")
# What is parsed but not run: a part of the line, or of the block of Python, and why.
NOT_RUN = {
    "pip install": "it changes the machine",
    "make ": "the Makefile is what continuous integration runs",
    "--held-out": "the data cannot be shipped; tests/test_experiments.py has little of its kind",
    "--engine ray": "Ray is not in the environment of the tests; `make torture` serves on it",
}
NOT_RUN_PYTHON = {
    "OpenAI(": "it calls a server; tests/test_doors_http.py does",
    "import mlflow\n": "large; `make frameworks` has it",
    "import ragas\n": "large; `make frameworks` has it",
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


def is_run(code: str, left_out: dict[str, str]) -> bool:
    return not any(words in code for words in left_out)


def test_what_is_not_run_has_a_reason_and_is_little() -> None:
    lines = [line for path in PAGES for line in typed_lines(path)]
    python = [block for path in PAGES for block in blocks(path, "python")]
    for code, left_out in ((lines, NOT_RUN), (python, NOT_RUN_PYTHON)):
        for words in left_out:
            assert any(words in part for part in code), f"{words!r} is on no page"
    skipped = {line for line in lines if not is_run(line, NOT_RUN)}
    skipped |= {block for block in python if not is_run(block, NOT_RUN_PYTHON)}
    assert len(skipped) <= 10, skipped
    assert all(line.startswith("attnflow ") for line in lines if is_run(line, NOT_RUN))


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models and files that pages name, written once; each test gets a copy."""
    folder = tmp_path_factory.mktemp("pages")
    write_all(folder)
    return folder


@pytest.fixture
def small_models(page_files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a page; `smollm2` is the one in it, and a corpus is run in this process."""
    from attnflow.corpus.worker import InlineEngine, load_for

    monkeypatch.setattr(load, "_smollm2", lambda: load._pretrained("./smollm2", True))
    monkeypatch.setattr(
        "attnflow.corpus.corpus_run.start_engine",
        lambda job, _, loaded: InlineEngine(job, loaded or load_for(job)),
    )
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)  # it ends at once
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    monkeypatch.setattr("attnflow.show.plots.animation._DOTS_PER_INCH", 20)  # films are slow
    monkeypatch.chdir(tmp_path)
    shutil.copytree(page_files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_every_command_is_understood() -> None:
    """The real parser takes it: the command exists, and so does each of its options."""
    root = typer.main.get_command(app)
    lines = [(path.name, line) for path in PAGES for line in typed_lines(path)]
    typed = [(page, line) for page, line in lines if line.startswith("attnflow ")]
    problems = [(page, line, problem_of(line, root)) for page, line in typed]
    assert not [f"{page}: {line}: {problem}" for page, line, problem in problems if problem]


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


def runnable() -> Iterator[tuple[Path, list[str]]]:
    """Yield each page with its commands, a command that several pages have with the first."""
    seen: set[str] = set()
    for path in PAGES:
        lines = [line for line in typed_lines(path) if is_run(line, NOT_RUN) and line not in seen]
        seen.update(lines)
        if lines:
            yield path, lines


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("path", "lines"), [pytest.param(*page, id=page[0].name) for page in runnable()]
)
def test_commands_of_every_page_run(
    path: Path, lines: list[str], small_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in lines:
        assert _run(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"


def namespace() -> dict[str, Any]:
    """What the blocks take for granted: a loaded model, a text, a trace."""
    decoder = load._pretrained("./my-language-model", True)
    tokens = ["[CLS]", "key", "to", "the", "old", "cabinets"]
    weights = random_attention(6, 2, 6, seed=0)
    ids = torch.tensor([[3, 4, 5]])
    return {
        "attnflow": attnflow,
        "model": decoder.module,
        "tokenizer": decoder.tokenizer,
        "texts": TEXTS,
        "prompt": "the keys to",
        "prompts": ["the keys to", "the author"],
        "contract": DOCUMENTS["contract.txt"],
        "faq": DOCUMENTS["faq.txt"],
        "weights": weights,
        "tokens": tokens,
        "ids": ids,
        "mask": torch.ones_like(ids),
        "trace": attnflow.AttentionTrace.from_arrays(weights, tokens),
        "vit": tiny_vision_model().module,
        "pixels": torch.rand(1, 3, 32, 32),
    }


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "path", [path for path in PAGES if blocks(path, "python")], ids=lambda path: path.name
)
def test_python_of_every_page_runs(
    path: Path, small_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.name == "corpora.md":  # its blocks read what its commands wrote
        for line in typed_lines(path)[:2]:
            assert _run(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    known = namespace()
    for block in blocks(path, "python"):
        if is_run(block, NOT_RUN_PYTHON) or ("OpenAI(" not in block and has_package(block)):
            exec(compile(block, str(path), "exec"), known)


def has_package(block: str) -> bool:
    return find_spec(block.split()[1]) is not None


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
