"""Raw attention, the baseline, and attention rollout: products of the layers' matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, spread
from attnflow.errors import MethodError, shorten
from attnflow.errors.arguments import check_count, check_named
from attnflow.methods.base import (
    Compared,
    Execution,
    Requirements,
    Selection,
    Variant,
    attribution_of,
    checked_start,
)
from attnflow.methods.matrices import ATTENTION, MEASUREMENTS, MatrixKind, MixingMethod
from attnflow.methods.mixing import Mixing, Residual
from attnflow.methods.products import carried, language_layers, roll_out, roll_out_factors, steps_of
from attnflow.trace import AttentionTrace, FactoredTrace

UNIFORM_BASELINE = "uniform-baseline"


@dataclass(frozen=True, kw_only=True)
class Raw(MixingMethod):
    """Raw attention: the weights of each layer as they are, the paper's baseline.

    >>> from attnflow.testing import random_trace
    >>> Raw()(random_trace(layers=3, length=5)).values.shape
    (3, 5, 5)
    """

    name: ClassVar[str] = "raw"
    residual: Residual = None

    @property
    def requires(self) -> Requirements:
        """Rows are read one by one."""
        return Requirements(heads=self.heads, needs_matrix=False)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        indices = [trace.layers.index(number) for number in selection.layers]
        language = language_layers(trace)

        def rows_of_layers(rows: Sequence[int]) -> NDArray[np.float64]:
            layers = [(index, self.matrix_rows(trace, index, rows)) for index in indices]
            return np.stack(
                [carried(w, trace, "connector") if k in language else w for k, w in layers]
            )

        others = spread(trace.length)
        compared = Compared(others, rows_of_layers(others))
        values = rows_of_layers(selection.rows)
        return attribution_of(self, trace, values, selection, compared=compared)


@dataclass(frozen=True, kw_only=True)
class Rollout(MixingMethod):
    """Attention rollout: the product of all layers' matrices from the input up.

    matrices: what the matrix of a layer is: "attention", heads mixed, with the residual, or one
        that was measured inside the block at capture (see `methods.matrices`): "norms", "alti",
        "value-zeroing", "measured-residual" and their kin. What is measured holds the residual, so
        of the mixture only `drop` applies to it, and `heads` to a measured residual.
    start_layer: the first layer that counts; those below are taken as identity.
    top_head: use only this head at the layer being explained, on top of the rollout of all heads
        below it (single-head rollout, the paper's appendix).
    receptive_field: "column" or "element" (see above), or "uniform-baseline": the rollout divided
        by the rollout of uniform causal attention, so 1 is what position alone would give.

    >>> from attnflow.testing import random_trace
    >>> result = Rollout(residual=0.5)(random_trace(layers=3, length=5), targets=[4], layers=-1)
    >>> result.values.shape, round(result.values.sum(), 6)
    ((1, 1, 5), np.float64(1.0))
    """

    name: ClassVar[str] = "rollout"
    variants: ClassVar[Mapping[str, Variant]] = {
        "measured-residual": Variant(
            "Rollout of attention with a residual share that is measured, not one half.",
            {"matrices": "measured-residual"},
        ),
        "norm-rollout": Variant(
            "Rollout of norms: how long the vector is that each source adds to each target.",
            {"matrices": "norms"},
        ),
        "alti": Variant(
            "ALTI: rollout of how much nearer each source brings the attention block's output.",
            {"matrices": "alti"},
        ),
        "value-zeroing": Variant(
            "Value zeroing: rollout of how far outputs turn when a source's value is zeroed.",
            {"matrices": "value-zeroing"},
        ),
    }
    start_layer: int = 1
    top_head: int | None = None
    matrices: MatrixKind = ATTENTION

    def __post_init__(self) -> None:
        super().__post_init__()
        check_named("matrices", self.matrices, (ATTENTION, *MEASUREMENTS))
        if self.matrices != ATTENTION:
            for field in fields(self):
                value = getattr(self, field.name)
                if field.name not in self.options and value != field.default:
                    raise MethodError(
                        f"{field.name}={shorten(value)} is for matrices='attention'; with "
                        f"matrices={self.matrices!r} the options are {', '.join(self.options)}."
                    )
            variants = Rollout.variants.items()
            starts = {name: str(variant.options["matrices"]) for name, variant in variants}
            own_name = next(n for n, start in starts.items() if self.matrices.startswith(start))
            object.__setattr__(self, "name", own_name)
        if self.top_head is not None:
            head = check_count("top_head", self.top_head, 0, error=MethodError)
            object.__setattr__(self, "top_head", head)
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    @property
    def options(self) -> dict[str, Any]:
        """The choices that the result depends on; of measured matrices they are few."""
        if self.matrices == ATTENTION:
            return super().options
        names = ["heads"] if self.matrices.startswith("measured-residual") else []
        return {name: getattr(self, name) for name in (*names, "drop", "start_layer", "matrices")}

    def __repr__(self) -> str:
        return f"Rollout({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    @property
    def measured_kind(self) -> str | None:
        """The kind of its matrices where they are measured."""
        return None if self.matrices == ATTENTION else self.matrices

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        top = None if self.top_head is None else self._top_mixing(self.top_head)
        if isinstance(trace, FactoredTrace):
            top_steps = None if top is None else steps_of(top, trace)
            rolled = roll_out_factors(trace, selection, steps_of(self, trace), top_steps)
        else:
            tops = None if top is None else partial(top.matrix_rows, trace)
            rolled = roll_out(trace, self, selection, tops)
        values, (others, comparison) = rolled
        if self.receptive_field == UNIFORM_BASELINE:
            values = values / self._uniform(trace, selection, selection.rows)
            comparison = comparison / self._uniform(trace, selection, others)
        return attribution_of(self, trace, values, selection, compared=Compared(others, comparison))

    @property
    def receptive_fields(self) -> tuple[str, ...]:
        """A rollout can also be held against the rollout of uniform attention."""
        return (*super().receptive_fields, UNIFORM_BASELINE)

    def _uniform(
        self, trace: AttentionTrace, selection: Selection, rows: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the same rows, had attention been uniform; 1 where a row cannot see."""
        indices = [trace.layers.index(number) for number in selection.available]
        shares = self.residual_shares(len(trace.layers))[indices]
        every_layer = uniform_rollout(shares, trace.length, rows)
        uniform = every_layer[[level - 1 for level in selection.levels]]
        return np.where(uniform > 0, uniform, 1.0)

    @property
    def requires(self) -> Requirements:
        """Single-head rollout takes one head beside the mixture, so all are kept."""
        if self.matrices != ATTENTION:
            return super().requires
        return Requirements(heads=self.heads if self.top_head is None else None, needs_matrix=False)

    def _top_mixing(self, head: int) -> Mixing:
        """Return the mixture of the layer that is explained: one head, otherwise the same."""
        shared = {name: getattr(self, name) for name in ("residual", "discard", "drop")}
        field = self.receptive_field if self.receptive_field != UNIFORM_BASELINE else None
        return Mixing(heads=head, receptive_field=field, **shared)


def uniform_rollout(
    shares: NDArray[np.float64], length: int, rows: Sequence[int]
) -> NDArray[np.float64]:
    """Return rows of the rollout of uniform causal attention, a running mean at every layer."""
    below = np.eye(length)
    visible = np.arange(1, length + 1)[:, None]
    uniform = np.empty((len(shares), len(rows), length))
    for layer, share in enumerate(shares.tolist()):
        below = share * below + (1 - share) * np.cumsum(below, axis=0) / visible
        uniform[layer] = below[list(rows)]
    return uniform
