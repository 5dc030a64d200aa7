"""explain(): which tokens of a text a model's answer draws on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.errors import InputError, ModelError, optional_import
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers.rerun_choice import MeasuredChoice, measured_choice
from attnflow.methods import Method, make_method
from attnflow.tokens import TokenRef
from attnflow.tokens.pictures import Picture

if TYPE_CHECKING:
    from torch import nn

    from attnflow.explainers.next_token import NextToken

__all__ = ["default_method", "explain", "with_confirmation"]


@checked_arguments
def explain(
    model: nn.Module | str | os.PathLike[str] | None,
    text: str | Mapping[str, Any] | Picture,
    method: str | Method | None = None,
    *,
    targets: Sequence[TokenRef] | TokenRef | None = None,
    layers: Sequence[int] | int | None = None,
    words: bool = False,
    tokenizer: Any = None,
    images: Sequence[Any] | None = None,
    processor: Any = None,
    decoder_text: str | None = None,
    answer: int | str | None = None,
    contrast: int | str | None = None,
    careful: bool = False,
    confirm: bool = False,
    **options: Any,
) -> Attribution:
    """Which input tokens did these targets draw on?

    model: a Hugging Face name, a local path, a loaded model (then pass its `tokenizer` too), or
        None for the model that ships with attnflow.
    text: a text, prepared inputs by name, or for a vision model an image: a path, a PIL image, an
        array (height, width, 3), a tensor (3, height, width) or the bytes of a file.
    processor: what turns an image into the model's pixels; default: the model's own.
    method: a name such as "raw", "rollout", "flow" with `options`, or a method such as
        `Flow(residual=0.4)`; what it requires beside the weights is captured too. None is
        what agrees best with ablations (docs/evidence.md): `GradientAttention()` for causal
        language models and image classifiers, `Rollout(matrices="alti")` for text encoders whose
        blocks are known,
        `GradientRollout()` for text with images (docs/images.md), `Rollout()` for others.
    targets, layers: only these; a target is a position or a token that occurs once. By default
        every layer, and the position that the model's answer is read from, so that `.top(3)` says
        what the answer draws on; "all", or a model without an answer: every position.
    words: merge word pieces to words.
    images: for a vision-language model, the images that the text asks about; the sources are then
        patches and words together. `processor` is the model's own unless another is handed in.
    decoder_text: what the decoder of an encoder–decoder has written so far.
    answer: for gradient methods, the class or token to explain, by number or by name; default: the
        model's answer. Where a model answers for each token, each target has its own gradient.
    contrast: for gradient methods, another class or token: why the answer rather than this one?
    careful: for causal language models, ten passes instead of one: `methods.Careful`.
    confirm: for causal language models, hide the strongest three words together, in one more pass:
        `result.confirmation` says what the answer loses.

    >>> result = explain(None, "the keys to the cabinet")
    >>> result.values.shape  # layers, targets, sources
    (6, 1, 7)
    >>> [source.token for source in result.top(2, common=False)]
    ['keys', '[CLS]']
    """
    measured = measured_choice(method, careful)
    if not isinstance(measured, MeasuredChoice) and measured is not None:
        measured = make_method(measured, options)
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.explainers.answer_rows import apply_method
    from attnflow.hosts.load import load

    host, tokenizer = load(model, tokenizer=tokenizer)
    if images is not None:
        from attnflow.hosts.vision_language.towers import image_prompt, processor_of, read_photos

        if confirm or isinstance(measured, MeasuredChoice):
            raise InputError(
                "confirm=True, careful=True and methods that run the model again take no images "
                "here; attnflow.generate(..., method='visibility', images=[...]) does."
            )
        processor = processor_of(host, processor)
        tokenizer = tokenizer or processor.tokenizer
        photos = read_photos(images)
        text = image_prompt(host, text, photos, processor)
    next_token = None
    if confirm or isinstance(measured, MeasuredChoice):
        next_token = _next_token(host, text, tokenizer, answer, targets)
    if isinstance(measured, MeasuredChoice) and next_token is not None:
        from attnflow.explainers.prompts import Prompt

        if contrast is not None:
            raise InputError(f"contrast= is about a gradient; {measured.method.name!r} has none.")
        result = replace(
            measured(host, Prompt(next_token.ids), [next_token.choice], tokenizer=tokenizer),
            prediction=next_token.prediction,
        )
    else:
        applied = measured if isinstance(measured, Method) else default_method(host, options, text)
        result = apply_method(
            applied,
            host,
            text,
            targets=targets,
            layers=layers,
            tokenizer=tokenizer,
            processor=processor,
            decoder_text=decoder_text,
            answer=answer,
            contrast=contrast,
        )
    if images is not None and isinstance(text, Mapping):
        from attnflow.hosts.vision_language.views import with_pictures

        result = with_pictures(result, host, text, processor, photos)
    if images is not None and measured is None:
        from attnflow.methods.rows import less_identity

        place = result.targets.positions[0]  # that a word is itself explains nothing
        result = less_identity(result, [result.sources.positions.index(place)])
    if confirm and next_token is not None:
        result = with_confirmation(result, host, next_token, tokenizer)
    return result.merge_words() if words else result


def default_method(
    model: Any, options: Mapping[str, Any] | None = None, text: str | Mapping[str, Any] = ""
) -> Method:
    """What explains a text when nothing is asked for: what agrees best with ablations.

    text: inputs with images are explained by what found the true object of drawn scenes.

    >>> from attnflow.testing import tiny_decoder
    >>> default_method(tiny_decoder()[0]).name
    'gradient-attention'
    """
    from attnflow.explainers import answer_rows
    from attnflow.hosts.vision_language.towers import reads_images

    if isinstance(text, Mapping) and reads_images(model, text):
        from attnflow.explainers.request import IMAGE_METHOD

        return make_method(IMAGE_METHOD.name, options) if options else IMAGE_METHOD
    return answer_rows.default_method(model, options)


def _next_token(
    model: Any,
    text: str | Mapping[str, Any],
    tokenizer: Any,
    answer: int | str | None,
    targets: object,
) -> NextToken:
    """What a causal language model says after a text, which is what can be measured."""
    from attnflow.explainers.next_token import next_token
    from attnflow.hosts.registry import adapter_for

    if not adapter_for(model).supports_row_gradients(model):
        raise ModelError(
            "careful=True and confirm=True run a causal language model again without parts of its "
            f"text; {type(model).__name__} is not one. `attnflow evaluate` holds methods against "
            "ablations of any model."
        )
    if targets is not None:
        raise InputError(
            f"targets={targets!r}: careful=True and confirm=True explain what follows the text; "
            "leave targets out, or cut the text before the token you mean."
        )
    return next_token(model, text, tokenizer, answer)


def with_confirmation(
    result: Attribution, model: Any, next_token: NextToken, tokenizer: Any
) -> Attribution:
    """The result with what the next token loses without the strongest sources of its row."""
    from attnflow.explainers.confirm import confirm_completion

    position = next_token.prediction.position
    row = result.row(position) if position in result.targets.positions else result
    confirmation = confirm_completion(
        row, model, next_token.ids, [next_token.choice], tokenizer=tokenizer
    )
    return replace(result, confirmation=confirmation)
