"""capture(): run a model once, see its attention, check it, give the model back unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow.errors import InputError, TokensError, UnsupportedModelError, shorten
from attnflow.errors.arguments import checked_arguments
from attnflow.hosts.adapter import Batch
from attnflow.hosts.balanced import balanced
from attnflow.hosts.factored import Form, Result, capture_in_factors, chosen_form, single_example
from attnflow.hosts.forward_pass import ForwardPass, check_layers, check_size
from attnflow.hosts.images import image_of
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.lens import Lens
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.quantised import refuse_gradients
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import at_rest, in_step, ordinary, undone
from attnflow.hosts.scores import (
    Choice,
    InputLeaves,
    Scores,
    TokenAt,
    answers_for_each,
    choose_answers,
    differentiable,
    gradients_of,
    phrase_scores,
)
from attnflow.hosts.vision_language.composition import run_both_towers, two_tower_trace
from attnflow.hosts.vision_language.towers import reads_images
from attnflow.methods import BalancedGradient, Method, requirements_of
from attnflow.methods.mixing import Heads, checked_heads
from attnflow.methods.products import score_gradients
from attnflow.tokens.patches import Picture
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import (
    BALANCED,
    BALANCED_ROWS,
    BALANCED_SCORES,
    GRADIENT_ATTENTION,
    GRADIENTS,
    LENS,
    LOG_PROB,
    OF_AN_ANSWER,
    ScoreName,
    checked_record,
)

OneInput = str | Mapping[str, Any] | Picture
Several = list[str] | tuple[str, ...] | list[dict[str, Any]] | list[Mapping[str, Any]]
_ROWS = (GRADIENT_ATTENTION, BALANCED_ROWS)
_FAIR = (BALANCED, BALANCED_ROWS)


@overload
def capture(model: ModelLike, inputs: Several, **options: Any) -> list[AttentionTrace]: ...
@overload
def capture(model: ModelLike, inputs: OneInput, **options: Any) -> AttentionTrace: ...
@in_step  # type: ignore[misc]  # the options of the overloads are those named here
@checked_arguments
def capture(
    model: ModelLike,
    inputs: OneInput | Several,
    *,
    methods: Sequence[Method] = (),
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: Choice = None,
    contrast: int | str | None = None,
    position: int | None = None,
    form: Form = "auto",
    decoder_text: str | Sequence[str] | None = None,
) -> AttentionTrace | list[AttentionTrace]:
    """Record the attention of one forward pass over a text, an image or prepared inputs.

    A list of texts is run in one pass and gives a list of traces, each as if its text had been
    alone. Padding is trimmed.

    model: a `Model` (see `load`), a name, a folder, a loaded module, a pair of a module and its
        tokenizer, or None for the model that ships with attnflow.
    inputs: a text; for a vision model an image (a path, a PIL image, an array, a tensor, the bytes
        of a file); prepared inputs, tensors by the names of the model's forward arguments; or a
        list of texts, or of one batch of prepared inputs.
    methods: record just what these methods require: how heads may be mixed, gradients of which
        score, measurements.
    heads: None keeps every head; with "mean" and the like each layer is reduced as it is seen,
        which takes far less memory.
    record: what is recorded beside the weights: "gradients", and names of measurements.
    answer: the choice whose score gradients are taken of, a class or token by number or by name;
        by default the model's own answer. For several texts one for all, or one for each.
    contrast: another choice, which the answer's score is held against: why this rather than that?
    position: where the answer is read, for a model that has one for each token; by default the
        surest one that differs from the usual label.
    form: "weights" keeps n × n weights, "factors" each layer's queries and keys instead (a
        `FactoredTrace`), while the model's own fused attention runs. "auto" takes factors where
        the weights would take more than a quarter of the free memory, or 4 GB.
    decoder_text: what the decoder of an encoder–decoder has written so far; one for each text.

    >>> trace = capture(None, "the keys to the cabinet")
    >>> trace.weights.shape  # layers, heads, targets, sources
    (6, 8, 7, 7)
    >>> [trace.length for trace in capture(None, ["the key is", "the keys to the cabinet are"])]
    [5, 8]
    """
    loaded = as_model(model)
    several = isinstance(inputs, (list, tuple))
    image = None if several or isinstance(inputs, Mapping) else image_of(loaded, inputs)
    prepared: Any = inputs if image is None else image.inputs
    batch = batch_of(loaded, prepared if several else [prepared], decoder_text)
    if batch.size != 1 and not several:
        raise TokensError(
            f"capture() takes one example and got a batch of {batch.size}; prepared inputs of "
            "several are passed in a list: capture(model, [inputs])."
        )
    request = _request(methods, heads, record, answer, contrast, position, form)
    traces = _read(loaded, batch, request, lambda trace: trace)
    if several:
        return traces
    if image is None:
        return traces[0]
    return replace(traces[0], provenance={**traces[0].provenance, **image.provenance})


def read_phrases(
    model: ModelLike,
    inputs: Mapping[str, Any],
    phrases: Sequence[Sequence[TokenAt]],
    read: Callable[[AttentionTrace], Result],
    *,
    method: Method,
    contrast: int | None = None,
) -> list[Result]:
    """Read what a method requires to explain phrases: tokens, each with its predicting position.

    Phrases share a forward pass where factors are kept. Each trace is read before the next is made.
    """
    loaded = as_model(model)
    request = replace(_request([method], contrast=contrast, form="auto"), phrases=tuple(phrases))
    return _read(loaded, batch_of(loaded, [inputs]), request, read)


def batch_of(
    model: Model, inputs: Sequence[Any], decoder_text: str | Sequence[str] | None = None
) -> Batch:
    """Return texts, or one batch of prepared inputs, as the model takes them."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return model.adapter.wrap(model.module, inputs[0])
    if not inputs:
        raise TokensError("capture() takes a text or a list of texts; got an empty list.")
    decoder_texts = [decoder_text] if isinstance(decoder_text, str) else decoder_text
    return model.adapter.encode(
        model.module,
        model.tokenizer,
        [checked_text(text) for text in inputs],
        None if decoder_texts is None else [checked_text(text) for text in decoder_texts],
    )


