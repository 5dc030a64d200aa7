"""What all figures share: matplotlib when it is needed, one colour scale, no boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnflow.errors import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "bare", "pyplot"]

COLOURS = "Blues"  # one hue, monotone in lightness: safe for the colour-blind and in print


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to install it."""
    return optional_import("matplotlib.pyplot", extra="plots", purpose="Drawing a figure")


def bare(axes: Axes) -> Axes:
    """Without ticks and frame."""
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes
