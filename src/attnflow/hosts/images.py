"""Photos to a vision model's pixels, and back to what the model saw.

Anything that is an image becomes red, green and blue, eight bits each, the right way up; what is
lost on the way (further frames, transparency) is said in the photo's remarks. The model's own
processor makes pixels of it. The overlay is drawn on what came out of that, which a processor may
have cropped and squeezed: a map on the photo as it was would point beside the things it means.
"""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attnflow.errors import FileError, InputError, ModelError, optional_import, shorten
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.tokens import Grid
from attnflow.tokens.patches import is_picture

if TYPE_CHECKING:
    from PIL import Image


MOST_PIXELS = 120_000_000
"""Larger images are refused: they would take more than a third of a GB once unpacked."""

_CHANNELS = (1, 3, 4)
_LARGEST_FILE = 400_000_000  # bytes
_LARGEST_16_BIT = 65_535


@dataclass(frozen=True, eq=False)
class Photo:
    """An image of mode RGB, what to call it, and what a reader should know of how it was read."""

    image: Image.Image
    name: str
    remarks: tuple[str, ...] = ()


def read_photo(source: Any) -> Photo:
    """Read a photo: a path, bytes, a PIL image, an array (height, width[, channels]) or a tensor
    (channels, height, width), of whole numbers to 255 or shares to 1.
    """
    images = optional_import("PIL.Image", extra="images", purpose="Reading an image")
    if isinstance(source, Photo):
        return source
    if isinstance(source, images.Image):
        file = getattr(source, "filename", "")
        return _upright(source, Path(file).name if isinstance(file, str) and file else "an image")
    if isinstance(source, (bytes, bytearray)):
        return _opened(io.BytesIO(bytes(source)), f"an image of {len(source):,} bytes")
    if isinstance(source, (str, os.PathLike)):
        return _opened_file(Path(source).expanduser())
    if hasattr(source, "shape"):
        return Photo(images.fromarray(_pixels(source)), type(source).__name__.replace("nd", ""))
    raise InputError(
        "An image is a path, the bytes of a file, a PIL image, an array (height, width, 3) or a "
        f"tensor (3, height, width); got {shorten(source)} ({type(source).__name__})."
    )


def _opened_file(path: Path) -> Photo:
    name = shorten(str(path))
    try:
        folder, size = path.is_dir(), path.stat().st_size
        content = None if folder or size > _LARGEST_FILE else path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"There is no image {name} that can be read: {reason}.") from error
    if folder:
        raise InputError(
            f"{name} is a folder; name an image in it, or give the folder to `attnflow explain`."
        )
    if content is None:
        raise InputError(
            f"{name} has {size:,} bytes; images of up to {_LARGEST_FILE:,} are read. Save it in "
            "another format."
        )
    return _opened(io.BytesIO(content), path.name)


def _opened(stream: io.BytesIO, name: str) -> Photo:
    """Open, check the size before anything is unpacked, then unpack all of it."""
    images = optional_import("PIL.Image", extra="images", purpose="Reading an image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large images; ours are refused in words
        try:
            image = images.open(stream)
            _check_size(image.size, name)
            image.load()
        except images.DecompressionBombError as error:
            raise InputError(_too_large(name, "too many")) from error
        except images.UnidentifiedImageError as error:
            raise InputError(
                f"{shorten(name)} is not an image that can be read: its content is of no known "
                "format (JPEG, PNG, GIF, WebP, TIFF, BMP and others are)."
            ) from error
        # A broken file makes the decoders raise many unrelated types; all mean the same here.
        except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{shorten(name)} is broken or cut off: {str(error).rstrip('.')}. Get the file "
                "again, or save it anew with a program that can show it."
            ) from error
    return _upright(image, name)


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        raise InputError(_too_large(name, f"{width:,} × {height:,}"))
    if not width or not height:
        raise InputError(f"{shorten(name)} is an image without pixels: {width} × {height}.")


def _too_large(name: str, count: str) -> str:
    return (
        f"{shorten(name)} has {count} pixels, more than the {MOST_PIXELS:,} that are read. Make it "
        "smaller first: models look at a few hundred pixels a side."
    )


