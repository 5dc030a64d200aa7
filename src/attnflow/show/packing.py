"""Numbers as a view document carries them: 16 bits each, base64, a scale for each row.

Four digits of a row's strongest value survive. A large layer keeps only the strongest sources of
each target, and says how much it left out. Bounds are rounded outwards, so that what is read back
still encloses the exact value.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "bits_text",
    "numbers_of",
    "numbers_text",
    "pack_bounds",
    "pack_layer",
    "unpack_bits",
    "unpack_bounds",
    "unpack_layer",
]

Numbers = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]

_STRONGEST = 64  # sources of each target that a large layer keeps
_STEPS = 32_767  # of a signed 16-bit number


def numbers_text(array: NDArray[Any], dtype: type[np.generic]) -> str:
    """Base64 of the numbers, little-endian whatever the machine.

    >>> numbers_text(np.array([1, 2]), np.uint8)
    'AQI='
    """
    plain = np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(plain.tobytes()).decode("ascii")


def numbers_of(text: str, dtype: type[np.generic]) -> NDArray[Any]:
    """The inverse of `numbers_text`.

    >>> numbers_of("AQI=", np.uint8).tolist()
    [1, 2]
    """
    return np.frombuffer(base64.b64decode(text), dtype=np.dtype(dtype).newbyteorder("<"))


def bits_text(marks: NDArray[np.bool_]) -> str:
    """Truth values, eight in a byte.

    >>> bits_text(np.array([True, False, True]))
    'BQ=='
    """
    return base64.b64encode(np.packbits(marks, bitorder="little").tobytes()).decode("ascii")


def unpack_bits(text: str, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """The inverse of `bits_text`.

    >>> unpack_bits("BQ==", (1, 3)).tolist()
    [[True, False, True]]
    """
    bits = np.unpackbits(numbers_of(text, np.uint8), bitorder="little")
    return bits[: shape[0] * shape[1]].reshape(shape).astype(bool)


# -- values ---------------------------------------------------------------------------------------


def pack_layer(values: Numbers, *, dense: bool) -> dict[str, Any]:
    """One layer, targets × sources; a layer that is not dense keeps the strongest of each row.

    >>> sorted(pack_layer(np.array([[0.5, 0.25]]), dense=True))
    ['scale', 'values']
    """
    if dense or values.shape[1] <= _STRONGEST:
        scale = np.abs(values).max(axis=1) / _STEPS
        return {
            "scale": numbers_text(scale, np.float32),
            "values": numbers_text(_steps(values, scale), np.int16),
        }
    index = np.sort(np.argpartition(-np.abs(values), _STRONGEST, axis=1)[:, :_STRONGEST], axis=1)
    strongest = np.take_along_axis(values, index, axis=1)
    return {
        **pack_layer(strongest, dense=True),
        "kept": _STRONGEST,
        "index": numbers_text(index, np.uint16),
        "rest": numbers_text(values.sum(axis=1) - strongest.sum(axis=1), np.float32),
    }


def _steps(values: Numbers, scale: Numbers) -> Numbers:
    safe = np.where(scale > 0, scale, 1.0)
    return np.rint(values / safe[:, None])


def unpack_layer(layer: Mapping[str, Any], shape: tuple[int, int]) -> Floats:
    """The values of one layer; what was left out is 0.

    >>> unpack_layer(pack_layer(np.array([[0.5, 0.25]]), dense=True), (1, 2)).round(4).tolist()
    [[0.5, 0.25]]
    """
    return _placed(layer, _scaled(layer["values"], layer["scale"], shape[0]), shape)


def _scaled(steps: str, scale: str, rows: int) -> Floats:
    counts = numbers_of(steps, np.int16).reshape(rows, -1)
    return counts * numbers_of(scale, np.float32).astype(np.float64)[:, None]


def _placed(layer: Mapping[str, Any], values: Floats, shape: tuple[int, int]) -> Floats:
    if "index" not in layer:
        return values
    placed = np.zeros(shape)
    index = numbers_of(layer["index"], np.uint16).reshape(values.shape).astype(int)
    np.put_along_axis(placed, index, values, axis=1)
    return placed


# -- bounds ---------------------------------------------------------------------------------------


def pack_bounds(
    lower: Numbers, upper: Numbers, layers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Bounds of values that are packed in `layers`, layer × target × source, rounded outwards.

    Where they leave the packed values by no more than a step, two numbers say how far below and
    above the bounds lie; otherwise every bound is packed, by the distance from its value.

    >>> values = np.array([[[0.5, 0.25]]])
    >>> packed = pack_bounds(values, values, [pack_layer(values[0], dense=True)])
    >>> packed["below"] < 1e-4, "rows" in packed
    (True, False)
    """
    shape = lower.shape[1:]
    values = np.stack([unpack_layer(layer, shape) for layer in layers])
    gaps = {"below": np.maximum(values - lower, 0.0), "above": np.maximum(upper - values, 0.0)}
    most = {name: _outwards(gap.max()) for name, gap in gaps.items()}
    step = float(max(numbers_of(layer["scale"], np.float32).max() for layer in layers))
    if max(most.values()) <= step:
        return {name: float(number) for name, number in most.items()}
    rows = [
        {name: _pack_gap(gap[k], layer) for name, gap in gaps.items()}
        for k, layer in enumerate(layers)
    ]
    return {"rows": rows}


