"""Results in a terminal: they fit its width, and the numbers stand alone without colour."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from attnflow import AttentionTrace, Attribution, Rollout, Tokens
from attnflow.cli.app import _run
from attnflow.show import terminal
from attnflow.show.static_html import shade
from attnflow.testing import random_attention
from attnflow.tokens.patches import Grid, patch_names

SENTENCE = "the author who talked to the editors about the keys to the cabinets went home"
COLOUR = re.compile(r"\x1b\[38;2;\d+;\d+;\d+;48;2;(\d+);(\d+);(\d+)m([^\x1b]*)\x1b\[0m")
CODES = re.compile(r"\x1b\[[\d;]*m")


def result_of(tokens: list[str], layers: int = 2, seed: int = 0) -> Attribution:
    weights = random_attention(layers, 1, len(tokens), seed=seed)
    return Rollout()(AttentionTrace.from_arrays(weights, tokens), targets=[0])


def printed(shown: object, width: int) -> str:
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(shown)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def coloured(width: int = 80) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")


@pytest.mark.parametrize("width", [80, 40, 12])
def test_the_shaded_text_wraps_like_text(width: int) -> None:
    text = terminal.shaded_text(result_of(SENTENCE.split()), console=coloured(width))
    lines = CODES.sub("", printed(text, width)).splitlines()
    assert all(len(line) <= width for line in lines)
    assert " ".join(line.strip() for line in lines) == SENTENCE
    assert len(lines) >= len(SENTENCE) // width


def test_the_shaded_text_shades_by_value() -> None:
    result = result_of(["[CLS]", "Ġkey", "s", "Ċ", "Ġto", "[x]"])
    text = terminal.shaded_text(result, console=coloured())
    assert text is not None
    assert text.plain == "[CLS] keys\n to[x]"
    values = result.values[-1, 0]
    found = COLOUR.findall(printed(text, 80))
    assert [body for *_, body in found] == ["[CLS]", "key", "s", "to", "[x]"]
    for (*rgb, _), value in zip(found, np.delete(values, 3), strict=True):
        expected, _ = shade(float(value / values.max()))
        assert "#" + "".join(f"{int(part):02x}" for part in rgb) == expected


def test_nothing_is_shaded_without_colour_or_text() -> None:
    result = result_of(SENTENCE.split())
    for console in (
        Console(file=io.StringIO()),
        Console(file=io.StringIO(), force_terminal=True, no_color=True),
        Console(file=io.StringIO(), force_terminal=True, color_system=None),
    ):
        assert terminal.shaded_text(result, console=console) is None
    grid = Grid(2, 2, 1, 4, 4)
    patches = Attribution(
        values=np.full((1, 1, 5), 0.2),
        layers=(1,),
        targets=Tokens(("[CLS]",)),
        sources=Tokens(patch_names(grid, ("[CLS]",)), grid=grid),
        method=Rollout(),
    )
    assert terminal.shaded_text(patches, console=coloured()) is None


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("layers", [3, 24])
def test_tables_fit_and_line_up_in_any_script(width: int, layers: int) -> None:
    tokens = [
        "key",
        "钥匙",
        "an-endless-word-with-no-end",
        "長い長い長い長い長い単語",
        "\t",
        "[/b]",
    ]
    result = result_of(tokens, layers=layers)
    console = Console(width=width, file=io.StringIO())
    console.print(terminal.layers_table([result, result], names=["one", "two"], console=console))
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert all(cell_len(line) <= width for line in lines)
    rows = [line for line in lines if re.search(r" \.\d\d| 1\.0", line)]
    assert len(rows) in (6, 12)
    ends = {
        cell_len(re.split(r"  +(?=\.\d\d|1\.0)", row.strip("\n"), maxsplit=1)[0]) for row in rows
    }
    assert len(ends) == 1, "the column of tokens is ragged"


@pytest.mark.parametrize("colour", [True, False])
def test_explain_shades_the_text_only_with_colour(
    colour: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COLUMNS", "40"), ("TERM", "xterm-256color"), ("COLORTERM", "truecolor")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    assert _run(["explain", "the key to the cabinets of the editors"]) == 0
    shown = capsys.readouterr().out
    assert bool(COLOUR.search(shown)) is colour
    lines = CODES.sub("", shown).splitlines()
    assert any(line.startswith("[CLS] the key to") for line in lines) is colour
    assert all(cell_len(line) <= 40 for line in lines if "Rollout(" not in line)
    assert sum(bool(re.search(r"^ *cabinets +\.\d", line)) for line in lines) == 1
