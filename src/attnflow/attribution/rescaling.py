"""What results do to their arrays: shares of a row, word pieces to words, positions to spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.tokens import Tokens

__all__ = ["Span", "merge", "resolve_spans", "share_of_max", "share_of_sum"]

Values = NDArray[np.float64]
Span = tuple[int, int] | str
"""Positions from start up to, not including, end; or a text that occurs once."""


def share_of_sum(own: Values, others: Values) -> Values:
    """own / (own + the others of its row)."""
    total = others.sum(axis=-1, keepdims=True) - others + own
    return np.divide(own, total, out=np.zeros_like(own), where=total > 0)


def share_of_max(own: Values, others: Values) -> Values:
    """own / (the strongest of its row, itself included)."""
    strongest = np.maximum(others.max(axis=-1, keepdims=True), own)
    return np.divide(own, strongest, out=np.zeros_like(own), where=strongest > 0)


def merge(
    values: Values, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
) -> Values:
    """Sum these columns, average these rows."""
    summed = np.stack([values[:, :, list(c)].sum(axis=2) for c in columns], axis=2)
    return np.stack([summed[:, list(r)].mean(axis=1) for r in rows], axis=1)


def resolve_spans(sources: Tokens, spans: Mapping[str, Span]) -> dict[str, list[int]]:
    """The indices each span covers."""
    if not spans:
        raise InputError('spans() needs at least one span, such as {"context": (0, 12)}.')
    return {name: _indices(sources, name, span) for name, span in spans.items()}


def _indices(sources: Tokens, name: str, span: Span) -> list[int]:
    if isinstance(span, str):
        return list(range(*sources.span_of(span)))
    start, end = span
    last = max(sources.positions, default=-1) + 1
    if not 0 <= start < end <= last:
        raise InputError(
            f"The span {name!r} is ({start}, {end}) and the sources stand at positions 0 to "
            f"{last - 1}; a span is (start, end) with 0 <= start < end <= {last}."
        )
    return [k for k, position in enumerate(sources.positions) if start <= position < end]
