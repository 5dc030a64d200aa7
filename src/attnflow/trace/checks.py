"""Checks of the parts of a trace, whether they come from a model, a user or a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError, WeightsError, shorten, whole_number
from attnflow.errors.arguments import check_named, is_number
from attnflow.trace.extras import BALANCED_INPUTS, Prediction

Floats = NDArray[np.floating[Any]]
Kind = Literal["bidirectional", "causal", "cross"]
_STAGES = ("encoder", "decoder", "cross", "vision", "connector", "language")

# How far a row may be from a distribution before we refuse it: rounding of the dtype it was
# computed in, with room for a few thousand summands. A dropped mask or a missing softmax is off
# by orders of magnitude more.
ROW_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


def checked_weights(weights: ArrayLike, copy: bool) -> tuple[Floats, str]:
    """Return weights of rank 4 in float32 or float64, and the name of the dtype they came in."""
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
    copied: Floats = array.astype(np.float32 if single else np.float64, copy=copy)
    _check_values(copied)
    return (copied[:, None] if copied.ndim == 3 else copied), dtype


def _as_array(weights: ArrayLike) -> tuple[NDArray[Any], str]:
    """Return it as numpy, and the dtype it came in: of torch tensors too, without torch."""
    try:
        if isinstance(weights, (tuple, list)):
            parts = [_without_torch(part) for part in weights]
            plain, dtype = [part for part, _ in parts], parts[0][1] if parts else ""
        else:
            plain, dtype = _without_torch(weights)
        array = np.asarray(plain)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise WeightsError(
            f"Attention weights cannot be read as one array: {str(error)[:200]}."
        ) from error
    if array.dtype.kind not in "fiu":
        raise WeightsError(
            f"Attention weights must be real numbers; got dtype {array.dtype}. "
            "Layers of different shapes cannot be stacked: trim padding first."
        )
    return array, dtype or str(array.dtype)


def _without_torch(part: Any) -> tuple[Any, str]:
    """Return a tensor as a numpy array with its dtype's name; anything else as it is."""
    if not hasattr(part, "detach"):
        return part, ""
    name = str(part.dtype).removeprefix("torch.")
    plain = part.detach().cpu()
    return (plain.float() if name == "bfloat16" else plain).numpy(), name


def _check_values(weights: Floats) -> None:
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


def checked_sinks(sinks: ArrayLike | None, weights: Floats) -> Floats | None:
    """Return the mass each row gives to a learned sink, `(layers, heads, queries)`."""
    if sinks is None:
        return None
    array = _floats("sinks", sinks).astype(weights.dtype)
    if array.ndim == 2:
        array = array[:, None]
    if array.shape != weights.shape[:3] or not np.isfinite(array).all() or (array < 0).any():
        raise WeightsError(
            f"sinks must be finite, not negative and of shape {weights.shape[:3]} "
            f"(layers, heads, queries); got shape {array.shape}."
        )
    return array


def checked_gradients(gradients: ArrayLike | None, weights: Floats, *, copy: bool) -> Floats | None:
    """Return one finite number for each weight, `(layers, heads, n, n)`."""
    if gradients is None:
        return None
    array: Floats = _floats("gradients", gradients).astype(weights.dtype, copy=copy)
    if array.ndim == 3:
        array = array[:, None]
    if array.shape != weights.shape or not np.isfinite(array).all():
        raise WeightsError(
            f"gradients must be finite, one for each weight: shape {weights.shape} (layers, heads, "
            f"n, n); got shape {array.shape}. They belong to single heads, so keep every head."
        )
    return array


def checked_measured(
    measured: Mapping[str, ArrayLike] | None, layers: int, length: int
) -> Mapping[str, Floats]:
    """Return named arrays of finite numbers, not negative, one matrix or row a layer."""
    checked: dict[str, Floats] = {}
    allowed = ((layers, length, length), (layers, length))
    if measured is not None and not isinstance(measured, Mapping):
        raise WeightsError(f"measured gives arrays by name; got {shorten(measured)}.")
    for name, values in (measured or {}).items():
        array = np.array(_floats(f"measured[{name!r}]", values))
        negative = name != BALANCED_INPUTS and (array < 0).any()
        if array.shape not in allowed or not np.isfinite(array).all() or negative:
            raise WeightsError(
                f"measured[{shorten(name)}] must be finite, not negative and of shape {allowed[0]} "
                f"(layers, n, n) or {allowed[1]} (layers, n); got shape {array.shape}."
            )
        checked[name] = array
    return checked


def _floats(name: str, values: ArrayLike) -> Floats:
    """Return floats, in the dtype they have if it is one of floats."""
    try:
        array = np.asarray(values)
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise WeightsError(f"{name} cannot be read as numbers: {str(error)[:200]}.") from error


