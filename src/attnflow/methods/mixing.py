"""From a trace to one matrix for each layer: how heads are mixed and the residual is weighed.

Every paper of this field differs from the next only here, so all methods share this one value.
The order is fixed: mix heads, drop sinks, discard the weakest entries, weigh by the receptive
field, then add the residual. Wherever a step breaks the rows, each row is scaled back to the mass
it had, along the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MethodError, did_you_mean, shorten, whole_number
from attnflow.errors.arguments import check_named, is_number
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

Heads = str | int | tuple[float, ...]
Residual = float | tuple[float, ...] | str | None
Matrix = NDArray[np.float64]
ONE_STEP = "one-step"
_WAYS = ("mean", "max", "min")
_FIELDS = ("column", "element")


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The choices that turn attention weights into one matrix for each layer.

    heads: "mean", "max", "min", the number of one head (from 0), or one weight for each head.
    residual: share r of the skip connection in `(1 - r) W + r I`; one number, one for each layer,
        None for none, or "one-step": 1 - 1/layers, so that a path from the top to the input
        takes one step of attention on average, however deep the model.
    discard: share of the weakest entries of each row set to zero before the residual is added.
    drop: positions or tokens that others may not draw on, such as (0,) for the first token, on
        which decoders park attention they do not need.
    receptive_field: for causal attention, where early tokens are seen by more queries: "column"
        divides by the number of queries that see the source, "element" by the distance.
    """

    heads: Heads = "mean"
    residual: Residual = 0.5
    discard: float = 0.0
    drop: tuple[TokenRef, ...] = ()
    receptive_field: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", checked_heads(self.heads))
        object.__setattr__(self, "residual", _checked_residual(self.residual))
        if not is_number(self.discard) or not 0 <= self.discard < 1:
            raise MethodError(
                "discard is a share of each row, at least 0 and below 1; got "
                f"{shorten(self.discard)}."
            )
        object.__setattr__(self, "drop", _checked_drop(self.drop))
        if self.receptive_field is not None:
            check_named("receptive_field", self.receptive_field, self.receptive_fields)

    @property
    def receptive_fields(self) -> tuple[str, ...]:
        """The names that receptive_field may have."""
        return _FIELDS

    def layer_matrices(self, trace: AttentionTrace) -> Matrix:
        """Return what each layer takes from the one below, `(layers, n, n)` in float64."""
        _ = trace.weights  # a trace in factors refuses: this is what it is there to avoid
        every = np.arange(trace.length)
        matrices = np.empty((len(trace.layers), trace.length, trace.length))
        for index in range(len(matrices)):  # one by one: a copy of every layer may not fit
            matrices[index] = self.matrix_rows(trace, index, every)
        return matrices

    def matrix_rows(
        self,
        trace: AttentionTrace,
        index: int,
        rows: Sequence[int] | NDArray[np.intp],
    ) -> Matrix:
        """Return these rows of one layer's matrix, `(rows, n)`, without making the others.

        Every step works row by row, so these are the rows of `layer_matrices(trace)[index]`.
        """
        places = np.asarray(rows, dtype=np.intp)
        matrix, share = self.attended_rows(trace, index, places), self.passed_by(trace, index)
        if share:
            matrix *= 1 - share
            matrix[np.arange(len(places)), places] += share
        return matrix

    def passed_by(self, trace: AttentionTrace, index: int) -> float:
        """Return the share of the skip connection that is added to `attended_rows`."""
        if trace.stages is not None and trace.stages[index] == "connector":
            return 0.0  # of two towers: no attention, and nothing of a token passes it by
        return float(self.residual_shares(len(trace.layers))[index])

    def takes_nothing_later(self, trace: AttentionTrace) -> bool:
        """Return whether every row of `attended_rows` ends at its own place."""
        return trace.sees_nothing_later

    def attended_rows(
        self,
        trace: AttentionTrace,
        index: int,
        places: NDArray[np.intp],
        room: Matrix | None = None,
    ) -> Matrix:
        """Return the same rows before the skip connection is added, for the caller to change.

        A caller that gives room for them, to write to again and again, lets columns at the end
        where these rows are 0 be left off.
        """
        if self.receptive_field is not None and trace.kind != "causal":
            raise MethodError(
                f"receptive_field={self.receptive_field!r} is for causal attention, where "
                f"early tokens are seen more often; this trace is {trace.kind}."
            )
        if self.drop or self.discard or self.receptive_field:
            room = None  # these count columns
        mixed = self.mixed_rows(trace, index, places, room)
        if trace.stages is not None and trace.stages[index] == "connector":
            return mixed
        if self.drop:
            columns = trace.tokens.occurrences_of(self.drop, required=True)
            mixed = without_columns(mixed, columns, places)
        if self.discard:
            mixed = _discard_weakest(mixed, self.discard)
        if self.receptive_field is not None:
            mixed = _weighed_by_field(mixed, self.receptive_field, places)
        return mixed

    def mixed_rows(
        self,
        trace: AttentionTrace,
        index: int,
        places: NDArray[np.intp],
        room: Matrix | None = None,
    ) -> Matrix:
        """Return rows of one layer with the heads as one, before anything else is done to them."""
        if trace.mixed_heads not in (None, str(self.heads)):
            raise MethodError(
                f"This trace was captured with heads already mixed by {trace.mixed_heads!r}, so "
                f"heads={self.heads!r} cannot be computed from it. Capture again with "
                "heads=None to keep every head."
            )
        rows = trace.weight_rows(index, _as_slice(places))
        if room is not None and trace.sees_nothing_later:
            rows = rows[..., : int(places.max()) + 1]
        if trace.mixed_heads is None:
            return mix_heads(rows[None], self.heads)[0]
        if room is None:
            return rows[0].astype(np.float64)
        mixed = room[: rows[0].size].reshape(rows[0].shape)
        mixed[:] = rows[0]
        return mixed

    def residual_shares(self, layers: int) -> Matrix:
        """Return the skip connection's share in each layer."""
        if self.residual == ONE_STEP:
            return np.full(layers, 1 - 1 / layers)
        if isinstance(self.residual, tuple):
            if len(self.residual) != layers:
                raise MethodError(
                    f"residual has {len(self.residual)} numbers, the trace {layers} layers; pass "
                    "one number, or one for each layer."
                )
            return np.array(self.residual)
        return np.full(layers, float(self.residual or 0.0))


def mix_heads(weights: NDArray[np.floating[Any]], heads: Heads) -> Matrix:
    """Mix `(layers, heads, n, n)` to `(layers, n, n)` in float64, rows keeping their mean mass."""
    if isinstance(heads, tuple):
        if len(heads) != weights.shape[1]:
            raise MethodError(
                f"heads has {len(heads)} weights for {weights.shape[1]} heads; pass one for each."
            )
        share = np.array(heads) / sum(heads)
        return np.einsum("h,lhij->lij", share, weights, dtype=np.float64)
    if isinstance(heads, int):
        if heads >= weights.shape[1]:
            raise MethodError(
                f"There is no head {heads}; this trace has {weights.shape[1]}, numbered from 0."
            )
        return weights[:, heads].astype(np.float64)
    mean = weights.mean(axis=1, dtype=np.float64)
    if heads == "mean":
        return mean
    extreme = (weights.max if heads == "max" else weights.min)(axis=1).astype(np.float64)
    return _scaled_to(extreme, mean.sum(axis=-1))


def _scaled_to(rows: Matrix, mass: Matrix) -> Matrix:
    """Scale each row (last axis: sources) to the given mass; a row of zeros stays as it is."""
    total = rows.sum(axis=-1)
    factor = np.divide(mass, total, out=np.zeros_like(total), where=total > 0)
    return rows * factor[..., None]


def distributions(matrix: Matrix, places: NDArray[np.intp]) -> Matrix:
    """Return rows scaled to sum to 1; a row of zeros becomes the identity's, by its place."""
    total = matrix.sum(axis=-1, keepdims=True)
    scaled = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    return scaled + (total == 0) * np.eye(matrix.shape[-1])[places]


def _discard_weakest(rows: Matrix, share: float) -> Matrix:
    """Zero the floor(share × n) weakest entries of each row; at least one entry is kept."""
    count = int(share * rows.shape[-1])
    if count == 0:
        return rows
    weakest = np.argsort(rows, axis=-1, kind="stable")[..., :count]
    rest = rows.copy()
    np.put_along_axis(rest, weakest, 0.0, axis=-1)
    return _scaled_to(rest, rows.sum(axis=-1))


def without_columns(rows: Matrix, columns: Sequence[int], places: NDArray[np.intp]) -> Matrix:
    """Let nobody draw on these columns but their own rows; what has nothing else keeps itself."""
    rest = rows.copy()
    rest[:, columns] = 0.0
    own = np.flatnonzero(np.isin(places, columns))
    rest[own, places[own]] = rows[own, places[own]]
    mass = rows.sum(axis=-1)
    nothing = np.flatnonzero((rest.sum(axis=-1) <= 0) & (mass > 0))
    rest[nothing, places[nothing]] = 1.0
    return _scaled_to(rest, mass)


def _weighed_by_field(rows: Matrix, name: str, places: NDArray[np.intp]) -> Matrix:
    """Divide each weight by the size of its receptive field; rows keep their mass."""
    position = np.arange(rows.shape[-1])
    if name == "column":
        size = np.broadcast_to(len(position) - position, rows.shape)
    elif name == "element":
        size = np.maximum(places[:, None] - position + 1, 1)
    else:  # a field that is weighed elsewhere, in the result
        return rows
    return _scaled_to(rows / size, rows.sum(axis=-1))


def _as_slice(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return neighbours as a slice: indexing by one makes no copy."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places) and (places[1:] > places[:-1]).all():
        return slice(first, last + 1)
    return places


def _plain(value: Any) -> Any:
    """Return what numpy holds as Python's own: lists, and the one value of an array of no axes."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def checked_heads(heads: object) -> Heads:
    """Return how heads are mixed, or raise an error that says what is allowed."""
    plain = _plain(heads)
    if isinstance(plain, str) and plain in _WAYS:
        return plain
    if is_number(plain) and plain >= 0 and float(plain).is_integer():
        return int(plain)
    if isinstance(plain, list):
        usable = all(is_number(w) and np.isfinite(w) and w >= 0 for w in plain)
        if usable and sum(plain) > 0:
            return tuple(map(float, plain))
    raise MethodError(
        f"heads={shorten(heads)}:{did_you_mean(plain, _WAYS)} Allowed: "
        f"{', '.join(map(repr, _WAYS))}, the number of one head (from 0), or a list of weights, "
        "one for each head, not negative and not all 0."
    )


def _checked_drop(drop: object) -> tuple[TokenRef, ...]:
    """Return one or several positions or tokens."""
    plain = _plain(drop)
    items = plain if isinstance(plain, list) else [plain]
    refs = [item if isinstance(item, str) else whole_number(item) for item in items]
    if not any(ref is None for ref in refs):
        return tuple(ref for ref in refs if ref is not None)
    raise MethodError(
        f"drop={shorten(drop)} is not a list of positions (numbers from 0) or tokens (text), such "
        "as (0,)."
    )


def _checked_residual(residual: object) -> Residual:
    plain = _plain(residual)
    if plain is None or plain == ONE_STEP:
        return plain
    shares = plain if isinstance(plain, list) else [plain]
    if not shares or not all(is_number(r) and 0 <= r <= 1 for r in shares):
        raise MethodError(
            f"residual={shorten(residual)}: the share of the skip connection is a number from 0 to "
            "1 (the paper's is 0.5), a list with one such number for each layer, 'one-step', or "
            "None."
        )
    return tuple(map(float, shares)) if isinstance(plain, list) else float(plain)
