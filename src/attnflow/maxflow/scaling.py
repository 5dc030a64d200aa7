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
from attnflow.maxflow.compiled import compiled
from attnflow.maxflow.state import Integers

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaled:
    """Integer capacities `[m, u, v]` for m = 1 .. L (index 0 unused) and what they stand for."""

    integers: Integers
    exponent: int
    rounded: Integers  # [l]: edges of layers 1 .. l whose capacity was not total
    row_sum: Integers  # [m, u]
    column_sum: Integers  # [v]: of layer 1
    causal: NDArray[np.bool_]  # [l]: no edge of layers 1 .. l leads to a later position

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
        """Return how many units a gap may have for the certified gap to be <= `amount`."""
        largest = 2.0**62
        return max(0, int(min(np.ldexp(amount, self.exponent), largest)) - int(self.rounded[layer]))


def scale(capacities: NDArray[Any], tolerance: float) -> Scaled:
    """Scale `(L, n, n)` capacities as finely as 64-bit integers allow.

    Two limits: every sum the solver forms (at most four times the largest row or column sum of a
    layer) stays below 2**61, and every single capacity fits the 53 bits of a float, so that flows
    on edges come back exactly.
    """
    floats = np.ascontiguousarray(capacities, dtype=np.float64)
    if floats.ndim != 3 or floats.shape[1] != floats.shape[2] or 0 in floats.shape:
        raise WeightsError(
            f"Capacities must be (layers, positions, positions), none of them 0; "
            f"got {floats.shape}."
        )
    depth, n, _ = floats.shape
    sums = np.zeros((2, n))
    size = _measure(floats, sums, np.zeros(2))
    largest, widest = float(size[0]), float(size[1])
    if not np.isfinite(widest) or size[0] < 0:
        raise WeightsError("Capacities must be finite and at least 0.")
    exponent = min(52 - frexp(largest)[1], 58 - frexp(widest)[1], 900)
    integers = np.zeros((depth + 1, n, n), np.int64)
    row_sum = np.zeros((depth + 1, n), np.int64)
    rounded, backward = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64)
    # A power of two beyond the range of floats is applied in two halves, each of them exact.
    halves = ldexp(1.0, exponent // 2), ldexp(1.0, exponent - exponent // 2)
    _round_down(floats, *halves, integers, row_sum, rounded, backward)
    rounded, backward = np.cumsum(rounded), np.cumsum(backward)
    gap = ldexp(float(rounded[-1]), -exponent)
    if gap > tolerance:
        raise WeightsError(
            f"Capacities up to {largest:g} can be certified to {gap:.1e} only, "
            f"not to the tolerance of {tolerance:.1e}. "
            f"Divide the capacities by their largest value, or pass tolerance={2 * gap:.1e}."
        )
    return Scaled(integers, exponent, rounded, row_sum, integers[1].sum(axis=0), backward == 0)


@compiled
def _measure(floats: Floats, sums: Floats, size: Floats) -> Floats:
    """The largest capacity (-1 when one is negative or no number) and the widest row or column."""
    depth, n, _ = floats.shape
    for m in range(depth):
        column = sums[0]
        column[:] = 0.0
        for u in range(n):
            row = floats[m, u]
            total = 0.0
            for v in range(n):
                value = row[v]
                if not value >= 0.0:
                    size[0] = -1.0
                    return size
                size[0] = max(size[0], value)
                total += value
                column[v] += value
            size[1] = max(size[1], total)
        for v in range(n):
            size[1] = max(size[1], column[v])
    return size


@compiled
def _round_down(
    floats: Floats, first: float, second: float, integers: Integers, row_sum: Integers,
    rounded: Integers, backward: Integers,
) -> None:  # fmt: skip
    """`integers`, their row sums, and how many of each layer were rounded or point backward."""
    depth, n, _ = floats.shape
    for m in range(depth):
        for u in range(n):
            row, into = floats[m, u], integers[m + 1, u]
            total, inexact, later = np.int64(0), 0, 0
            for v in range(n):
                product = row[v] * first * second
                integer = np.int64(product)  # a cast to integer drops the fraction: rounding down
                into[v] = integer
                total += integer
                inexact += (integer != product) | ((integer == 0) & (row[v] > 0.0))
                later += (v > u) & (integer != 0)
            row_sum[m + 1, u] = total
            rounded[m + 1] += inexact
            backward[m + 1] += later
