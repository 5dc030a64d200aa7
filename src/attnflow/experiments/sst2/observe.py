"""Everything the SST-2 experiment looks at, for each text, measured once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow.errors import ModelError, TokensError
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.importance.blanking import BlankToken
from attnflow.experiments.sst2.data import LabelledText
from attnflow.experiments.sst2.double_embedded import (
    GradientSums,
    attention_fed_twice,
    gradient_sums,
    in_double_precision,
)
from attnflow.experiments.verb_number.observe import Stages
from attnflow.hosts.capture import capture_batch
from attnflow.hosts.registry import adapter_for
from attnflow.methods import Flow, Method, Raw, Rollout
from attnflow.trace import AttentionTrace

__all__ = [
    "METHODS",
    "Classified",
    "DoubleEmbedded",
    "blank_for",
    "labels_of",
    "observe",
    "observe_fed_twice",
]

Floats = NDArray[np.float64]

METHODS: Mapping[str, Method] = {"raw": Raw(), "rollout": Rollout(), "flow": Flow()}
# The authors divide each row of flows by its sum, which moves the maximum of a column.
_PAPER_METHODS = {**METHODS, "flow": Flow(normalized=True)}
_BATCH = 32
_CERTIFIED = 2e-6  # a flow's bounds are within 1e-6


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


def labels_of(model: nn.Module) -> tuple[str, ...]:
    """The names of a sequence classifier's labels, in their order; any other model is refused."""
    config: Any = getattr(model, "config", None)
    names = getattr(config, "id2label", None) or {}
    if not type(model).__name__.endswith("ForSequenceClassification") or len(names) < 2:
        raise ModelError(
            f"{type(model).__name__} with {len(names)} labels is no sequence classifier of two or "
            "more classes, which this experiment is about. training/sst2.py makes one."
        )
    return tuple(str(names[k]) for k in sorted(names))


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


def observe(
    model: nn.Module,
    tokenizer: Any,
    examples: Sequence[LabelledText],
    label: int,
    stages: Stages,
) -> tuple[list[Classified], tuple[str, ...]]:
    """Importance for one label and attribution at every layer, of every text; and a sentence for
    each measure that this model does not allow.
    """
    texts = [example.text for example in examples]
    measured: dict[str, list[Importance]] = {}
    left_out = []
    for name, measure in _measures(blank_for(model, tokenizer)).items():
        try:
            measured[name] = measure(
                model,
                texts,
                tokenizer=tokenizer,
                answer=label,
                batch_size=_BATCH,
                progress=_told(stages, name),
            )
        except ModelError as error:
            left_out.append(f"{name} is left out: {error}")
    traces = _traces(model, tokenizer, texts, stages)
    found = []
    for k, example in enumerate(examples):
        importance = {name: results[k] for name, results in measured.items()}
        found.append(_classified(example, traces[k], importance, labels_of(model)))
        stages("attribution", k + 1, len(examples))
    return found, tuple(left_out)


def _told(stages: Stages, name: str) -> Callable[[int, int], None]:
    return lambda done, total: stages(name, done, total)


def _traces(
    model: nn.Module, tokenizer: Any, texts: Sequence[str], stages: Stages
) -> dict[int, AttentionTrace]:
    """Texts of about equal length together."""
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    found: dict[int, AttentionTrace] = {}
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        batch = [texts[k] for k in chosen]
        traces = capture_batch(model, batch, tokenizer=tokenizer, heads="mean")
        found.update(zip(chosen, traces, strict=True))
        stages("attention", len(found), len(texts))
    return found


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
        importance={name: found.values for name, found in importance.items()},
        words=tuple(groups),
        layers=trace.layers,
        right=_right(example, trace, names),
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


def observe_fed_twice(
    model: nn.Module,
    tokenizer: Any,
    examples: Sequence[LabelledText],
    label: int,
    stages: Stages,
) -> list[DoubleEmbedded]:
    """The paper's pass over every text, and its gradients once more with twice the digits."""
    exact = in_double_precision(model)
    names = labels_of(model)
    found = []
    for k, example in enumerate(examples):
        trace = attention_fed_twice(model, tokenizer, example.text)
        columns = {name: m(trace).values.max(axis=1) for name, m in _PAPER_METHODS.items()}
        single = gradient_sums(model, tokenizer, example.text, label)
        double = gradient_sums(exact, tokenizer, example.text, label)
        right = _right(example, trace, names)
        found.append(DoubleEmbedded(columns, single, double, trace.layers, right))
        stages("texts, fed twice", k + 1, len(examples))
    return found


def _right(example: LabelledText, trace: AttentionTrace, names: Sequence[str]) -> bool | None:
    if example.label is None or trace.prediction is None:
        return None
    return trace.prediction.label == names[example.label]