def check_rows(
    weights: Floats, sinks: Floats | None, tolerance: float, numbers: tuple[int, ...]
) -> None:
    """Raise an error that names the worst row if one does not sum to 1, its sink included."""
    total = weights.sum(axis=-1, dtype=np.float64)
    if sinks is not None:
        total = total + sinks
    off = np.abs(total - 1)
    if off.max() <= tolerance:
        return
    layer, head, query = (int(i) for i in np.unravel_index(off.argmax(), off.shape))
    raise WeightsError(
        f"Attention rows must sum to 1 within {tolerance:g}; {int((off > tolerance).sum())} of "
        f"{off.size} do not. The worst is layer {numbers[layer]}, head {head}, query {query}: it "
        f"sums to {total[layer, head, query]:.6g} (off by {off.max():.3g}). Pass weights after the "
        "softmax and before dropout; declare the mass of learned sinks with sinks=."
    )


def checked_tolerance(tolerance: float | None, dtype: str) -> float:
    """Return how far a row may be from 1: 0 means exactly 1, None what the dtype can hold."""
    if tolerance is None:
        return ROW_TOLERANCE.get(dtype, 1e-4)
    if not is_number(tolerance) or not 0 <= tolerance <= 1:
        raise InputError(
            f"row_tolerance is a number from 0 to 1, or None for what the dtype can hold; got "
            f"{shorten(tolerance)}."
        )
    return float(tolerance)


def checked_layers(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return the model's numbers of the layers; counted from 1 where none are given."""
    if layers is None:
        return tuple(range(1, count + 1))
    several = isinstance(layers, Iterable) and getattr(layers, "ndim", 1) == 1
    items: list[Any] = list(layers) if several else [layers]
    numbers = tuple(whole_number(number) or 0 for number in items)
    increasing = numbers == tuple(sorted(set(numbers)))
    if len(numbers) != count or not increasing or numbers[0] < 1 or numbers[-1] >= 2**31:
        raise WeightsError(
            f"layers must be {count} increasing numbers counted from 1, one for each layer of "
            f"weights; got {shorten(items)}."
        )
    return numbers


def checked_kind(kind: object, weights: Floats, tolerance: float) -> Kind:
    """Return the kind as it was given, if the weights agree; if none was, as they show it."""
    if kind is None:
        forward = (np.triu(head, k=1).any() for layer in weights for head in layer)
        return "bidirectional" if weights.shape[-1] == 1 or any(forward) else "causal"
    check_named("kind", kind, get_args(Kind), InputError)
    if kind == "causal":
        ahead = max(float(np.triu(h, k=1).sum(axis=-1).max()) for layer in weights for h in layer)
        if ahead > tolerance:
            raise WeightsError(
                f"kind='causal', but a position gives {ahead:.3g} of its attention to later ones. "
                "Was the mask dropped? Leave kind out to have it recognised."
            )
    return cast("Kind", kind)


def checked_mixed_heads(name: object, heads: int) -> str | None:
    """Return how the heads were mixed to one, or None where they are kept apart."""
    if name is None:
        return None
    if not isinstance(name, str) or heads != 1:
        raise WeightsError(
            f"mixed_heads={shorten(name)} says how {heads} heads were mixed to one: it is a text "
            "such as 'mean', and the weights have one head then."
        )
    return name


def checked_stages(
    stages: Sequence[str] | None, encoder_length: int | None, layers: int, length: int
) -> dict[str, Any]:
    """Return a stage for each layer, and how many positions are the encoder's: both or neither."""
    if stages is None and encoder_length is None:
        return {"stages": None, "encoder_length": None}
    names = tuple(stages) if isinstance(stages, (list, tuple)) else ()
    encoder = whole_number(encoder_length)
    if len(names) != layers or any(name not in _STAGES for name in names):
        raise InputError(
            f"stages names {', '.join(map(repr, _STAGES))} for each of the {layers} layers; got "
            f"{shorten(stages)}."
        )
    if encoder is None or not 0 < encoder < length:
        raise InputError(
            f"encoder_length is how many of the {length} positions are the encoder's, at least 1; "
            f"got {shorten(encoder_length)}."
        )
    return {"stages": names, "encoder_length": encoder}


def check_prediction(prediction: Prediction | None, length: int) -> None:
    """Raise an error for a prediction that was read from a position there is not."""
    if prediction is None:
        return
    if not isinstance(prediction, Prediction):
        raise InputError(f"prediction is a Prediction or None; got {shorten(prediction)}.")
    if prediction.position >= length:
        raise InputError(
            f"The prediction was read from position {prediction.position}; there are {length}."
        )


def checked_provenance(provenance: object) -> dict[str, Any]:
    """Return what is noted about where a trace comes from, by name."""
    if not isinstance(provenance, Mapping) or not all(isinstance(key, str) for key in provenance):
        raise InputError(f"provenance gives values by name; got {shorten(provenance)}.")
    return dict(provenance)
