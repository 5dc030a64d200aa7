"""explain(): which tokens of a text, or parts of an image, a model's answer draws on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch

from attnflow.attribution import Attribution, Verdict
from attnflow.errors import InputError, ModelError, TokensError
from attnflow.errors.arguments import check_named, checked_arguments
from attnflow.explainers.answer_checks import (
    judge_answer,
    judge_completion,
    measure_answer,
    with_verdict,
)
from attnflow.explainers.answer_rows import Targets, apply_method, less_identity
from attnflow.explainers.defaults import default_method, drop_sink, measures_words, without_mask
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import Completion
from attnflow.explainers.reruns import measure_completion
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest, in_step
from attnflow.hosts.vision_language.composition import with_pictures
from attnflow.hosts.vision_language.towers import image_prompt, read_photos, reads_images
from attnflow.methods import Method, RerunMethod, make_method
from attnflow.show.progress import in_notebook
from attnflow.tokens.patches import Picture
from attnflow.trace import Prediction

_LEVELS = ("token", "word")


@overload  # a text is a sequence of texts too; it is the first of the two that fits
def explain(
    model: ModelLike, text: str, method: str | Method | None = None, **options: Any
) -> Attribution: ...
@overload
def explain(
    model: ModelLike, text: list[str], method: str | Method | None = None, **options: Any
) -> list[Attribution]: ...
@overload
def explain(
    model: ModelLike,
    text: str | Mapping[str, Any] | Picture | list[str],
    method: str | Method | None = None,
    **options: Any,
) -> Any: ...
@in_step  # type: ignore[misc]  # the options of the overloads are those named here
@checked_arguments
@in_notebook
def explain(
    model: ModelLike,
    text: str | Mapping[str, Any] | Picture | list[str],
    method: str | Method | None = None,
    *,
    targets: Targets = None,
    layers: Sequence[int] | int | None = None,
    level: str = "token",
    images: Sequence[Any] | None = None,
    answer: int | str | None = None,
    contrast: int | str | None = None,
    check: bool = True,
) -> Attribution | list[Attribution]:
    """Say which input tokens a model's answer, or these targets, draw on.

    model: a Hugging Face name, a local path, what `attnflow.load` gives, a loaded module with its
        tokenizer as a pair, or None for the model that ships with attnflow.
    text: a text, a list of texts (then a list of results; of many, `corpus.run` makes files),
        prepared inputs by name, or for a vision model an image: a path, a PIL image, an
        array (height, width, 3), a tensor (3, height, width) or the bytes of a file.
    method: a name with options such as "rollout:residual=0.4", or a method such as
        `Flow(residual=0.4)`; what it requires beside the weights is captured too. "careful" takes
        ten passes of a causal language model. None is what agrees best with ablations of models of
        this kind (`explainers/defaults.py`, docs/evidence.md).
    targets, layers: only these; a target is a position or a token that occurs once. By default
        every layer, and the position that the model's answer is read from, so that `.top(3)` says
        what the answer draws on; "all", or a model without an answer: every position.
    level: "token", or "word" to merge the pieces of words.
    images: for a vision-language model, the images that the text asks about; the sources are then
        patches and words together.
    answer: for gradient methods, the class or token to explain, by number or by name; default: the
        model's answer. Where a model answers for each token, each target has its own gradient.
    contrast: for gradient methods, another class or token: why the answer rather than this one?
    check: hide the strongest three words in one or two more passes: `result.verdicts[0]` says what
        the answer rests on. Only the answer's own row is checked, and none with a contrast.

    >>> result = explain(None, "the keys to the cabinet")
    >>> result.values.shape  # layers, targets, sources
    (6, 1, 7)
    >>> [source.token for source in result.top(2, common=False)]
    ['keys', '[CLS]']
    """
    check_named("level", level, _LEVELS)
    applied = None if method is None else make_method(method)
    rerun = applied if isinstance(applied, RerunMethod) else None
    loaded = as_model(model)
    request: dict[str, Any] = {
        "targets": targets,
        "layers": layers,
        "answer": answer,
        "contrast": contrast,
    }
    if isinstance(text, list) and text and all(isinstance(each, str) for each in text):
        others = {"level": level, "images": images, "check": check, **request}
        return [explain(loaded, each, applied, **others) for each in text]
    token, prediction = None, None
    if rerun is not None:
        if images is not None:
            raise InputError(
                "Methods that run the model again leave out words of a text; they cannot say what "
                "a patch is worth. Methods that read attention do."
            )
        token, prediction = next_token(loaded, text, answer, targets)
    if images is not None:
        result = _explain_question(loaded, text, images, applied, request, check)
    elif rerun is not None and token is not None:
        if contrast is not None:
            raise InputError(f"contrast= is about a gradient; {rerun.name!r} has none.")
        result = replace(measure_completion(rerun, loaded, token), prediction=prediction)
    else:
        result = (
            apply_default(loaded, text, **request)
            if applied is None
            else apply_method(applied, loaded, text, **request)
        )
    if check and contrast is None and images is None:
        result = check_answer(result, loaded, text, answer)
    return result.merge_words() if level == "word" else result


def apply_default(model: Model, text: Any, **request: Any) -> Attribution:
    """Apply the default for one text, its words measured where that is part of it."""
    method = default_for(model, text)
    result = apply_method(method, model, text, **request)
    if measures_words(method) and request.get("contrast") is None:
        return measure_answer(result, model, text, request.get("answer"))
    return result


def default_for(model: Model, text: Any) -> Method:
    """Return the default for one text: where a sink is dropped, it is the text's own."""
    about_images = isinstance(text, Mapping) and reads_images(model.module, text)
    method = default_method(model, about_images=about_images)
    if isinstance(text, Mapping):
        inputs = text
    elif isinstance(text, str) and model.tokenizer is not None:
        inputs = model.adapter.encode(model.module, model.tokenizer, [checked_text(text)]).inputs
    else:
        return method
    if "input_ids" not in inputs:
        return method
    ids = torch.as_tensor(inputs["input_ids"]).reshape(-1).tolist()
    return drop_sink(without_mask(method, model, ids), model, inputs, ids[0])