def _upright(image: Any, name: str) -> Photo:
    """The first frame, turned as the camera says, in red, green and blue."""
    operations = optional_import("PIL.ImageOps", extra="images", purpose="Reading an image")
    _check_size(image.size, name)
    remarks = []
    if getattr(image, "n_frames", 1) > 1:
        remarks.append(f"{name} has {image.n_frames} frames; the first is explained")
        image.seek(0)
    try:
        turned = operations.exif_transpose(image)
        converted = _in_colours(turned, remarks, name)
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shorten(name)} is broken or cut off: {error}.") from error
    return Photo(converted, name, tuple(remarks))


def _in_colours(image: Any, remarks: list[str], name: str) -> Any:
    """Mode RGB; what is transparent lies on white, sixteen bits become eight."""
    images = optional_import("PIL.Image", extra="images", purpose="Reading an image")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layers = image.convert("RGBA")
        if layers.getchannel("A").getextrema() != (255, 255):
            remarks.append(f"transparent parts of {name} are shown on white")
        ground = images.new("RGBA", layers.size, (255, 255, 255, 255))
        return images.alpha_composite(ground, layers).convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        return images.fromarray(_eight_bits(np.asarray(image), name)).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Grey values of more than eight bits; Pillow itself would cut them off at 255."""
    low, high = float(values.min()), float(values.max())
    kind = values.dtype.kind
    top = 1.0 if kind == "f" and high <= 1 else 255.0
    if kind in "iu" and (high > top or values.dtype.itemsize == 2):
        top = float(_LARGEST_16_BIT)
    if not (np.isfinite(low) and low >= 0 and high <= top):
        raise InputError(
            f"The grey values of {shorten(name)} run from {low:g} to {high:g}; they may be shares "
            f"from 0 to 1, 0 to 255, or 0 to {_LARGEST_16_BIT}. Rescale them first."
        )
    return np.rint(values * (255.0 / top)).astype(np.uint8)


def _pixels(source: Any) -> NDArray[np.uint8]:
    """An array or a tensor as (height, width, 3)."""
    is_tensor = type(source).__module__.split(".")[0] == "torch"
    if is_tensor and source.is_floating_point():
        source = source.float()  # numpy has no bfloat16
    array = np.asarray(source.detach().cpu() if is_tensor else source)
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    channels = _channels_last(array, tensor=is_tensor)
    _check_size((channels.shape[1], channels.shape[0]), "The array")
    if channels.shape[2] == 4:
        raise InputError(
            f"An array of shape {np.shape(source)} has four channels; pass three, or a PIL image "
            "of mode RGBA, whose transparent parts are put on white."
        )
    colours = np.repeat(channels, 3, axis=2) if channels.shape[2] == 1 else channels
    return _checked_range(colours)


def _channels_last(array: NDArray[Any], *, tensor: bool) -> NDArray[Any]:
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3) or 0 in array.shape:
        raise InputError(
            "An image is an array (height, width), (height, width, 3) or a tensor (3, height, "
            f"width) of numbers; got shape {array.shape}, dtype {array.dtype}."
        )
    if array.ndim == 2:
        return array[..., None]
    first, last = array.shape[0] in _CHANNELS, array.shape[-1] in _CHANNELS
    if not first and not last:
        raise InputError(f"An image has 1 or 3 channels; got an array of shape {array.shape}.")
    if first and (tensor or not last):
        return array.transpose(1, 2, 0)
    return array


def _checked_range(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    low, high = float(array.min()), float(array.max())
    top = 1.0 if array.dtype.kind in "fb" and high <= 1 else 255.0
    if not (np.isfinite([low, high]).all() and low >= 0 and high <= top):
        raise InputError(
            "Pixels are whole numbers from 0 to 255 or shares from 0 to 1; these run from "
            f"{low:g} to {high:g}. Pixels that a processor has prepared already are passed by "
            "name: {'pixel_values': pixels}."
        )
    return np.ascontiguousarray(np.rint(array * (255.0 / top)).astype(np.uint8))


_LONGEST_SIDE = 448  # pixels of the picture that a result carries for its readers
_QUALITY = 88
_TINY = 160  # pixels of the longer side


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """One photo as the model takes it, a batch of one, and the picture that it sees."""

    inputs: Mapping[str, Tensor]
    picture: NDArray[np.uint8]
    name: str
    remarks: tuple[str, ...] = ()

    @property
    def provenance(self) -> dict[str, Any]:
        """The notes of a result on its image; `images` has one entry for each grid."""
        about: dict[str, Any] = {"image": self.name, "images": [reduced_address(self.picture)]}
        return {**about, "image_remarks": list(self.remarks)} if self.remarks else about


def prepare_images(model: ModelLike, sources: Sequence[Any]) -> list[PreparedImage]:
    """Prepare photos as the model's processor makes them."""
    loaded = as_model(model)
    if not loaded.adapter.reads_images(loaded.module):
        raise InputError(
            f"{type(loaded.module).__name__} reads no images: it is not a vision model that "
            "attnflow knows."
        )
    processor, weights = loaded.image_processor, loaded.module.parameters()
    dtype = next((p.dtype for p in weights if p.is_floating_point()), torch.float32)
    prepared = []
    for source in sources:
        photo = read_photo(source)
        pixels = _pixel_values(processor, photo)
        picture, inputs = picture_of(pixels[0], processor), {"pixel_values": pixels.to(dtype)}
        prepared.append(PreparedImage(inputs, picture, photo.name, photo.remarks))
    return prepared


