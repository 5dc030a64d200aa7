"""What speaks for one answer, by a backward pass that hands on fair shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError, shorten
from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    attribution_of,
    check_score,
    checked_flag,
    required,
)
from attnflow.methods.gradients import sink_of, without_sink
from attnflow.methods.products import check_gradients
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import (
    ANSWER_ROWS,
    BALANCED,
    BALANCED_INPUTS,
    BALANCED_SCORES,
    LOG_PROB,
    ScoreName,
)

Values = NDArray[np.float64]
READINGS = ("rows", "keys", "inputs")


@dataclass(frozen=True, kw_only=True)
class BalancedGradient(Method):
    """Balanced gradients: what speaks for an answer, and what against it, in one backward pass.

    Every operation of the model hands on what it got in fair shares (see docs/how/balanced.md), and
    the pass is read in up to three ways, each scaled to shares. What is read in attention and what
    is read at the inputs count the same:

    - "rows": gradients of the scores (before the softmax) of the positions that predict, as far as
      they are positive;
    - "keys": weights × gradients of all positions where positive, summed into what they attend to;
    - "inputs": embedded token × gradient, which is negative where a token speaks against the
      answer; and what stands in its place after the first tenth of the blocks, the mean of all.

    The gradient is that of one answer. Its own row has all readings; where it is read from several
    positions, their rows share them, and other rows have only "rows": what they contribute to this
    answer. The value at a layer has the weights up to it; the highest layer holds the whole.

    readings: which of them, joined by "+".
    score: what gradients are taken of: the answer's "log-prob", "log-odds" or "logit".
    drop_sink: leave out the position on which a causal model parks attention it does not need.

    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(record=["balanced"])
    >>> BalancedGradient()(trace, targets=-1, layers=-1).values.shape
    (1, 1, 5)
    """

    name: ClassVar[str] = "balanced"
    readings: str = "rows+inputs"
    score: ScoreName = LOG_PROB
    drop_sink: bool = True

    def __post_init__(self) -> None:
        check_score(self.score)
        names = self.readings.split("+") if isinstance(self.readings, str) else []
        if not names or not set(names) <= set(READINGS) or len(set(names)) < len(names):
            raise MethodError(
                f"readings={shorten(self.readings)}: join some of {', '.join(READINGS)} by '+'."
            )
        object.__setattr__(self, "drop_sink", checked_flag("drop_sink", self.drop_sink))

    @property
    def requires(self) -> Requirements:
        """A backward pass of its own under the rules; a gradient belongs to one head."""
        return Requirements(heads=None, record=(BALANCED,), score=self.score, needs_matrix=False)

    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        rows, names = list(selection.rows), self.readings.split("+")
        answer = _answer_rows(trace, rows)
        sink = sink_of(trace, answer) if self.drop_sink else None
        keep = np.array([k for k in range(trace.length) if k != sink])
        total = np.zeros((len(selection.layers), len(rows), trace.length))
        own = [k for k, row in enumerate(rows) if row in answer]
        for name in names:
            values = self._read(trace, selection.available, answer, name, keep)
            size = np.abs(values[-1].sum(axis=0)[keep]).sum() / _weight_of(name, names)
            if size == 0:
                continue
            if name == "rows":
                values = self._read(trace, selection.available, rows, name, keep)
                total += values[[level - 1 for level in selection.levels]] / size
            elif own:
                shared = values[[level - 1 for level in selection.levels]][:, :1] / size
                total[:, own] += shared
        values, elsewhere = without_sink(total, np.zeros(total.shape[:2]), sink)
        result = attribution_of(self, trace, values, selection, notes={"sink": sink})
        # rows of one answer are alike because they share it, not because attention collapsed
        result = replace(result, dependence=None)
        return replace(result, elsewhere=elsewhere) if sink is not None else result

    def _read(
        self,
        trace: AttentionTrace,
        layers: Sequence[int],
        rows: list[int],
        name: str,
        keep: NDArray[np.intp],
    ) -> Values:
        """Return `(layers, rows, n)`: one reading, summed up to each layer."""
        indices = [trace.layers.index(number) for number in layers]
        shape = (len(indices), len(rows), trace.length)
        if name == "inputs":
            streams = required(self, trace, BALANCED_INPUTS).astype(np.float64)
            sizes = np.abs(streams[:, keep]).sum(axis=1, keepdims=True)
            relevance = (streams / np.where(sizes == 0, 1.0, sizes)).sum(axis=0)
            return np.broadcast_to(relevance / len(rows), shape)
        if name == "rows":
            parts = [_rows_of(self, trace, index, rows) for index in indices]
        else:
            sums = [_column_sums(self, trace, index) / len(rows) for index in indices]
            parts = [np.broadcast_to(each, shape[1:]) for each in sums]
        return np.cumsum(parts, axis=0)


def _weight_of(name: str, names: Sequence[str]) -> float:
    """Return what a reading counts: half of all, or of the half that it shares with another."""
    at_weights = [each for each in names if each != "inputs"]
    sides = (1 if at_weights else 0) + ("inputs" in names)
    return 1 / sides if name == "inputs" else 1 / sides / len(at_weights)


def _answer_rows(trace: AttentionTrace, rows: list[int]) -> list[int]:
    """Return the rows that the answer is read from: those of a phrase, of all positions, of one."""
    if ANSWER_ROWS in trace.provenance:
        return [int(row) for row in trace.provenance[ANSWER_ROWS]]
    if trace.prediction is None:
        return rows
    return list(range(trace.length)) if trace.prediction.pooled else [trace.prediction.position]


def _rows_of(method: Method, trace: AttentionTrace, index: int, rows: list[int]) -> Values:
    if isinstance(trace, FactoredTrace):
        check_gradients(method, trace, BALANCED)
        return trace.factors[index].score_rows(rows).astype(np.float64)
    return required(method, trace, BALANCED_SCORES)[index, rows].astype(np.float64)


def _column_sums(method: Method, trace: AttentionTrace, index: int) -> Values:
    if not isinstance(trace, FactoredTrace):
        return required(method, trace, BALANCED)[index].sum(axis=0, dtype=np.float64)
    check_gradients(method, trace, BALANCED)
    return trace.factors[index].gradient_sums().astype(np.float64)
