"""Natural mistakes: each is answered before a model runs, in words that name the fix."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from attnflow.cli.app import _run, app
from attnflow.errors import ModelError
from attnflow.hosts import load

# What a person types, in a folder with contract.txt, faq.md and texts.csv; and what tells the fix.
MISTAKES = {
    # files
    'ask "How long?"': "There is no document: name files, as in contract.pdf 'notes/*.txt'",
    'ask "How long?" contrct.txt': "there is no such file, and no file matches it as a pattern. "
    "Did you mean 'contract.txt'?",
    'ask contract.txt "How long?"': "The question comes first, then the documents",
    'ask "How long?" empty': "The folder 'empty' holds no document: names end in .txt, .md",
    'ask "How long?" old.doc': "no PDF, Word (.docx) or HTML file. Save it as one of these",
    'ask "How long?" table.xlsx': "is no Word document (.docx)",
    'ask "How long?" broken.pdf': "is a damaged PDF",
    'ask "How long?" nothing.txt': "'nothing.txt' holds no text.",
    'ask "" contract.txt': "There is nothing to answer: the text is ''.",
    "ask": "attnflow ask needs QUESTION. `attnflow ask --help` shows what it takes. Example: ",
    "explain contrct.txt": "There is no file 'contrct.txt'. Did you mean 'contract.txt'?",
    "explain empty": "'empty' is a folder; name a file in it.",
    "explain photo.jpg": "There is no image 'photo.jpg'",
    "explain transcript.json --targets x": "There is no file 'transcript.json'.",
    "ask --answer x why contract.txt": "An answer that exists is read by attnflow cite",
    "explain --file contract.txt": "in the place of the text: attnflow explain contract.txt.",
    "explain": "its words, a file that holds it, or - for standard input",
    "generate nowhere.pdf": "There is no file 'nowhere.pdf'.",
    "generate --message chat.json": "There is no file 'chat.json'.",
    "trace contract.txt": "A transcript is a .json file with the messages",
    "evaluate nowhere.csv": "There is no file or folder 'nowhere.csv' to read.",
    "evaluate": "attnflow evaluate texts.csv",
    "evaluate contract.docx": "There is no file or folder 'contract.docx'",
    "cite contract.txt": "attnflow cite --answer contract.txt --document",
    "cite contract.txt faq.md": "attnflow cite takes no 'faq.md'.",
    "cite --answer contract.txt": "There is no document: --document FILE names one",
    "cite --document contract.txt": "There is no answer: --answer FILE names it",
    # words without quotes, commands that are none
    "explain the keys to the cabinet": "a text of several words stands in quotes",
    '"How long is the notice?" contract.txt': 'is no command: attnflow explain "a text", or',
    "explian x": "There is no command 'explian'. Did you mean 'explain'?",
    "help": "`attnflow --help` shows what it takes",
    "corpus texts.csv": "The commands are run, summary.",
    "corpus run": "attnflow corpus run needs --data.",
    "serve contract.txt": "attnflow serve takes no 'contract.txt'.",
    # options
    'ask "How long?" --docs contract.txt': "Did you mean --documents?",
    'ask "How long?" contract.txt --max-tokens 5': "Did you mean --max-new-tokens?",
    'ask "How long?" contract.txt --no-chek': "Did you mean --no-check?",
    "explain x --tabel": "Did you mean --table?",
    "explain x --layer 3": "Did you mean --layers?",
    "explain x --method rollout --residual 0.3": "--method NAME:residual=VALUE",
    "explain x -m rollout": "Did you mean --model or --method?",
    "explain x --model": "requires an argument",
    "report x": "attnflow report needs --output.",
    "-v": "`attnflow --version` shows the version.",
    # values
    "ask Who? contract.txt --max-new-tokens 0": "is a number of at least 1; got '0'",
    "ask Who? contract.txt --max-new-tokens=ten": "--max-new-tokens is a whole number; got 'ten'",
    'ask "How long?" contract.txt --seed -1': "--seed is a whole number from 0",
    "explain x --layers all": "--layers is a whole number; got 'all'",
    "explain x --method rolout": "Did you mean 'rollout'?",
    "explain x --method rollout:residul=0.3": "Did you mean 'residual'?",
    "explain x --figure bar": "Did you mean 'bars'?",
    "explain x --level sentence": "Allowed: 'token', 'word'.",
    "explain x --output x.jpg": "must be .json, .safetensors, .html, .png, .svg, .pdf or .gif",
    "explain x --json --output x.json": "choose one",
    "generate x --temperature 0.7": "--temperature is for sampling; add --seed NUMBER.",
    "generate x --images nowhere.png": "--images 'nowhere.png': there is no such file.",
    "generate --message hi": "must read ROLE=TEXT, where the role is one of system, user",
    "generate x --top 0": "--top is a number of at least 1; got '0'",
    "evaluate texts.csv --methods rolout": "Did you mean 'rollout'?",
    "methods rolout": "Did you mean 'rollout'?",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes")
    (path / "empty").mkdir()
    contents = {
        "contract.txt": b"The notice is 45 days.",
        "faq.md": b"# Questions",
        "texts.csv": b"text,label\nthe keys,1\n",
        "old.doc": b"\xd0\xcf\x11\xe0",
        "table.xlsx": b"PK\x03\x04 no document",
        "broken.pdf": b"%PDF-1.4 nothing",
        "nothing.txt": b" \n",
    }
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_with_its_fix_before_a_model_runs(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("attnflow.cli.options.prepare_models", lambda: pytest.fail("it went on"))
    assert _run(shlex.split(line)) in (1, 2)
    captured = capsys.readouterr()
    assert MISTAKES[line] in captured.err
    assert captured.out == ""
    assert captured.err.startswith("attnflow: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("explain keys --answer plurl", "Did you mean 'plural'? There are 2: 'singular', 'plural'"),
        ("explain keys --contrast plurall", "There are 2: 'singular', 'plural'"),
        ("explain 'the keys' --targets lock", "The tokens are 0 '[CLS]', 1 'the', 2 'keys'"),
        ("explain keys --layers 99", "choose from 1, 2, 3, 4, 5, 6"),
        ("explain keys --model smolm2", "Did you mean 'smollm2'?"),
        ("explain keys --model contract.txt", "A model is a folder"),
        ("ask 'How long?' contract.txt --model verb-number", "name a language model"),
    ],
)
def test_what_only_the_model_knows_is_told_with_the_choices(
    line: str,
    fix: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert _run(shlex.split(line)) in (1, 2)
    assert fix in capsys.readouterr().err


def test_without_a_network_a_name_is_told_within_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)

    def stall(*_: object) -> None:
        time.sleep(30)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", stall)
    start = time.monotonic()
    assert not load.reaches_hub()
    assert time.monotonic() - start < 3
    monkeypatch.setattr(load, "reaches_hub", lambda: False)
    with pytest.raises(ModelError, match="is not on this machine"):
        load.load("nobody/nothing")


def commands(group: Any, path: str = "attnflow") -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for name, command in group.commands.items():
        nested = getattr(command, "commands", None)
        listed |= commands(command, f"{path} {name}") if nested else {f"{path} {name}": command}
    return listed


def test_every_command_shows_two_examples_and_its_default_method() -> None:
    for path, command in commands(typer.main.get_command(app)).items():
        text = command.get_help(typer.Context(command))
        assert text.count(f"  {path}") >= 2, path
        options = {option for parameter in command.params for option in parameter.opts}
        compares = "experiment" in path or path == "attnflow bench"
        if "--method" in options and not compares:
            assert "The default method is" in text, path
