"""Numbers and pictures as a view document carries them, and the results it shows, read back.

A number has 16 bits, a row a scale: four digits of a row's strongest value survive. A large layer
keeps only the strongest sources of each target, and says how much it left out. Bounds are rounded
outwards, so that what is read back still encloses the exact value. All else that a result holds
comes back as it was; the name of a model in a folder is the folder's alone. A picture is a PNG; it
is written here because a page must not need Pillow.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.files import fields_of
from attnflow.errors import FileError, InputError

FORMAT, VERSION = "attnflow-view", 1
Numbers = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]

_STRONGEST = 64  # sources of each target that a large layer keeps
_STEPS = 32_767  # of a signed 16-bit number
_LARGEST = 4096  # pixels of a side
_WARM = ((255, 214, 70), (240, 110, 20), (196, 12, 24))  # weak to strong, over a picture
_COLD = ((150, 200, 255), (40, 110, 220), (10, 50, 150))  # what is below zero


def pack_numbers(array: NDArray[Any], dtype: type[np.generic]) -> str:
    """Return base64 of the numbers, little-endian whatever the machine."""
    plain = np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(plain.tobytes()).decode("ascii")


def unpack_numbers(text: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the numbers that `pack_numbers` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype=np.dtype(dtype).newbyteorder("<"))


def pack_bits(marks: NDArray[np.bool_]) -> str:
    """Return truth values, eight in a byte."""
    return pack_numbers(np.packbits(marks, bitorder="little"), np.uint8)


def unpack_bits(text: str, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the truth values that `pack_bits` wrote."""
    bits = np.unpackbits(unpack_numbers(text, np.uint8), bitorder="little")
    return bits[: shape[0] * shape[1]].reshape(shape).astype(bool)


# -- values ---------------------------------------------------------------------------------------


def pack_layer(values: Numbers, *, dense: bool) -> dict[str, Any]:
    """Pack one layer, targets × sources; if not dense, only the strongest sources of each row."""
    if dense or values.shape[1] <= _STRONGEST:
        scale = np.abs(values).max(axis=1) / _STEPS
        steps = np.rint(values / np.where(scale > 0, scale, 1.0)[:, None])
        return {"scale": pack_numbers(scale, np.float32), "values": pack_numbers(steps, np.int16)}
    index = np.sort(np.argpartition(-np.abs(values), _STRONGEST, axis=1)[:, :_STRONGEST], axis=1)
    strongest = np.take_along_axis(values, index, axis=1)
    return {
        **pack_layer(strongest, dense=True),
        "kept": _STRONGEST,
        "index": pack_numbers(index, np.uint16),
        "rest": pack_numbers(values.sum(axis=1) - strongest.sum(axis=1), np.float32),
    }


def unpack_layer(layer: Mapping[str, Any], shape: tuple[int, int]) -> Floats:
    """Return the values of one layer; what was left out is 0."""
    values = _multiply(layer["values"], layer["scale"], shape[0])
    return values if "index" not in layer else _spread(layer, values, np.zeros(shape))


def _multiply(steps: str, scale: str, rows: int) -> Floats:
    counts = unpack_numbers(steps, np.int16).reshape(rows, -1)
    return counts * unpack_numbers(scale, np.float32).astype(np.float64)[:, None]


def _spread(layer: Mapping[str, Any], values: Floats, row_values: Floats) -> Floats:
    """Put the values of the sources that a layer keeps in their columns, among other values."""
    np.put_along_axis(row_values, _columns(layer, len(values)), values, axis=1)
    return row_values


def _columns(layer: Mapping[str, Any], rows: int) -> NDArray[np.int64]:
    return unpack_numbers(layer["index"], np.uint16).reshape(rows, -1).astype(int)


# -- bounds ---------------------------------------------------------------------------------------


def pack_bounds(
    lower: Numbers, upper: Numbers, layers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Pack bounds of values that are packed in `layers`, layer × target × source, outwards.

    Where they leave the packed values by no more than a step, two numbers say how far below and
    above the bounds lie; otherwise every bound is packed, by the distance from its value.
    """
    shape = lower.shape[1:]
    values = np.stack([unpack_layer(layer, shape) for layer in layers])
    gaps = {"below": np.maximum(values - lower, 0.0), "above": np.maximum(upper - values, 0.0)}
    most = {name: _round_up(gap.max()) for name, gap in gaps.items()}
    step = float(max(unpack_numbers(layer["scale"], np.float32).max() for layer in layers))
    if max(most.values()) <= step:
        return {name: float(number) for name, number in most.items()}
    return {
        "rows": [
            {name: _pack_gap(gap[k], layer) for name, gap in gaps.items()}
            for k, layer in enumerate(layers)
        ]
    }


def _pack_gap(gap: Floats, layer: Mapping[str, Any]) -> dict[str, str]:
    """Pack the distances of one layer, rounded up; those of values left out as one for each row."""
    outside: dict[str, str] = {}
    if "index" in layer:
        columns = _columns(layer, len(gap))
        others = gap.copy()
        np.put_along_axis(others, columns, 0.0, axis=1)
        outside = {"outside": pack_numbers(_round_up(others.max(axis=1)), np.float32)}
        gap = np.take_along_axis(gap, columns, axis=1)
    scale = _round_up(gap.max(axis=1) / (_STEPS - 1)).astype(np.float64)
    steps = np.ceil(gap / np.where(scale > 0, scale, 1.0)[:, None])
    return {
        "scale": pack_numbers(scale, np.float32),
        "steps": pack_numbers(steps, np.int16),
        **outside,
    }


def unpack_bounds(
    record: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], values: Floats
) -> tuple[Floats, Floats]:
    """Return the lower and the upper bound of values that were unpacked from `layers`."""
    if "rows" not in record:
        return values - float(record["below"]), values + float(record["above"])
    pairs = list(zip(record["rows"], layers, strict=True))
    below, above = (
        np.stack([_unpack_gap(row[name], layer, values[0].shape) for row, layer in pairs])
        for name in ("below", "above")
    )
    return values - below, values + above


def _unpack_gap(gap: Mapping[str, str], layer: Mapping[str, Any], shape: tuple[int, int]) -> Floats:
    distances = _multiply(gap["steps"], gap["scale"], shape[0])
    if "outside" not in gap:
        return distances
    outside = unpack_numbers(gap["outside"], np.float32).astype(np.float64)
    return _spread(layer, distances, np.repeat(outside[:, None], shape[1], axis=1))


def _round_up(numbers: Any) -> Any:
    """Return 32-bit numbers that are no smaller; 0 stays 0."""
    narrow = np.float32(numbers)
    return np.where(narrow < numbers, np.nextafter(narrow, np.float32(np.inf)), narrow)


# -- pictures -------------------------------------------------------------------------------------


def warm_map(shares: Any, cover: float = 0.7) -> NDArray[np.uint8]:
    """Return red, green, blue and alpha of shares from 0 to 1, to be laid over a picture.

    Nothing covers nothing, the strongest covers this much; below zero the colours are cold. The
    viewer's `picture.js` has the same colours.
    """
    values = np.asarray(shares, np.float64)
    sizes = np.minimum(np.abs(values), 1.0)
    channels = [
        np.where(values < 0, *(np.interp(sizes, (0, 0.5, 1), stops) for stops in (cold, warm)))
        for warm, cold in zip(np.transpose(_WARM), np.transpose(_COLD), strict=True)
    ]
    return np.stack([*channels, 255 * cover * sizes], -1).astype(np.uint8)


def picture_address(pixels: Any) -> str:
    """Return the `data:` address of these pixels as a PNG."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def png(pixels: Any) -> bytes:
    """Write (height, width, 3), with alpha 4, or (height, width) as PNG; to 255, or shares to 1."""
    colours = _check_pixels(pixels)
    height, width, channels = colours.shape
    lines = np.zeros((height, 1 + channels * width), np.uint8)  # each begins with 0: no prediction
    lines[:, 1:] = colours.reshape(height, -1)
    kind = 2 if channels == 3 else 6  # red-green-blue, or with alpha
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)  # 8 bits
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def _check_pixels(pixels: Any) -> NDArray[np.uint8]:
    array = np.asarray(pixels)
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    sides, channels = array.shape[:2], array.shape[2:]
    if channels not in ((3,), (4,)) or 0 in sides or max(sides) > _LARGEST:
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


# -- results, read back ---------------------------------------------------------------------------


def unpack_values(document: Mapping[str, Any], index: int = 0) -> Floats:
    """Return the values of one result of a document, layer × target × source; what was left out
    is 0.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> unpack_values(view(Rollout()(trace)))[0].round(3).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise FileError(
            f"This is not a view of version {VERSION}: its format is {document.get('format')!r}, "
            f"its version {document.get('version')!r}."
        )
    shape = len(document["targets"]["texts"]), len(document["sources"]["texts"])
    return np.stack([unpack_layer(layer, shape) for layer in document["results"][index]["values"]])


def results_of(document: Mapping[str, Any]) -> list[Attribution]:
    """Return the results that a view document shows, to four digits of each row's strongest.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> result = Rollout(residual=0.4)(trace).normalize("max")
    >>> back = results_of(view(result))[0]
    >>> back.method.residual, back.steps == result.steps
    (0.4, True)
    """
    return [_result(document, index) for index in range(len(document["results"]))]


def _result(document: Mapping[str, Any], index: int) -> Attribution:
    record, values = document["results"][index], unpack_values(document, index)
    axes = {"targets": document["targets"], "sources": document["sources"]}
    fields = fields_of({**record, **axes})
    images = [document["image"]] if document["image"] else document["images"]
    pictures = [image["picture"] for image in images]
    if pictures and None not in pictures:  # they stand in the document once
        fields["provenance"] = {**fields["provenance"], "images": pictures}
    return Attribution(values=values, **fields, **_arrays(record, values))


def _arrays(record: Mapping[str, Any], values: Floats) -> dict[str, Any]:
    """Return bounds, saturation, mass elsewhere and dependence, where there are any."""
    layers, targets, sources = values.shape
    arrays: dict[str, Any] = {
        name: unpack_numbers(record[name], np.float32).astype(np.float64).reshape(layers, targets)
        for name in ("elsewhere", "dependence")
        if record[name] is not None
    }
    if record["bounds"] is not None:
        bounds = unpack_bounds(record["bounds"], record["values"], values)
        arrays["lower"], arrays["upper"] = bounds
    if record["saturated"] is not None:
        marks = [unpack_bits(layer, (targets, sources)) for layer in record["saturated"]]
        arrays["saturated"] = np.stack(marks)
    return arrays