def _pack_gap(gap: Floats, layer: Mapping[str, Any]) -> dict[str, str]:
    """Distances of one layer, rounded up: to whole steps of a scale that is rounded up itself.

    Of a layer that keeps its strongest values, those of the values it left out are one number for
    each row, the largest.
    """
    outside: dict[str, str] = {}
    if "index" in layer:
        index = numbers_of(layer["index"], np.uint16).reshape(len(gap), -1).astype(int)
        others = gap.copy()
        np.put_along_axis(others, index, 0.0, axis=1)
        outside = {"outside": numbers_text(_outwards(others.max(axis=1)), np.float32)}
        gap = np.take_along_axis(gap, index, axis=1)
    scale = _outwards(gap.max(axis=1) / (_STEPS - 1)).astype(np.float64)
    steps = np.ceil(gap / np.where(scale > 0, scale, 1.0)[:, None])
    return {
        "scale": numbers_text(scale, np.float32),
        "steps": numbers_text(steps, np.int16),
        **outside,
    }


def unpack_bounds(
    record: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], values: Floats
) -> tuple[Floats, Floats]:
    """The lower and the upper bound of values that were unpacked from `layers`.

    >>> values = np.array([[[0.5, 0.25]]])
    >>> lower, upper = unpack_bounds({"below": 0.0, "above": 0.5}, [], values)
    >>> lower.tolist(), upper.tolist()
    ([[[0.5, 0.25]]], [[[1.0, 0.75]]])
    """
    if "rows" not in record:
        return values - float(record["below"]), values + float(record["above"])
    below, above = (
        np.stack(
            [
                _unpack_gap(row[name], layer, values[0].shape)
                for row, layer in zip(record["rows"], layers, strict=True)
            ]
        )
        for name in ("below", "above")
    )
    return values - below, values + above


def _unpack_gap(gap: Mapping[str, str], layer: Mapping[str, Any], shape: tuple[int, int]) -> Floats:
    distances = _scaled(gap["steps"], gap["scale"], shape[0])
    if "outside" not in gap:
        return distances
    outside = numbers_of(gap["outside"], np.float32).astype(np.float64)
    placed = np.repeat(outside[:, None], shape[1], axis=1)
    index = numbers_of(layer["index"], np.uint16).reshape(distances.shape).astype(int)
    np.put_along_axis(placed, index, distances, axis=1)
    return placed


def _outwards(numbers: Any) -> Any:
    """As 32-bit numbers that are no smaller; 0 stays 0."""
    narrow = np.float32(numbers)
    return np.where(narrow < numbers, np.nextafter(narrow, np.float32(np.inf)), narrow)
