"""Joint attention flow: one network for all sources, shared out so that a row adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnflow.attribution import Attribution, dependence_of
from attnflow.errors import MethodError, shorten
from attnflow.errors.arguments import checked_seed
from attnflow.methods.base import Execution, Selection, attribution_of
from attnflow.methods.flow import CapacityMethod
from attnflow.methods.mixing import is_number
from attnflow.tokens.units import Level, check_level, split_units
from attnflow.trace import AttentionTrace


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
