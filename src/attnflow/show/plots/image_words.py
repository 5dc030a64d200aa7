"""What each word of an answer drew on: its map over every image, beside the words of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.errors.percent import percent
from attnflow.show.plots.canvas import BLUE, SMALL, VERMILLION, bare, label, plain, pyplot
from attnflow.show.plots.overlay import carried_pictures
from attnflow.tokens.patches import ImagePatches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["image_words_figure"]

_MOST_ROWS, _MOST_IMAGES, _MOST_WORDS = 8, 4, 8
_SCALE = 99.0  # percentile of the patches that is drawn in full; a few strong ones hide no others
_COVER = 0.78
_LEAST_AXIS = 0.1  # the share that the axis of words reaches at least


def image_words_figure(result: Attribution, pictures: Sequence[Any] = ()) -> Figure:
    """A row for each word of the answer: its map over each image, and its words of the prompt.

    pictures: other images than those that the result carries, one for each image among its sources;
    where there are none, the maps are drawn alone.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, ImagePatches
    >>> image = ImagePatches("image 1", Grid(1, 2, 0, 8, 16))
    >>> sources = Tokens(("patch 0,0", "patch 0,1", "what"), images=(image,))
    >>> result = Attribution(np.full((1, 1, 3), 0.3), (1,), Tokens(("red",)), sources, Raw())
    >>> len(image_words_figure(result).axes)
    2
    """
    images = result.sources.images[:_MOST_IMAGES]
    if not images:
        raise InputError("This figure is of results over images; these sources are words alone.")
    one = result.layer(-1)
    rows = min(len(one.targets), _MOST_ROWS)
    height = 0.6 + 2.5 * rows
    figure, grid = pyplot().subplots(
        rows,
        len(images) + 1,
        figsize=(2.6 * len(images) + 3.2, height),
        squeeze=False,
        width_ratios=[*[1.0] * len(images), 0.9],
        layout="constrained",
    )
    underlays = [np.asarray(one) for one in pictures] or carried_pictures(result)
    underlays = underlays if len(underlays) == len(result.sources.images) else []
    for row in range(rows):
        values = one.values[0, row]
        for k, image in enumerate(images):
            _draw_map(grid[row, k], values, image, underlays[k] if underlays else None)
            if k == 0:
                grid[row, k].set_ylabel(label(one.targets[row]), fontsize=11, **plain())
            if row == 0 and len(images) > 1:
                grid[row, k].set_title(image.name, fontsize=SMALL)
        _draw_words(grid[row, -1], one, row)
    figure.suptitle(result.title, fontsize=SMALL + 1)
    return figure


def _draw_map(
    axes: Axes, values: NDArray[np.float64], image: ImagePatches, picture: NDArray[Any] | None
) -> None:
    """The picture in grey, and over it the map, patch by patch."""
    grid = image.grid
    patches = values[image.patches].reshape(grid.rows, grid.columns)
    extent = (0, grid.width, grid.height, 0)
    ground = np.full((1, 1), 255.0) if picture is None else _grey(picture)
    axes.imshow(ground, cmap="gray", vmin=0, vmax=255, extent=extent)
    most = float(np.percentile(np.maximum(patches, 0), _SCALE)) or float(patches.max()) or 1.0
    strength = np.clip(patches / most, 0, 1)
    colour = np.zeros((*strength.shape, 4))
    colour[..., :3] = _rgb(VERMILLION)
    colour[..., 3] = _COVER * strength
    axes.imshow(colour, extent=extent, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)


def _draw_words(axes: Axes, one: Attribution, row: int) -> None:
    """The strongest words of the prompt as bars, and how much fell on the images."""
    on_images = np.zeros(len(one.sources), dtype=bool)
    for image in one.sources.images:
        on_images[image.start : image.start + image.grid.length] = True
    values = one.values[0, row]
    words = np.flatnonzero(~on_images)
    strongest = words[np.argsort(-values[words], kind="stable")[:_MOST_WORDS]]
    strongest = np.sort(strongest)[::-1]
    total = float(values.sum()) or 1.0
    axes.barh(range(len(strongest)), values[strongest] / total, color=BLUE, height=0.65)
    names = [label(one.sources[k]) for k in strongest]
    axes.set_yticks(range(len(strongest)), names, fontsize=SMALL, **plain())
    axes.tick_params(axis="x", labelsize=SMALL - 1)
    share = float(values[on_images].sum()) / total
    axes.set_title(f"{percent(share)} on the image, the rest:", fontsize=SMALL)
    # what all words together hardly hold is not drawn large
    axes.set_xlim(0, max(_LEAST_AXIS, 1.05 * float(values[strongest].max(initial=0.0)) / total))
    bare(axes)


def _grey(picture: NDArray[Any]) -> NDArray[np.float64]:
    array = picture.astype(np.float64)
    return array if array.ndim == 2 else array[..., :3] @ np.array([0.299, 0.587, 0.114])


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue
