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

from attnflow.errors import MethodError, did_you_mean
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

__all__ = ["ONE_STEP", "Heads", "Mixing", "Residual", "checked_heads", "mix_heads"]

Heads = str | int | tuple[float, ...]
Residual = float | tuple[float, ...] | str | None
ONE_STEP = "one-step"
_NAMED = ("mean", "max", "min")
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
        if not _is_number(self.discard) or not 0 <= self.discard < 1:
            raise MethodError(
                f"discard is a share of each row, at least 0 and below 1; got {self.discard!r}."
            )
        object.__setattr__(self, "drop", _checked_drop(self.drop))
        self._check_receptive_field()

    @property
    def receptive_fields(self) -> tuple[str, ...]:
        """The names that receptive_field may have."""
        return _FIELDS

    def _check_receptive_field(self) -> None:
        name = self.receptive_field
        if name is not None and name not in self.receptive_fields:
            raise MethodError(
                f"Unknown receptive_field={name!r}."
                f"{did_you_mean(str(name), self.receptive_fields)} Allowed are "
                f"{', '.join(map(repr, self.receptive_fields))} and None."
            )

    def matrices(self, trace: AttentionTrace) -> NDArray[np.float64]:
        """`(layers, n, n)`: what each layer takes from the one below."""
        mixed = self.mixed(trace)
        if self.drop:
            mixed = _without(mixed, trace.tokens.occurrences_of(self.drop))
        if self.discard:
            mixed = _discard_weakest(mixed, self.discard)
        if self.receptive_field is not None:
            if trace.kind != "causal":
                raise MethodError(
                    f"receptive_field={self.receptive_field!r} is for causal attention, where "
                    f"early tokens are seen more often; this trace is {trace.kind}."
                )
            mixed = _weighed_by_field(mixed, self.receptive_field)
        return _add_residual(mixed, self.residual_shares(len(trace.layers)))

    def mixed(self, trace: AttentionTrace) -> NDArray[np.float64]:
        """`(layers, n, n)`: the heads as one, before anything else is done to them."""
        if trace.mixed_heads is None:
            return mix_heads(trace.weights, self.heads)
        if trace.mixed_heads != str(self.heads):
            raise MethodError(
                f"This trace was captured with heads already mixed by {trace.mixed_heads!r}, so "
                f"heads={self.heads!r} cannot be computed from it. Capture again with "
                "heads=None to keep every head."
            )
        return trace.weights[:, 0].astype(np.float64)

    def residual_shares(self, layers: int) -> NDArray[np.float64]:
        """The skip connection's share in each layer."""
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


def mix_heads(weights: NDArray[np.floating[Any]], heads: Heads) -> NDArray[np.float64]:
    """`(layers, heads, n, n)` to `(layers, n, n)` in float64, rows keeping their mean mass."""
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


def _scaled_to(rows: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each row (last axis: sources) to the given mass; a row of zeros stays as it is."""
    total = rows.sum(axis=-1)
    factor = np.divide(mass, total, out=np.zeros_like(total), where=total > 0)
    return rows * factor[..., None]


def _discard_weakest(rows: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Zero the floor(share × n) weakest entries of each row; at least one entry is kept."""
    count = int(share * rows.shape[-1])
    if count == 0:
        return rows
    weakest = np.argsort(rows, axis=-1, kind="stable")[..., :count]
    kept = rows.copy()
    np.put_along_axis(kept, weakest, 0.0, axis=-1)
    return _scaled_to(kept, rows.sum(axis=-1))


def _without(rows: NDArray[np.float64], columns: Sequence[int]) -> NDArray[np.float64]:
    """Nobody draws on these columns but their own rows; a row with nothing else keeps itself."""
    kept = rows.copy()
    own = rows[:, columns, columns]
    kept[:, :, columns] = 0.0
    kept[:, columns, columns] = own
    mass = rows.sum(axis=-1)
    nothing = (kept.sum(axis=-1) <= 0) & (mass > 0)
    layer, row = np.nonzero(nothing)
    kept[layer, row, row] = 1.0
    return _scaled_to(kept, mass)


def _weighed_by_field(rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Each weight over the size of its receptive field; rows keep their mass."""
    n = rows.shape[-1]
    position = np.arange(n)
    if name == "column":
        size = np.broadcast_to(n - position, (n, n))
    elif name == "element":
        size = np.maximum(position[:, None] - position + 1, 1)
    else:  # a field that is weighed elsewhere, in the result
        return rows
    return _scaled_to(rows / size, rows.sum(axis=-1))


def _add_residual(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    r = shares[:, None, None]
    return (1 - r) * rows + r * np.eye(rows.shape[-1])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def checked_heads(heads: object) -> Heads:
    """How heads are mixed, or an error that says what is allowed."""
    if isinstance(heads, str):
        if heads in _NAMED:
            return heads
        raise MethodError(
            f"Unknown heads={heads!r}.{did_you_mean(heads, _NAMED)} Allowed are "
            f"{', '.join(map(repr, _NAMED))}, the number of one head, or one weight for each head."
        )
    if _is_number(heads) and int(heads) == heads and heads >= 0:  # type: ignore[call-overload,operator]
        return int(heads)  # type: ignore[call-overload]
    if isinstance(heads, (Sequence, np.ndarray)) and all(_is_number(w) for w in heads):
        weights = tuple(float(w) for w in heads)
        if weights and all(np.isfinite(w) and w >= 0 for w in weights) and sum(weights) > 0:
            return weights
    raise MethodError(
        f"heads={heads!r} is none of {', '.join(map(repr, _NAMED))}, the number of one head (from "
        "0), or a list of weights, one for each head, not negative and not all 0."
    )


def _checked_drop(drop: object) -> tuple[TokenRef, ...]:
    """One or several positions or tokens."""
    if isinstance(drop, (str, int)) and not isinstance(drop, bool):
        return (drop,)
    if isinstance(drop, (list, tuple)) and all(
        isinstance(item, (str, int)) and not isinstance(item, bool) for item in drop
    ):
        return tuple(drop)
    raise MethodError(
        f"drop={drop!r} is no list of positions (numbers from 0) or tokens (text), such as (0,)."
    )


def _checked_residual(residual: object) -> Residual:
    if residual is None or residual == ONE_STEP:
        return residual
    if _is_number(residual):
        shares: tuple[float, ...] = (float(residual),)  # type: ignore[arg-type]
    elif isinstance(residual, (Sequence, np.ndarray)) and all(_is_number(r) for r in residual):
        shares = tuple(float(r) for r in residual)
    else:
        shares = ()
    if not shares or not all(0 <= r <= 1 for r in shares):
        raise MethodError(
            f"residual={residual!r}: the share of the skip connection is a number from 0 to 1 "
            "(the paper's is 0.5), a list with one such number for each layer, 'one-step', or None."
        )
    return shares[0] if _is_number(residual) else shares
