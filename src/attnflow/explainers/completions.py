"""generate(): which part of the prompt made each token of a completion.

The result is the tensor of Deb (2021) as an Attribution: layer × generated token × prompt token,
where the row of a generated token is that of the position that predicted it. What falls on
generated tokens is kept in `elsewhere`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch

from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS, MESSAGES, PAGES, SELECTION, SENTENCES
from attnflow.attribution.rescaling import Span
from attnflow.errors import InputError, MethodError
from attnflow.errors.arguments import check_count, checked_arguments, checked_seed
from attnflow.explainers.answer_checks import (
    judge_completion,
    judge_image_completion,
    with_verdict,
)
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Message, Prompt, PromptBatch, Prompts, encode_prompts
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import (
    Completion,
    SourceRefs,
    TargetRefs,
    check_room,
    completion_ids,
)
from attnflow.explainers.reruns import measure_completion
from attnflow.explainers.writer import as_writer, write, write_texts
from attnflow.hosts.inputs import check_vocabulary
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import in_step
from attnflow.hosts.vision_language.composition import with_pictures
from attnflow.hosts.vision_language.towers import has_images, image_prompt, read_photos
from attnflow.methods import Method, RerunMethod, make_method
from attnflow.models import WRITER
from attnflow.show.progress import in_notebook
from attnflow.tokens.documents import Document
from attnflow.tokens.units import text_spans, units


@overload  # a text is a sequence of texts too; it is the first of the two that fits
def generate(
    model: ModelLike,
    prompt: str | Sequence[Message],
    method: str | Method | None = None,
    *,
    completion: str | Sequence[int] | None = None,
    **options: Any,
) -> Attribution: ...
@overload
def generate(
    model: ModelLike, prompt: Sequence[str], method: str | Method | None = None, **options: Any
) -> list[Attribution]: ...
@overload
def generate(
    model: ModelLike, prompt: Prompts, method: str | Method | None = None, **options: Any
) -> Any: ...
@in_step
@checked_arguments
@in_notebook
def generate(
    model: ModelLike,
    prompt: Prompts,
    method: str | Method | None = None,
    *,
    completion: str | Sequence[int] | None = None,
    max_new_tokens: int = 20,
    targets: TargetRefs = None,
    sources: SourceRefs = "prompt",
    contrast: str | None = None,
    images: Sequence[Any] | None = None,
    check: bool = True,
    **generate_kwargs: Any,
) -> Attribution | list[Attribution]:
    """Continue a prompt, or read a completion that exists, and attribute every token of it.

    model: a name, a path, what `attnflow.load` gives, a loaded module with its tokenizer as a pair,
        or None for SmolLM2, if `attnflow[demo]` is installed.
    prompt: a text, a list of texts (then a list of results), a conversation of messages, which the
        model's chat template puts together, or prepared inputs. Special tokens in a text are read
        as the tokenizer reads them, so that a template can be written by hand; in a message they
        are text like any other.
    method: None is the measured default, `GradientAttention(balanced=True)`: what each generated
        token's own position attends to, as far as it raises that token (docs/generation.md).
        With images it is `GradientRollout()`. "rollout" is Deb's tensor; it streams beside the
        key-value cache. Other methods run once more at the end; "careful", "leave-one-out" and
        their like run the model again.
    completion: a text that was written already, as it follows the prompt with its leading space,
        or its token ids; that of an encoder–decoder is what its decoder writes. One forward pass
        attributes it, with the same result. None lets the model write.
    max_new_tokens: how many tokens the model writes at most.
    targets: what of the completion is explained: tokens by number (from 0) or text, phrases
        ("45 days"), slices, or "answer" for all of it as one; default: every token.
    sources: "prompt", with the rest in `elsewhere`; "all" lists generated tokens as sources too;
        spans of the prompt by name, {"contract": (0, 120)}, sum over each. A streamed rollout then
        keeps a column for each span instead of one for each token.
    contrast: explain why the target was written rather than this text, at the first token in
        which the two differ.
    images: for a vision-language model, the images that the prompt is about: PIL images, paths or
        arrays. The sources are then patches and words together, and `result.of_image(0)` is the
        part on the first image.
    check: hide the strongest three words in one or two more passes: `result.verdicts[0]` says what
        the answer rests on; of an image, the region it draws on most. None with a contrast.
    generate_kwargs: more for the model's own generate(), such as temperature=0.7, and `seed`:
        sample with this seed; without one the search is greedy.

    The text can be heard while it is written: `attnflow.errors.progress.listening`.

    >>> from attnflow.testing import tiny_decoder
    >>> model = tiny_decoder()
    >>> generate(model, "the keys to", max_new_tokens=4).values.shape  # layers, tokens, prompt
    (2, 4, 3)
    >>> list(generate(model, "the keys to", completion="the cabinets are").targets)
    ['the', 'cabinets', 'are']
    """
    for name in ("tokenizer", "processor"):
        if name in generate_kwargs:
            raise InputError(f"{name}= belongs to the model: attnflow.load(model, {name}=...).")
    loaded = as_writer(model)
    applied = None if method is None else make_method(method)
    rerun = applied if isinstance(applied, RerunMethod) else None
    reader = Reader.of(loaded, None if rerun else applied, sources, targets, contrast)
    if images is None:
        batch = encode_prompts(loaded, prompt)
    else:
        reader, inputs, photos = _with_images(reader, prompt, images)
        batch = encode_prompts(reader.model, inputs)
    reader = replace(reader, extra=batch.extra)
    if rerun is not None:
        _check_rerun(rerun, sources, contrast, has_images(batch.extra))
    pairs = _explain(reader, rerun, batch, completion, max_new_tokens, generate_kwargs)
    checks = check and contrast is None
    results = [check_completion(reader, *pair) if checks else pair[1] for pair in pairs]
    if images is not None:
        processor = loaded.question_processor
        return with_pictures(results[0], loaded.module, inputs, processor, photos)
    if batch.several:
        return results
    messages = messages_of(prompt)
    if len(messages) < 2:  # one message is the prompt itself
        return results[0]
    return mark_messages(results[0], messages, batch.prompts[0])


@in_step
@checked_arguments
def carry_to_spans(
    model: ModelLike,
    prompt: Prompts,
    completion: str | Sequence[int],
    spans: Mapping[str, Span],
    method: str | Method | None = None,
) -> Attribution:
    """Attribute each token of a completion to spans of its prompt, through what stands between.

    As `generate(..., sources="all").carried().spans(spans)`, in shares of what each token draws on,
    with memory that grows with the length of the text and not with its square.

    >>> from attnflow.testing import tiny_decoder
    >>> spans = {"first": (0, 2), "last": (2, 3)}
    >>> carry_to_spans(tiny_decoder(), "the keys to", "the cabinets are", spans).values.shape
    (1, 3, 2)
    """
    loaded = as_model(model, default=WRITER)
    reader = Reader.of(loaded, method, spans)
    text = existing_completion(loaded, encode_prompts(loaded, prompt), completion)
    return reader.read_carried(text)


def _check_rerun(
    method: RerunMethod, sources: SourceRefs, contrast: str | None, images: bool
) -> None:
    """Refuse what a method that runs the model again has no room for."""
    others = {"sources": sources != "prompt", "contrast": contrast is not None, "images": images}
    for name, is_set in others.items():
        if is_set:
            raise MethodError(
                f"{method.name!r} measures what each source of the prompt is worth; "
                f"{name}= is for methods that read attention."
            )


def _with_images(
    reader: Reader, prompt: Prompts, images: Sequence[Any]
) -> tuple[Reader, Mapping[str, Any], list[Any]]:
    """Return the reader of a question about images, its inputs, and the images."""
    if not isinstance(prompt, str):
        raise InputError("images= go with one prompt, a text.")
    processor = reader.model.question_processor
    tokenizer = reader.model.tokenizer or processor.tokenizer
    model = replace(reader.model, tokenizer=tokenizer)
    method = default_method(model, about_images=True) if reader.is_default else reader.method
    photos = read_photos(images)
    inputs = image_prompt(model.module, prompt, photos, processor)
    return replace(reader, model=model, method=method), inputs, photos


def _explain(
    reader: Reader,
    rerun: RerunMethod | None,
    batch: PromptBatch,
    completion: str | Sequence[int] | None,
    max_new_tokens: int,
    options: Mapping[str, Any],
) -> list[tuple[Completion, Attribution]]:
    """Write or read the completion of each prompt, and attribute it."""
    if completion is not None:
        if options:
            raise InputError(
                f"{', '.join(options)}: options of the model's generate() say how a text is "
                "written; completion= is written already."
            )
        texts = [existing_completion(reader.model, batch, completion)]
        if rerun is None:
            return list(zip(texts, reader.read_all(texts), strict=True))
    elif rerun is None:
        seed, others = _check_writing(reader.model, batch, max_new_tokens, options)
        return write(reader, batch, max_new_tokens, seed, others)
    else:
        texts = write_completions(reader.model, batch, max_new_tokens, options)
    return [(text, _measure(reader, rerun, text)) for text in texts]


def write_completions(
    model: Model, batch: PromptBatch, max_new_tokens: int, options: Mapping[str, Any]
) -> list[Completion]:
    """Let a model write after each prompt, without an attribution; options as in `generate`."""
    seed, others = _check_writing(model, batch, max_new_tokens, options)
    return write_texts(model, batch, max_new_tokens, seed, others)


def _check_writing(
    model: Model, batch: PromptBatch, max_new_tokens: int, options: Mapping[str, Any]
) -> tuple[int | None, dict[str, Any]]:
    """Return the seed and the other options of the model's generate(), checked."""
    check_count("max_new_tokens", max_new_tokens, 1)
    seed = options.get("seed")
    seed = None if seed is None else checked_seed(seed, least=-(2**63))
    check_room(model, batch.length, max_new_tokens)
    return seed, {name: value for name, value in options.items() if name != "seed"}


