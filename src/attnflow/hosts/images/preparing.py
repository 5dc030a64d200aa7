"""Photos to a model's pixels, by the model's own processor, and back to what the model saw.

The overlay is drawn on what the model saw, which a processor may have cropped and squeezed: a map
on the photo as it was would point beside the things it means.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import InputError, ModelError, optional_import
from attnflow.hosts.images.reading import Photo, read_photo
from attnflow.hosts.registry import adapter_for
from attnflow.tokens.pictures import is_picture

__all__ = ["PreparedImage", "image_of", "picture_of", "prepare_images", "reduced_address"]

_LONGEST_SIDE = 448  # pixels of the picture that a result carries for its readers
_QUALITY = 88
_TINY = 160  # pixels of the longer side


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """One photo as the model takes it (`inputs`, a batch of one), and as it sees it.

    picture: (height, width, 3), whole numbers to 255. name, remarks: as in `Photo`.
    """

    inputs: Mapping[str, Tensor]
    picture: NDArray[np.uint8]
    name: str
    remarks: tuple[str, ...] = ()

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result says of the image it is about; `images` has one entry for each grid."""
        about: dict[str, Any] = {"image": self.name, "images": [reduced_address(self.picture)]}
        return {**about, "image_remarks": list(self.remarks)} if self.remarks else about


def prepare_images(
    model: nn.Module, sources: Sequence[Any], processor: Any = None
) -> list[PreparedImage]:
    """Photos as the model's own processor makes them, or another that is handed in.

    >>> from attnflow.testing import tiny_vision_model
    >>> model, processor = tiny_vision_model()
    >>> prepared = prepare_images(model, [np.zeros((40, 60, 3), np.uint8)], processor)
    >>> prepared[0].inputs["pixel_values"].shape, prepared[0].picture.shape
    (torch.Size([1, 3, 32, 32]), (32, 32, 3))
    """
    adapter = adapter_for(model)
    if not adapter.reads_images(model):
        raise InputError(
            f"{type(model).__name__} reads no images: it is not a vision model that attnflow knows."
        )
    prepare = processor if processor is not None else adapter.image_processor(model)
    return [_prepared(model, read_photo(source), prepare) for source in sources]


def image_of(model: nn.Module, source: Any, processor: Any = None) -> PreparedImage | None:
    """The image that was handed in where a text could have been; None where it is a text.

    What a vision model is handed is an image or its path, whatever its name looks like.
    """
    reads_images = adapter_for(model).reads_images(model)
    if not reads_images and not is_picture(source):
        if isinstance(source, os.PathLike):
            raise InputError(
                f"{type(model).__name__} reads text; got the path {str(source)!r}. Read the file "
                "first: Path(...).read_text()."
            )
        return None
    return prepare_images(model, [source], processor)[0]


def picture_of(pixels: Tensor, processor: Any) -> NDArray[np.uint8]:
    """Pixels (channels, height, width) as a processor makes them, turned back to a picture."""
    values = pixels.detach().cpu().float().numpy().transpose(1, 2, 0)
    if getattr(processor, "do_normalize", True):
        mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
        if mean is None or std is None:
            low, high = float(values.min()), float(values.max())
            values = (values - low) / ((high - low) or 1.0)
        else:
            values = values * np.asarray(std, np.float32) + np.asarray(mean, np.float32)
    if not getattr(processor, "do_rescale", True):
        values = values / 255.0
    if values.shape[2] == 1:
        values = np.repeat(values, 3, axis=2)
    return np.asarray(np.rint(np.clip(values, 0, 1) * 255), dtype=np.uint8)


def reduced_address(picture: NDArray[np.uint8]) -> str:
    """A picture as a small JPEG inside a text: what a report or a file carries of it.

    >>> reduced_address(np.zeros((8, 8, 3), np.uint8))[:23]
    'data:image/jpeg;base64,'
    """
    images = optional_import("PIL.Image", extra="images", purpose="Keeping the image")
    small = images.fromarray(picture)
    small.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    out = io.BytesIO()
    # a picture of few pixels is enlarged for its readers: it may not lose any
    tiny = max(small.size) <= _TINY
    small.save(out, format="JPEG", quality=96 if tiny else _QUALITY, subsampling=0 if tiny else 2)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def _prepared(model: nn.Module, photo: Photo, processor: Any) -> PreparedImage:
    inputs = _run(processor, photo)
    pixels = inputs["pixel_values"]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    inputs["pixel_values"] = pixels.to(dtype)
    return PreparedImage(inputs, picture_of(pixels[0], processor), photo.name, photo.remarks)


def _run(processor: Any, photo: Photo) -> dict[str, Tensor]:
    """The processor's own output, a batch of one; a plain function gives the pixels alone."""
    is_library = hasattr(processor, "model_input_names")
    try:
        output = processor(images=photo.image, return_tensors="pt") if is_library else None
        output = {"pixel_values": processor(photo.image)} if output is None else dict(output)
    # A processor is the user's or the library's; whatever it raises is about this photo.
    except Exception as error:
        width, height = photo.image.size
        raise InputError(
            f"The model's processor cannot prepare {photo.name!r} ({width} × {height} pixels): "
            f"{type(error).__name__}: {str(error)[:200]}."
        ) from error
    pixels = output.get("pixel_values")
    if not isinstance(pixels, Tensor) or pixels.ndim not in (3, 4):
        raise ModelError(
            "A processor gives pixel_values, a tensor (1, channels, height, width); this "
            f"{type(processor).__name__} gave {', '.join(map(repr, output)) or 'nothing'}."
        )
    return {"pixel_values": pixels if pixels.ndim == 4 else pixels[None]}
