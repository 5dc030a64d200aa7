"""Image patches: the grid a vision model cuts an image into, maps at the image's size, and which
files are images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import TokensError
from attnflow.errors.arguments import check_count


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
            number = check_count(f"A grid's {name}", size, int(name != "prefix"), error=TokensError)
            object.__setattr__(self, name, number)

    @property
    def length(self) -> int:
        """The number of tokens in all."""
        return self.prefix + self.rows * self.columns

    def patches_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of the patches, (rows, columns), of a value for each token.

        >>> Grid(1, 2, prefix=1, height=2, width=4).patches_of(np.array([9.0, 1.0, 2.0])).tolist()
        [[1.0, 2.0]]
        """
        patches = values[self.prefix : self.length]
        return patches.reshape(self.rows, self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ImagePatches:
    """The place of one image among tokens: from `start`, the grid's prefix and then its patches."""

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


PICTURE_ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".avif", ".jp2", ".ppm", ".pgm", ".ico"),
)
"""How the names of image files end."""

_LONGEST = 1000  # characters of a path; file systems take less
_LIBRARIES = ("PIL", "numpy", "torch")


def is_picture(value: object) -> bool:
    """Tell if it is an image in memory: a PIL image, an array, a tensor, a file's bytes."""
    if isinstance(value, (bytes, bytearray)):
        return True
    library = type(value).__module__.split(".")[0]
    is_array = library in _LIBRARIES and getattr(value, "ndim", 0) >= 2
    return is_array or (library == "PIL" and hasattr(value, "convert"))


def names_picture(value: object) -> bool:
    """Tell if it is the path of a file that is there and whose name ends as an image's does."""
    if not isinstance(value, (str, os.PathLike)):
        return False
    name = os.fspath(value)
    if not isinstance(name, str) or len(name) > _LONGEST or "\0" in name:
        return False
    try:
        return name.lower().endswith(PICTURE_ENDINGS) and Path(name).expanduser().is_file()
    except OSError:
        return False


if TYPE_CHECKING:
    Picture = Any
else:

    class _AnyPicture(type):
        def __instancecheck__(cls, value: object) -> bool:
            return is_picture(value) or isinstance(value, os.PathLike)

    class Picture(metaclass=_AnyPicture):
        """In annotations: an image in memory or a path; what `isinstance` says at run time.

        >>> isinstance(b"the bytes of a file", Picture)
        True
        """