@dataclass(frozen=True)
class _Request:
    """All that is asked of one forward pass, and of which answer."""

    heads: Heads | None
    record: tuple[str, ...]
    answer: Choice
    contrast: int | str | None
    position: int | None
    form: Form
    score: ScoreName = LOG_PROB
    needs_matrix: bool = False
    reads: str | None = None
    phrases: tuple[Sequence[TokenAt], ...] = ()

    @property
    def measurements(self) -> tuple[str, ...]:
        """The names of what the adapter must measure inside the model."""
        return tuple(name for name in self.record if name not in OF_AN_ANSWER)

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of what is taken of the answer's gradient."""
        return tuple(name for name in self.record if name in OF_AN_ANSWER)

    @property
    def needs_weights(self) -> bool:
        """True where factors do not do.

        What is measured inside a layer has a number for each pair, and what is asked beside a
        single answer's probability is followed through the weights, but for balanced gradients.
        """
        beside = (
            (None, None) if self.record == (BALANCED,) else (self.contrast, self.phrases or None)
        )
        special = any(one is not None for one in (self.position, *beside))
        return special or self.needs_matrix or bool(self.measurements) or len(self.gradients) > 1

    def read(self, scores: Sequence[Scores | None], model: nn.Module) -> Sequence[Scores | None]:
        """Return the scores where they are asked for: at a position, or of a phrase."""
        if self.position is not None:
            if None in scores:
                raise InputError(
                    f"position={self.position!r} says where the answer is read, and "
                    f"{type(model).__name__} gives none for this input."
                )
            scores = [one.at(self.position) for one in scores if one is not None]
        if self.phrases:
            scores = [phrase_scores(one, self.phrases[0], model) for one in scores]
        return scores


