"""Everything the SST-2 experiment looks at, for each text, measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow.errors import TokensError
from attnflow.errors.progress import tell
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.importance.blanking import BlankToken
from attnflow.evaluation.texts import LabelledText
from attnflow.hosts.registry import adapter_for
from attnflow.methods import Flow, quiet_about_limits
from attnflow.trace import AttentionTrace
from attnflow_experiments.layers import METHODS, Floats
from attnflow_experiments.observe import observe_texts
from attnflow_experiments.sst2.data import is_right, labels_of
from attnflow_experiments.sst2.double_embedded import (
    GradientSums,
    capture_double_embedded,
    gradient_sums,
    in_double_precision,
)

__all__ = [
    "Classified",
    "DoubleEmbedded",
    "Run",
    "blank_for",
    "observe",
    "observe_double_embedded",
]

# The authors divide each row of flows by its sum, which moves the maximum of a column.
_PAPER_METHODS = {**METHODS, "flow": Flow(normalized=True)}
_BATCH = 32
_CERTIFIED = 2e-6  # a flow's bounds are within 1e-6


@dataclass(frozen=True, eq=False)
class Run:
    """A model, the texts it is run on, and the number of the label whose logit is explained."""

    model: nn.Module
    tokenizer: Any
    examples: Sequence[LabelledText]
    label: int


@dataclass(frozen=True, eq=False)
class Classified:
    """One text, position by position.

    `rows[method]` is layer × position: what the position the class is read from (the target) draws
    on each source; `columns[method]` is the most that any position draws on it at the top layer.
    `saturated` and `at_target`, layer × position, say where a flow is held back: at its source,
    or at the target; `taken_in` is what the target draws on others at each layer. `words` are the
    positions of each word's pieces; those that frame the text are in none. `right`: whether the
    model's answer is the label, where that is known.
    """

    rows: Mapping[str, Floats]
    columns: Mapping[str, Floats]
    saturated: NDArray[np.bool_]
    at_target: NDArray[np.bool_]
    taken_in: Floats
    importance: Mapping[str, Floats]
    words: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    right: bool | None


@dataclass(frozen=True, eq=False)
class DoubleEmbedded:
    """One text as the paper's script ran it: columns of attention, and sums of gradients in
    single and in double precision.
    """

    columns: Mapping[str, Floats]
    single: GradientSums
    double: GradientSums
    layers: tuple[int, ...]
    right: bool | None


def blank_for(model: nn.Module, tokenizer: Any) -> BlankToken:
    """What stands for a hidden word: the mask where there is one; else the gap is closed."""
    return "mask" if "mask" in adapter_for(model).token_ids(model, tokenizer).blanks else "delete"


def _measures(by: BlankToken) -> Mapping[str, Measure]:
    return {
        "gradient": InputGradient(reduce="norm", score="logit"),
        "gradient × input": InputGradient(reduce="times-input", score="logit"),
        "gradient sum, first block": InputGradient(reduce="abs-sum", at="stream", score="logit"),
        "blank-out": BlankOut(by=by, score="logit"),
    }


def observe(run: Run) -> tuple[list[Classified], tuple[str, ...]]:
    """Importance for one label and attribution at every layer, of every text; and a sentence for
    each measure that this model does not allow.
    """
    refusals: list[str] = []
    names = labels_of(run.model)
    observations = observe_texts(
        run.model,
        run.tokenizer,
        [example.text for example in run.examples],
        _measures(blank_for(run.model, run.tokenizer)),
        lambda k, trace, importance: _classified(run.examples[k], trace, importance, names),
        answer=run.label,
        batch_size=_BATCH,
        refuse=lambda name, error: refusals.append(f"{name} is left out: {error}"),
    )
    return observations, tuple(refusals)


@quiet_about_limits()
def _classified(
    example: LabelledText,
    trace: AttentionTrace,
    importance: Mapping[str, Importance],
    names: Sequence[str],
) -> Classified:
    place = trace.prediction.position if trace.prediction else 0
    results = {name: method(trace, targets=[place]) for name, method in METHODS.items()}
    tops = {name: method(trace, layers=-1) for name, method in METHODS.items()}
    flow, capacities = results["flow"].values[:, 0], Flow().matrices(trace)
    saturated = results["flow"].saturated
    assert saturated is not None  # a flow always says
    any_one = importance["gradient"]
    assert any_one.tokens.texts == trace.tokens.texts, "importance and attention must align"
    groups = [tuple(group) for group in trace.tokens.groups() if any_one.is_word[group[0]]]
    if not groups:
        raise TokensError(
            f"The text {example.text!r} has no words for this model, only tokens that frame a "
            "text; take it out of the data."
        )
    return Classified(
        rows={name: result.values[:, 0] for name, result in results.items()},
        columns={name: result.values[0].max(axis=0) for name, result in tops.items()},
        saturated=saturated[:, 0],
        at_target=flow >= _most_taken_in(capacities, place) - _CERTIFIED,
        taken_in=1 - capacities[:, place, place],
        importance={name: each.values for name, each in importance.items()},
        words=tuple(groups),
        layers=trace.layers,
        right=is_right(example, _answer(trace), names),
    )


def _most_taken_in(capacities: Floats, target: int) -> Floats:
    """layer × source: the flow that leaves the target's own channel at most.

    Cut the target's nodes of all layers off the rest. In layers 2 and up every edge from there to
    another position crosses the cut, in layer 1 only the one to the source leads anywhere, and the
    cut is an upper bound of the flow. Where it is reached, the flow is a constant plus the target's
    first-layer weight of the source: it ranks sources as raw attention of layer 1 does. (The
    target itself as a source is no such case: its flow stays in the channel.)
    """
    others = 1 - capacities[:, target, target]
    others[0] = 0
    bound = capacities[0, target][None] + np.cumsum(others)[:, None]
    bound[:, target] = np.inf
    return bound


def observe_double_embedded(run: Run) -> list[DoubleEmbedded]:
    """The paper's pass over every text, and its gradients once more with twice the digits."""
    exact = in_double_precision(run.model)
    names = labels_of(run.model)
    observations = []
    for k, example in enumerate(run.examples):
        trace = capture_double_embedded(run.model, run.tokenizer, example.text)
        columns = {name: m(trace).values.max(axis=1) for name, m in _PAPER_METHODS.items()}
        single = gradient_sums(run.model, run.tokenizer, example.text, run.label)
        double = gradient_sums(exact, run.tokenizer, example.text, run.label)
        right = is_right(example, _answer(trace), names)
        observations.append(DoubleEmbedded(columns, single, double, trace.layers, right))
        tell("texts, embedded twice", k + 1, len(run.examples))
    return observations


def _answer(trace: AttentionTrace) -> str | None:
    return trace.prediction.label if trace.prediction else None
