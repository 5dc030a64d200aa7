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
"""What the weakest and the strongest colour stand for: a map of shares that all lie around 0.005
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
    """Where each image begins, and its grid: one image alone, or several among words."""
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
