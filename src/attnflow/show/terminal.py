"""Results in a terminal: sources down, layers across, shaded like a map.

rich decides whether colour is shown (a terminal, and no NO_COLOR); the numbers stand alone
without it. Everything fits the console's width: layers are thinned out, evenly and with the highest
kept, when they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnflow.attribution import Attribution, Verdict
from attnflow.attribution.patch_maps import contrast, patch_maps
from attnflow.graph import Cut
from attnflow.show.page import shade
from attnflow.show.sentences import place_of, sentence_of, short_number
from attnflow.tokens.text import common_tokens

MOST_LAYERS = 12
"""How many layers a table shows when nobody asked for more."""
_TOKEN_WIDTH = 16
_CELL = 4  # " .37", " 1.0"
_GAP = 2
_BAR = 30  # characters of a bar that stands for a probability
_EIGHTHS = " ▏▎▍▌▋▊▉"
_INKS = " .:-=+*#%@"  # of a map where there is no colour


def layers_table(result: Attribution, *, console: Console, most: int | None = None) -> Text:
    """Return the sources of one target at every layer, or at `most` of them, under its title."""
    tokens = [_fit(token) for token in result.sources.names]
    label = max(len("layer"), *map(cell_len, tokens))
    room = (console.width - label - _GAP) // _CELL
    layers = _thin_out(result.layers, room if most is None else min(room, most))
    grid = result.values[[result.layers.index(number) for number in layers], 0, :].T
    strongest = _strongest(grid)
    text = Text(" " * (label + _GAP))
    text.append(result.title.center(_CELL * len(layers)), style="bold")
    text.append("\n" + "layer".rjust(label), style="dim")
    text.append(" " * _GAP + "".join(str(number).rjust(_CELL) for number in layers), style="dim")
    for token, values in zip(tokens, grid.tolist(), strict=True):
        text.append("\n" + _to_the_right(token, label) + " " * _GAP)
        for value in values:
            text.append(_digits(value).rjust(_CELL), style=_style(value / strongest))
    text.append("\n")
    return text


def shaded_text(result: Attribution, *, console: Console) -> Text | None:
    """Return the text shaded by what the targets draw on; None without colour, or over patches."""
    if _is_plain(console) or result.sources.grid is not None:
        return None
    values = result.layer(-1).values[0].sum(axis=0)
    strongest = _strongest(values)
    text = Text()
    for surface, value in zip(result.sources.surfaces(), values.tolist(), strict=True):
        body = surface.lstrip()
        text.append(surface[: len(surface) - len(body)])
        text.append(body, style=_style(value / strongest))
    return text


def contributions(result: Attribution, *, k: int = 5) -> Text:
    """Return the strongest sources of the one target at its highest layer, as a line."""
    names = dict(zip(result.sources.positions, result.sources.text, strict=True))
    parts = [f"{names[c.position]} {c.value:.3f}" for c in result.top(k)]
    return Text(f"most at layer {max(result.layers)}: " + ", ".join(parts))


def completion_table(
    result: Attribution,
    *,
    k: int,
    console: Console,
    words: Sequence[str] | None = None,
    hide: bool = False,
) -> Text:
    """Return each generated token with its strongest sources; common ones are dim or hidden."""
    names = [_fit(token) for token in result.targets.text]
    label = max(9, *map(cell_len, names))
    text = Text("generated".rjust(label) + "  ", style="bold")
    text.append(f"draws on, at {place_of(result.layers[0])}", style="bold")
    strongest = _strongest(result.values)
    for index, token in enumerate(names):
        text.append("\n" + _to_the_right(token, label), style="bold")
        room = console.width - label
        values = result.values[0, index]
        order = _order(values, result, words, hide)
        if order.size and values[order[0]] > 0:  # less a baseline, many draw less than nothing
            order = order[values[order] > 0]
        for place in order[:k].tolist():
            value = float(values[place])
            piece = f"{_fit(result.sources.text[place])} {short_number(value, 3)}"
            if cell_len(piece) + 2 > room:
                break
            room -= cell_len(piece) + 2
            common = bool(common_tokens([result.sources[place]], words)[0])
            text.append("  ")
            text.append(piece, style="dim" if common else _style(value / strongest))
    text.append("\n")
    if result.elsewhere is not None and len(result.targets) > 1:
        least, most = float(result.elsewhere.min()), float(result.elsewhere.max())
        rest = "outside these spans" if "spans(" in result.recipe else "on generated tokens"
        text.append(f"{rest}: {short_number(least, 3)} to {short_number(most, 3)}\n", style="dim")
    return text


def strongest_sources(
    result: Attribution, k: int, *, words: Sequence[str] | None = None, hide: bool = False
) -> Attribution:
    """Keep only the k sources that are strongest at any layer, in their order."""
    order = _order(result.values.max(axis=(0, 1)), result, words, hide)
    columns = sorted(order[:k].tolist())
    return Attribution(
        values=result.values[:, :, columns].copy(),
        layers=result.layers,
        targets=result.targets,
        sources=result.sources.select(columns),
        method=result.method,
        steps=result.steps,
    )


def _order(
    values: NDArray[np.float64], result: Attribution, words: Sequence[str] | None, hide: bool
) -> NDArray[np.intp]:
    """Return the sources, strongest first; with `hide` without common ones."""
    order = np.argsort(-values, kind="stable")
    return order[~common_tokens(result.sources, words)[order]] if hide else order


def verdict_lines(verdict: Verdict, columns: int) -> list[str]:
    """Draw what an answer rests on: a sentence, and a bar for its probability with and without.

    columns: of the terminal; in a narrow one bars are shorter.
    """
    bars = verdict.bars
    width = max(map(len, bars))
    most = max(1, min(_BAR, columns - width - 5 - max(len(number) for _, number in bars.values())))
    lines = [sentence_of(verdict)]
    for label, (share, number) in bars.items():
        eighths = round(8 * most * min(max(share, 0.0), 1.0))
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"  {label:{width}}  {bar:{most}} {number}")
    return lines


def picture_map(result: Attribution, *, console: Console) -> Text:
    """Draw the patches as cells of two characters, shaded by the contrast that figures have."""
    maps = patch_maps(result)
    ends = contrast(maps)
    text = Text()
    for number, patches in enumerate(maps):
        text.append("\n" if number else "")
        shares = np.maximum(ends.shares(patches.values), 0.0)
        step = max(1, -(-2 * patches.grid.columns // max(console.width, 2)))  # what fits on a line
        for row in shares[::step]:
            for share in row[::step].tolist():
                ink = _INKS[min(len(_INKS) - 1, int(share * len(_INKS)))]
                if _is_plain(console):
                    text.append(2 * ink)
                else:
                    text.append("  ", style=_style(share))
            text.append("\n")
    return text


def _is_plain(console: Console) -> bool:
    return console.no_color or console.color_system is None


def cut_table(cut: Cut, *, rows: int = 20) -> Table:
    """Return the edges of a cut, strongest first."""
    table = Table(box=None, padding=(0, 2))
    for name in ("layer", "from", "to", "capacity"):
        table.add_column(name, justify="right" if name in ("layer", "capacity") else "left")
    for edge in cut.edges[:rows]:
        above = f"{edge.target} {_fit(edge.target_token)}"
        below = f"{edge.source} {_fit(edge.source_token)}"
        table.add_row(str(edge.layer), escape(above), escape(below), f"{edge.capacity:.6f}")
    if len(cut.edges) > rows:
        rest = sum(edge.capacity for edge in cut.edges[rows:])
        table.add_row("", f"{len(cut.edges) - rows} more", "", f"{rest:.6f}")
    return table


def _thin_out(layers: Sequence[int], room: int) -> list[int]:
    index = np.linspace(len(layers) - 1, 0, min(max(room, 1), len(layers))).round().astype(int)
    return [layers[i] for i in dict.fromkeys(index[::-1].tolist())]


def _fit(token: str) -> str:
    """Cut a token to the width of a column; a Chinese character takes two places of it."""
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in token)
    if cell_len(printable) <= _TOKEN_WIDTH:
        return printable
    return set_cell_size(printable, _TOKEN_WIDTH - 1).rstrip() + "…"


def _to_the_right(token: str, width: int) -> str:
    return " " * (width - cell_len(token)) + token


def _digits(value: float) -> str:
    """Write as many digits as leave a cell the space before it: " .37", " 1.0", "  12", " 1e4"."""
    size = abs(value)
    if size < 0.995:
        return short_number(value, 2).replace("-.00", ".00")
    if size < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if size < 999.5 else f"{value:.0e}".replace("e+0", "e")


def _strongest(values: NDArray[np.float64]) -> float:
    """Return what is shaded darkest; 1 where nothing is above zero."""
    return float(values.max(initial=0.0)) or 1.0


def _style(share: float) -> Style:
    background, ink = shade(share)
    return Style(color=ink, bgcolor=background)
