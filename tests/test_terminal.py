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
from attnflow.show.page import shade
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
    console.print(terminal.layers_table(result, console=console))
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert all(cell_len(line) <= width for line in lines)
    rows = [line for line in lines if re.search(r" \.\d\d| 1\.0", line)]
    assert len(rows) == 6
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
    assert _run(["explain", "the key to the cabinets of the editors", "--table"]) == 0
    shown = capsys.readouterr().out
    assert bool(COLOUR.search(shown)) is colour
    lines = CODES.sub("", shown).splitlines()
    assert any(line.startswith("[CLS] the key to") for line in lines) is colour
    sentences = (
        "“",
        "The model says",
        "The answer rests",
        "Balanced gradients,",
        "most at layer",
    )
    assert all(cell_len(line) <= 40 for line in lines if not line.startswith(sentences))
    assert sum(bool(re.search(r"^ *cabinets +-?\.\d", line)) for line in lines) == 1


def values_of(values: object, layers: tuple[int, ...] = (1,)) -> Attribution:
    array = np.array(values, dtype=np.float64)
    tokens = [Tokens(tuple(f"t{k}" for k in range(n))) for n in array.shape[1:]]
    return Attribution(array, layers, *tokens, method=Rollout())


def test_numbers_above_one_keep_their_digits() -> None:
    """10.5 was written 1.500: the zero before the point was taken off wherever it stood."""
    result = values_of([[[10.5, 0.25, -20.25], [100.0, 0.0, -0.5]]])
    table = str(terminal.completion_table(result, k=3, console=Console(width=60)))
    assert "t0 10.500  t1 .250" in table
    assert "t0 100.000" in table
    assert str(terminal.contributions(result.row(0))) == (
        "most at layer 1: t0 10.500, t1 0.250, t2 -20.250"
    )


def test_large_numbers_do_not_run_into_their_neighbours() -> None:
    numbers = [0.37, 1.04, 12.34, 123.4, 1234.0, 5e6, -0.004, -3.21, -12.3]
    layers = tuple(range(1, len(numbers) + 1))
    result = values_of([[[number]] for number in numbers], layers)
    console = Console(width=80, no_color=True)
    line = str(terminal.layers_table(result, console=console))
    assert line.splitlines()[-1].split() == (
        "t0 .37 1.0 12 123 1e3 5e6 .00-3.2 -12".split()  # noqa: SIM905
    )


def test_what_is_below_zero_has_the_other_colour() -> None:
    """The most negative value was the darkest blue, as if it were the strongest source."""
    result = values_of([[[-0.5, -0.1]]])
    text = terminal.shaded_text(result, console=coloured())
    assert text is not None
    backgrounds = [str(span.style).split(" on #")[1] for span in text.spans]
    assert all(int(colour[:2], 16) > int(colour[4:], 16) for colour in backgrounds)  # red over blue
    assert max(backgrounds) == backgrounds[1]  # the weaker one is the lighter one


def test_the_highest_layer_is_shown_whatever_the_order() -> None:
    result = values_of([[[0.9, 0.1]], [[0.2, 0.8]]], layers=(3, 1))
    assert str(terminal.contributions(result, k=1)) == "most at layer 3: t0 0.900"
    text = terminal.shaded_text(result, console=coloured())
    assert text is not None
    assert text.spans[0].style == terminal._style(1.0)


def test_a_piece_is_read_as_its_sequence_says() -> None:
    """Alone, a byte-level piece without a mark cannot be told from text."""
    weights = random_attention(1, 1, 3, seed=0)
    result = Rollout()(AttentionTrace.from_arrays(weights, ["Ġna", "Ã¯", "ve"]), targets=[0])
    assert "ï " in str(terminal.contributions(result))
    torn = Rollout()(AttentionTrace.from_arrays(weights, ["Ġna", "Ã", "¯ve"]), targets=[0])
    assert "Ã" not in str(terminal.contributions(torn))
