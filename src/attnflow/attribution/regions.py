"""The region of an image that a map lies on most, in words: "the area right of the middle"."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    >>> map = np.zeros((6, 6))
    >>> map[2:4, 4:] = 1.0
    >>> region = region_of(map)
    >>> region.name, region.share, len(region.patches)
    ('the area right of the middle', 1.0, 4)
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
