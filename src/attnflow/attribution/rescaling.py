"""The arithmetic of results: shares of a row, sources left out, pieces to words, spans.

Bounds. A derived result has bounds exactly where the result it came from has, and they enclose
what the same operation makes of the exact values, whatever those are within their own bounds. Each
function below says why; rounding is covered by widening, at most a few units in the last place.

Signs. A row may hold negative values (a difference from a baseline). Such a row is never divided
by its sum, which may be near zero or negative: the size of a row is the sum of absolute values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, shorten, whole_number
from attnflow.tokens import Tokens

Values = NDArray[np.float64]
Normalization = Literal["sum", "max"]
Span = tuple[int, int] | str
"""Positions from start up to, not including, end; or a text that occurs once."""

SOURCE_TOKENS = "source_tokens"
"""Where the provenance of a result over sources names the prompt positions of each."""

_UNIT = float(np.finfo(np.float64).eps)


class Bounds(NamedTuple):
    """Arrays of one shape that enclose the exact values."""

    lower: Values
    upper: Values

    def around(self, values: Values, slack: Bounds) -> Bounds:
        """Widened by rounding errors, so that they enclose the computed values too."""
        return Bounds(
            np.minimum(self.lower - slack.lower, values),
            np.maximum(self.upper + slack.upper, values),
        )

    @property
    def least(self) -> Values:
        """The least absolute value that lies between the bounds."""
        return np.maximum(np.maximum(self.lower, -self.upper), 0.0)

    @property
    def most(self) -> Values:
        """The greatest absolute value that lies between the bounds."""
        return np.maximum(np.abs(self.lower), np.abs(self.upper))


def row_sizes(values: Values, how: Normalization) -> Values:
    """`(layers, targets)`: what each row is divided by, its absolute sum or greatest absolute."""
    sizes = np.abs(values)
    return sizes.sum(axis=-1) if how == "sum" else sizes.max(axis=-1)


def shares(values: Values, how: Normalization) -> Values:
    """Each value over the size of its row; a row of zeros stays zero."""
    sizes = np.abs(values)
    if how == "sum":
        size = sizes.sum(axis=-1, keepdims=True) - sizes + sizes
    else:
        size = np.broadcast_to(sizes.max(axis=-1, keepdims=True), sizes.shape)
    return np.divide(values, size, out=np.zeros_like(values), where=size > 0)


def share_bounds(values: Values, bounds: Bounds, how: Normalization) -> Bounds:
    """Bounds of `shares`.

    With R the size of the others of its row, a share is v / (|v| + R), or v / max(|v|, R): it rises
    with v, falls with R where v > 0 and rises with it where v < 0. So it is least at the least v,
    with the greatest R if that v is positive and the least R if not; and the other way round.
    """
    combine: np.ufunc = np.add if how == "sum" else np.maximum
    fewest, greatest = _of_others(bounds.least, combine), _of_others(bounds.most, combine)
    lower, upper = bounds
    ends = Bounds(
        _over(lower, combine(np.abs(lower), np.where(lower >= 0, greatest, fewest))),
        _over(upper, combine(np.abs(upper), np.where(upper >= 0, fewest, greatest))),
    )
    return ends.around(shares(values, how), rounding(ends, values.shape[-1]))


def scale_rest(values: Values, rest: Sequence[int]) -> Values:
    """These sources alone, each row scaled up to the absolute sum it had; zeros stay zero."""
    some = values[:, :, list(rest)]
    before, after = row_sizes(values, "sum"), row_sizes(some, "sum")
    factor = np.divide(before, after, out=np.zeros_like(before), where=after > 0)
    return some * factor[..., None]


def rest_bounds(values: Values, bounds: Bounds, rest: Sequence[int]) -> Bounds:
    """Bounds of `scale_rest`.

    With G the size of what is left out and R that of the other sources that stay, a scaled value
    is v (1 + G / (|v| + R)). Its size rises with |v| and G and falls with R.
    """
    absent = np.setdiff1d(np.arange(values.shape[-1]), rest)
    least_absent = bounds.least[:, :, absent].sum(axis=-1, keepdims=True)
    most_absent = bounds.most[:, :, absent].sum(axis=-1, keepdims=True)
    some = Bounds(bounds.lower[:, :, list(rest)], bounds.upper[:, :, list(rest)])
    fewest, greatest = _of_others(some.least, np.add), _of_others(some.most, np.add)

    def scaled(end: Values, shrinks: NDArray[np.bool_]) -> Values:
        left_out = np.where(shrinks, least_absent, most_absent)
        others = np.where(shrinks, greatest, fewest)
        return end + end * _over(left_out, np.abs(end) + others)

    ends = Bounds(scaled(some.lower, some.lower >= 0), scaled(some.upper, some.upper < 0))
    return ends.around(scale_rest(values, rest), rounding(ends, values.shape[-1]))


def merge(
    values: Values, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
) -> Values:
    """Sum these columns, average these rows."""
    summed = np.stack([values[:, :, list(c)].sum(axis=2) for c in columns], axis=2)
    return np.stack([summed[:, list(r)].mean(axis=1) for r in rows], axis=1)


def _of_others(sizes: Values, combine: np.ufunc) -> Values:
    """The sum or the maximum of all other sizes of the row.

    From both ends, so that nothing is subtracted: a difference of two sums could come out below
    the sum of a few small numbers, and a bound made with it would not hold.
    """
    before = combine.accumulate(sizes, axis=-1)
    after = combine.accumulate(sizes[..., ::-1], axis=-1)[..., ::-1]
    others = np.zeros_like(sizes)
    others[..., 1:] = before[..., :-1]
    others[..., :-1] = combine(others[..., :-1], after[..., 1:])
    return others


def _over(values: Values, sizes: Values) -> Values:
    return np.divide(values, sizes, out=np.zeros_like(sizes), where=sizes > 0)


def rounding(sizes: Bounds, terms: int) -> Bounds:
    """Return how far rounding can have moved results of this many terms, with room to spare.

    sizes: the absolute values that were summed.
    """
    share = 4 * (terms + 4) * _UNIT
    return Bounds(share * np.abs(sizes.lower), share * np.abs(sizes.upper))


def resolve_spans(sources: Tokens, spans: Mapping[str, Span]) -> dict[str, list[int]]:
    """The indices each span covers."""
    if not isinstance(spans, Mapping) or not spans:
        raise InputError(
            f'spans() needs at least one span by name, such as {{"context": (0, 12)}}; got '
            f"{shorten(spans)}."
        )
    for name in spans:
        if not isinstance(name, str):
            raise InputError(f"The name of a span is a text; got {shorten(name)}.")
    places = np.array(sources.positions, dtype=np.intp)
    return {name: _indices(sources, places, name, span) for name, span in spans.items()}


def _indices(sources: Tokens, places: NDArray[np.intp], name: str, span: Span) -> list[int]:
    if isinstance(span, str):
        return list(range(*sources.span_of(span)))
    ends = [whole_number(end) for end in span] if isinstance(span, (tuple, list)) else []
    last = int(places.max(initial=-1)) + 1
    start, end = ends if len(ends) == 2 else (None, None)
    if start is None or end is None or not 0 <= start < end <= last:
        raise InputError(
            f"The span {shorten(name)} is {shorten(span)} and the sources stand at positions 0 to "
            f"{last - 1}; a span is (start, end) with 0 <= start < end <= {last}, or a text that "
            "occurs once."
        )
    members: list[int] = np.flatnonzero((start <= places) & (places < end)).tolist()
    if not members:
        raise InputError(
            f"The span {shorten(name)} is {shorten(span)}, and none of the sources stands there; "
            f"they are {sources.listing()}."
        )
    return members
