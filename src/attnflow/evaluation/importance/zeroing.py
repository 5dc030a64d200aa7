"""Value zeroing: what happens to the answer when a token is seen by all and says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnflow.evaluation.importance.base import Answer, Measure, effects
from attnflow.evaluation.importance.passes import Passes, Progress, Text, score_of
from attnflow.hosts.intervention import Intervention

__all__ = ["ValueZeroing"]


@dataclass(frozen=True, kw_only=True)
class ValueZeroing(Measure):
    """Value zeroing: the change of the score when a token's values are zero in every layer.

    The tokens and the attention of the first layer stay as they are, so nothing unseen in training
    is put in their place. A token keeps its own residual stream; nobody else draws on it.

    signed: keep the sign (positive: the token speaks for the answer) instead of the size.
    """

    name: ClassVar[str] = "value-zeroing"
    signed: bool = False

    def _measure(
        self,
        passes: Passes,
        texts: Sequence[Text],
        answers: Sequence[Answer],
        progress: Progress | None,
    ) -> list[NDArray[np.float64]]:
        places = [(k, i) for k, text in enumerate(texts) for i in range(len(text.tokens))]

        def forward(inputs: Mapping[str, Tensor], chosen: Sequence[int]) -> Any:
            silent = Intervention(zero_values=[[places[r][1]] for r in chosen])
            return passes.adapter.run_with(passes.model, inputs, silent)

        scores = passes.read(
            [texts[k].row for k, _ in places],
            lambda r, found: float(score_of(found, answers[places[r][0]].choice, self.score)),
            progress=progress,
            forward=forward,
        )
        return effects(answers, texts, places, scores, signed=self.signed)
