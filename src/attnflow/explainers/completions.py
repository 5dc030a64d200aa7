"""generate(): which part of the prompt made each token of a completion.

The result is the tensor of Deb (2021) as an Attribution: layer × generated token × prompt token,
where the row of a generated token is that of the position that predicted it. What falls on
generated tokens is kept in `elsewhere`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.explainers.careful import measure_images
from attnflow.explainers.confirm import confirm_completion
from attnflow.explainers.defaults import default_method
from attnflow.explainers.documents import mark_messages, messages_of
from attnflow.explainers.prompts import Message, Prompt, PromptBatch, Prompts, encode_prompts
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import (
    CompletionRequest,
    Sources,
    TargetRefs,
    check_completion,
    check_room,
    checked_new_tokens,
    completion_ids,
)
from attnflow.explainers.reruns import measure_completion
from attnflow.explainers.writer import Writer
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.hosts.transformers.inputs import checked_tokenizer
from attnflow.hosts.vision_language.towers import has_images, image_prompt, read_photos
from attnflow.hosts.vision_language.views import with_pictures
from attnflow.methods import Method, RerunMethod, make_method

Completion = str | Sequence[int]


@overload  # a text is a sequence of texts too; it is the first of the two that fits
def generate(
    model: ModelLike,
    prompt: str | Sequence[Message],
    method: str | Method | None = None,
    *,
    completion: Completion | None = None,
    **options: Any,
) -> Attribution: ...
@overload
def generate(
    model: ModelLike,
    prompt: Sequence[str],
    method: str | Method | None = None,
    **options: Any,
) -> list[Attribution]: ...
@overload
def generate(
    model: ModelLike,
    prompt: Prompts,
    method: str | Method | None = None,
    **options: Any,
) -> Any: ...
@checked_arguments
def generate(
    model: ModelLike,
    prompt: Prompts,
    method: str | Method | None = None,
    *,
    completion: Completion | None = None,
    max_new_tokens: int = 20,
    targets: TargetRefs = None,
    sources: Sources = "prompt",
    contrast: str | None = None,
    images: Sequence[Any] | None = None,
    confirm: bool = False,
    **generate_kwargs: Any,
) -> Attribution | list[Attribution]:
    """Continue a prompt, or read a completion that exists, and attribute every token of it.

    model: a name, a path, what `attnflow.load` gives, a loaded module with its tokenizer as a pair,
        or None for SmolLM2, if `attnflow[demo]` is installed.
    prompt: a text, a list of texts (then a list of results), a conversation of messages, which the
        model's chat template puts together, or prepared inputs.
    method: None is the measured default, `GradientAttention()`: what each generated token's own
        position attends to, as far as it raises that token's probability (docs/generation.md).
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
    confirm: hide the strongest three words together, in one more pass: `result.confirmation`.
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
    loaded = as_model(model, default="smollm2")
    explainer = CompletionExplainer.of(loaded, method, sources, targets, contrast, confirm)
    if images is not None:
        return explainer.explain_images(prompt, images, completion, max_new_tokens, generate_kwargs)
    batch = encode_prompts(loaded, prompt)
    results = explainer.explain(batch, completion, max_new_tokens, generate_kwargs)
    if batch.several:
        return results
    messages = messages_of(prompt)
    if len(messages) < 2:  # one message is the prompt itself
        return results[0]
    return mark_messages(results[0], messages, batch.prompts()[0].form, loaded.tokenizer)