def image_of(model: Model, source: Any) -> PreparedImage | None:
    """Return the image that was handed in where a text could have been; None where it is a text."""
    if not model.adapter.reads_images(model.module) and not is_picture(source):
        if isinstance(source, os.PathLike):
            raise InputError(
                f"{type(model.module).__name__} reads text; got the path {str(source)!r}. Read the "
                "file first: Path(...).read_text()."
            )
        return None
    return prepare_images(model, [source])[0]


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
    """Write a picture as a small JPEG inside a text, for a report or a file."""
    images = optional_import("PIL.Image", extra="images", purpose="Keeping the image")
    small = images.fromarray(picture)
    small.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    out = io.BytesIO()
    # a picture of few pixels is enlarged for its readers: it may not lose any
    tiny = max(small.size) <= _TINY
    small.save(out, format="JPEG", quality=96 if tiny else _QUALITY, subsampling=0 if tiny else 2)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def _pixel_values(processor: Any, photo: Photo) -> Tensor:
    """The processor's own output, a batch of one; a plain function gives the pixels alone."""
    try:
        if hasattr(processor, "model_input_names"):  # of the library
            output = dict(processor(images=photo.image, return_tensors="pt"))
        else:
            output = {"pixel_values": processor(photo.image)}
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
    return pixels if pixels.ndim == 4 else pixels[None]


Hiding = Literal["mean", "blur", "zero"]
_BLURRED = 4  # patches that a blurred pixel is the mean of, along each side


def filling_of(pixels: Tensor, grid: Grid, by: Hiding = "mean") -> Tensor:
    """Return what takes a patch's place: the image's mean colour, the image much blurred, or zero,
    the middle of the range that the model was trained on.
    """
    if by == "zero":
        return torch.zeros_like(pixels)
    if by == "mean":
        return pixels.mean(dim=(-2, -1), keepdim=True).expand_as(pixels)
    height, width = pixels.shape[-2:]
    sides = (max(1, grid.rows // _BLURRED), max(1, grid.columns // _BLURRED))
    small = functional.adaptive_avg_pool2d(pixels.float(), sides)
    blurred = functional.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    return blurred.to(pixels.dtype)


def cover_patches(pixels: Tensor, grid: Grid, patches: Collection[int], filling: Tensor) -> Tensor:
    """Return the pixels (..., height, width) with patches filled; what no patch covers stays."""
    height, width = pixels.shape[-2:]
    mask = torch.zeros(grid.rows * grid.columns, dtype=torch.bool, device=pixels.device)
    mask[list(patches)] = True
    mask = mask.reshape(grid.rows, grid.columns)
    mask = mask.repeat_interleave(height // grid.rows, 0)
    mask = mask.repeat_interleave(width // grid.columns, 1)
    mask = functional.pad(mask, (0, width - mask.shape[1], 0, height - mask.shape[0]))
    return torch.where(mask, filling, pixels)
