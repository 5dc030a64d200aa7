"""What every method is: a frozen value that can be called on a trace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError
from attnflow.extras import GRADIENTS
from attnflow.methods.mixing import Heads, Mixing
from attnflow.tokens import Target
from attnflow.trace import AttentionTrace

__all__ = [
    "Method",
    "MixingMethod",
    "attribution_of",
    "checked_trace",
    "layers_from",
    "needed",
    "rolled_out",
    "wanted_layers",
]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods share: being callable, saying what they need, and being written down."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """Attribute these targets at these layers (default: all) to the input positions."""

    @property
    def heads_to_capture(self) -> Heads | None:
        """How capture may reduce each layer as it is seen; None where every head is needed."""
        return "mean"

    @property
    def needs(self) -> tuple[str, ...]:
        """What a trace must carry beside its weights: pass it to `capture` as `also`."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Name and options, for files."""
        return {"name": self.name, "options": asdict(self)}


@dataclass(frozen=True, kw_only=True)
class MixingMethod(Method, Mixing):
    """A method that starts from attention weights, mixed to one matrix for each layer."""

    @property
    def heads_to_capture(self) -> Heads | None:
        """The mixture is all that is needed."""
        return self.heads


def checked_trace(trace: object) -> AttentionTrace:
    """The trace, or an error that says how to get one."""
    if isinstance(trace, AttentionTrace):
        return trace
    raise MethodError(
        f"A method is called on an AttentionTrace; got {type(trace).__name__}. "
        "AttentionTrace.from_arrays(weights, tokens) or attnflow.capture(model, text) makes one."
    )


def needed(method: Method, trace: AttentionTrace, name: str) -> NDArray[np.floating[Any]]:
    """The gradients or a measurement of this trace, or an error that says how to capture them."""
    found = trace.gradients if name == GRADIENTS else trace.measured.get(name)
    if found is not None:
        return found
    carried = [*([] if trace.gradients is None else [GRADIENTS]), *trace.measured]
    raise MethodError(
        f"{method.name!r} needs {name!r}, and this trace carries {', '.join(carried) or 'nothing'} "
        "beside its weights. Capture it with: attnflow.capture(model, text, "
        f"tokenizer=tokenizer, also={method.needs!r})."
    )


def layers_from(layers: tuple[int, ...], start: int) -> tuple[int, ...]:
    """The layers at or above the start layer."""
    if not isinstance(start, int) or not 1 <= start <= layers[-1]:
        raise MethodError(
            f"start_layer={start!r}: the layers with attention are "
            f"{', '.join(map(str, layers))}; start at one of them or below the first."
        )
    return tuple(number for number in layers if number >= start)


def wanted_layers(available: tuple[int, ...], asked: Sequence[int] | int | None) -> tuple[int, ...]:
    """The layers asked for, by their numbers; -1 is the highest."""
    if asked is None:
        return available
    numbers = [asked] if isinstance(asked, int) else list(asked)
    wanted = tuple(available[-1] if number == -1 else number for number in numbers)
    if not wanted or any(number not in available for number in wanted):
        raise InputError(
            f"layers={asked!r}: choose from {', '.join(map(str, available))} "
            "(layers are numbered from 1; -1 is the highest)."
        )
    return wanted


def rolled_out(
    method: Method,
    trace: AttentionTrace,
    matrices: NDArray[np.float64],
    *,
    start: int,
    targets: Sequence[Target] | Target | None,
    layers: Sequence[int] | int | None,
    tops: NDArray[np.float64] | None = None,
) -> Attribution:
    """Products of the layers' matrices from the start layer up; `tops` replace the uppermost."""
    rows = trace.tokens.indices_of(targets)
    available = layers_from(trace.layers, start)
    wanted = wanted_layers(available, layers)
    below = np.eye(trace.length)
    found: dict[int, NDArray[np.float64]] = {}
    for number in available:
        index = trace.layers.index(number)
        if number in wanted:
            found[number] = (matrices if tops is None else tops)[index][rows] @ below
        below = matrices[index] @ below
    return attribution_of(method, trace, np.stack([found[n] for n in wanted]), wanted, rows)


def attribution_of(
    method: Method,
    trace: AttentionTrace,
    values: NDArray[np.float64],
    layers: tuple[int, ...],
    rows: Sequence[int],
    *,
    notes: Mapping[str, Any] | None = None,
    columns: Sequence[int] | None = None,
    **bounds: Any,
) -> Attribution:
    """A result with everything it inherits from the trace; `notes` go into its provenance."""
    return Attribution(
        values=values,
        layers=layers,
        targets=trace.tokens.select(rows),
        sources=trace.tokens if columns is None else trace.tokens.select(columns),
        method=method,
        prediction=trace.prediction,
        provenance={**trace.provenance, "kind": trace.kind, **(notes or {})},
        **bounds,
    )
