"""The part of a result that lies on images: one map of patches for each image, and its contrast.

Class tokens, registers and words are no patches. They never set the scale of a map: a single class
token may hold more than all patches together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, TargetError, shorten
from attnflow.tokens import Grid, TokenRef, Tokens

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution


Scale = Literal["percentiles", "full"] | tuple[float, float]
"""How values become colours: between percentiles of the patches, from 0 to the strongest patch, or
between two values."""

PERCENTILES = (5.0, 99.0)
"""Percentiles of the weakest and the strongest colour: a map of shares that all lie around 0.005
would be one colour otherwise, and one patch that holds a tenth would hide all others."""


class PatchMap(NamedTuple):
    """The patches of one image: their grid, and a value for each, (rows, columns)."""

    grid: Grid
    values: NDArray[np.float64]


class Contrast(NamedTuple):
    """The values at which the colours begin and end; `signed`: zero is in the middle."""

    low: float
    high: float
    signed: bool

    def shares(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """From 0 to 1 (of signed values from -1 to 1), cut off beyond the ends."""
        if self.signed:
            return np.clip(values / self.high, -1.0, 1.0)
        return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)


def patch_maps(
    result: Attribution, *, target: TokenRef | None = None, layer: int = -1
) -> list[PatchMap]:
    """The map of one target over each image, in the order of the images."""
    places = _places(result.sources)
    if not places:
        raise InputError(
            "There is no map without sources that are the patches of an image; these are "
            f"{result.sources.listing()}."
        )
    if target is None and len(result.targets) > 1:
        raise TargetError(
            f"A map shows one target and this result has {len(result.targets)}; name it: "
            "target=..., for example '[CLS]'."
        )
    row = result if target is None else result.row(target)
    values = row.layer(layer).values[0, 0]
    return [PatchMap(grid, grid.patches_of(values[start:])) for start, grid in places]


def grids_of(tokens: Tokens) -> list[Grid]:
    """The grid of each image among the tokens, in their order."""
    return [grid for _, grid in _places(tokens)]


def _places(tokens: Tokens) -> list[tuple[int, Grid]]:
    """Return where each image begins, and its grid: one image alone, or several among words."""
    if tokens.grid is not None:
        return [(0, tokens.grid)]
    return [(image.start, image.grid) for image in getattr(tokens, "images", ())]


def contrast(maps: list[PatchMap], scale: Scale = "percentiles") -> Contrast:
    """One contrast for all maps of a target, so that images can be held against each other."""
    values = np.concatenate([one.values.ravel() for one in maps])
    signed, sizes = bool(values.min() < 0), np.abs(values)
    if not isinstance(scale, str):
        low, high = _ends(scale)
        strongest = max(abs(low), abs(high))
    elif scale == "full":
        low, high = 0.0, float(sizes.max())
        strongest = high
    elif scale == "percentiles":
        low, high = (float(np.percentile(values, share)) for share in PERCENTILES)
        strongest = float(np.percentile(sizes, PERCENTILES[1]))
    else:
        raise _unknown(scale)
    if signed:
        low, high = -strongest, strongest
    return Contrast(low, high if high > low else low + (abs(low) or 1.0), signed)


def _ends(scale: object) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in scale)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise _unknown(scale) from error
    if not low < high:
        raise _unknown(scale)
    return low, high


def _unknown(scale: object) -> InputError:
    return InputError(
        f"scale={shorten(scale)}: it is 'percentiles', 'full', or two values (low, high), the "
        "first below the second."
    )


# The heights and widths of a window, as parts of the image: ninths, quarters, strips, halves.
_WINDOWS = (
    *((1 / 3, 1 / 3), (1 / 2, 1 / 2), (1 / 3, 1.0), (1.0, 1 / 3), (1 / 2, 1.0), (1.0, 1 / 2)),
    *((1 / 3, 2 / 3), (2 / 3, 1 / 3)),
)
_STANDS_OUT = 0.1  # by how much a region's share must be above its part of the area
_SMALLEST = 3  # patches along a side that can be told apart
_MIDDLE = (0.4, 0.6)  # where a centre is neither left nor right, neither above nor below
_PARTS = {3: "third", 2: "half"}


class Region(NamedTuple):
    """A rectangle of patches: its name, its share of the map, its part of the area, its patches.

    The patches are numbered row by row.
    """

    name: str
    share: float
    area: float
    patches: tuple[int, ...]


def region_of(values: NDArray[np.float64]) -> Region | None:
    """Return the region that stands out of a map, (rows, columns); None where none does.

    Of all windows of a few sizes it is the one whose share of the map is furthest above its part
    of the area: what speaks against a target counts as nothing.
    """
    positive = np.maximum(values, 0.0)
    total, (rows, columns) = float(positive.sum()), values.shape
    if total <= 0 or min(rows, columns) < _SMALLEST:
        return None
    sums = np.pad(positive.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    best, edges = _STANDS_OUT, None
    for part_down, part_across in _WINDOWS:
        down, across = max(1, round(rows * part_down)), max(1, round(columns * part_across))
        inside = (sums[down:, across:] - sums[:-down, across:] - sums[down:, :-across]) + sums[
            :-down, :-across
        ]
        top, left = divmod(int(inside.argmax()), inside.shape[1])
        lead = float(inside[top, left]) / total - down * across / (rows * columns)
        if lead > best + 1e-9:
            best, edges = lead, (top, left, down, across)
    if edges is None:
        return None
    top, left, down, across = edges
    patches = np.arange(rows * columns).reshape(rows, columns)
    box = np.s_[top : top + down, left : left + across]
    share, area = float(positive[box].sum()) / total, down * across / (rows * columns)
    name = _name((top / rows, (top + down) / rows), (left / columns, (left + across) / columns))
    return Region(name, share, area, tuple(patches[box].ravel().tolist()))


def _name(down: tuple[float, float], across: tuple[float, float]) -> str:
    """Name a rectangle by its ends, as parts of the height and of the width."""
    vertical, horizontal = _side(down, "upper", "lower"), _side(across, "left", "right")
    sides = [side for side in (vertical, horizontal) if side]
    if _is_whole(down) or _is_whole(across):
        length = min(down[1] - down[0], across[1] - across[0])
        strip = "column" if _is_whole(down) else "row"
        part = _PARTS.get(round(1 / length), "part")
        return f"the {sides[0]} {part}" if sides else f"the middle {strip}"
    if not sides:
        return "the middle"
    if len(sides) == 1:
        word = {"upper": "above", "lower": "below", "left": "left of", "right": "right of"}
        return f"the area {word[sides[0]]} the middle"
    corner = min(down[0], 1 - down[1]) < 0.1 and min(across[0], 1 - across[1]) < 0.1
    return f"the {' '.join(sides)}{' corner' if corner else ''}"


def _side(ends: tuple[float, float], before: str, after: str) -> str:
    """Return which side of the middle a stretch lies on; "" where it lies around it."""
    centre, (low, high) = sum(ends) / 2, _MIDDLE
    return before if centre < low else after if centre > high else ""


def _is_whole(ends: tuple[float, float]) -> bool:
    return ends[1] - ends[0] > 0.95
