"""Parts that all figures share: matplotlib when it is needed, colours, and tokens as labels.

Tokens are anybody's text. They are drawn as they are, never read as mathematics (`$x$`), shortened
when they are long, and thinned out when there is no room for all of them at a readable size.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.errors import FileError, InputError, TargetError, optional_import
from attnflow.tokens import TokenRef, readable
from attnflow.tokens.text import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = "Blues"  # one hue, monotone in lightness: safe for the colour-blind and in print
DIVERGING = "RdBu"  # blue is more and red is less: told apart by the colour-blind, white is zero
# Accents after Okabe and Ito, who chose them to be told apart by the colour-blind.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
GREY, PALE = "#767676", "#bdbdbd"

SMALL = 8.0  # points: the smallest type that is still read on a slide
_USUAL = 10.0
_LONGEST = 18  # characters of a token; the rest is cut
_LINE = 1.3  # a line of text takes this much of its type size

# Beyond Latin, Greek and Cyrillic: what systems commonly have, the first installed ones are used.
_OTHER_SCRIPTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "WenQuanYi Micro Hei"),
    *("Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Yu Gothic", "Malgun Gothic"),
    *("Arial Unicode MS", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Emoji"),
)


def matplotlib(module: str) -> Any:
    """Return a module of matplotlib, or raise an error that says how to install it."""
    return optional_import(f"matplotlib.{module}", extra="plots", purpose="Drawing a figure")


def pyplot() -> Any:
    """Return matplotlib.pyplot."""
    return matplotlib("pyplot")


def new_panels(
    size: tuple[float, float], down: int = 1, across: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """Return a new figure of this size in inches, and its axes, down × across."""
    return pyplot().subplots(
        down, across, figsize=size, squeeze=False, layout="constrained", **options
    )


def new_axes(width: float, height: float) -> Axes:
    """Return axes in a new figure of this size in inches, within what a page can hold."""
    size = (min(max(width, 4.5), 14.0), min(max(height, 2.6), 14.0))
    return new_panels(size)[1][0, 0]


def save_figure(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure in the format of the file's ending, whole or not at all.

    Pyplot's hold of it ends; the figure itself can still be drawn and written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_figure(pyplot().figure(), Path(folder) / "empty.png")
    ...     (Path(folder) / "empty.png").read_bytes()[1:4]
    b'PNG'
    """
    try:
        # Drawn in memory first: a writer of PDF that runs out of disk hides why it failed.
        image = io.BytesIO()
        figure.savefig(image, format=Path(path).suffix.lstrip(".") or None, dpi=160)
        storage.write_safely(path, lambda file: file.write_bytes(image.getvalue()))
    except ValueError as error:  # matplotlib: a format it does not know
        raise FileError(f"Cannot write {str(path)!r}: {error}.") from error
    finally:
        pyplot().close(figure)


def bare(axes: Axes) -> Axes:
    """Take away ticks and frame."""
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def heat(axes: Axes, values: NDArray[np.float64]) -> AxesImage:
    """Draw a map that starts at 0; where values are negative, one that diverges from 0."""
    if not values.size:
        raise InputError("There is nothing to draw: the result has no values.")
    most = float(np.abs(values).max()) or 1.0
    colours, least = (DIVERGING, -most) if values.min() < 0 else (COLOURS, 0)
    return axes.imshow(values, aspect="auto", cmap=colours, vmin=least, vmax=most)


def colour_bar(axes: Axes, image: AxesImage) -> None:
    """Draw the scale beside the map, without a frame."""
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL, length=0)


def one_target(result: Attribution, target: TokenRef | None) -> Attribution:
    """Return the result of one target, or raise an error that lists them."""
    if not len(result.sources) or not len(result.targets):
        raise InputError("There is nothing to draw: the result has no sources or no targets.")
    if target is not None:
        return result.row(target)
    if len(result.targets) > 1:
        raise TargetError(
            f"This figure shows one target and this result has {len(result.targets)}; name it: "
            f"target=... The targets are {result.targets.listing()}."
        )
    return result


# -- tokens as labels -------------------------------------------------------------------------


def plain() -> dict[str, Any]:
    """Return properties of a text that shows tokens: no mathematics, fonts for other scripts."""
    return {"parse_math": False, "fontfamily": list(_families())}


def heading(axes: Axes, text: str, *, size: float = _USUAL, **properties: Any) -> None:
    """Write a title in as many lines as the axes' width asks for.

    Not matplotlib's own wrapping: that reads dollar signs as mathematics although told not to.
    """
    room = max(20, int(_points(axes, "x") / (0.53 * size)))
    lines = [piece for line in text.split("\n") for piece in wrap(line, room) or [""]]
    axes.set_title("\n".join(lines), fontsize=size, **plain(), **properties)


def label(token: str) -> str:
    """Return a token as people read it, cut when long; what no font can draw is a box."""
    text, families = readable(token), _families()
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "".join(c if _can_draw(c, families) else "□" for c in text)


def name_ticks(axes: Axes, side: Literal["x", "y"], tokens: Sequence[str]) -> None:
    """Write tokens along one side, upright at the bottom; every second, third ... when crowded."""
    room = _points(axes, side) / max(len(tokens), 1)
    size = min(_USUAL, max(SMALL, room / _LINE))
    step = max(1, int(np.ceil(SMALL * _LINE / max(room, 1e-6) - 1e-9)))
    places = range(0, len(tokens), step)
    texts = labels(tokens)
    names = [label(texts[k]) for k in places]
    if side == "y":
        axes.set_yticks(places, names, fontsize=size, **plain())
        return
    crowded = max(map(len, names), default=0) * 0.56 * size > step * room
    axes.set_xticks(places, names, fontsize=size, rotation=90 if crowded else 0, **plain())


def _points(axes: Axes, side: Literal["x", "y"]) -> float:
    """Return the length of one side of the axes in points, before any layout moves it."""
    pixels = axes.bbox.width if side == "x" else axes.bbox.height
    return float(72 * pixels / axes.figure.dpi)


@lru_cache(maxsize=4096)
def _can_draw(character: str, families: tuple[str, ...]) -> bool:
    if any(font.get_char_index(ord(character)) for font in _fonts(families)):
        return True
    warnings.warn(
        f"No installed font can draw {character!r}, so a box stands for it. Install one that can, "
        "such as Noto Sans CJK, or name one in matplotlib.rcParams['font.family'].",
        stacklevel=2,
    )
    return False


def _families() -> tuple[str, ...]:
    """Return the user's fonts first, then installed ones for other scripts."""
    preferred = tuple(pyplot().rcParams["font.family"])
    installed = {font.name for font in matplotlib("font_manager").fontManager.ttflist}
    return (*preferred, *(name for name in _OTHER_SCRIPTS if name in installed))


@lru_cache(maxsize=8)
def _fonts(families: tuple[str, ...]) -> list[Any]:
    manager = matplotlib("font_manager")
    paths = [manager.findfont(manager.FontProperties(family=[name])) for name in families]
    return [manager.get_font(path) for path in paths]
