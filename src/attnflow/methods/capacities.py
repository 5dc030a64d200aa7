"""What the edges of a flow network are made of: one argument of every flow method.

All capacities come as `(layers, n, n)`: what each layer takes from the one below. Rows of attention
and of measurements sum to 1. Those of gradient-weighted attention do not; with the default residual
they are `½ (Ā + I)`, the matrices that gradient rollout multiplies, halved.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MethodError
from attnflow.graph import LayeredGraph
from attnflow.methods.base import (
    Method,
    MixingMethod,
    Requirements,
    check_score,
    checked_start,
    layers_from,
    required,
)
from attnflow.methods.matrices import (
    ATTENTION,
    MEASUREMENTS,
    MatrixKind,
    check_kind,
    measured_requirements,
    measured_rows,
)
from attnflow.methods.mixing import Heads, mix_heads
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENTS, LOG_PROB, ScoreName

__all__ = ["CapacityKind", "CapacityMethod", "gradient_weighted"]

Matrix = NDArray[np.float64]
CapacityKind = MatrixKind | Literal["gradients"]
CAPACITIES: Final = (ATTENTION, "gradients", *MEASUREMENTS)


@dataclass(frozen=True, kw_only=True)
class CapacityMethod(MixingMethod):
    """A method on the flow network of a trace.

    capacities: what the edges are as wide as: "attention", heads mixed, with the residual;
        "measured-residual", attention with the residual share measured at each position;
        "gradients", attention times the gradient of the score, what is negative dropped, with the
        residual; "norms", "alti", "value-zeroing" or another of `methods.matrices`, what was
        measured inside the blocks, where the residual is part of the measurement. `drop` holds for
        all of them.
    start_layer: the first layer that counts; the graph ends below it.
    score: what gradients are taken of: the answer's "log-prob", or its "logit".

    >>> from attnflow import Flow
    >>> issubclass(Flow, CapacityMethod), Flow(capacities="alti").requires.record
    (True, ('alti',))
    """

    capacities: CapacityKind = "attention"
    start_layer: int = 1
    score: ScoreName = LOG_PROB

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("capacities", self.capacities, CAPACITIES)
        check_score(self.score)
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    def graph(self, trace: AttentionTrace) -> LayeredGraph:
        """The flow network of this trace, from the start layer up."""
        first = trace.layers.index(layers_from(trace.layers, self.start_layer)[0])
        return LayeredGraph.from_capacities(self.layer_matrices(trace)[first:])

    def layer_matrices(self, trace: AttentionTrace) -> Matrix:
        """Return what each layer takes from the one below, `(layers, n, n)`."""
        if self.capacities not in MEASUREMENTS:
            return super().layer_matrices(trace)
        every = np.arange(trace.length)
        indices = range(len(trace.layers))
        return np.stack(
            [measured_rows(self, self.capacities, trace, index, every) for index in indices]
        )

    def mixed(self, trace: AttentionTrace) -> Matrix:
        """The heads as one, weighed by gradients where those are asked for."""
        if self.capacities == "gradients":
            return gradient_weighted(self, trace, self.heads)
        return super().mixed(trace)

    @property
    def requires(self) -> Requirements:
        """What the capacities are made of; a gradient belongs to one head."""
        if self.capacities == "gradients":
            return Requirements(heads=None, record=(GRADIENTS,), score=self.score)
        if self.capacities in MEASUREMENTS:
            return measured_requirements(self.capacities, self.heads)
        return Requirements(heads=self.heads)

    def unit(self, capacities: Matrix) -> float:
        """What the solver counts as 1.

        Attention's rows sum to at most 1 as they are. Of gradients it is the power of two at or
        below the largest sum of a row: dividing every capacity by u divides every flow and every
        cut by u, and a power of two makes both steps exact in floating point (short of underflow,
        some 300 digits down). What the unit fixes is what the tolerance is a share of.
        """
        if self.capacities != "gradients":
            return 1.0
        return ldexp(1.0, frexp(float(capacities.sum(axis=2).max()))[1] - 1)


def gradient_weighted(method: Method, trace: AttentionTrace, heads: Heads) -> Matrix:
    """`(layers, n, n)`: Ā = mean over heads of relu(A ⊙ ∇A), of every layer."""
    gradients = required(method, trace, GRADIENTS)
    if trace.mixed_heads not in (None, str(heads)):
        raise MethodError(
            f"This trace holds gradients of heads mixed by {trace.mixed_heads!r}, as that of two "
            f"towers with different heads does; heads={heads!r} cannot be computed from it."
        )
    return np.stack(
        [
            mix_heads(np.maximum(weights * gradient, 0)[None], heads)[0]
            for weights, gradient in zip(trace.weights, gradients, strict=True)
        ]
    )
