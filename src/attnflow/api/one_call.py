"""generate() and explain_completion(): which part of the prompt made each generated token.

The result is the tensor of Deb (2021) as an Attribution: layer × generated token × prompt token,
where the row of a generated token is that of the position that predicted it. What falls on
generated tokens is kept in `elsewhere`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from attnflow.attribution import Attribution
from attnflow.errors import InputError, optional_import
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.errors.renamed import renamed_arguments
from attnflow.methods import Method, make_method
from attnflow.progress import ProgressCallback
from attnflow.tokens import TokenRef

if TYPE_CHECKING:
    from torch import nn

    from attnflow.generation.prompts import Message, Prompts
    from attnflow.generation.reader import Reader
    from attnflow.generation.request import Baseline, Sources

    Model = nn.Module | str | os.PathLike[str] | None

__all__ = ["explain", "explain_completion", "generate"]


@renamed_arguments(target="targets", layer="layers", of="answer")
@checked_arguments
def explain(
    model: nn.Module | str | os.PathLike[str] | None,
    text: str | Mapping[str, Any],
    method: str | Method | None = None,
    *,
    targets: Sequence[TokenRef] | TokenRef | None = None,
    layers: Sequence[int] | int | None = None,
    words: bool = False,
    tokenizer: Any = None,
    decoder_text: str | None = None,
    answer: int | str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Attribution:
    """Which input tokens did these targets draw on?

    model: a Hugging Face name, a local path, a loaded model (then pass its `tokenizer` too), or
        None for the model that ships with attnflow.
    method: a name such as "raw", "rollout", "flow" with `options`, or a method such as
        `Flow(residual=0.4)`; what it requires beside the weights is captured too. None is
        `GradientAttention()` for causal language models, where it agrees best with leaving sources
        out, and `Rollout()` for others.
    targets, layers: only these; a target is a position or a token that occurs once. By default
        every layer and position; gradient attention explains the position that predicts.
    words: merge word pieces to words.
    decoder_text: what the decoder of an encoder–decoder has written so far.
    answer: for gradient methods, the class or token to explain, by number or by name; default: the
        model's answer. Where a model answers for each token, each target has its own gradient.
    progress: called with a `Progress` while something that takes long is measured.

    >>> result = explain(None, "the keys to the cabinet", targets="[CLS]", layers=-1)
    >>> result.values.shape  # layers, targets, sources
    (1, 1, 7)
    """
    applied = None if method is None else make_method(method, options)
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.hosts.load import resolve_model
    from attnflow.hosts.registry import adapter_for
    from attnflow.hosts.token_answers import apply_method

    host, tokenizer = resolve_model(model, tokenizer)
    if applied is None:
        name = "gradient-attention" if adapter_for(host).explains_rows(host) else "rollout"
        applied = make_method(name, options)
    result = apply_method(
        applied,
        host,
        text,
        targets=targets,
        layers=layers,
        tokenizer=tokenizer,
        decoder_text=decoder_text,
        answer=answer,
        progress=progress,
    )
    return result.merge_words() if words else result


class _Options(TypedDict, total=False):
    """What generate() takes by name; its docstring says what each is."""

    max_new_tokens: int
    method: str | Method | None
    baseline: Baseline
    sources: Sources
    tokenizer: Any
    chat: bool
    seed: int | None
    stream: Callable[[str], None] | None
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
    baseline: Baseline = None,
    sources: Sources = "prompt",
    tokenizer: Any = None,
    chat: bool = False,
    seed: int | None = None,
    stream: Callable[[str], None] | None = None,
    generate_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Attribution | list[Attribution]:
    """Continue a prompt with the model's own generate(), and attribute every new token to it.

    model: a name, a path, a loaded model (with its `tokenizer`), or None for SmolLM2, if
        `attnflow[demo]` is installed.
    prompt: a text, a list of texts (then a list of results), a conversation of messages, or
        prepared inputs. `chat=True` puts a text into the model's chat template.
    method: None is the measured default, `GradientAttention()`: what each generated token's own
        position attends to, as far as it raises that token's probability (docs/generation.md).
        "rollout" is Deb's tensor; it streams beside the key-value cache. Other methods run once
        more at the end.
    baseline: "neutral" subtracts what the model does on a neutral prompt of the same length and
        the same completion, a list of token ids is a prompt of your own, None subtracts nothing.
    sources: "prompt", with the rest in `elsewhere`; "all" lists generated tokens as sources too.
    seed: sample with this seed; without it the search is greedy.
    stream: called with each piece of text as it is made.
    generate_kwargs: more for the model's generate(), such as {"temperature": 0.7}.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> result = generate(model, "the keys to", tokenizer=tokenizer, max_new_tokens=4)
    >>> result.values.shape  # layers, generated tokens, prompt tokens
    (2, 4, 3)
    """
    if options:
        warnings.warn(
            f"generate({', '.join(f'{name}=...' for name in options)}) is now "
            "generate_kwargs={...}; options passed by name go in the next release",
            DeprecationWarning,
            stacklevel=2,
        )
    reader = _reader(model, tokenizer, method, baseline, sources)
    from attnflow.generation.prompts import encode_prompts
    from attnflow.generation.request import check_room, checked_new_tokens
    from attnflow.generation.writer import Writer

    checked_new_tokens(max_new_tokens)
    seed = None if seed is None else checked_seed(seed, least=-(2**63))
    batch = encode_prompts(reader.model, reader.tokenizer, prompt, chat=chat)
    check_room(reader.model, reader.facts, batch.length, max_new_tokens)
    results = Writer(reader).write(
        batch,
        max_new_tokens,
        seed=seed,
        stream=stream,
        options={**options, **(generate_kwargs or {})},
    )
    return results if batch.several else results[0]


@checked_arguments
def explain_completion(
    model: Model,
    prompt: Prompts,
    completion: str | Sequence[int],
    *,
    method: str | Method | None = None,
    baseline: Baseline = None,
    sources: Sources = "prompt",
    tokenizer: Any = None,
    chat: bool = False,
) -> Attribution:
    """Attribute a text that was generated already: one forward pass, the same result.

    completion: the text as it follows the prompt, with its leading space, or its token ids. That
        of an encoder–decoder is what its decoder writes.
    Everything else is as in `generate`.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> result = explain_completion(model, "the keys to", "the cabinets are", tokenizer=tokenizer)
    >>> list(result.targets)
    ['the', 'cabinets', 'are']
    """
    reader = _reader(model, tokenizer, method, baseline, sources)
    from attnflow.generation.prompts import encode_prompts
    from attnflow.generation.request import check_completion, check_room, completion_ids

    batch = encode_prompts(reader.model, reader.tokenizer, prompt, chat=chat)
    if len(batch) != 1:
        raise InputError(f"explain_completion() takes one prompt; got {len(batch)}.")
    ids = completion_ids(reader.tokenizer, completion, reader.facts)
    check_completion(reader.model, reader.facts, ids)
    check_room(reader.model, reader.facts, batch.length, len(ids))
    return reader.read(batch.prompts()[0], ids, {"streamed": False})


def _reader(
    model: Model,
    tokenizer: Any,
    method: str | Method | None,
    baseline: Baseline,
    sources: Sources,
) -> Reader:
    """The model loaded and checked, with what is asked of its completions."""
    optional_import("torch", extra="models", purpose="Running a model")
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.generation.reader import Reader
    from attnflow.generation.request import CompletionRequest
    from attnflow.hosts.load import load_language_model
    from attnflow.hosts.transformers.generate import checked_generator
    from attnflow.hosts.transformers.texts import checked_tokenizer

    if model is None or isinstance(model, (str, os.PathLike)):
        loaded = load_language_model(model)
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    if tokenizer is not None:
        checked_tokenizer(tokenizer)
    request = CompletionRequest.of(checked_generator(model), method, baseline, sources)
    return Reader(model, tokenizer, request)
