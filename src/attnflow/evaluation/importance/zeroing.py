"""Value zeroing: what happens to the answer when a token is seen by all and says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnflow.evaluation.importance.base import Measure, Task
from attnflow.hosts.intervention import Intervention

__all__ = ["ValueZeroing"]


@dataclass(frozen=True, kw_only=True)
class ValueZeroing(Measure):
    """Value zeroing: the change of the score when a token's values are zero in every layer.

    The tokens and the attention of the first layer stay as they are, so nothing unseen in training
    is put in their place. A token keeps its own residual stream; nobody else draws on it.

    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> from attnflow.models.verb_number import load_verb_number
    >>> model, vocabulary = load_verb_number()
    >>> texts = ["the key to the cabinets"]
    >>> importance = ValueZeroing()(model, texts, tokenizer=vocabulary)[0]
    >>> importance.top(1)[0].token
    'to'
    """

    name: ClassVar[str] = "value-zeroing"
    signed: bool = False

    def _measure(self, task: Task) -> list[NDArray[np.float64]]:
        places = [(k, i) for k, text in enumerate(task.texts) for i in range(len(text.tokens))]
        passes = task.passes

        def forward(inputs: Mapping[str, Tensor], numbers: Sequence[int]) -> Any:
            silent = Intervention(zero_values=[[places[r][1]] for r in numbers])
            return passes.adapter.run_with(passes.model, inputs, silent)

        rows = [task.texts[k].row for k, _ in places]
        scores = task.scores(rows, [k for k, _ in places], forward=forward)
        return task.effects(places, scores, signed=self.signed)
