"""Attention flow: one maximum flow for each target and source, certified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.graph import Cut, CutEdge, LayeredGraph
from attnflow.methods.base import (
    MixingMethod,
    attribution_of,
    checked_trace,
    layers_from,
    wanted_layers,
)
from attnflow.tokens import Target
from attnflow.trace import AttentionTrace

__all__ = ["Flow", "Progress"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Flow(MixingMethod):
    """Attention flow: the maximum flow from the target down to each input, edges as pipes.

    start_layer: the first layer that counts; the graph ends below it.
    normalized: divide each row by its sum, as the authors' code does, instead of the flow itself.
    tolerance: how far apart the bounds of a value may be; larger is faster.
    threads: how many cores to use; None is all of them. Does not change the result.
    """

    name: ClassVar[str] = "flow"
    start_layer: int = 1
    normalized: bool = False
    tolerance: float = 1e-6
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-9 <= self.tolerance <= 1:
            raise MethodError(f"tolerance is a number from 1e-9 to 1; got {self.tolerance!r}.")
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise MethodError(
                f"threads is a number of at least 1, or None for all cores; got {self.threads!r}."
            )

    def graph(self, trace: AttentionTrace) -> LayeredGraph:
        """The flow network of this trace, from the start layer up."""
        used = [trace.layers.index(n) for n in layers_from(trace.layers, self.start_layer)]
        return LayeredGraph.from_capacities(self.matrices(trace)[used])

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
        sources: Sequence[Target] | Target | None = None,
        progress: Progress | None = None,
    ) -> Attribution:
        """One maximum flow for each target and source, each with its certificate.

        Every source is a problem of its own, so `sources` (default: all) saves the work of others.
        `progress(done, total)` is called now and then with the number of pairs decided.
        """
        from attnflow import maxflow

        if self.normalized and sources is not None:
            raise MethodError("normalized divides by the sum of a row and so needs all sources.")
        rows, wanted, levels = self._asked(trace, targets, layers)
        columns = None if sources is None else trace.tokens.indices_of(sources)
        picked = list(range(trace.length)) if columns is None else columns
        capacities = self.graph(trace).capacities
        unit = self.unit(capacities)
        found = maxflow.solve(
            capacities / unit,
            layers=levels,
            targets=rows,
            sources=picked,
            tolerance=self.tolerance,
            threads=self.threads,
            progress=progress,
        )
        result = attribution_of(
            self,
            trace,
            found.lower * unit,
            wanted,
            rows,
            lower=found.lower * unit,
            upper=found.upper * unit,
            saturated=found.saturated & self._held_by_source(capacities, levels, rows, picked),
            notes={"decided": found.decided.to_dict()},
            columns=columns,
        )
        return result.normalize("sum") if self.normalized else result

    def estimate(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> float:
        """About how many seconds the same call would take, from a small sample of its pairs."""
        from attnflow import maxflow

        rows, _, levels = self._asked(trace, targets, layers)
        capacities = self.graph(trace).capacities
        return maxflow.estimate_seconds(
            capacities / self.unit(capacities),
            layers=levels,
            targets=rows,
            sources=range(trace.length),
            threads=self.threads,
        )

    def minimum_cut(
        self, trace: AttentionTrace, *, target: Target, source: Target, layer: int = -1
    ) -> Cut:
        """The edges that hold the flow from this target at this layer to this source back."""
        from attnflow import maxflow

        (row,), (number,), (level,) = self._asked(trace, target, layer)
        column = trace.tokens.index_of(source)
        found = maxflow.minimum_cut(
            self.graph(trace).capacities, layer=level, target=row, source=column
        )
        numbers = layers_from(trace.layers, self.start_layer)
        edges = [
            CutEdge(numbers[m - 1], i, trace.tokens[i], j, trace.tokens[j], float(capacity))
            for (m, i, j), capacity in zip(found.edges.tolist(), found.capacities, strict=True)
        ]
        return Cut(
            layer=number,
            target=trace.tokens[row],
            source=trace.tokens[column],
            value=found.value,
            edges=tuple(sorted(edges, key=lambda edge: -edge.capacity)),
        )

    def unit(self, capacities: NDArray[np.float64]) -> float:
        """What the solver counts as 1: attention's rows sum to at most 1 as they are."""
        return 1.0

    def _held_by_source(
        self,
        capacities: NDArray[np.float64],
        levels: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
    ) -> NDArray[np.bool_]:
        """Where a saturated flow says nothing about the target: with attention, everywhere, since
        all rows have the same mass.
        """
        return np.ones((len(levels), len(rows), len(columns)), np.bool_)

    def _asked(
        self,
        trace: AttentionTrace,
        targets: Sequence[Target] | Target | None,
        layers: Sequence[int] | int | None,
    ) -> tuple[list[int], tuple[int, ...], list[int]]:
        """Rows, the layers' numbers in the model, and their levels in the graph (from 1)."""
        available = layers_from(checked_trace(trace).layers, self.start_layer)
        wanted = wanted_layers(available, layers)
        levels = [available.index(number) + 1 for number in wanted]
        return trace.tokens.indices_of(targets), wanted, levels