def _request(
    methods: Sequence[Method],
    heads: Heads | None = None,
    record: Sequence[str] = (),
    answer: Choice = None,
    contrast: int | str | None = None,
    position: int | None = None,
    form: Form = "weights",
) -> _Request:
    """Check what is asked for, and join it with what the methods require."""
    names = checked_record(record)
    heads = None if heads is None else checked_heads(heads)
    score, needs_matrix = LOG_PROB, False
    if len(methods):
        if heads is not None:
            raise InputError(
                f"heads={heads!r}: the methods say how heads may be mixed; give either."
            )
        requirements = requirements_of(methods)
        names = checked_record((*names, *requirements.record))
        heads = None if GRADIENTS in names else requirements.heads
        score, needs_matrix = requirements.score or LOG_PROB, requirements.needs_matrix
    if GRADIENTS in names and heads is not None:
        raise InputError(
            f"A gradient belongs to one head, so heads={heads!r} cannot be mixed at capture; "
            "leave heads=None with record=('gradients',)."
        )
    for name, value in (("answer", answer), ("contrast", contrast)):
        if value is not None and not OF_AN_ANSWER & set(names):
            raise InputError(
                f"{name}={shorten(value)} chooses what gradients are taken of; ask for them "
                "with record=('gradients',)."
            )
    balanced_only = [m.readings for m in methods if isinstance(m, BalancedGradient)]
    reads = "+".join(balanced_only) if len(balanced_only) == len(methods) and methods else None
    if form == "factors":
        reads = None
    return _Request(heads, names, answer, contrast, position, form, score, needs_matrix, reads)


def _read(
    model: Model, batch: Batch, request: _Request, read: Callable[[AttentionTrace], Result]
) -> list[Result]:
    if request.gradients:
        refuse_gradients(model.module)
    if reads_images(model.module, batch.inputs):
        return _read_weights(model, batch, request, read)
    writes = model.adapter.supports_row_gradients(model.module)
    of_rows = bool({*_ROWS} & {*request.gradients})
    rows_of_others = of_rows and (request.score != LOG_PROB or not writes)
    form = chosen_form(
        model,
        batch,
        request.form,
        needs_matrix=request.needs_weights or rows_of_others,
        reads_weights=request.record != (BALANCED,) or not writes,
        arrays=1 + len(request.gradients),
        mixed=request.heads is not None,
    )
    if form == "weights":
        return _read_weights(model, batch, request, read)
    answers = answers_for_each(request.answer, batch.size)
    parts = (
        capture_in_factors(
            model,
            single_example(batch, example),
            read,
            gradient_kind=request.gradients[0] if request.gradients else None,
            answer=answer,
            contrast=request.contrast,
            phrases=request.phrases or ((),),
            score=request.score,
            reads=request.reads if writes else None,
        )
        for example, answer in enumerate(answers)
    )
    return [each for part in parts for each in part]


def _read_weights(
    model: Model, batch: Batch, request: _Request, read: Callable[[AttentionTrace], Result]
) -> list[Result]:
    """Read traces of weights, where every phrase has a pass of its own."""
    apart = [replace(request, phrases=(phrase,)) for phrase in request.phrases] or [request]
    return [read(trace) for each in apart for trace in _weight_traces(model, batch, each)]


def _weight_traces(model: Model, batch: Batch, request: _Request) -> list[AttentionTrace]:
    """Return the traces of weights; balanced gradients have a pass of their own beside plain ones.

    Gradient attention is read off the gradients of all weights, unless the adapter gives every
    position's own.
    """
    two_towers = reads_images(model.module, batch.inputs)
    apart = not (two_towers or request.phrases)
    by_rows = apart and model.adapter.supports_row_gradients(model.module)
    of_rows = tuple(name for name in request.gradients if by_rows and name in _ROWS)
    rest = tuple(name for name in request.gradients if name not in of_rows)
    fair = tuple(name for name in rest if name in _FAIR)
    if not fair or fair == rest:
        return _run_pass(model, batch, request, rest, of_rows)
    others = tuple(name for name in request.record if name not in fair)
    plain = tuple(name for name in rest if name not in fair)
    pairs = zip(
        _run_pass(model, batch, replace(request, record=others), plain, of_rows),
        _run_pass(model, batch, replace(request, record=fair, heads=None), fair, ()),
        strict=True,
    )
    return [
        replace(
            a, measured={**a.measured, **b.measured}, provenance={**b.provenance, **a.provenance}
        )
        for a, b in pairs
    ]


