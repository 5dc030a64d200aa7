"""The images of a prompt as a vision-language model saw them, for the readers of a result.

A processor squeezes, cuts into tiles or into patches what it is handed; a map lies right only on
what came out of it. So the pictures are made of the pixels themselves, one for each view: an image,
a tile, or a step of a video.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.attribution import Attribution
from attnflow.hosts.images.preparing import picture_of, reduced_address
from attnflow.hosts.images.reading import Photo
from attnflow.hosts.vision_language.towers import pixels_of
from attnflow.hosts.vision_language.views import VIDEO, patch_grids, reading_order

__all__ = ["pictures_of", "with_pictures"]

Picture = NDArray[np.uint8]
_FLAT = 2  # axes of pixels that come as one row for each patch


def pictures_of(model: nn.Module, inputs: Mapping[str, Any], processor: Any) -> list[Picture]:
    """(height, width, 3) of every view, in the order of the pixels."""
    pictures: list[Picture] = []
    for name, pixels in pixels_of(inputs).items():
        part = "video_processor" if name == VIDEO else "image_processor"
        prepare = getattr(processor, part, None) or getattr(processor, "image_processor", None)
        if pixels.ndim == _FLAT:
            pictures += _joined(model, name, pixels, inputs, prepare)
        else:
            tiles = pixels.reshape(-1, *pixels.shape[-3:])
            # what fills up a batch is zero throughout, which no picture is
            pictures += [picture_of(tile, prepare) for tile in tiles if bool(tile.any())]
    return pictures


def _joined(
    model: nn.Module, name: str, pixels: Tensor, inputs: Mapping[str, Any], prepare: Any
) -> list[Picture]:
    """Patches that a processor has cut, put together again; of a step of several frames the first.

    A row is (channels, frames, side, side) of one patch.
    """
    config: Any = model.config
    vision = config.vision_config
    side = int(vision.patch_size)
    channels = int(getattr(vision, "in_channels", getattr(vision, "in_chans", 3)))
    patches = pixels.reshape(len(pixels), channels, -1, side, side)[:, :, 0]
    pictures = []
    for grid, numbers in patch_grids(model, name, inputs):
        for step in reading_order(numbers, grid, model):
            rows, columns = grid[1:]
            square = patches[step].reshape(rows, columns, channels, side, side)
            joined = square.permute(2, 0, 3, 1, 4).reshape(channels, rows * side, columns * side)
            pictures.append(picture_of(joined, prepare))
    return pictures


def with_pictures(
    result: Attribution,
    model: nn.Module,
    inputs: Mapping[str, Any],
    processor: Any,
    photos: Sequence[Photo] = (),
) -> Attribution:
    """The result with the pictures behind its maps, reduced, and what is to be said of the photos.

    Where a picture does not fit its grid there are none: a map beside its thing would mislead.
    """
    images = result.sources.images
    pictures = pictures_of(model, inputs, processor) if images else []
    about = dict(result.provenance)
    if remarks := [remark for photo in photos for remark in photo.remarks]:
        about["image_remarks"] = remarks
    cut = [
        picture[: image.grid.height, : image.grid.width]
        for picture, image in zip(pictures, images, strict=False)
    ]
    fits = [c.shape[:2] == (i.grid.height, i.grid.width) for c, i in zip(cut, images, strict=False)]
    if len(pictures) == len(images) and all(fits):
        about["images"] = [reduced_address(np.ascontiguousarray(picture)) for picture in cut]
    return replace(result, provenance=about)