@dataclass(frozen=True, eq=False)
class CompletionExplainer:
    """A model and what is asked of its completions: how they are written, read and confirmed."""

    reader: Reader
    rerun: RerunMethod | None = None
    confirm: bool = False

    @classmethod
    def of(
        cls,
        model: Model,
        method: str | Method | None = None,
        sources: Sources = "prompt",
        targets: TargetRefs = None,
        contrast: str | None = None,
        confirm: bool = False,
    ) -> CompletionExplainer:
        """Check what is asked, before anything runs."""
        checked_generator(model.module)
        if model.tokenizer is not None:
            checked_tokenizer(model.tokenizer)
        applied = None if method is None else make_method(method)
        if isinstance(applied, RerunMethod):
            _check_rerun(applied, sources, contrast)
            request = CompletionRequest.of(model, None, sources, targets, contrast)
            return cls(Reader(model, request), applied, confirm)
        request = CompletionRequest.of(model, applied, sources, targets, contrast)
        return cls(Reader(model, request), None, confirm)

    def explain(
        self,
        batch: PromptBatch,
        completion: Completion | None,
        max_new_tokens: int,
        options: dict[str, Any],
    ) -> list[Attribution]:
        """Write or read the completion of each prompt, and attribute it."""
        explainer = replace(self, reader=replace(self.reader, extra=batch.extra))
        if completion is not None:
            return [explainer.read(batch, completion, options)]
        return explainer.write(batch, max_new_tokens, options)

    def write(
        self, batch: PromptBatch, max_new_tokens: int, options: dict[str, Any]
    ) -> list[Attribution]:
        """Let the model write, and attribute what it wrote."""
        reader = self.reader
        checked_new_tokens(max_new_tokens)
        options = dict(options)
        seed = options.pop("seed", None)
        seed = None if seed is None else checked_seed(seed, least=-(2**63))
        check_room(reader.module, reader.facts, batch.length, max_new_tokens)
        writer = Writer(reader)
        if self.rerun is not None:
            texts = writer.texts(batch, max_new_tokens, seed=seed, options=options)
            return [self._measure(self.rerun, *text) for text in texts]
        completions = writer.write(batch, max_new_tokens, seed=seed, options=options)
        return [self._confirmed(one.result, one.prompt, one.ids) for one in completions]

    def read(
        self, batch: PromptBatch, completion: Completion, options: dict[str, Any]
    ) -> Attribution:
        """Attribute a completion that exists to its prompt."""
        reader = self.reader
        if len(batch) != 1:
            raise InputError(f"completion= goes with one prompt; got {len(batch)}.")
        if options:
            raise InputError(
                f"{', '.join(options)}: options of the model's generate() say how a text is "
                "written; completion= is written already."
            )
        ids = completion_ids(reader.tokenizer, completion, reader.facts)
        check_completion(reader.module, reader.facts, ids)
        check_room(reader.module, reader.facts, batch.length, len(ids))
        (prompt,) = batch.prompts()
        if self.rerun is not None:
            return self._measure(self.rerun, prompt, ids)
        return self._confirmed(reader.read(prompt, ids, {"streamed": False}), prompt, ids)

    def explain_images(
        self,
        prompt: Prompts,
        images: Sequence[Any],
        completion: Completion | None,
        max_new_tokens: int,
        options: dict[str, Any],
    ) -> Attribution:
        """Answer a question about images: prepared by the model's processor, with its pictures."""
        if not isinstance(prompt, str):
            raise InputError("images= go with one prompt, a text.")
        reader = self.reader
        processor = reader.model.question_processor
        model = replace(reader.model, tokenizer=reader.tokenizer or processor.tokenizer)
        request = reader.request
        if request.is_default:
            request = replace(request, method=default_method(model, about_images=True))
        photos = read_photos(images)
        inputs = image_prompt(model.module, prompt, photos, processor)
        explainer = replace(self, reader=Reader(model, request))
        batch = encode_prompts(model, inputs)
        (result,) = explainer.explain(batch, completion, max_new_tokens, options)
        return with_pictures(result, model.module, inputs, processor, photos)

    def _measure(self, rerun: RerunMethod, prompt: Prompt, ids: list[int]) -> Attribution:
        reader = self.reader
        if has_images(reader.extra):
            result = measure_images(reader, rerun, prompt, ids)
            return self._confirmed(result, prompt, ids)
        targets = None if reader.request.targets is None else reader.targets(ids)
        result = measure_completion(rerun, reader.model, prompt, ids, targets=targets)
        text = None if reader.tokenizer is None else reader.tokenizer.decode(ids)
        about = {**result.provenance, "completion": text, "completion_ids": list(ids)}
        return self._confirmed(replace(result, provenance=about), prompt, ids)

    def _confirmed(self, result: Attribution, prompt: Prompt, ids: list[int]) -> Attribution:
        """Return the result, with what the answer loses without its strongest sources if asked."""
        if not self.confirm:
            return result
        if result.sources.images:
            raise InputError(
                "confirm=True hides words of a prompt; it does not hide patches. Leave it out for "
                "a prompt with images."
            )
        reader = self.reader
        tokens = sorted({k for target in reader.targets(ids) for k in target.tokens})
        confirmation = confirm_completion(
            result, reader.module, prompt.ids, ids, tokenizer=reader.tokenizer, tokens=tokens
        )
        return replace(result, confirmation=confirmation)


def _check_rerun(method: RerunMethod, sources: Sources, contrast: str | None) -> None:
    """Refuse what a method that runs the model again has no room for."""
    others = {"sources": sources != "prompt", "contrast": contrast is not None}
    for name, is_set in others.items():
        if is_set:
            raise MethodError(
                f"{method.name!r} measures what each source of the prompt is worth; "
                f"{name}= is for methods that read attention."
            )
