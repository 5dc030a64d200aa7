"""Captures in factors: queries and keys are kept while the model's own fused attention runs.

One example at a time, its padding trimmed before it runs, so that no mask is needed but the
model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from attnflow.errors import InputError, MatrixError, OutOfMemoryError, UnsupportedModelError
from attnflow.errors.arguments import check_named
from attnflow.hosts.adapter import Batch, Scores, device_of
from attnflow.hosts.forward_pass import check_layers, layer_numbers, provenance_of
from attnflow.hosts.load import free_memory
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest, ordinary
from attnflow.hosts.scores import Choice, TokenAt, choose_answers, phrase_scores
from attnflow.kernels.layer import FactoredLayer
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import ANSWER_ROWS, BALANCED, BALANCED_INPUTS, GRADIENTS, ScoreName
from attnflow.trace.factored_trace import size_in_words, weights_size

if TYPE_CHECKING:
    from attnflow.hosts.transformers.factors import FactorRecording

_MOST_WEIGHTS = 4 * 2**30  # bytes of weights from which factors are kept instead

Result = TypeVar("Result")
Form = Literal["auto", "weights", "factors"]
Keys = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (texts, heads, positions, width)."""


def capture_in_factors(
    model: Model,
    batch: Batch,
    read: Callable[[FactoredTrace], Result],
    *,
    gradient_kind: str | None,
    answer: Choice,
    contrast: int | str | None = None,
    phrases: Sequence[Sequence[TokenAt]] = ((),),
    score: ScoreName,
    reads: str | None = None,
) -> list[Result]:
    """Return what is read of the trace of one example in factors, for each phrase of its answer.

    All phrases share one forward pass. reads: which readings of balanced gradients are all that is
    asked for, so that a long text keeps no factors; None where others may follow.
    """
    module, adapter = model.module, model.adapter
    length = next(iter(batch.inputs.values())).shape[1]
    results = []
    with told_memory(module, length), at_rest(module), torch.set_grad_enabled(bool(gradient_kind)):
        inputs = {name: ordinary(tensor) for name, tensor in batch.inputs.items()}
        first = min((row for phrase in phrases for row, _ in phrase), default=length - 1)
        options = {} if gradient_kind is None else _long_text(module, length, reads)
        run = adapter.run_in_factors(
            module, inputs, gradient_kind, scored=length - first, **options
        )
        run.recording.check()
        check_layers(model, len(run.recording.numbers))
        for number, phrase in enumerate(phrases, start=1):
            about: dict[str, Any] = {}
            scores = _scores(model, run.outputs, batch, length, phrase)
            if gradient_kind is not None:
                explained = choose_answers([scores], answer, module, contrast)
            if gradient_kind in (GRADIENTS, BALANCED):
                if run.recording.rows is not None and scores is not None:
                    rows = [row for row, _ in phrase] or [scores.position]
                    run.recording.rows = tuple(rows)
                run.go_back(explained.total(score), last=number == len(phrases))
                about["gradients_of"] = explained.labels()[0]
            elif gradient_kind is not None:
                run.go_back_by_rows(batch.inputs["input_ids"][0], explained.choices[0])
            if phrase:
                about[ANSWER_ROWS] = [row for row, _ in phrase]
            with torch.no_grad():
                trace = _trace(model, batch, run.recording, scores, gradient_kind, about)
                results.append(read(trace))
    return results


def _trace(
    model: Model,
    batch: Batch,
    recording: FactorRecording,
    scores: Scores | None,
    gradient_kind: str | None,
    about: dict[str, Any],
) -> FactoredTrace:
    """Return the trace of what was recorded, up to the latest way back."""
    length = next(iter(batch.inputs.values())).shape[1]
    dtype = str(recording.dtype).removeprefix("torch.")
    if recording.uncovered:
        about["plain_gradients"] = sorted(recording.uncovered)
    measured = None
    if gradient_kind == BALANCED and recording.relevance:
        streams = np.zeros((len(recording.numbers), length))
        for row, relevance in zip(streams, recording.relevance, strict=False):
            row[:] = relevance.double().cpu().numpy()
        measured = {BALANCED_INPUTS: streams}
    return FactoredTrace(
        recording.layers(),
        model.adapter.name_positions(model.module, model.tokenizer, batch, 0, length),
        layers=layer_numbers(recording.numbers),
        kind="causal" if recording.causal else "bidirectional",
        prediction=None if scores is None else scores.prediction(),
        gradient_kind=gradient_kind,
        measured=measured,
        provenance={**provenance_of(model.module, dtype), **about},
    )


