"""What must hold of a result, whether a method, a user or a file made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, shorten, whole_number


def checked_layers(layers: object) -> tuple[int, ...]:
    """Return the layers' numbers, from 1 (0 is a mean over layers)."""
    items = list(layers) if isinstance(layers, Iterable) else []
    numbers = [
        number for number in map(whole_number, items) if number is not None and 0 <= number < 2**31
    ]
    if not numbers or len(numbers) != len(items):
        raise InputError(
            f"layers are whole numbers from 1, one for each layer of values; got {shorten(layers)}."
        )
    return tuple(numbers)


def check_array(name: str, array: Any, expected: tuple[int, ...], *, truth: bool = False) -> None:
    """Freeze an array of this shape that holds finite floats (or truth values)."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != ("b" if truth else "f"):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(
            f"{name} must be a numpy array of {'truth values' if truth else 'floats'}; got {kind}."
        )
    if array.shape != expected:
        raise InputError(f"{name} has shape {array.shape}, expected {expected}.")
    if not truth and not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{name} must be finite; {name}{list(where)} is {array[where]}.")
    array.flags.writeable = False


def check_bounds(
    values: NDArray[np.float64],
    lower: NDArray[np.float64] | None,
    upper: NDArray[np.float64] | None,
) -> None:
    """Raise an error unless every value lies between its bounds; there are both or none."""
    if lower is None and upper is None:
        return
    if lower is None or upper is None:
        raise InputError("lower and upper go together; one of them is missing.")
    outside = (values < lower) | (values > upper)
    if outside.any():
        where = tuple(int(k) for k in np.argwhere(outside)[0])
        raise InputError(
            f"{int(outside.sum())} values lie outside their bounds; values{list(where)} is "
            f"{values[where]:.9g}, its bounds {lower[where]:.9g} and {upper[where]:.9g}."
        )


def checked_steps(steps: object) -> tuple[str, ...]:
    """Return the operations after the method, as text."""
    names = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    if not all(isinstance(step, str) for step in names):
        raise InputError(f"steps are texts, one for each operation; got {shorten(steps)}.")
    return names