def _run_pass(
    model: Model, batch: Batch, request: _Request, rest: tuple[str, ...], of_rows: tuple[str, ...]
) -> list[AttentionTrace]:
    """Run one forward pass whose weights are kept and, for gradients, one backward pass.

    rest: what is read off the gradients of all weights. of_rows: what the adapter gives row by row.
    """
    module, adapter = model.module, model.adapter
    two_towers = reads_images(module, batch.inputs)
    differentiates, is_fair = bool(rest), bool(rest) and set(rest) <= set(_FAIR)
    _refuse_unmeasured(model, request.measurements)
    heads: Heads | None = "mean" if two_towers else None  # those of gradients
    recorder = Recorder(
        heads if differentiates else request.heads,
        expected=None if two_towers else adapter.expected_layers(module),
        record=(*request.measurements, *([GRADIENTS] if differentiates else [])),
    )
    gradients = None
    leaves = _fair_leaves(model, batch, two_towers) if is_fair else None
    lens = Lens(model) if LENS in rest else None
    with at_rest(module), differentiable(module, differentiates), undone() as changes:
        inputs = {name: ordinary(tensor) for name, tensor in batch.inputs.items()}
        run = run_both_towers if two_towers else adapter.run
        if lens is not None:
            lens.watch(changes)
        if leaves is None:
            outputs = run(module, inputs, recorder)
        else:
            leaves.watch(module, adapter.embedding(module, "words"), changes, streams=True)
            with balanced(module, changes) as rules:
                outputs = run(module, inputs, recorder)
        if not two_towers:
            check_layers(model, len(recorder.layers))
            check_size(module, batch.size, recorder)
        if batch.positions is None:
            batch = replace(batch, positions=recorder.positions)
        scores = request.read(adapter.scores(module, model.tokenizer, outputs, batch), module)
        explained = None
        if request.gradients:
            explained = choose_answers(scores, request.answer, module, request.contrast)
        watched = ForwardPass(model, batch, recorder, scores, explained)
        if two_towers:
            return [two_tower_trace(watched, request.score)]
        if explained is not None and differentiates:
            gradients = gradients_of(explained.total(request.score), recorder, module, leaves)
            if lens is not None:
                recorder.measured[LENS] = lens.read(batch, explained.choices)
    if leaves is not None:
        watched = replace(watched, uncovered=tuple(sorted(rules.uncovered)))
    for name in of_rows:
        recorder.measured[name] = _own_rows(watched, request.score, balanced=name == BALANCED_ROWS)
    for name in rest:
        if name not in (GRADIENTS, LENS) and gradients is not None:
            both = list(zip((layer.weights for layer in recorder.layers), gradients, strict=True))
            recorder.measured[name] = [np.maximum(w * g, 0).mean(axis=1) for w, g in both]
            if name == BALANCED:
                recorder.measured[BALANCED_SCORES] = [
                    np.maximum(score_gradients(w, w * g), 0).mean(axis=1) for w, g in both
                ]
    return replace(watched, gradients=gradients if GRADIENTS in rest else None).traces()


def _own_rows(
    watched: ForwardPass, score: ScoreName, *, balanced: bool
) -> list[NDArray[np.float32]]:
    """Return `(batch, n, n)` of each layer: gradient attention of each position's own answer."""
    model, explained = watched.model, watched.explained
    if explained is None:
        return []
    choices = explained.choices, explained.contrasts
    with at_rest(model.module):
        rows = model.adapter.gradient_rows(
            model.module, watched.batch, *choices, score, balanced=balanced
        )
    return [layer.cpu().numpy() for layer in rows]


def _fair_leaves(model: Model, batch: Batch, two_towers: bool) -> InputLeaves:
    """The leaves of a pass under balanced rules, which begins at embedded words."""
    if two_towers or model.adapter.reads_images(model.module):
        raise UnsupportedModelError(
            f"Balanced gradients begin at the words of a text, and {type(model.module).__name__} "
            "reads an image; 'gradient-attention' explains it."
        )
    return InputLeaves()


def _refuse_unmeasured(model: Model, record: Sequence[str]) -> None:
    missing = [name for name in record if name not in model.adapter.measures]
    if missing:
        raise UnsupportedModelError(
            f"{type(model.module).__name__} is seen by the adapter for {model.adapter.name}, which "
            f"does not measure {', '.join(map(repr, missing))}. Rollout and flow work, and the "
            "gradient methods where the model has a head."
        )