def _long_text(model: nn.Module, length: int, reads: str | None) -> dict[str, Any]:
    """Return what a text keeps for the way back, by the memory that it would take."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    inner = inner if isinstance(inner, int) else max(inner)  # one for each layer
    size = length * next(model.parameters()).element_size()
    block = size * (12 * text.hidden_size + 5 * inner)
    device, free = device_of(model), free_memory()
    if device.type == "cuda":  # what torch holds for later is as good as free
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        free -= torch.cuda.memory_allocated(device)
    if not _exceeds(block * text.num_hidden_layers, free):
        return {}
    options: dict[str, Any] = {"computes_again": True}
    if reads is not None:
        options |= {"rows": (), "keys": "keys" in reads}
        # the input of each block, and what its attention gave, beside one block computed again
        outputs = 2 * size * text.hidden_size * text.num_hidden_layers
        options["on_host"] = device.type == "cuda" and outputs + 1.5 * block > free
    return options


def _exceeds(size: float, free: float) -> bool:
    """Return whether what all blocks compute takes too much of the memory to be kept at once."""
    return size > free / 2


def _scores(
    model: Model, outputs: Any, batch: Batch, length: int, phrase: Sequence[TokenAt]
) -> Scores | None:
    """Return what the answer is read from; logits may be those of the last positions alone."""
    (scores,) = model.adapter.scores(model.module, model.tokenizer, outputs, batch)
    logits = getattr(outputs, "logits", None)
    if scores is None or not isinstance(logits, Tensor) or logits.ndim != 3 or length == 1:
        return scores
    before = length - logits.shape[1]
    if phrase:
        shifted = [(row - before, token) for row, token in phrase]
        return replace(phrase_scores(scores, shifted, model.module), position=phrase[0][0])
    return replace(scores, position=length - 1) if before else scores


def chosen_form(
    model: Model,
    batch: Batch,
    form: Form,
    *,
    needs_matrix: bool,
    reads_weights: bool = True,
    arrays: int,
    mixed: bool,
) -> Form:
    """Choose weights or factors: as asked, or by the memory that weights would take.

    reads_weights: False where nobody looks at them, so that one example takes factors at any
    length. arrays: how many arrays of the weights' size are kept. mixed: whether heads are mixed at
    once.
    """
    check_named("form", form, get_args(Form), InputError)
    able = model.adapter.supports_factors(model.module, batch.inputs)
    if form == "factors" and not able:
        raise UnsupportedModelError(
            "Factors can be kept for one stack of layers over input_ids whose attention goes "
            f"through transformers' attention interface. {type(model.module).__name__} on these "
            "inputs is not such a model. Use form='weights'."
        )
    if form == "factors" and needs_matrix:
        raise MatrixError(
            "form='factors' keeps queries and keys, and a method or measurement here needs all "
            f"weights at once: {size_in_words(_size_of_weights(model, batch, mixed))}. "
            "Use form='weights'."
        )
    if form != "auto" or not able or needs_matrix:
        return "factors" if form == "factors" else "weights"
    if not reads_weights and batch.size == 1:
        return "factors"
    size = arrays * _size_of_weights(model, batch, mixed)
    return "factors" if size > min(_MOST_WEIGHTS, free_memory() / 4) else "weights"


def _size_of_weights(model: Model, batch: Batch, mixed: bool) -> int:
    config: Any = getattr(model.module, "config", None)
    text = config.get_text_config() if config is not None else None
    heads = 1 if mixed else getattr(text, "num_attention_heads", 1)
    length = batch.inputs["input_ids"].shape[1] if "input_ids" in batch.inputs else 0
    layers = model.adapter.expected_layers(model.module) or 1
    return batch.size * weights_size(layers, heads, length)


def single_example(batch: Batch, example: int) -> Batch:
    """Return one example of a batch, without its padding and without a mask."""
    if "input_ids" not in batch.inputs:
        if batch.size != 1:
            raise InputError("Factors of several examples are captured from input_ids only.")
        return batch
    shape = batch.inputs["input_ids"].shape
    every = range(shape[1])
    positions = list(every) if batch.positions is None else list(batch.positions[example])
    part = slice(None) if len(positions) == shape[1] else positions
    inputs = {
        name: tensor[example : example + 1][:, part] if tensor.shape[:2] == shape else tensor
        for name, tensor in batch.inputs.items()
        if name != "attention_mask"
    }
    words = None if batch.words is None else (tuple(batch.words[example][k] for k in positions),)
    return Batch(inputs, size=1, words=words)


@contextmanager
def told_memory(model: nn.Module, length: int) -> Iterator[None]:
    """Out of memory on a device becomes a sentence: what was needed, and what needs less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_allocated()
        others = total - free - torch.cuda.memory_reserved()
        fix = (
            "Rollout onto spans (roll_out_spans) keeps one layer at a time and needs least; "
            "otherwise shorten the text or load the model in bfloat16."
        )
        if others > total / 2:
            fix = f"Other processes hold {size_in_words(others)}: run fewer of them at once."
        raise OutOfMemoryError(
            f"{type(model).__name__} over {length} tokens needs more than the device's "
            f"{size_in_words(total)}: {size_in_words(peak)} were in use at most, and "
            f"{size_in_words(free)} are free. {fix}"
        ) from error


def keys_of(trace: AttentionTrace) -> Keys:
    """Return the keys and values of every layer that a trace holds, or none."""
    layers = trace.factors if isinstance(trace, FactoredTrace) else ()
    factors = [layer.factors for layer in layers if isinstance(layer, FactoredLayer)]
    return [
        (each.key[None].detach(), each.value[None].detach())
        for each in factors
        if each.value is not None
    ]
