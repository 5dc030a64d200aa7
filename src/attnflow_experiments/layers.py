"""Tables over layers: raw attention, rollout and flow beside each other on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.metrics import PairedDifference, compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.methods import Flow, Method, Raw, Rollout

T = TypeVar("T")

Floats = NDArray[np.float64]
Agreement = Mapping[str, Floats]
"""Method → example × layer."""

METHODS: Final[Mapping[str, Method]] = {"raw": Raw(), "rollout": Rollout(), "flow": Flow()}
CLEAR: Final = 0.05  # a difference with a smaller p is called one
_PAIRS: Final = (("rollout", "raw"), ("flow", "raw"), ("flow", "rollout"))


def agreement_of(examples: Sequence[T], of: Callable[[T, str], Sequence[float]]) -> Agreement:
    """Return what `of(example, method)` says at every layer, for each method."""
    return {method: np.array([of(one, method) for one in examples]) for method in METHODS}


def by_method(examples: Sequence[T], of: Callable[[T, str], float]) -> tuple[Cell, ...]:
    """The mean of `of(example, method)` over examples, a cell for each method."""
    return tuple(mean_of([of(one, method) for one in examples]) for method in METHODS)


def mean_of(values: Sequence[float] | Floats) -> Cell:
    """A mean with its deviation and interval."""
    return Cell.of_mean(summarize(values))


def layer_names(layers: Sequence[int]) -> tuple[str, ...]:
    """The layers as columns of a table: L1, L2, and so on."""
    return tuple(f"L{number}" for number in layers)


def over_layers(
    values: Floats, paper: Sequence[tuple[float, float]] | None = None
) -> tuple[Cell, ...]:
    """One cell for each layer of example × layer, beside the paper's mean and deviation."""
    return tuple(
        Cell.of_mean(summarize(column), paper[layer] if paper else None)
        for layer, column in enumerate(values.T)
    )


def difference_table(
    agreements: Mapping[str, Agreement], layers: Sequence[int], kind: str
) -> Table:
    """Which method is higher, paired by example; the keys of `agreements` begin the rows' names."""
    rows = {
        f"{prefix}{one} − {other}": tuple(
            Cell.of_difference(pairs) for pairs in _compare(agreement[one], agreement[other])
        )
        for prefix, agreement in agreements.items()
        for one, other in _PAIRS
    }
    note = f"Paired by {kind}; p by random sign flips of the differences."
    title = f"Which is higher, on the same {kind}s"
    return Table("differences", title, layer_names(layers), rows, note)


def lead_over_raw(agreement: Agreement, method: str) -> list[PairedDifference]:
    """How far a method is above raw attention, at each layer."""
    return _compare(agreement[method], agreement["raw"])


def _compare(one: Floats, other: Floats) -> list[PairedDifference]:
    return [compare_paired(a, b) for a, b in zip(one.T, other.T, strict=True)]
