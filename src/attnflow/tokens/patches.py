"""Image patches: the grid a vision model cuts an image into, and maps at the image's size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid", "enlarge", "patch_names"]


@dataclass(frozen=True)
class Grid:
    """`rows × columns` patches of an image of `height × width` pixels, after `prefix` tokens that
    are no patches (class, distillation and register tokens).
    """

    rows: int
    columns: int
    prefix: int
    height: int
    width: int

    @property
    def length(self) -> int:
        """How many tokens in all."""
        return self.prefix + self.rows * self.columns

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def patch_names(grid: Grid, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """The prefix tokens' names, then `patch row,column` in reading order."""
    patches = [f"patch {r},{c}" for r in range(grid.rows) for c in range(grid.columns)]
    return (*prefix, *patches)


def enlarge(patches: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """A map of patches at the size of the image, linear between the patches' centres."""
    rows, columns = patches.shape
    return _between(rows, height) @ patches @ _between(columns, width).T


def _between(cells: int, pixels: int) -> NDArray[np.float64]:
    """`(pixels, cells)`: how much each pixel takes from each cell; rows sum to 1."""
    centre = (np.arange(pixels) + 0.5) * cells / pixels - 0.5
    below = np.clip(np.floor(centre).astype(int), 0, cells - 1)
    above = np.minimum(below + 1, cells - 1)
    share = np.clip(centre - below, 0, 1)
    weights = np.zeros((pixels, cells))
    np.add.at(weights, (np.arange(pixels), below), 1 - share)
    np.add.at(weights, (np.arange(pixels), above), share)
    return weights
