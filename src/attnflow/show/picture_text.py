"""What a result says about an image, without the image: a sentence, and a map of characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.attribution.patch_maps import Contrast, PatchMap, contrast, patch_maps
from attnflow.show.static_html import shade

__all__ = ["answer_sentence", "picture_sentence", "terminal_map"]

_ROWS = ("upper", "middle", "lower")
_COLUMNS = ("left", "centre", "right")
_INKS = " .:-=+*#%@"  # where there is no colour
_FEWEST = 3  # rows and columns that can be divided into thirds


def picture_sentence(result: Attribution, *, subject: str | None = None) -> str:
    """Which ninth of the picture holds most of what falls on patches, and how much of it.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, patch_names
    >>> grid = Grid(3, 3, 0, 3, 3)
    >>> tokens = Tokens(patch_names(grid, ()), grid=grid)
    >>> result = Attribution(np.eye(9)[None], (1,), tokens, tokens, Raw())
    >>> picture_sentence(result.row(2), subject="cat")
    '“cat” draws most on the upper right of the picture: 100 % of what falls on it.'
    """
    name = result.targets.text[0] if subject is None else subject
    maps = patch_maps(result)
    sums = [_ninths(one.values) for one in maps]
    total = sum(float(each.sum()) for each in sums)
    if total <= 0:
        return f"“{name}” draws on nothing of the picture here."
    index = int(np.argmax([each.max() for each in sums]))
    row, column = np.unravel_index(int(sums[index].argmax()), sums[index].shape)
    picture = "the picture" if len(maps) == 1 else f"picture {index + 1}"
    share = 100 * float(sums[index].max()) / total
    return (
        f"“{name}” draws most on the {_place(int(row), int(column), sums[index].shape)} of "
        f"{picture}: {share:.0f} % of what falls on it."
    )


def answer_sentence(result: Attribution, *, k: int = 3) -> str:
    """What one word of an answer about images came from: each image as a whole, and words.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, ImagePatches
    >>> image = ImagePatches("image 1", Grid(3, 3, 0, 3, 3))
    >>> sources = Tokens((*(f"patch {n}" for n in range(9)), "colour"), images=(image,))
    >>> values = np.array([[[0.6, *[0.0] * 8, 0.4]]])
    >>> answer_sentence(Attribution(values, (1,), Tokens(("red",)), sources, Raw()))
    '“red” came from the image (60 %, most from its upper left) and “colour” (40 %).'
    """
    values = np.maximum(result.layer(-1).values[0, 0], 0.0)
    name, total = result.targets.text[0], float(values.sum())
    if total <= 0:
        return f"“{name}” draws on nothing here."
    parts: list[tuple[float, str]] = []
    left = values.copy()
    for image, one in zip(result.sources.images, patch_maps(result), strict=True):
        place = slice(image.start, image.start + image.grid.length)
        share, ninths = float(values[place].sum()) / total, _ninths(one.values)
        row, column = np.unravel_index(int(ninths.argmax()), ninths.shape)
        called = "the image" if len(result.sources.images) == 1 else image.name
        where = _place(int(row), int(column), ninths.shape)
        parts.append((share, f"{called} ({100 * share:.0f} %, most from its {where})"))
        left[place] = 0.0
    for index in np.argsort(-left, kind="stable")[:k].tolist():
        share = float(left[index]) / total
        parts.append((share, f"“{result.sources.text[index]}” ({100 * share:.0f} %)"))
    phrases = [
        text for share, text in sorted(parts, key=lambda part: -part[0])[:k] if share >= 0.005
    ]
    listing = phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    return f"“{name}” came from {listing}."


def terminal_map(result: Attribution, *, console: Console) -> Text:
    """The patches as cells of two characters, shaded by the contrast that figures have.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, patch_names
    >>> grid = Grid(1, 3, 0, 1, 3)
    >>> tokens = Tokens(patch_names(grid, ()), grid=grid)
    >>> result = Attribution(np.eye(3)[None], (1,), tokens, tokens, Raw())
    >>> str(terminal_map(result.row(1), console=Console(no_color=True)))
    '  @@  \\n'
    """
    maps = patch_maps(result)
    ends = contrast(maps)
    text = Text()
    for number, one in enumerate(maps):
        text.append("\n" if number else "")
        _append(text, one, ends, console)
    return text


def _append(text: Text, one: PatchMap, ends: Contrast, console: Console) -> None:
    plain = console.no_color or console.color_system is None
    shares = np.maximum(ends.shares(one.values), 0.0)
    step = max(1, -(-2 * one.grid.columns // max(console.width, 2)))  # what fits on a line
    for row in shares[::step]:
        for share in row[::step].tolist():
            if plain:
                text.append(2 * _INKS[min(len(_INKS) - 1, int(share * len(_INKS)))])
            else:
                background, ink = shade(share)
                text.append("  ", style=Style(color=ink, bgcolor=background))
        text.append("\n")


def _ninths(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The positive part of a map summed over thirds of rows and columns."""
    rows, columns = values.shape
    positive = np.maximum(values, 0.0)
    if rows < _FEWEST or columns < _FEWEST:
        return positive.sum(keepdims=True)
    down = [rows * k // 3 for k in range(3)]
    across = [columns * k // 3 for k in range(3)]
    return np.add.reduceat(np.add.reduceat(positive, down, axis=0), across, axis=1)


def _place(row: int, column: int, shape: tuple[int, ...]) -> str:
    if shape == (1, 1):
        return "middle"
    if (row, column) == (1, 1):
        return "centre"
    return f"{_ROWS[row]} {_COLUMNS[column]}"
