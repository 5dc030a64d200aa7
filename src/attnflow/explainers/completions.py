"""generate() and explain_completion(): which part of the prompt made each generated token.

The result is the tensor of Deb (2021) as an Attribution: layer × generated token × prompt token,
where the row of a generated token is that of the position that predicted it. What falls on
generated tokens is kept in `elsewhere`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError, optional_import
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.explainers.documents import (
    mark_documents,
    mark_messages,
    messages_of,
    prompt_with_documents,
)
from attnflow.explainers.rerun_choice import MeasuredChoice, measured_choice
from attnflow.methods import Method
from attnflow.tokens.documents import Documents, named_documents

if TYPE_CHECKING:
    from torch import nn

    from attnflow.explainers.prompts import Message, Prompt, Prompts
    from attnflow.explainers.reader import Reader
    from attnflow.explainers.request import Baseline, Sources, Targets

    Model = nn.Module | str | os.PathLike[str] | None

__all__ = ["explain_completion", "generate"]


class _Options(TypedDict, total=False):
    """What generate() takes by name; its docstring says what each is."""

    max_new_tokens: int
    method: str | Method | None
    careful: bool
    targets: Targets
    contrast: str | None
    confirm: bool
    baseline: Baseline
    sources: Sources
    tokenizer: Any
    images: Sequence[Any] | None
    processor: Any
    chat: bool
    documents: Documents | None
    seed: int | None
    generate_kwargs: Mapping[str, Any] | None


@overload  # a text is a sequence of texts too; it is the first of the two that fits
def generate(  # type: ignore[overload-overlap]
    model: Model, prompt: str | Sequence[Message], **options: Unpack[_Options]
) -> Attribution: ...
@overload
def generate(
    model: Model, prompt: Sequence[str], **options: Unpack[_Options]
) -> list[Attribution]: ...
@overload
def generate(
    model: Model, prompt: Prompts, **options: Unpack[_Options]
) -> Attribution | list[Attribution]: ...
@checked_arguments
def generate(
    model: Model,
    prompt: Prompts,
    *,
    max_new_tokens: int = 20,
    method: str | Method | None = None,
    careful: bool = False,
    targets: Targets = None,
    contrast: str | None = None,
    confirm: bool = False,
    baseline: Baseline = None,
    sources: Sources = "prompt",
    tokenizer: Any = None,
    images: Sequence[Any] | None = None,
    processor: Any = None,
    chat: bool = False,
    documents: Documents | None = None,
    seed: int | None = None,
    generate_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Attribution | list[Attribution]:
    """Continue a prompt with the model's own generate(), and attribute every new token to it.

    model: a name, a path, a loaded model (with its `tokenizer`), or None for SmolLM2, if
        `attnflow[demo]` is installed.
    prompt: a text, a list of texts (then a list of results), a conversation of messages, or
        prepared inputs. `chat=True` puts a text into the model's chat template.
    images: for a vision-language model, the images that the prompt is about: PIL images, paths or
        arrays. The sources are then patches and words together, and `result.of_image(0)` is the
        part on the first image. `processor` is the model's own unless another is handed in.
    documents: texts that are put before the prompt, ["..."] or {"a.txt": "..."}; the result knows
        where each stands. `ask` words the question and gives a line for each statement.
    method: None is the measured default, `GradientAttention()`: what each generated token's own
        position attends to, as far as it raises that token's probability (docs/generation.md).
        With images it is `GradientRollout()`. "rollout" is Deb's tensor; it streams beside the
        key-value cache. Other methods run once more at the end; "leave-one-out" and its like run
        the model again for every source.
    careful: take ten passes a target instead of one: `methods.Careful`.
    targets: what of the completion is explained: tokens by number (from 0) or text, phrases
        ("45 days"), slices, or "answer" for all of it as one; default: every token.
    contrast: explain why the target was written rather than this text, at the first token in
        which the two differ.
    confirm: hide the strongest three words together, in one more pass: `result.confirmation`.
    baseline: "neutral" subtracts what the model does on a neutral prompt of the same length and
        the same completion, a list of token ids is a prompt of your own, None subtracts nothing.
    sources: "prompt", with the rest in `elsewhere`; "all" lists generated tokens as sources too;
        spans of the prompt by name, {"contract": (0, 120)}, sum over each. A streamed rollout then
        keeps a column for each span instead of one for each token.
    seed: sample with this seed; without it the search is greedy.
    generate_kwargs: more for the model's generate(), such as {"temperature": 0.7}.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> result = generate(model, "the keys to", tokenizer=tokenizer, max_new_tokens=4)
    >>> result.values.shape  # layers, generated tokens, prompt tokens
    (2, 4, 3)
    """
    measured = measured_choice(method, careful)
    read_method = None if isinstance(measured, MeasuredChoice) else measured
    reader = _reader(model, tokenizer, read_method, baseline, sources, targets, contrast)
    pictures = None
    if images is not None:
        reader, prompt, pictures = _with_images(reader, prompt, images, processor, read_method)
    from attnflow.explainers.prompts import encode_prompts
    from attnflow.explainers.request import check_room, checked_new_tokens
    from attnflow.explainers.writer import Writer

    checked_new_tokens(max_new_tokens)
    seed = None if seed is None else checked_seed(seed, least=-(2**63))
    collection = () if documents is None else named_documents(documents)
    prompt = prompt_with_documents(prompt, collection) if collection else prompt
    batch = encode_prompts(reader.model, reader.tokenizer, prompt, chat=chat)
    reader = replace(reader, extra=batch.extra)
    check_room(reader.model, reader.facts, batch.length, max_new_tokens)
    how: dict[str, Any] = {
        "seed": seed,
        "options": {**options, **(generate_kwargs or {})},
    }
    if isinstance(measured, MeasuredChoice):
        _check_measured(measured, baseline, sources, contrast)
        texts = Writer(reader).texts(batch, max_new_tokens, **how)
        results = [_measure(reader, measured, *text, confirm) for text in texts]
    else:
        results = [
            _confirmed(reader, completion.result, completion.prompt, completion.ids, confirm)
            for completion in Writer(reader).write(batch, max_new_tokens, **how)
        ]
    if batch.several:
        return results
    first = batch.prompts()[0]
    if pictures is not None:
        return pictures(results[0])
    if collection:
        return mark_documents(
            results[0], collection, reader.tokenizer, reader.tokens(first.ids).texts
        )
    return _with_messages(results[0], prompt, first, reader)


# Its options are those of generate(), each spelled out: people read signatures.
@checked_arguments
def explain_completion(
    model: Model,
    prompt: Prompts,
    completion: str | Sequence[int],
    *,
    method: str | Method | None = None,
    careful: bool = False,
    targets: Targets = None,
    contrast: str | None = None,
    confirm: bool = False,
    baseline: Baseline = None,
    sources: Sources = "prompt",
    tokenizer: Any = None,
    images: Sequence[Any] | None = None,
    processor: Any = None,
    chat: bool = False,
) -> Attribution:
    """Attribute a text that was generated already: one forward pass, the same result.

    completion: the text as it follows the prompt, with its leading space, or its token ids. That
        of an encoder–decoder is what its decoder writes.

    Everything else is as in `generate`.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> text = {"prompt": "the keys to", "completion": "the cabinets are"}
    >>> result = explain_completion(model, **text, tokenizer=tokenizer)
    >>> list(result.targets)
    ['the', 'cabinets', 'are']
    >>> phrases = ["cabinets are", "answer"]
    >>> list(explain_completion(model, **text, tokenizer=tokenizer, targets=phrases).targets)
    ['cabinets are', 'the cabinets are']
    """
    measured = measured_choice(method, careful)
    read_method = None if isinstance(measured, MeasuredChoice) else measured
    reader = _reader(model, tokenizer, read_method, baseline, sources, targets, contrast)
    pictures = None
    if images is not None:
        reader, prompt, pictures = _with_images(reader, prompt, images, processor, read_method)
    from attnflow.explainers.prompts import encode_prompts
    from attnflow.explainers.request import check_completion, check_room, completion_ids

    batch = encode_prompts(reader.model, reader.tokenizer, prompt, chat=chat)
    reader = replace(reader, extra=batch.extra)
    if len(batch) != 1:
        raise InputError(f"explain_completion() takes one prompt; got {len(batch)}.")
    ids = completion_ids(reader.tokenizer, completion, reader.facts)
    check_completion(reader.model, reader.facts, ids)
    check_room(reader.model, reader.facts, batch.length, len(ids))
    encoded = batch.prompts()[0]
    if isinstance(measured, MeasuredChoice):
        _check_measured(measured, baseline, sources, contrast)
        result = _measure(reader, measured, encoded, ids, confirm)
    else:
        result = reader.read(encoded, ids, {"streamed": False})
        result = _confirmed(reader, result, encoded, ids, confirm)
    result = result if pictures is None else pictures(result)
    return _with_messages(result, prompt, encoded, reader)


def _with_messages(
    result: Attribution, prompt: Prompts, encoded: Prompt, reader: Reader
) -> Attribution:
    """The messages of a conversation are its sources: the result knows where each stands."""
    messages = messages_of(prompt)
    if not messages:
        return result
    return mark_messages(result, messages, encoded.form, reader.tokenizer)


def _reader(
    model: Model,
    tokenizer: Any,
    method: str | Method | None,
    baseline: Baseline,
    sources: Sources,
    targets: Targets,
    contrast: str | None,
) -> Reader:
    """The model loaded and checked, with what is asked of its completions."""
    optional_import("torch", extra="models", purpose="Running a model")
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.explainers.reader import Reader
    from attnflow.explainers.request import CompletionRequest
    from attnflow.hosts.load import as_model
    from attnflow.hosts.transformers.generate import checked_generator
    from attnflow.hosts.transformers.inputs import checked_tokenizer

    if model is None or isinstance(model, (str, os.PathLike)):
        loaded = as_model(model, default="smollm2")
        model, tokenizer = loaded.module, tokenizer or loaded.tokenizer
    host = checked_generator(model)
    if tokenizer is not None:
        checked_tokenizer(tokenizer)
    request = CompletionRequest.of(host, method, baseline, sources, targets, contrast)
    return Reader(model, tokenizer, request)


def _with_images(
    reader: Reader,
    prompt: Prompts,
    images: Sequence[Any],
    processor: Any,
    method: str | Method | None,
) -> tuple[Reader, dict[str, Any], Callable[[Attribution], Attribution]]:
    """A question about images: prepared by the model's processor, explained by its own default.

    The third is what puts the pictures into a result.
    """
    from attnflow.explainers.request import IMAGE_METHOD
    from attnflow.hosts.vision_language.towers import image_prompt, processor_of, read_photos
    from attnflow.hosts.vision_language.views import with_pictures

    if not isinstance(prompt, str):
        raise InputError("images= go with one prompt, a text.")
    own = processor_of(reader.model, processor)
    request = reader.request if method is not None else replace(reader.request, method=IMAGE_METHOD)
    reader = replace(reader, tokenizer=reader.tokenizer or own.tokenizer, request=request)
    photos = read_photos(images)
    inputs = image_prompt(reader.model, prompt, photos, own)
    about = {"model": reader.model, "inputs": inputs, "processor": own, "photos": photos}
    return reader, inputs, partial(with_pictures, **about)


def _check_measured(
    choice: MeasuredChoice, baseline: Baseline, sources: Sources, contrast: str | None
) -> None:
    """What a method that runs the model again has no room for."""
    others = {
        "baseline": baseline is not None,
        "sources": sources != "prompt",
        "contrast": contrast is not None,
    }
    for name, is_set in others.items():
        if is_set:
            raise MethodError(
                f"{choice.method.name!r} measures what each source of the prompt is worth; "
                f"{name}= is for methods that read attention."
            )


def _measure(
    reader: Reader, choice: MeasuredChoice, prompt: Prompt, ids: list[int], confirm: bool
) -> Attribution:
    from attnflow.hosts.vision_language.towers import has_images

    if has_images(reader.extra):
        from attnflow.explainers.image_prompts import measure_images

        return _confirmed(
            reader, measure_images(reader, choice.method, prompt, ids), prompt, ids, confirm
        )
    result = choice(
        reader.model,
        prompt,
        ids,
        tokenizer=reader.tokenizer,
        targets=None if reader.request.targets is None else reader.targets(ids),
    )
    text = None if reader.tokenizer is None else reader.tokenizer.decode(ids)
    about = {**result.provenance, "completion": text, "completion_ids": list(ids)}
    result = replace(result, provenance=about)
    return _confirmed(reader, result, prompt, ids, confirm)


def _confirmed(
    reader: Reader, result: Attribution, prompt: Prompt, ids: list[int], confirm: bool
) -> Attribution:
    """The result, with what the answer loses without its strongest sources, if that is asked."""
    if not confirm:
        return result
    if result.sources.images:
        raise InputError(
            "confirm=True hides words of a prompt; it does not hide patches. Leave it out for a "
            "prompt with images."
        )
    from attnflow.explainers.confirm import confirm_completion

    tokens = sorted({k for target in reader.targets(ids) for k in target.tokens})
    confirmation = confirm_completion(
        result, reader.model, prompt.ids, ids, tokenizer=reader.tokenizer, tokens=tokens
    )
    return replace(result, confirmation=confirmation)
