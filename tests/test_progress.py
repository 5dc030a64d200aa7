"""What people see while they wait: a line at once, bars, lines in a log, text as it is written."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from attnflow.cli.writing import Pace, tell_seconds
from attnflow.errors.progress import Progress, listening, tell
from attnflow.explainers.questions import _hear_first_line
from attnflow.hosts.restore import at_rest
from attnflow.show.progress import _tell_cell, in_notebook, progress_bars
from attnflow.testing import tiny_decoder


def test_the_time_is_told_at_once_from_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNFLOW_CACHE", str(tmp_path))
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    monkeypatch.setattr("attnflow.cli.writing.sys.modules", modules)
    (tmp_path / "pace.json").write_text(json.dumps({"m": [5, 0.1]}), encoding="utf-8")
    with Pace("m", "word" * 100, 50):
        pass
    Pace("new", "x")
    with pytest.raises(ValueError, match="it failed"), Pace("failing", "x"):
        raise ValueError("it failed")
    assert capsys.readouterr().err.splitlines()[:2] == [
        "attnflow: m reads about 100 tokens and writes up to 50: about 20 seconds.",
        "attnflow: new reads about 1 token: how long is not known before its first run here.",
    ]
    kept = json.loads((tmp_path / "pace.json").read_text(encoding="utf-8"))
    assert list(kept) == ["m"]
    assert kept["m"][0] < 1  # what was measured stands in the place of what was
    (tmp_path / "pace.json").write_text("[broken", encoding="utf-8")
    Pace("smollm2", "x")
    assert "about 7 seconds" in capsys.readouterr().err
    assert [tell_seconds(t) for t in (0.2, 1.4, 89, 600)] == [
        *("1 second", "1 second", "89 seconds", "10 minutes")
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_first_text_is_written_as_it_comes_and_nothing_after_it(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    pieces: list[str] = []
    with progress_bars("reading", console=console, write=pieces.append):
        tell("reading tokens", 3, 10)
        tell("writing", 1, 4, "45 ")
        tell("writing", 2, 4, "days")
        tell("ablation", 1, 3)
        tell("writing", 1, 4, "again")  # what is asked again is not the answer
    assert pieces == ["45 ", "days", "\n"]


def test_only_the_first_line_is_heard_of_a_model_without_a_template() -> None:
    change = _hear_first_line()
    texts = ["\n ", "45", " days\nQ", "uestion: 7\n"]
    assert [change(Progress("writing", 1, 9, text)).text for text in texts] == [
        "",
        "45",
        " days",
        "",
    ]


def test_a_long_text_is_told_of_layer_by_layer() -> None:
    model, _ = tiny_decoder()
    steps: list[Progress] = []
    for length in (600, 40):
        with listening(steps.append), at_rest(model), torch.no_grad():
            model(torch.zeros(1, length, dtype=torch.long))
    layers = model.config.num_hidden_layers
    assert [tuple(step)[:3] for step in steps] == [
        ("reading tokens", 600 * k // layers, 600) for k in range(1, layers + 1)
    ]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_cell_shows_a_bar_with_the_text_and_the_time_left() -> None:
    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            contents.append(content)

    contents: list[dict[str, str]] = []

    seconds = iter([0.0, 10.0, 10.01])
    show = _tell_cell(Handle(), lambda: next(seconds))
    show(Progress("writing", 1, 11, "<b>"))
    show(Progress("writing", 6, 11, " it"))
    show(Progress("writing", 7, 11, "too soon"))
    last = contents[-1]
    assert last["text/plain"] == "writing, 6 of 11, about 10 seconds left\n<b> it"
    assert '<progress value="6" max="11">' in last["text/html"]
    assert "&lt;b&gt; it" in last["text/html"]


def test_outside_a_notebook_nothing_is_shown() -> None:
    heard: list[Any] = []
    with listening(heard.append):
        assert in_notebook(lambda: tell("flow", 1, 2) or 5)() == 5
    assert len(heard) == 1
