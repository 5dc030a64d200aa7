"""What both protocols of the SST-2 experiment share: the paper's Table 3, and ours beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from torch import nn

from attnflow.evaluation.table import Table
from attnflow.evaluation.texts import LabelledText
from attnflow.experiments.layers import Agreement, layer_names, over_layers
from attnflow.progress import ProgressCallback

__all__ = ["PAPER", "Outcome", "Run", "accuracy_of", "table_3"]

PAPER: Final[Mapping[str, Mapping[int, float]]] = {
    "raw": {1: 0.12, 3: 0.09, 5: 0.08, 6: 0.09},
    "rollout": {1: 0.11, 3: 0.12, 5: 0.13, 6: 0.13},
    "flow": {1: 0.11, 3: 0.11, 5: 0.12, 6: 0.14},
}
"""Table 3 of Abnar and Zuidema (2020): means over 100 texts, the four layers they print."""
_PAPER_LAYERS: Final = 6


@dataclass(frozen=True, eq=False)
class Run:
    """A model, the texts it is run on, and the number of the label whose logit is explained."""

    model: nn.Module
    tokenizer: Any
    examples: Sequence[LabelledText]
    label: int
    progress: ProgressCallback | None


@dataclass(frozen=True)
class Outcome:
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


def accuracy_of(observations: Sequence[Judged]) -> str:
    """The end of a sentence: how often the model is right, where that is known."""
    known = [o.right for o in observations if o.right is not None]
    if not known:
        return " (without labels)"
    return f"; the model's answer is right in {np.mean(known):.1%}"


def table_3(title: str, agreement: Agreement, layers: Sequence[int]) -> Table:
    """Ours beside the paper's, if the model has as many layers as theirs."""
    comparable = len(layers) == _PAPER_LAYERS
    rows = {
        method: tuple(
            replace(cell, paper=PAPER[method].get(number) if comparable else None)
            for cell, number in zip(over_layers(values), layers, strict=True)
        )
        for method, values in agreement.items()
    }
    note = "The paper's model is a DistilBERT; it prints layers 1, 3, 5 and 6, each ± about .2."
    if not comparable:
        note = f"The paper's model has 6 layers and this one {len(layers)}: not set side by side."
    return Table("table-3", title, layer_names(layers), rows, note, in_figure=True)
