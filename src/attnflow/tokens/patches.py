"""Image patches: the grid a vision model cuts an image into, and maps at the image's size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import TokensError, shorten, whole_number

__all__ = ["Grid", "ImagePatches", "enlarge", "patch_names"]


@dataclass(frozen=True)
class Grid:
    """`rows × columns` patches of an image of `height × width` pixels, after `prefix` tokens that
    are no patches (class, distillation and register tokens).

    >>> Grid(rows=2, columns=3, prefix=1, height=32, width=48).length
    7
    """

    rows: int
    columns: int
    prefix: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            number = whole_number(size)
            if number is None or number < (name != "prefix"):
                raise TokensError(
                    f"A grid's {name} is a whole number of at least {int(name != 'prefix')}; got "
                    f"{shorten(size)}."
                )
            object.__setattr__(self, name, number)

    @property
    def length(self) -> int:
        """How many tokens in all."""
        return self.prefix + self.rows * self.columns

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ImagePatches:
    """Where one image stands among tokens that are patches and words together.

    Tokens `start` to `start + grid.length` are its positions: the grid's prefix, then its patches
    in reading order. `name` tells several images apart.

    >>> image = ImagePatches("image 1", Grid(2, 2, prefix=1, height=16, width=16), start=0)
    >>> image.patches
    slice(1, 5, None)
    """

    name: str
    grid: Grid
    start: int = 0

    @property
    def patches(self) -> slice:
        """The indices of the patches, in reading order; the prefix is left out."""
        return slice(self.start + self.grid.prefix, self.start + self.grid.length)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"name": self.name, "grid": self.grid.to_dict(), "start": self.start}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ImagePatches:
        """The inverse of `to_dict`."""
        return cls(str(record["name"]), Grid(**record["grid"]), int(record["start"]))


def patch_names(grid: Grid, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """The prefix tokens' names, then `patch row,column` in reading order.

    >>> patch_names(Grid(1, 2, 1, 16, 32), ("[CLS]",))
    ('[CLS]', 'patch 0,0', 'patch 0,1')
    """
    patches = [f"patch {r},{c}" for r in range(grid.rows) for c in range(grid.columns)]
    return (*prefix, *patches)


def enlarge(patches: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """A map of patches at the size of the image, linear between the patches' centres.

    >>> enlarge(np.array([[0.0, 1.0]]), height=1, width=4).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
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
