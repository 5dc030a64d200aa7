"""Documents ranked by what they carry together.

Of two paragraphs that only together give an answer, neither says anything alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.explainers.ablation import ablate
from attnflow_experiments.documents.reading import DEFAULT, AnswerReading

TOGETHER = "together"
_CANDIDATES = 6  # documents that are tried beside those that were chosen


def rank_documents(reading: AnswerReading, name: str) -> list[int]:
    """Return the documents of an answer, strongest first: by a method, or "together".

    "together": of those that balanced gradients find strongest, the one that holds most alone,
    then the one that holds most beside it, and so on.
    """
    return _Measure(reading).together() if name == TOGETHER else reading.ranking(name)


class _Measure:
    """How likely the answer is with some of its documents, the others hidden."""

    def __init__(self, reading: AnswerReading) -> None:
        self.reading = reading
        self.places = [frozenset(range(*span)) for span in reading.prompt.spans if span is not None]
        self.every = frozenset[int]().union(*self.places)
        self.ablation = ablate(reading.model, reading.prompt.ids, reading.ids, by=None)

    def log_probs(self, hidden: Sequence[frozenset[int]]) -> list[float]:
        rows = self.ablation.token_log_probs([sorted(each) for each in hidden])
        return np.asarray(rows)[:, self.reading.target].sum(axis=1).tolist()

    def together(self) -> list[int]:
        ranking = self.reading.ranking(DEFAULT)
        ranking += [k for k in range(len(self.places)) if k not in ranking]
        order: list[int] = []
        visible = frozenset[int]()
        while len(order) < len(self.reading.case.right):
            candidates = [k for k in ranking if k not in order][:_CANDIDATES]
            hidden = [self.every - visible - self.places[k] for k in candidates]
            best = candidates[int(np.argmax(self.log_probs(hidden)))]
            order.append(best)
            visible |= self.places[best]
        return order + [k for k in ranking if k not in order]
