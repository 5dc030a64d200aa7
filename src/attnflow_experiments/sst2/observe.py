"""Everything the SST-2 experiment looks at, for each text, measured once.

The pass behind the paper's Table 3: what the embedding layer gives goes through it once more.

The authors' published script computes the output of the embedding layer, hands it to the model as
the word vectors, and takes the gradient with respect to it. The model then adds its positions and
normalises a second time, so what it reads is not what it was trained on; and because these vectors
are read through a LayerNorm only, the gradient's sum over dimensions, which the table is about, is
zero but for rounding: LayerNorm ignores a constant added to all dimensions, and the sum is the
derivative in just that direction.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import InputError, ModelError, TokensError
from attnflow.errors.progress import tell
from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.subjects.examples import LabelledText
from attnflow.explainers.blanks import BlankToken
from attnflow.hosts.capture import capture
from attnflow.hosts.model import adapter_for
from attnflow.hosts.restore import at_rest, undone
from attnflow.methods import Flow, quiet_about_limits
from attnflow.trace import AttentionTrace
from attnflow_experiments.layers import METHODS, Floats
from attnflow_experiments.observe import observe_texts


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Sums of the gradient at each position: |Σ_d|, its norm, and how many dimensions there are."""

    sums: NDArray[np.float64]
    norms: NDArray[np.float64]
    dimensions: int

    @property
    def largest_share(self) -> float:
        """The largest sum as a share of what it could be, √d times the norm."""
        most = self.norms * self.dimensions**0.5
        return float(np.divide(self.sums, most, out=np.zeros_like(most), where=most > 0).max())


def capture_double_embedded(model: nn.Module, tokenizer: Any, text: str) -> AttentionTrace:
    """The attention of the second pass, heads averaged."""
    return capture(model, _second_inputs(model, tokenizer, text), heads="mean")


def gradient_sums(model: nn.Module, tokenizer: Any, text: str, label: int) -> GradientSums:
    """The gradient of a label's logit with respect to what the second pass is given."""
    inputs = _second_inputs(model, tokenizer, text)
    vectors = inputs["inputs_embeds"].requires_grad_()
    with at_rest(model), torch.enable_grad():
        outputs = adapter_for(model).forward(model, {**inputs, "inputs_embeds": vectors})
        (gradient,) = torch.autograd.grad(outputs.logits[0, label], vectors)
    # In double precision from here on: the rounding to be seen is the model's, not ours.
    exact = gradient[0].double().cpu()
    return GradientSums(
        exact.sum(dim=-1).abs().numpy(), exact.norm(dim=-1).numpy(), exact.shape[-1]
    )


def in_double_precision(model: nn.Module) -> nn.Module:
    """A copy of the model with twice the digits: what is left of a sum there is no rounding."""
    return copy.deepcopy(model).double()


def _second_inputs(model: nn.Module, tokenizer: Any, text: str) -> dict[str, Tensor]:
    adapter = adapter_for(model)
    first = adapter.encode(model, tokenizer, [text]).inputs
    second = {"inputs_embeds": _stream(model, first)}
    if "attention_mask" in first:
        second["attention_mask"] = first["attention_mask"]
    return second


def _stream(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return what the first block reads in a plain pass."""
    adapter = adapter_for(model)
    streams: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Tensor) -> None:
        streams.append(output.detach())

    with at_rest(model), undone() as changes, torch.no_grad():
        changes.hook(adapter.embedding(model, "stream").register_forward_hook, keep)
        adapter.forward(model, inputs)
    return streams[0]


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
    """Return what stands for a hidden word: the mask where there is one; else the gap is closed."""
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
    flow, capacities = results["flow"].values[:, 0], Flow().layer_matrices(trace)
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


# -- labels --


def labels_of(model: nn.Module) -> tuple[str, ...]:
    """The names of a sequence classifier's labels, in their order; any other model is refused."""
    config: Any = getattr(model, "config", None)
    names = getattr(config, "id2label", None) or {}
    if not type(model).__name__.endswith("ForSequenceClassification") or len(names) < 2:
        raise ModelError(
            f"{type(model).__name__} with {len(names)} labels is not a sequence classifier of two "
            "or more classes, which this experiment is about. training/sst2.py makes one."
        )
    return tuple(str(names[k]) for k in sorted(names))


def in_words(names: Sequence[str]) -> str:
    """The classes with their numbers, for messages."""
    return ", ".join(f"{k} ({name})" for k, name in enumerate(names))


def check_labels(examples: Sequence[LabelledText], names: Sequence[str]) -> None:
    """Refuse labels that are none of the classes, with the line."""
    for example in examples:
        if example.label is not None and class_of(example.label, names) is None:
            where = f"Line {example.line}" if example.line else f"{example.text[:60]!r}"
            raise InputError(
                f"{where} has the label {example.label!r}; the model's labels are "
                f"{in_words(names)}. Texts without labels need a header without 'label'."
            )


def is_right(example: LabelledText, answer: str | None, names: Sequence[str]) -> bool | None:
    """Return whether the model's answer is the text's label; None where either is not known."""
    if example.label is None or answer is None:
        return None
    number = class_of(example.label, names)
    return number is not None and names[number] == answer


def class_of(label: str, names: Sequence[str]) -> int | None:
    """The number of a class by its name, in any case, or by its number; None if there is none."""
    lower = [name.lower() for name in names]
    if label.lower() in lower:
        return lower.index(label.lower())
    return int(label) if label.isdecimal() and int(label) < len(names) else None
