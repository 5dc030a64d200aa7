"""Pixels as a PNG inside a text: what a page shows without fetching anything."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError

__all__ = ["picture_address", "png"]

_LARGEST = 4096  # pixels of a side


def picture_address(pixels: Any) -> str:
    """The `data:` address of these pixels as a PNG.

    >>> picture_address(np.zeros((2, 2), np.uint8))[:22]
    'data:image/png;base64,'
    """
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def png(pixels: Any) -> bytes:
    """(height, width, 3) or (height, width), whole numbers to 255 or shares from 0 to 1, as PNG.

    >>> png(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'
    """
    colours = _checked(pixels)
    height, width, _ = colours.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with 0: no prediction
    lines[:, 1:] = colours.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red-green-blue
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    check = zlib.crc32(name + body)
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", check)


def _checked(pixels: Any) -> NDArray[np.uint8]:
    array = np.asarray(pixels)
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape or max(array.shape) > _LARGEST:
        raise InputError(
            "An image is an array (height, width, 3) or (height, width), no side longer than "
            f"{_LARGEST}; got shape {array.shape}."
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise InputError(f"An image holds finite numbers; got dtype {array.dtype}.")
    low, high = float(array.min()), float(array.max())
    top = 1.0 if array.dtype.kind == "f" else 255.0
    if low < 0 or high > top:
        raise InputError(
            f"Pixels are whole numbers from 0 to 255 or shares from 0 to 1; these run from {low:g} "
            f"to {high:g}. Undo the model's normalisation first: pixels * std + mean."
        )
    return np.rint(array * (255.0 / top)).astype(np.uint8)
