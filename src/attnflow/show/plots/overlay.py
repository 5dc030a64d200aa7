"""An image with its patch map laid over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError, optional_import
from attnflow.show.plots.canvas import (
    BLUE,
    VERMILLION,
    at_layer,
    bare,
    colour_bar,
    heading,
    label,
    new_axes,
    one_target,
)
from attnflow.tokens import TokenRef

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["image_overlay"]

_BRIGHTNESS = np.array([0.299, 0.587, 0.114])  # of red, green and blue, as the eye weighs them


def image_overlay(
    result: Attribution,
    image: ArrayLike,
    *,
    target: TokenRef | None = None,
    layer: int = -1,
    alpha: float = 0.8,
    ax: Axes | None = None,
) -> Axes:
    """The map of one target over the image, which is shown in grey so that the map has the colour.

    image: (height, width) or (height, width, 3), of any range, at the size the model saw.
    alpha: how much of the image the strongest value covers; zero covers nothing.

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
    one = one_target(result, target).layer(layer)
    values = one.image()
    grey = _in_grey(image, values.shape)
    axes = new_axes(5.6, 1.0 + 4.6 * values.shape[0] / values.shape[1]) if ax is None else ax
    axes.imshow(grey, cmap="gray")
    negative = bool(values.min() < 0)
    most = float(np.abs(values).max()) or 1.0
    over = axes.imshow(
        values, cmap=_see_through(alpha, negative), vmin=-most if negative else 0, vmax=most
    )
    axes.set_xticks([])
    axes.set_yticks([])
    heading(axes, f"{label(one.targets[0])} at {at_layer(one)}: {one.method.name}")
    colour_bar(axes, over)
    return bare(axes)


def _in_grey(image: ArrayLike, expected: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(image, dtype=np.float64)
    if array.ndim == 3 and array.shape[2] in (3, 4):
        array = array[:, :, :3] @ _BRIGHTNESS
    if array.shape != expected:
        height, width = expected
        hint = "Channels come last: image.transpose(1, 2, 0)."
        if array.ndim != 3:
            hint = "Resize and crop it as the model's processor does."
        raise InputError(
            f"The model saw an image of {height} × {width} (height × width), in grey or with 3 "
            f"channels; this one has shape {np.shape(image)}. {hint}"
        )
    return array


def _see_through(alpha: float, negative: bool) -> Any:
    """One hue that grows from nothing; below zero a second one."""
    colors = optional_import("matplotlib.colors", extra="plots", purpose="Drawing a figure")
    more, less = colors.to_rgb(VERMILLION), colors.to_rgb(BLUE)
    stops = [(*more, 0.0), (*more, alpha)]
    if negative:
        stops = [(*less, alpha), (*less, 0.0), (*more, 0.0), (*more, alpha)]
        return colors.LinearSegmentedColormap.from_list(
            "over", list(zip([0, 0.5, 0.5, 1], stops, strict=True))
        )
    return colors.LinearSegmentedColormap.from_list("over", stops)
