"""Attention flow: what the edges of its network are as wide as, and one certified maximum flow for
each target and source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import frexp, ldexp
from typing import TYPE_CHECKING, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, dependence_of
from attnflow.errors import MethodError, shorten
from attnflow.errors.arguments import check_named, checked_arguments, checked_seed, is_number
from attnflow.graph import Cut, CutEdge, LayeredGraph
from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    Variant,
    attribution_of,
    checked_flag,
    checked_start,
    layers_from,
    required,
)
from attnflow.methods.matrices import ATTENTION, MEASUREMENTS, MatrixKind, MixingMethod
from attnflow.methods.mixing import Heads, Matrix, mix_heads
from attnflow.tokens import TokenRef
from attnflow.tokens.units import Level, check_level, split_units
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENTS, LOG_PROB, ScoreName

if TYPE_CHECKING:
    from attnflow.maxflow import FlowResult


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
    score: what gradients are taken of: the answer's "log-prob", "log-odds" or "logit".
    """

    capacities: CapacityKind = "attention"
    start_layer: int = 1
    score: ScoreName = LOG_PROB

    def __post_init__(self) -> None:
        super().__post_init__()
        check_named("capacities", self.capacities, CAPACITIES)
        check_named("score", self.score, get_args(ScoreName))
        object.__setattr__(self, "start_layer", checked_start(self.start_layer))

    def graph(self, trace: AttentionTrace) -> LayeredGraph:
        """The flow network of this trace, from the start layer up."""
        first = trace.layers.index(layers_from(trace.layers, self.start_layer)[0])
        return LayeredGraph.from_capacities(self.layer_matrices(trace)[first:])

    @property
    def measured_kind(self) -> str | None:
        """The kind of its capacities where they are measured."""
        return self.capacities if self.capacities in MEASUREMENTS else None

    def mixed_rows(
        self,
        trace: AttentionTrace,
        index: int,
        places: NDArray[np.intp],
        room: Matrix | None = None,
    ) -> Matrix:
        """Return rows with the heads as one, weighed by gradients where those are asked for."""
        if self.capacities == "gradients":
            return gradient_weighted(self, trace, index, self.heads)[places]
        return super().mixed_rows(trace, index, places, room)

    @property
    def requires(self) -> Requirements:
        """The material of the capacities; a gradient belongs to one head."""
        if self.capacities == "gradients":
            return Requirements(heads=None, record=(GRADIENTS,), score=self.score)
        return super().requires

    def unit(self, capacities: Matrix) -> float:
        """The amount that the solver counts as 1.

        Attention's rows sum to at most 1 as they are. Of gradients it is the power of two at or
        below the largest sum of a row: dividing every capacity by u divides every flow and every
        cut by u, and a power of two makes both steps exact in floating point (short of underflow,
        some 300 digits down). What the unit fixes is what the tolerance is a share of.
        """
        if self.capacities != "gradients":
            return 1.0
        return ldexp(1.0, frexp(float(capacities.sum(axis=2).max()))[1] - 1)