def read_completion(
    model: Model, completion: Completion, method: Method, targets: TargetRefs = None
) -> Attribution:
    """Attribute a completion that exists to its prompt: its targets, by default every token."""
    rerun = method if isinstance(method, RerunMethod) else None
    reader = Reader.of(model, None if rerun else method, targets=targets)
    return reader.read(completion) if rerun is None else _measure(reader, rerun, completion)


def existing_completion(
    model: Model, batch: PromptBatch, completion: str | Sequence[int]
) -> Completion:
    """Return a completion that exists with its prompt, checked."""
    if len(batch) != 1:
        raise InputError(f"completion= goes with one prompt; got {len(batch)}.")
    ids = completion_ids(model, completion)
    if not model.facts.encoder_decoder:  # the decoder of two stacks may have words of its own
        check_vocabulary(model.module, torch.tensor(ids))
    check_room(model, batch.length, len(ids))
    return Completion(batch.prompts[0], ids)


def _measure(reader: Reader, rerun: RerunMethod, completion: Completion) -> Attribution:
    ids = completion.ids
    targets = None if reader.target_refs is None else reader.targets(ids)
    result = measure_completion(rerun, reader.model, completion, targets=targets)
    about = reader.about(completion.prompt.ids, ids)
    text = {name: about[name] for name in ("completion", "completion_ids")}
    return replace(result, provenance={**result.provenance, **text})


