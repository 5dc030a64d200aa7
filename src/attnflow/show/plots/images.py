"""Images with their patch maps over them, and the words of an answer beside them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.patch_maps import Scale, contrast, grids_of, patch_maps
from attnflow.errors import InputError, optional_import, percent
from attnflow.show.packing import warm_map
from attnflow.show.plots import canvas
from attnflow.show.sentences import place_of
from attnflow.tokens import Grid, TokenRef
from attnflow.tokens.patches import ImagePatches, enlarge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 2.9  # inches of a panel's width
_COLUMNS = (4, 3)  # panels beside each other where one image is shown by several methods
_MOST_ROWS, _MOST_IMAGES, _MOST_WORDS = 8, 4, 8
_STRONG_PATCH = 99.0  # percentile that is drawn in full; a few strong patches hide no others
_LEAST_AXIS = 0.1  # the share that the axis of words reaches at least


def image_overlay(
    result: Attribution,
    image: ArrayLike | None = None,
    *,
    target: TokenRef | None = None,
    layer: int = -1,
    scale: Scale = "percentiles",
    index: int = 0,
    alpha: float = 0.8,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the map of one target in warm colours over the image, which keeps its own.

    image: (height, width) or (height, width, 3), of any range, at the size the model saw; by
        default the picture that the result carries.
    scale: what the colours stand for. "percentiles": from the 5th to the 99th percentile of the
        patches; "full": from 0 to the strongest patch; or two values. Special tokens never count.
    index: which image, where there are several among the sources.
    alpha: how much of the image the strongest value covers; the weakest covers nothing.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, patch_names
    >>> grid = Grid(2, 2, 1, 4, 4)
    >>> tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    >>> result = Attribution(np.full((1, 5, 5), 0.2), (1,), tokens, tokens, Raw())
    >>> len(image_overlay(result, np.zeros((4, 4)), target="[CLS]").images)
    2
    """
    if not 0 < alpha <= 1:
        raise InputError(f"alpha is above 0 and at most 1; got {alpha!r}.")
    row = canvas.one_target(result, target).layer(layer)
    maps = patch_maps(row)
    if not 0 <= index < len(maps):
        raise InputError(f"index={index!r}: there are {len(maps)} images, numbered from 0.")
    grid, values = maps[index]
    ends = contrast(maps, scale)
    ground = _ground(_picture(result, index, grid) if image is None else image, grid)
    axes = canvas.new_axes(5.6, 1.0 + 4.6 * grid.height / grid.width) if ax is None else ax
    axes.imshow(ground, cmap="gray")
    over = axes.imshow(
        enlarge(values, grid.height, grid.width),
        cmap=_see_through(alpha, ends.signed),
        vmin=ends.low,
        vmax=ends.high,
    )
    _without_ticks(axes)
    usual = f"{canvas.label(row.targets[0])} at {place_of(row.layers[0])}: {row.method.name}"
    canvas.heading(axes, usual if title is None else title)
    canvas.colour_bar(axes, over)
    return axes


