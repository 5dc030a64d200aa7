"""The value itself: weights, tokens and what else a forward pass left."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow import storage
from attnflow.errors import InputError, TokensError, WeightsError, shorten
from attnflow.tokens import Tokens
from attnflow.trace import checks
from attnflow.trace.checks import ROW_TOLERANCE, Floats, Kind
from attnflow.trace.extras import Prediction

_ROWS_LOOKED_AT = 256
_MEASURED = "measured/"  # begins the names of measurements in a file

# A language model that reads images may let their positions see one another.
_STAGE_KINDS: Mapping[str, Kind] = {
    "encoder": "bidirectional",
    "vision": "bidirectional",
    "language": "bidirectional",
    "decoder": "causal",
}


class TraceStructure(TypedDict, total=False):
    """The structure that few arrays have: mixed heads, several stacks, memory that is not copied.

    row_tolerance: how far from 1 a row may be; None is what the dtype can hold.
    mixed_heads: how the heads were mixed to one.
    stages, encoder_length: of an encoder–decoder or of two towers the stage of each layer, and how
        many positions the first stack has.
    copy: false lets the trace keep and freeze the array it is given.
    """

    row_tolerance: float | None
    mixed_heads: str | None
    stages: Sequence[str] | None
    encoder_length: int | None
    copy: bool


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Attention weights of one input: `weights[layer, head, query, key]`, rows are distributions.

    `layers` are the model's own layer numbers, counted from 1; a hybrid model's layers without
    attention are simply absent. `sinks[layer, head, query]` is the mass a row gives to a learned
    sink, so that row sum + sink = 1. `mixed_heads` is set when the heads were already reduced at
    capture, and says how. Of an encoder–decoder, `stages` names the attention each layer is
    ("encoder", "decoder", "cross") and the first `encoder_length` positions are the input's. Of a
    vision-language model they are "vision", "connector" and "language", and the first
    `encoder_length` positions those of the vision tower.

    Only when asked for at capture: `gradients`, those of one score with respect to each weight, in
    the shape of `weights`; and `measured`, named arrays (layers, n, n) or (layers, n) that methods
    need beside the weights.

    `row_tolerance` is how far from 1 the rows were allowed to be: loading checks them by it again.

    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> trace
    <AttentionTrace 1 layers × 1 heads × 2 tokens, 'the key'>
    >>> trace.kind
    'causal'
    """

    weights: Floats
    tokens: Tokens
    layers: tuple[int, ...]
    kind: Kind = "bidirectional"
    sinks: Floats | None = None
    mixed_heads: str | None = None
    prediction: Prediction | None = None
    stages: tuple[str, ...] | None = None
    encoder_length: int | None = None
    gradients: Floats | None = None
    measured: Mapping[str, Floats] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    row_tolerance: float = max(ROW_TOLERANCE.values())

    def __post_init__(self) -> None:
        for array in (self.weights, self.sinks, self.gradients, *self.measured.values()):
            if array is not None:
                array.flags.writeable = False
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
        prediction: Prediction | None = None,
        gradients: ArrayLike | None = None,
        measured: Mapping[str, ArrayLike] | None = None,
        provenance: Mapping[str, Any] | None = None,
        **structure: Unpack[TraceStructure],
    ) -> Self:
        """Make a trace from arrays of shape (layers, heads, n, n) or (layers, n, n) and n tokens.

        Rows must sum to 1 (or to 1 minus `sinks`) within `row_tolerance`, by default what the
        dtype can hold. `kind` is recognised when not given: causal if no position attends to a
        later one. `structure` is what captures add: see `TraceStructure`.
        """
        copy = structure.get("copy", True)
        checked, dtype = checks.checked_weights(weights, copy)
        names = Tokens.of(tokens)
        if len(names) != checked.shape[-1]:
            raise TokensError(
                f"{len(names)} tokens for attention over {checked.shape[-1]} positions; "
                "pass one token for each position, special tokens included."
            )
        sink = checks.checked_sinks(sinks, checked)
        numbers = checks.checked_layers(layers, len(checked))
        tolerance = checks.checked_tolerance(structure.get("row_tolerance"), dtype)
        checks.check_rows(checked, sink, tolerance, numbers)
        checks.check_prediction(prediction, len(names))
        return cls(
            weights=checked,
            tokens=names,
            layers=numbers,
            kind=checks.checked_kind(kind, checked, tolerance),
            sinks=sink,
            mixed_heads=checks.checked_mixed_heads(structure.get("mixed_heads"), checked.shape[1]),
            prediction=prediction,
            **checks.checked_stages(
                structure.get("stages"), structure.get("encoder_length"), len(checked), len(names)
            ),
            gradients=checks.checked_gradients(gradients, checked, copy=copy),
            measured=checks.checked_measured(measured, len(checked), checked.shape[-1]),
            provenance={
                **storage.provenance_stamp(),
                **checks.checked_provenance({} if provenance is None else provenance),
            },
            row_tolerance=tolerance,
        )

    @property
    def length(self) -> int:
        """The number of positions."""
        return int(self.weights.shape[-1])

    @property
    def heads(self) -> int:
        """The number of heads that are kept apart (1 when they were mixed at capture)."""
        return int(self.weights.shape[1])

    @cached_property
    def sees_nothing_later(self) -> bool:
        """Whether every weight on a later position is 0; a causal trace may have some by rounding.

        Looked at a block of rows at a time: most of what is beside the diagonal is read in one go.
        """
        if self.kind != "causal":
            return False
        for layer in self.weights:
            for first in range(0, self.length, _ROWS_LOOKED_AT):
                last = first + _ROWS_LOOKED_AT
                near = np.triu(layer[:, first:last, first:last], k=1)
                if near.any() or layer[:, first:last, last:].max(initial=0):
                    return False
        return True

    def weight_rows(self, index: int, rows: NDArray[np.intp] | slice) -> Floats:
        """`(heads, rows, n)`: the weights of these rows of the layer at this index."""
        return self.weights[index][:, rows]

    def stage(self, name: str) -> AttentionTrace:
        """One attention of an encoder–decoder: "encoder" and "decoder" over their own tokens,
        "cross" over both, decoder positions attending to the encoder's. Of a vision-language model
        "vision" and "language" are over their own positions, "connector" is over both.
        """
        if self.stages is None or self.encoder_length is None or name not in self.stages:
            raise InputError(
                f"This trace has no stage {shorten(name)}; its stages are "
                f"{', '.join(dict.fromkeys(self.stages or ())) or 'none: it is one stack'}."
            )
        layers = [k for k, stage in enumerate(self.stages) if stage == name]
        first, last = slice(0, self.encoder_length), slice(self.encoder_length, None)
        sides = {"encoder": first, "vision": first, "decoder": last, "language": last}
        side = sides.get(name, slice(None))
        words = None if self.tokens.words is None else self.tokens.words[side]
        gradients = self.gradients
        return AttentionTrace(
            weights=self.weights[layers][:, :, side, side].copy(),
            tokens=Tokens(self.tokens.texts[side], words=words),
            layers=tuple(range(1, len(layers) + 1)),
            kind=_STAGE_KINDS.get(name, "cross"),
            mixed_heads=self.mixed_heads,
            gradients=None if gradients is None else gradients[layers][:, :, side, side].copy(),
            measured={
                key: array[layers][:, *[side] * (array.ndim - 1)].copy()
                for key, array in self.measured.items()
            },
            provenance={**self.provenance, "stage": name},
            row_tolerance=self.row_tolerance,
        )

    def __repr__(self) -> str:
        shape = f"{len(self.layers)} layers × {self.heads} heads × {self.length} tokens"
        text = " ".join(self.tokens.texts[:40])
        start = text if len(text) <= 40 else text[:37] + "..."
        predicts = f", predicts {self.prediction}" if self.prediction else ""
        return f"<{type(self).__name__} {shape}, {start!r}{predicts}>"

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
            "row_tolerance": self.row_tolerance,
        }
        arrays = {
            "weights": self.weights,
            "gradients": self.gradients,
            **{_MEASURED + name: array for name, array in self.measured.items()},
            "sinks": self.sinks,
        }
        present = {name: array for name, array in arrays.items() if array is not None}
        storage.write(path, "AttentionTrace", header, present)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; it is checked as `from_arrays` checks it."""
        header, arrays = storage.read(path, "AttentionTrace")
        with storage.unpacking(path):
            storage.check_dtypes(arrays)
            weights = arrays.pop("weights")
            if weights.ndim != 4:
                raise WeightsError(f"weights have shape {weights.shape}, not four axes")
            return cls.from_arrays(
                weights,
                Tokens.from_dict(header["tokens"]),
                **_file_arguments(header, arrays),
                copy=False,
            )


def _file_arguments(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return what a file says beside weights and tokens, as arguments of `from_arrays`."""
    names = ("layers", "kind", "mixed_heads", "stages", "encoder_length", "row_tolerance")
    arguments = {name: header[name] for name in (*names, "prediction", "provenance")}
    if not isinstance(header["layers"], list) or None in (header["kind"], header["row_tolerance"]):
        raise InputError("layers, kind or row_tolerance is missing")
    if header["prediction"] is not None:
        arguments["prediction"] = Prediction.from_dict(header["prediction"])
    measured = {name: array for name, array in arrays.items() if name.startswith(_MEASURED)}
    arguments["measured"] = {k.removeprefix(_MEASURED): array for k, array in measured.items()}
    for name in arrays.keys() - measured.keys():
        if name not in ("gradients", "sinks"):
            raise InputError(f"there is an array that no trace has, {shorten(name)}")
        arguments[name] = arrays[name]
    return arguments
