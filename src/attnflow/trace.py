"""AttentionTrace: what one forward pass did, as plain arrays.

This is the lowest door into attnflow: attention weights and tokens from anywhere make a trace,
with no model and no torch. Everything is checked here, once, so that methods need not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow import storage
from attnflow.errors import InputError, TokensError, WeightsError
from attnflow.extras import checked_gradients, checked_measured, pack, unpack
from attnflow.tokens import Tokens

__all__ = ["AttentionTrace", "Kind", "Prediction"]

Kind = Literal["bidirectional", "causal", "cross"]

# How far a row may be from a distribution before we refuse it: rounding of the dtype it was
# computed in, with room for a few thousand summands. A dropped mask or a missing softmax is off
# by orders of magnitude more.
ROW_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Prediction:
    """What the model said in this forward pass, and the position it was read from."""

    label: str
    probability: float
    position: int
    alternatives: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.label} ({self.probability:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "label": self.label,
            "probability": self.probability,
            "position": self.position,
            "alternatives": [list(pair) for pair in self.alternatives],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Prediction:
        """The inverse of `to_dict`."""
        alternatives = tuple((str(name), float(p)) for name, p in record["alternatives"])
        return cls(record["label"], record["probability"], record["position"], alternatives)


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Attention weights of one input: `weights[layer, head, query, key]`, rows are distributions.

    `layers` are the model's own layer numbers, counted from 1; a hybrid model's layers without
    attention are simply absent. `sinks[layer, head, query]` is the mass a row gives to a learned
    sink, so that row sum + sink = 1. `mixed_heads` is set when the heads were already reduced at
    capture, and says how. Of an encoder–decoder, `stages` names the attention each layer is
    ("encoder", "decoder", "cross") and the first `encoder_length` positions are the input's.

    Only when asked for at capture: `gradients`, those of one score with respect to each weight, in
    the shape of `weights`; and `measured`, named arrays (layers, n, n) or (layers, n) that methods
    need beside the weights.
    """

    weights: NDArray[np.floating[Any]]
    tokens: Tokens
    layers: tuple[int, ...]
    kind: Kind = "bidirectional"
    sinks: NDArray[np.floating[Any]] | None = None
    mixed_heads: str | None = None
    prediction: Prediction | None = None
    stages: tuple[str, ...] | None = None
    encoder_length: int | None = None
    gradients: NDArray[np.floating[Any]] | None = None
    measured: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights.flags.writeable = False
        object.__setattr__(self, "measured", MappingProxyType(dict(self.measured)))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    @classmethod
    def from_arrays(
        cls,
        weights: ArrayLike,
        tokens: Sequence[str],
        *,
        layers: Sequence[int] | None = None,
        kind: Kind | None = None,
        sinks: ArrayLike | None = None,
        mixed_heads: str | None = None,
        prediction: Prediction | None = None,
        stages: Sequence[str] | None = None,
        encoder_length: int | None = None,
        gradients: ArrayLike | None = None,
        measured: Mapping[str, ArrayLike] | None = None,
        row_tolerance: float | None = None,
        provenance: Mapping[str, Any] | None = None,
        copy: bool = True,
    ) -> Self:
        """A trace from arrays of shape (layers, heads, n, n) or (layers, n, n) and n tokens.

        Rows must sum to 1 (or to 1 minus `sinks`) within `row_tolerance`, by default what the
        dtype can hold. `kind` is recognised when not given: causal if no position attends to a
        later one. With `copy=False` the trace may keep and freeze the array it is given.
        """
        checked, dtype = _checked_weights(weights, copy)
        named = Tokens.of(tokens)
        if len(named) != checked.shape[-1]:
            raise TokensError(
                f"{len(named)} tokens for attention over {checked.shape[-1]} positions; "
                "pass one token for each position, special tokens included."
            )
        sink = _checked_sinks(sinks, checked)
        _check_rows(checked, sink, row_tolerance or ROW_TOLERANCE.get(dtype, 1e-4))
        return cls(
            weights=checked,
            tokens=named,
            layers=_checked_layers(layers, len(checked)),
            kind=kind or _recognise_kind(checked),
            sinks=sink,
            mixed_heads=mixed_heads,
            prediction=prediction,
            stages=None if stages is None else tuple(stages),
            encoder_length=encoder_length,
            gradients=checked_gradients(gradients, checked, copy=copy),
            measured=checked_measured(measured, len(checked), checked.shape[-1]),
            provenance={**storage.provenance_stamp(), **(provenance or {})},
        )

    @property
    def length(self) -> int:
        """How many positions."""
        return int(self.weights.shape[-1])

    @property
    def heads(self) -> int:
        """How many heads are kept apart (1 when they were mixed at capture)."""
        return int(self.weights.shape[1])

    def stage(self, name: str) -> AttentionTrace:
        """One attention of an encoder–decoder: "encoder" and "decoder" over their own tokens,
        "cross" over both, decoder positions attending to the encoder's.
        """
        if self.stages is None or self.encoder_length is None or name not in self.stages:
            raise InputError(
                f"This trace has no stage {name!r}; its stages are "
                f"{', '.join(dict.fromkeys(self.stages or ())) or 'none: it is one stack'}."
            )
        picked = [k for k, stage in enumerate(self.stages) if stage == name]
        n = self.encoder_length
        kept = {"encoder": slice(0, n), "decoder": slice(n, None)}.get(name, slice(None))
        positions = range(self.length)[kept]
        words = None if self.tokens.words is None else self.tokens.words[kept]
        gradients = self.gradients
        return AttentionTrace(
            weights=self.weights[picked][:, :, kept, kept].copy(),
            tokens=Tokens(tuple(self.tokens[k] for k in positions), words=words),
            layers=tuple(range(1, len(picked) + 1)),
            kind={"encoder": "bidirectional", "decoder": "causal"}.get(name, "cross"),  # type: ignore[arg-type]
            mixed_heads=self.mixed_heads,
            gradients=None if gradients is None else gradients[picked][:, :, kept, kept].copy(),
            measured={
                key: array[picked][:, *[kept] * (array.ndim - 1)].copy()
                for key, array in self.measured.items()
            },
            provenance={**self.provenance, "stage": name},
        )

    def __repr__(self) -> str:
        layers, heads, n, _ = self.weights.shape
        text = " ".join(self.tokens.texts)
        shown = text if len(text) <= 40 else text[:37] + "..."
        said = f", predicts {self.prediction}" if self.prediction else ""
        return f"<AttentionTrace {layers} layers × {heads} heads × {n} tokens, {shown!r}{said}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to .safetensors or .json; `load` gives the same bits back."""
        header = {
            "tokens": self.tokens.to_dict(),
            "layers": list(self.layers),
            "kind": self.kind,
            "mixed_heads": self.mixed_heads,
            "prediction": self.prediction.to_dict() if self.prediction else None,
            "stages": None if self.stages is None else list(self.stages),
            "encoder_length": self.encoder_length,
            "provenance": dict(self.provenance),
        }
        arrays = {"weights": self.weights, **pack(self.gradients, self.measured)}
        if self.sinks is not None:
            arrays["sinks"] = self.sinks
        storage.write(path, "AttentionTrace", header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        header, arrays = storage.read(path, "AttentionTrace")
        with storage.unpacking(path):
            said = header["prediction"]
            return cls(
                weights=arrays["weights"],
                tokens=Tokens.from_dict(header["tokens"]),
                layers=tuple(header["layers"]),
                kind=header["kind"],
                sinks=arrays.get("sinks"),
                mixed_heads=header["mixed_heads"],
                prediction=Prediction.from_dict(said) if said else None,
                stages=None if header["stages"] is None else tuple(header["stages"]),
                encoder_length=header["encoder_length"],
                **unpack(arrays),
                provenance=header["provenance"],
            )


def _checked_weights(weights: ArrayLike, copy: bool) -> tuple[NDArray[np.floating[Any]], str]:
    """Of rank 4 in float32 or float64, and the name of the dtype it came in."""
    array, dtype = _as_array(weights)
    if array.ndim not in (3, 4):
        hint = "For one layer add an axis: weights[None]."
        if array.ndim == 5:
            hint = "If the second axis is a batch, pass one example of it: weights[:, 0]."
        raise WeightsError(
            f"Attention weights have rank {array.ndim} (shape {array.shape}); allowed are "
            f"(layers, heads, n, n) and (layers, n, n). {hint}"
        )
    if array.shape[-1] != array.shape[-2]:
        raise WeightsError(
            f"Attention weights are not square: shape {array.shape} has {array.shape[-2]} queries "
            f"and {array.shape[-1]} keys; self-attention has as many of one as of the other."
        )
    if 0 in array.shape:
        raise WeightsError(f"Attention weights are empty: shape {array.shape}.")
    single = array.dtype in (np.float32, np.float16)
    copied: NDArray[np.floating[Any]] = (
        array.astype(np.float32, copy=copy) if single else array.astype(np.float64, copy=copy)
    )
    _check_values(copied)
    return (copied[:, None] if copied.ndim == 3 else copied), dtype


def _as_array(weights: ArrayLike) -> tuple[NDArray[Any], str]:
    """As numpy, and the dtype it came in: of torch tensors too, without importing torch."""
    try:
        if isinstance(weights, (tuple, list)):
            parts = [_without_torch(part) for part in weights]
            array = np.asarray([part for part, _ in parts])
            dtype = parts[0][1] if parts and parts[0][1] else str(array.dtype)
        else:
            plain, named = _without_torch(weights)
            array = np.asarray(plain)
            dtype = named or str(array.dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        raise WeightsError(f"Attention weights cannot be read as one array: {error}.") from error
    if array.dtype.kind not in "fiu":
        raise WeightsError(
            f"Attention weights must be real numbers; got dtype {array.dtype}. "
            "Layers of different shapes cannot be stacked: trim padding first."
        )
    return array, dtype


def _without_torch(part: Any) -> tuple[Any, str]:
    """A tensor as a numpy array with its dtype's name; anything else as it is."""
    if not hasattr(part, "detach"):
        return part, ""
    name = str(part.dtype).removeprefix("torch.")
    plain = part.detach().cpu()
    return (plain.float() if name == "bfloat16" else plain).numpy(), name


def _check_values(weights: NDArray[np.floating[Any]]) -> None:
    for k, layer in enumerate(weights):  # layer by layer: the masks stay small
        if not np.isfinite(layer).all():
            where = (k, *(int(i) for i in np.argwhere(~np.isfinite(layer))[0]))
            raise WeightsError(
                f"Attention weights must be finite; weights{list(where)} is {weights[where]}. "
                "A fully masked row gives NaN: trim padding before the softmax."
            )
        if (layer < 0).any():
            where = (k, *(int(i) for i in np.argwhere(layer < 0)[0]))
            raise WeightsError(
                f"Attention weights must not be negative; weights{list(where)} is "
                f"{weights[where]:.6g}. Pass the weights after the softmax, not the scores."
            )


def _checked_sinks(
    sinks: ArrayLike | None, weights: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]] | None:
    if sinks is None:
        return None
    array = np.array(sinks, dtype=weights.dtype)
    if array.ndim == 2:
        array = array[:, None]
    if array.shape != weights.shape[:3] or not np.isfinite(array).all() or (array < 0).any():
        raise WeightsError(
            f"sinks must be finite, not negative and of shape {weights.shape[:3]} "
            f"(layers, heads, queries); got shape {array.shape}."
        )
    return array


def _check_rows(
    weights: NDArray[np.floating[Any]], sinks: NDArray[np.floating[Any]] | None, tolerance: float
) -> None:
    total = weights.sum(axis=-1, dtype=np.float64)
    if sinks is not None:
        total = total + sinks
    off = np.abs(total - 1)
    if off.max() <= tolerance:
        return
    layer, head, query = (int(i) for i in np.unravel_index(off.argmax(), off.shape))
    raise WeightsError(
        f"Attention rows must sum to 1 within {tolerance:g}; {int((off > tolerance).sum())} of "
        f"{off.size} do not. The worst is layer {layer + 1}, head {head}, query {query}: it sums "
        f"to {total[layer, head, query]:.6g} (off by {off.max():.3g}). Pass weights after the "
        "softmax and before dropout; declare the mass of learned sinks with sinks=."
    )


def _checked_layers(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(1, count + 1))
    numbers = tuple(int(number) for number in layers)
    if len(numbers) != count or numbers != tuple(sorted(set(numbers))) or numbers[0] < 1:
        raise WeightsError(
            f"layers must be {count} increasing numbers counted from 1, one for each layer of "
            f"weights; got {list(numbers)}."
        )
    return numbers


def _recognise_kind(weights: NDArray[np.floating[Any]]) -> Kind:
    if weights.shape[-1] == 1:
        return "bidirectional"
    ahead = (np.triu(head, k=1).any() for layer in weights for head in layer)
    return "bidirectional" if any(ahead) else "causal"