def _explain_question(
    model: Model,
    text: Any,
    images: Sequence[Any],
    method: Method | None,
    request: Mapping[str, Any],
    check: bool,
) -> Attribution:
    """Explain the first word of a vision-language model's answer by patches and words."""
    processor = model.question_processor
    model = replace(model, tokenizer=model.tokenizer or processor.tokenizer)
    photos = read_photos(images)
    inputs = image_prompt(model.module, text, photos, processor)
    default = default_method(model, about_images=True)
    result = apply_method(method or default, model, inputs, **request)
    result = with_pictures(result, model.module, inputs, processor, photos)
    if method is None:  # that a word is itself explains nothing
        place = result.targets.positions[0]
        result = less_identity(result, [result.sources.positions.index(place)])
    if not check or request["contrast"] is not None:
        return result
    return check_answer(result, model, inputs, request["answer"])


def next_token(
    model: Model, text: Any, answer: int | str | None = None, targets: object = None
) -> tuple[Completion, Prediction]:
    """Return as a completion the next token of a causal language model, which can be measured."""
    module, adapter = model.module, model.adapter
    if not adapter.writes_by_attention(module):
        raise ModelError(
            "method='careful' runs a causal language model again without parts of its text; "
            f"{type(module).__name__} is not one. `attnflow evaluate` holds methods against "
            "ablations of any model."
        )
    if targets is not None:
        raise InputError(
            f"targets={targets!r}: method='careful' explains what follows the text; leave targets "
            "out, or cut the text before the token you mean."
        )
    if isinstance(text, Mapping):
        batch = adapter.wrap(module, text)
    else:
        batch = adapter.encode(module, model.tokenizer, [checked_text(text)])
    if batch.size != 1:
        raise TokensError(f"One example is explained at a time; got a batch of {batch.size}.")
    with at_rest(module), torch.no_grad():
        outputs = adapter.forward(module, batch.inputs)
    (scores,) = adapter.scores(module, model.tokenizer, outputs, batch)
    if scores is None:
        raise ModelError(f"{type(module).__name__} says nothing of what follows this text.")
    row = batch.inputs["input_ids"][0]
    ids = row[list(batch.positions_of(0, len(row)))].tolist()
    return Completion(Prompt(ids), [scores.choice(answer)]), scores.prediction()


def check_answer(
    result: Attribution, model: Model, text: Any, answer: int | str | None = None
) -> Attribution:
    """Return the result with what the answer rests on, where its own row is there."""

    def judge() -> Verdict | None:
        if result.sources.images or not model.adapter.writes_by_attention(model.module):
            return judge_answer(result, model, text, answer)
        token, _ = next_token(model, text, answer)
        position = len(token.prompt.ids) - 1
        if result.method.reruns_model:
            return judge_completion(result, model, token)
        if position not in result.targets.positions:
            return None
        return judge_completion(result.row(position), model, token)

    return with_verdict(result, judge)