@dataclass(frozen=True, kw_only=True)
class Flow(CapacityMethod):
    """Attention flow: the maximum flow from the target down to each input, edges as pipes.

    normalized: divide each row by its sum, as the authors' code does, instead of the flow itself.
    tolerance: how far apart the bounds of a value may be; larger is faster. With gradients it is a
        share of the largest sum of a row.

    With capacities="gradients" they are those of Azarkhalili & Libbrecht (2025), "Generalized
    Attention Flow", and rows do not sum to 1. Without a residual, as "gradient-flow" has it, a
    layer that the score hardly depends on lets hardly anything through.

    Its pairs are shared out over cores: `Flow()(trace, threads=1)` uses one.

    >>> from attnflow.testing import random_trace
    >>> result = Flow()(random_trace(layers=2, length=5), targets=[4], layers=-1)
    >>> result.values.shape, bool((result.lower <= result.upper).all())
    ((1, 1, 5), True)
    """

    name: ClassVar[str] = "flow"
    variants: ClassVar[Mapping[str, Variant]] = {
        "gradient-flow": Variant(
            "Gradient flow: flow through weights times gradients, without a residual.",
            {"capacities": "gradients", "residual": None},
        )
    }
    normalized: bool = False
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacities == "gradients":
            object.__setattr__(self, "name", "gradient-flow")
        object.__setattr__(self, "normalized", checked_flag("normalized", self.normalized))
        if not is_number(self.tolerance) or not 1e-9 <= self.tolerance <= 1:
            raise MethodError(
                f"tolerance is a number from 1e-9 to 1; got {shorten(self.tolerance)}."
            )
        object.__setattr__(self, "tolerance", float(self.tolerance))

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """Return a certified maximum flow for each target and source, each a problem of its own."""
        from attnflow import maxflow

        if self.normalized and selection.columns is not None:
            raise MethodError("normalized divides by the sum of a row and so needs all sources.")
        rows, levels = list(selection.rows), selection.levels
        columns = list(range(trace.length) if selection.columns is None else selection.columns)
        capacities = self.graph(trace).capacities
        unit = self.unit(capacities)
        solution = maxflow.solve(
            capacities if unit == 1.0 else capacities / unit,
            layers=levels,
            targets=rows,
            sources=columns,
            tolerance=self.tolerance,
            threads=execution.threads,
        )
        values, dependence = solution.lower * unit, None
        if selection.columns is None:
            free = np.minimum(capacities.sum(axis=2).max(), capacities[0].sum(axis=0))
            dependence = _dependence(values, rows, free, trace)
        result = attribution_of(
            self,
            trace,
            values,
            selection,
            lower=values,
            upper=solution.upper * unit,
            saturated=solution.saturated & self._held_by_source(capacities, levels, rows, columns),
            dependence=dependence,
            notes={
                "decided": solution.decided.to_dict(),
                "held": _shares_held(selection.layers, solution),
            },
            only_selected_columns=True,
        )
        return result.normalize("sum") if self.normalized else result

    @checked_arguments
    def estimate(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[TokenRef] | TokenRef | None = None,
        layers: Sequence[int] | int | None = None,
        threads: int | None = None,
    ) -> float:
        """About how many seconds the same call would take, from a small sample of its pairs."""
        from attnflow import maxflow

        selection = self.select(trace, targets, layers)
        capacities = self.graph(trace).capacities
        return maxflow.estimate_seconds(
            capacities / self.unit(capacities),
            layers=selection.levels,
            targets=list(selection.rows),
            sources=range(trace.length),
            threads=Execution(threads).threads,
        )

    @checked_arguments
    def minimum_cut(
        self, trace: AttentionTrace, *, target: TokenRef, source: TokenRef, layer: int = -1
    ) -> Cut:
        """The edges that hold the flow from this target at this layer to this source back."""
        from attnflow import maxflow

        selection = self.select(trace, target, layer, source)
        (row,), (number,), (level,) = selection.rows, selection.layers, selection.levels
        (column,) = selection.columns or ()
        capacities = self.graph(trace).capacities
        cut = maxflow.minimum_cut(capacities, layer=level, target=row, source=column)
        tokens, numbers = trace.tokens, selection.available
        edges = [
            CutEdge(numbers[m - 1], i, tokens[i], j, tokens[j], float(capacity))
            for (m, i, j), capacity in zip(cut.edges.tolist(), cut.capacities, strict=True)
        ]
        return Cut(
            layer=number,
            target=tokens[row],
            source=tokens[column],
            value=cut.value,
            edges=tuple(sorted(edges, key=lambda edge: -edge.capacity)),
            lowest_layer=numbers[0],
            passed_on=float(capacities[0, :, column].sum()),
            taken=float(capacities[level - 1, row].sum()),
        )

    def _held_by_source(
        self,
        capacities: NDArray[np.float64],
        levels: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
    ) -> NDArray[np.bool_]:
        """Mark saturated flows that do not fill the target's own row: they say nothing of it."""
        if self.capacities != "gradients":
            return np.ones((len(levels), len(rows), len(columns)), np.bool_)
        incoming = capacities[0].sum(axis=0)[list(columns)]
        outgoing = capacities.sum(axis=2)[np.array(levels)[:, None] - 1, rows]
        return np.asarray(incoming[None, None, :] <= outgoing[:, :, None])


def _shares_held(layers: Sequence[int], solution: FlowResult) -> dict[str, dict[str, float]]:
    """Return each layer's shares of flows held at the source (first), the target, between."""
    shares: dict[str, dict[str, float]] = {}
    for place, layer in enumerate(layers):
        source, target = solution.at_source[place], solution.at_target[place]
        at_source, at_target = float(source.mean()), float((target & ~source).mean())
        between = max(0.0, 1.0 - at_source - at_target)
        shares[str(layer)] = {"source": at_source, "target": at_target, "between": between}
    return shares


def _dependence(
    values: NDArray[np.float64],
    rows: Sequence[int],
    free: NDArray[np.float64],
    trace: AttentionTrace,
) -> NDArray[np.float64] | None:
    """Return how far rows differ from those of other targets.

    A single row is held against the bound of any target, `free`: what each source could pass on to
    anyone. Under a causal mask only sources up to the target count.
    """
    if len(set(rows)) > 1:
        return dependence_of(values, values, rows, rows)
    reachable = np.arange(len(free)) <= (rows[0] if trace.kind == "causal" else len(free))
    bound = np.broadcast_to(free * reachable, (len(values), 1, len(free)))
    return dependence_of(values, bound, rows, [-1])