def check_completion(reader: Reader, completion: Completion, result: Attribution) -> Attribution:
    """Return the result with what the tokens that are explained rest on."""
    if has_images(reader.extra):
        return with_verdict(
            result, lambda: judge_image_completion(result, reader.model, completion, reader.extra)
        )
    tokens = sorted({k for target in reader.targets(completion.ids) for k in target.tokens})
    return with_verdict(
        result, lambda: judge_completion(result, reader.model, completion, tokens=tokens)
    )


def messages_of(prompt: Any) -> list[Message]:
    """Return the messages, if the prompt is a conversation; otherwise none."""
    messages = list(prompt) if isinstance(prompt, Sequence) else []
    return messages if all(isinstance(message, Mapping) for message in messages) else []


def mark_messages(result: Attribution, messages: Sequence[Message], prompt: Prompt) -> Attribution:
    """Return the result with a note of where each message stands among its sources, if known."""
    names = [f"message {k} ({message['role']})" for k, message in enumerate(messages, 1)]
    return _mark(result, MESSAGES, names, prompt) if prompt.spans else result


def mark_documents(
    result: Attribution, documents: Sequence[Document], prompt: Prompt
) -> Attribution:
    """Return the result with a note of where each document and its sentences stand among its
    sources.
    """
    marked = _mark(result, DOCUMENTS, [document.name for document in documents], prompt)
    names = [mark[0] for mark in marked.provenance[DOCUMENTS]]
    sentences = [
        _mark_sentences(result, document.text, pieces, first)
        for document, (first, _), pieces in zip(
            documents, filter(None, prompt.spans), prompt.pieces, strict=True
        )
        if document.name in names
    ]
    notes: dict[str, Any] = {SENTENCES: sentences}
    if any(document.pages for document in documents):
        notes[PAGES] = [list(each.pages) for each in documents if each.name in names]
    if parts := [[each.name, *each.passages] for each in documents if each.passages]:
        notes[SELECTION] = parts
    return replace(marked, provenance={**marked.provenance, **notes})


def _mark_sentences(
    result: Attribution, text: str, pieces: Sequence[str], first: int
) -> list[list[int | str]]:
    """Return the sources of each sentence of a document, where it begins, and its characters.

    first: the position of the document's first token. A sentence whose tokens are no sources, such
    as unknown words, is left out.
    """
    offset = len(text) - len(text.lstrip())  # in the prompt it stands without the spaces around it
    marks: list[list[int | str]] = []
    for unit in units(pieces, text_spans(text.strip(), "sentence")):
        within = range(first + unit.tokens[0], first + unit.tokens[-1] + 1)
        if columns := _columns(result, within):
            start, end = (offset + place for place in unit.span)
            marks.append([columns[0], columns[-1] + 1, start, text[start:end]])
    return marks


def _mark(result: Attribution, key: str, names: Sequence[str], prompt: Prompt) -> Attribution:
    marks = []
    for name, span in zip(names, prompt.spans, strict=True):
        columns = _columns(result, range(*span) if span is not None else range(0))
        if columns:
            marks.append([name, columns[0], columns[-1] + 1])
    return replace(result, provenance={**result.provenance, key: marks})


def _columns(result: Attribution, positions: range) -> range:
    """Return the sources that stand at some positions; sources are in the order of theirs."""
    places = result.sources.positions
    return range(bisect_left(places, positions.start), bisect_left(places, positions.stop))
