"""Floats to integers and back, without ever claiming more than is true.

Capacities are multiplied by a power of two (exact in floating point) and rounded down.  A flow of
the integer graph, divided by the scale, is a flow of the original one, so its value is a lower
bound.  An original capacity exceeds its integer by less than one unit, and not at all where the
product was already whole; so any cut exceeds its integer value by less than the number of its
edges that were rounded, and the integer minimum cut plus that number is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import WeightsError
from attnflow.maxflow.state import Integers

__all__ = ["Floats", "Scaled", "scale"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaled:
    """Integer capacities `[m, u, v]` for m = 1 .. L (index 0 unused) and what they stand for."""

    integers: Integers
    exponent: int
    rounded: Integers  # [l]: edges of layers 1 .. l whose capacity was not total

    def lower(self, values: Integers) -> Floats:
        """Rigorous lower bounds: the value of an integer flow, rounded towards zero."""
        floats = values.astype(np.float64)
        above = floats.astype(np.int64) > values
        return np.ldexp(np.where(above, np.nextafter(floats, 0.0), floats), -self.exponent)

    def upper(self, values: Integers, layer: int) -> Floats:
        """Rigorous upper bounds from the value of an integer cut, rounded up."""
        total = values + self.rounded[layer]
        floats = total.astype(np.float64)
        below = floats.astype(np.int64) < total
        return np.ldexp(np.where(below, np.nextafter(floats, np.inf), floats), -self.exponent)

    def units(self, amount: float, layer: int) -> int:
        """How many units an integer gap may have so that the certified gap is <= `amount`."""
        largest = 2.0**62
        return max(0, int(min(np.ldexp(amount, self.exponent), largest)) - int(self.rounded[layer]))


def scale(capacities: NDArray[Any], tolerance: float) -> Scaled:
    """Scale `(L, n, n)` capacities as finely as 64-bit integers allow.

    Two limits: every sum the solver forms (at most four times the largest row or column sum of a
    layer) stays below 2**61, and every single capacity fits the 53 bits of a float, so that flows
    on edges come back exactly.
    """
    floats = np.asarray(capacities, dtype=np.float64)
    if floats.ndim != 3 or floats.shape[1] != floats.shape[2] or 0 in floats.shape:
        raise WeightsError(
            f"Capacities must be (layers, positions, positions), none of them 0; "
            f"got {floats.shape}."
        )
    if not np.isfinite(floats).all() or (floats < 0).any():
        raise WeightsError("Capacities must be finite and at least 0.")
    largest = float(floats.max())
    widest = float(max(floats.sum(axis=2).max(), floats.sum(axis=1).max()))
    exponent = min(52 - frexp(largest)[1], 58 - frexp(widest)[1], 900)
    products = np.ldexp(floats, exponent)
    integers = np.zeros((len(floats) + 1, *floats.shape[1:]), np.int64)
    integers[1:] = products  # a cast to integer drops the fraction: rounding down
    rounded = np.zeros(len(floats) + 1, np.int64)
    rounded[1:] = np.cumsum((integers[1:] != products).sum(axis=(1, 2)))
    gap = ldexp(float(rounded[-1]), -exponent)
    if gap > tolerance:
        raise WeightsError(
            f"Capacities up to {largest:g} can be certified to {gap:.1e} only, "
            f"not to the tolerance of {tolerance:.1e}. "
            f"Divide the capacities by their largest value, or pass tolerance={2 * gap:.1e}."
        )
    return Scaled(integers, exponent, rounded)