def gradient_weighted(method: Method, trace: AttentionTrace, index: int, heads: Heads) -> Matrix:
    """Return Ā = mean over heads of relu(A ⊙ ∇A) of one layer, `(n, n)`."""
    gradients = required(method, trace, GRADIENTS)
    if trace.mixed_heads not in (None, str(heads)):
        raise MethodError(
            f"This trace holds gradients of heads mixed by {trace.mixed_heads!r}, as that of two "
            f"towers with different heads does; heads={heads!r} cannot be computed from it."
        )
    return mix_heads(np.maximum(trace.weights[index] * gradients[index], 0)[None], heads)[0]


@dataclass(frozen=True, kw_only=True)
class ShapleyFlow(CapacityMethod):
    """Joint attention flow: each source's Shapley value of the flow to all sources at once.

    All sources share one network. The worth of a set of sources is the maximum flow from the target
    to all of them together, and a source's value is what it adds to that, on average over all
    orders in which sources can join. So a row adds up to all that the target sends, and nothing is
    credited twice. With few sources the values are exact; with more, orders are drawn until every
    value is within `tolerance`, and `lower` and `upper` are confidence intervals.

    level: what the sources are: "token", "word", "sentence" or "document". Several tokens that are
        one source join together, so its value is not the sum of theirs.
    tolerance: how far a value may be from the exact one, as a share of what its target can send.
    confidence: how sure of that to be.
    seed: the seed of the random orders.

    >>> from attnflow.testing import random_trace
    >>> result = ShapleyFlow()(random_trace(layers=2, length=5), targets=[4], layers=-1)
    >>> result.values.shape, round(float(result.values.sum()), 9)
    ((1, 1, 5), 1.0)
    """

    name: ClassVar[str] = "shapley-flow"
    level: Level = "token"
    tolerance: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_level(self.level)
        for name, least in (("tolerance", 1e-6), ("confidence", 0.5)):
            number = getattr(self, name)
            if not is_number(number) or not least <= number < 1:
                raise MethodError(
                    f"{name} is a number from {least:g} up to, not including, 1; got "
                    f"{shorten(number)}."
                )
            object.__setattr__(self, name, float(number))
        object.__setattr__(self, "seed", checked_seed(self.seed, error=MethodError))

    def players(self, trace: AttentionTrace) -> list[list[int]]:
        """Return the positions of each source."""
        tokens = trace.tokens
        if self.level == "token":
            return [[k] for k in range(trace.length)]
        if self.level == "word":
            return tokens.groups()
        groups = [list(unit.tokens) for unit in split_units(tokens.texts, self.level)]
        if not groups:
            raise MethodError(f"There is no {self.level} in {tokens.listing()}.")
        return groups

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        from attnflow.maxflow.joint import solve_joint

        if selection.columns is not None and self.level != "token":
            raise MethodError(
                f"sources= names tokens, and the sources are {self.level}s; leave it."
            )
        players = self.players(trace)
        others = sorted(set(range(trace.length)).difference(*players))
        capacities = self.graph(trace).capacities
        unit = self.unit(capacities)
        rows = [(level, row) for level in selection.levels for row in selection.rows]
        answers = solve_joint(
            capacities / unit,
            rows=rows,
            players=[*players, others] if others else players,
            tolerance=self.tolerance,
            confidence=self.confidence,
            seed=self.seed,
            threads=execution.threads,
        )
        shape = (len(selection.levels), len(selection.rows), -1)
        values = unit * np.stack([row.values for row in answers]).reshape(shape)
        margins = unit * np.stack([row.margins for row in answers]).reshape(shape)
        lower, upper = np.maximum(values - margins, 0.0), values + margins
        notes = {"orders": max(row.orders for row in answers), "confidence": self.confidence}
        if self.level == "token":
            return attribution_of(
                self, trace, values, selection, lower=lower, upper=upper, notes=notes
            )
        count = len(players)  # one more column is what is none of the sources
        return attribution_of(
            self,
            trace,
            values[..., :count],
            selection,
            lower=lower[..., :count],
            upper=upper[..., :count],
            elsewhere=values[..., count] if others else None,
            dependence=dependence_of(values, values, selection.rows, selection.rows),
            sources=trace.tokens.merged(players),
            notes=notes,
            only_selected_columns=True,
        )