def overlay_figure(
    results: Sequence[Attribution],
    image: ArrayLike | None = None,
    *,
    names: Sequence[str] | None = None,
    heading: str = "",
    target: TokenRef | None = None,
    layer: int = -1,
    scale: Scale = "percentiles",
) -> Figure:
    """Draw several results about the same images: each method, or each word of an answer.

    One image: the results beside each other. Several: a row for each result, a column for each
    image. Every result has a scale of its own, since methods have different units.

    >>> from attnflow import Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, patch_names
    >>> grid = Grid(2, 2, 1, 4, 4)
    >>> tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    >>> result = Attribution(np.full((1, 5, 5), 0.2), (1,), tokens, tokens, Raw())
    >>> figure = overlay_figure([result, result], np.zeros((4, 4)), target="[CLS]")
    >>> len([axes for axes in figure.axes if axes.images])
    2
    """
    if not results:
        raise InputError("A figure of overlays needs at least one result; got none.")
    titles = [result.method.name for result in results] if names is None else list(names)
    if len(titles) != len(results):
        raise InputError(f"{len(results)} results but {len(titles)} names.")
    grids = grids_of(results[0].sources)
    if not grids:
        patch_maps(results[0], target=results[0].targets.positions[0])  # says what is missing
    across = len(grids)
    if len(grids) == 1:  # as many columns as leave the fewest empty places in the last row
        across = min(_COLUMNS, key=lambda columns: -len(results) % columns)
        across = len(results) if len(results) <= _COLUMNS[0] else across
    down = len(results) if len(grids) > 1 else -(-len(results) // across)
    tall = max(grid.height / grid.width for grid in grids)
    size = (_PANEL * across, (_PANEL * tall * 0.85 + 0.45) * down + (0.4 if heading else 0.0))
    figure = canvas.pyplot().figure(figsize=size, layout="constrained")
    if heading:
        figure.suptitle(heading, fontsize=11, fontweight="bold", **canvas.plain())
    panels = figure.subplots(down, across, squeeze=False).ravel().tolist()
    places = [(k, i) for k in range(len(results)) for i in range(len(grids))]
    for axes, (k, i) in zip(panels, places, strict=False):
        options: dict[str, Any] = {"target": target, "layer": layer, "scale": scale, "index": i}
        title = titles[k] if len(grids) == 1 else f"{titles[k]}, image {i + 1}"
        image_overlay(results[k], image, title=title, ax=axes, **options)
    for axes in panels[len(places) :]:
        axes.set_axis_off()
    return figure


def _without_ticks(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    canvas.bare(axes)


def _picture(result: Attribution, index: int, grid: Grid) -> NDArray[np.uint8]:
    pictures = carried_pictures(result)
    if index >= len(pictures):
        raise InputError(
            "This result carries no picture; pass the one the model saw: image=pixels, an array "
            f"of {grid.height} × {grid.width}."
        )
    return pictures[index]


def carried_pictures(result: Attribution) -> list[NDArray[np.uint8]]:
    """Return the pictures that a result carries, each at the size the model saw."""
    addresses, grids = result.provenance.get("images") or (), grids_of(result.sources)
    if not addresses:
        return []
    images = optional_import("PIL.Image", extra="images", purpose="Showing the image")
    pictures = []
    for address, grid in zip(addresses, grids, strict=False):
        content = base64.b64decode(str(address).partition(",")[2])
        picture = images.open(io.BytesIO(content)).convert("RGB")
        pictures.append(np.asarray(picture.resize((grid.width, grid.height))))
    return pictures


def _in_colours(image: ArrayLike) -> NDArray[np.float64]:
    """Return an image in grey, or in colours that run from 0 to 1."""
    array = np.asarray(image)
    array = array.astype(np.float64) / (255.0 if array.dtype == np.uint8 else 1.0)
    if array.ndim == 2 or array.shape[2:] not in ((3,), (4,)):
        return array
    array = array[..., :3]
    if array.min(initial=0.0) < 0 or array.max(initial=0.0) > 1:  # normalised for the model
        array = (array - array.min()) / (np.ptp(array) or 1.0)
    return array


def _ground(image: ArrayLike, grid: Grid) -> NDArray[np.float64]:
    """Return the image to draw on; refuse one of another size than the model saw."""
    array = _in_colours(image)
    if array.shape not in ((grid.height, grid.width), (grid.height, grid.width, 3)):
        hint = "Channels come last: image.transpose(1, 2, 0)."
        if array.ndim != 3:
            hint = "Resize and crop it as the model's processor does."
        raise InputError(
            f"The model saw an image of {grid.height} × {grid.width} (height × width), in grey or "
            f"with 3 channels; this one has shape {np.shape(image)}. {hint}"
        )
    return array


def _see_through(alpha: float, signed: bool) -> Any:
    """Return warm colours that grow from nothing; below zero cold ones."""
    shares = np.linspace(-1.0 if signed else 0.0, 1.0, 257)
    return canvas.matplotlib("colors").ListedColormap(warm_map(shares, alpha) / 255, "over")


# -- the words of an answer ----------------------------------------------------------------------


def image_words_figure(result: Attribution, pictures: Sequence[Any] = ()) -> Figure:
    """Draw a row for each word of the answer: its map over each image, and its words.

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
    top = result.layer(-1)
    rows = min(len(top.targets), _MOST_ROWS)
    size, widths = (2.6 * len(images) + 3.2, 0.6 + 2.5 * rows), [*[1.0] * len(images), 0.9]
    figure, grid = canvas.new_panels(size, rows, len(images) + 1, width_ratios=widths)
    underlays = [np.asarray(picture) for picture in pictures] or carried_pictures(result)
    underlays = underlays if len(underlays) == len(result.sources.images) else []
    for row in range(rows):
        values = top.values[0, row]
        for k, image in enumerate(images):
            _draw_patches(grid[row, k], values, image, underlays[k] if underlays else None)
            if k == 0:
                word = canvas.label(top.targets[row])
                grid[row, k].set_ylabel(word, fontsize=11, **canvas.plain())
            if row == 0 and len(images) > 1:
                grid[row, k].set_title(image.name, fontsize=canvas.SMALL)
        _draw_words(grid[row, -1], top, row)
    figure.suptitle(result.title, fontsize=canvas.SMALL + 1)
    return figure


def _draw_patches(
    axes: Axes, values: NDArray[np.float64], image: ImagePatches, picture: NDArray[Any] | None
) -> None:
    """Draw the picture, and over it the map, patch by patch."""
    grid = image.grid
    patches = values[image.patches].reshape(grid.rows, grid.columns)
    extent = (0, grid.width, grid.height, 0)
    ground = np.full((1, 1, 3), 1.0) if picture is None else _in_colours(picture)
    axes.imshow(ground, cmap="gray", extent=extent)
    strong = float(np.percentile(np.maximum(patches, 0), _STRONG_PATCH))
    most = strong or float(patches.max()) or 1.0
    strength = np.clip(patches / most, 0, 1)
    axes.imshow(warm_map(strength), extent=extent, interpolation="nearest")
    _without_ticks(axes)


def _draw_words(axes: Axes, top: Attribution, row: int) -> None:
    """Draw the strongest words of the prompt as bars, and say how much fell on the images."""
    on_images = np.zeros(len(top.sources), dtype=bool)
    for image in top.sources.images:
        on_images[image.start : image.start + image.grid.length] = True
    values = top.values[0, row]
    words = np.flatnonzero(~on_images)
    order = np.argsort(-values[words], kind="stable")[:_MOST_WORDS]
    strongest = np.sort(words[order])[::-1]
    total = float(values.sum()) or 1.0
    axes.barh(range(len(strongest)), values[strongest] / total, color=canvas.BLUE, height=0.65)
    names = [canvas.label(top.sources[k]) for k in strongest]
    axes.set_yticks(range(len(strongest)), names, fontsize=canvas.SMALL, **canvas.plain())
    axes.tick_params(axis="x", labelsize=canvas.SMALL - 1)
    share = float(values[on_images].sum()) / total
    axes.set_title(f"{percent(share)} on the image, the rest:", fontsize=canvas.SMALL)
    # what all words together hardly hold is not drawn large
    axes.set_xlim(0, max(_LEAST_AXIS, 1.05 * float(values[strongest].max(initial=0.0)) / total))
    canvas.bare(axes)
