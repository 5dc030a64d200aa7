"""What both protocols of the SST-2 experiment share: the paper's Table 3, and ours beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.metrics import summarize
from attnflow.experiments.report import Cell, Table, summarized

__all__ = [
    "PAPER",
    "Agreed",
    "Floats",
    "Found",
    "accuracy_of",
    "named",
    "over_layers",
    "table_3",
]

Floats = NDArray[np.float64]
Agreed = Mapping[str, Floats]
"""Method → text × layer."""

PAPER: Final[Mapping[str, Mapping[int, float]]] = {
    "raw": {1: 0.12, 3: 0.09, 5: 0.08, 6: 0.09},
    "rollout": {1: 0.11, 3: 0.12, 5: 0.13, 6: 0.13},
    "flow": {1: 0.11, 3: 0.11, 5: 0.12, 6: 0.14},
}
"""Table 3 of Abnar and Zuidema (2020): means over 100 texts, the four layers they print."""
_PAPER_LAYERS: Final = 6


@dataclass(frozen=True)
class Found:
    """What a protocol gives to the report."""

    accuracy: str
    protocol: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[str, ...]


class Judged(Protocol):
    """A text of which it may be known whether the model is right."""

    @property
    def right(self) -> bool | None:
        """None where the label is not known."""


def accuracy_of(seen: Sequence[Judged]) -> str:
    """The end of a sentence: how often the model is right, where that is known."""
    known = [o.right for o in seen if o.right is not None]
    if not known:
        return " (without labels)"
    return f"; the model's answer is right in {np.mean(known):.1%}"


def table_3(title: str, agreed: Agreed, layers: Sequence[int]) -> Table:
    """Ours beside the paper's, if the model has as many layers as theirs."""
    comparable = len(layers) == _PAPER_LAYERS
    rows = {
        method: tuple(
            replace(cell, paper=PAPER[method].get(number) if comparable else None)
            for cell, number in zip(over_layers(values), layers, strict=True)
        )
        for method, values in agreed.items()
    }
    note = "The paper's model is a DistilBERT; it prints layers 1, 3, 5 and 6, each ± about .2."
    if not comparable:
        note = f"The paper's model has 6 layers and this one {len(layers)}: not set side by side."
    return Table("table-3", title, named(layers), rows, note, drawn=True)


def named(layers: Sequence[int]) -> tuple[str, ...]:
    """The layers as columns of a table."""
    return tuple(f"L{number}" for number in layers)


def over_layers(values: Floats) -> tuple[Cell, ...]:
    """One cell for each layer of text × layer."""
    return tuple(summarized(summarize(column)) for column in values.T)
