"""generate() and explain_completion(): which part of the prompt made each generated token.

The result is the tensor of Deb (2021) as an Attribution: layer × generated token × prompt token,
where the row of a generated token is that of the position that predicted it. What falls on
generated tokens is kept in `elsewhere`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from attnflow._renamed import renamed_arguments
from attnflow.attribution import Attribution
from attnflow.errors import InputError, TokensError, optional_import
from attnflow.methods import GradientAttention, Method, make_method
from attnflow.tokens import TokenRef

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnflow.generation.prompts import Message, Prompts
    from attnflow.generation.writer import Baseline, Sources

    Model = nn.Module | str | os.PathLike[str] | None

__all__ = ["explain", "explain_completion", "generate"]


@renamed_arguments(target="targets", layer="layers", of="answer")
def explain(
    model: nn.Module | str | os.PathLike[str] | None,
    text: str | Mapping[str, Tensor],
    method: str | Method | None = None,
    *,
    targets: Sequence[TokenRef] | TokenRef | None = None,
    layers: Sequence[int] | int | None = None,
    words: bool = False,
    tokenizer: Any = None,
    decoder_text: str | None = None,
    answer: int | None = None,
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
    answer: for gradient methods, the class or token id to explain; default: the model's answer.
    """
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.hosts.capture import capture
    from attnflow.hosts.load import load_model
    from attnflow.hosts.registry import adapter_for

    applied = None if method is None else make_method(method, options)
    if model is None or isinstance(model, (str, os.PathLike)):
        model, own_tokenizer = load_model(model)
        tokenizer = tokenizer or own_tokenizer
    if applied is None:
        name = "gradient-attention" if adapter_for(model).explains_rows(model) else "rollout"
        applied = make_method(name, options)
    trace = capture(
        model,
        text,
        tokenizer=tokenizer,
        decoder_text=decoder_text,
        methods=[applied],
        answer=answer,
    )
    if targets is None and isinstance(applied, GradientAttention) and trace.prediction is not None:
        targets = trace.prediction.position
    result = applied(trace, targets=targets, layers=layers)
    return result.merge_words() if words else result


@overload
def generate(
    model: Model,
    prompt: str | Sequence[Message],
    *,
    max_new_tokens: int = ...,
    method: str | Method | None = ...,
    baseline: Baseline = ...,
    sources: Sources = ...,
    tokenizer: Any = ...,
    chat: bool = ...,
    seed: int | None = ...,
    stream: Callable[[str], None] | None = ...,
    generate_kwargs: Mapping[str, Any] | None = ...,
    **options: Any,
) -> Attribution: ...
@overload
def generate(
    model: Model,
    prompt: Sequence[str],
    *,
    max_new_tokens: int = ...,
    method: str | Method | None = ...,
    baseline: Baseline = ...,
    sources: Sources = ...,
    tokenizer: Any = ...,
    chat: bool = ...,
    seed: int | None = ...,
    stream: Callable[[str], None] | None = ...,
    generate_kwargs: Mapping[str, Any] | None = ...,
    **options: Any,
) -> list[Attribution]: ...
@overload
def generate(
    model: Model,
    prompt: Prompts,
    *,
    max_new_tokens: int = ...,
    method: str | Method | None = ...,
    baseline: Baseline = ...,
    sources: Sources = ...,
    tokenizer: Any = ...,
    chat: bool = ...,
    seed: int | None = ...,
    stream: Callable[[str], None] | None = ...,
    generate_kwargs: Mapping[str, Any] | None = ...,
    **options: Any,
) -> Attribution | list[Attribution]: ...
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
    """
    if options:
        warnings.warn(
            f"generate({', '.join(f'{name}=...' for name in options)}) is now "
            "generate_kwargs={...}; options passed by name go in the next release",
            DeprecationWarning,
            stacklevel=2,
        )
    host, tokenizer = _loaded(model, tokenizer)
    from attnflow.generation.prompts import encode_prompts
    from attnflow.generation.writer import CompletionRequest, Writer

    asked = CompletionRequest.of(host, method, baseline, sources)
    _check_new_tokens(max_new_tokens)
    encoded = encode_prompts(host, tokenizer, prompt, chat=chat)
    _check_room(host, encoded.length, max_new_tokens)
    writer = Writer(host, tokenizer, asked)
    results = writer.write(
        encoded,
        max_new_tokens,
        seed=seed,
        stream=stream,
        options={**options, **(generate_kwargs or {})},
    )
    return results if encoded.several else results[0]


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

    completion: the text as it follows the prompt, with its leading space, or its token ids.
    Everything else is as in `generate`.
    """
    host, tokenizer = _loaded(model, tokenizer)
    from attnflow.generation.prompts import encode_prompts
    from attnflow.generation.writer import CompletionRequest, Writer

    asked = CompletionRequest.of(host, method, baseline, sources)
    encoded = encode_prompts(host, tokenizer, prompt, chat=chat)
    if len(encoded.ids) != 1:
        raise InputError(f"explain_completion() takes one prompt; got {len(encoded.ids)}.")
    ids = _completion_ids(tokenizer, completion)
    _check_room(host, encoded.length, len(ids))
    writer = Writer(host, tokenizer, asked)
    return writer.read(encoded.own_ids(0), ids, {"streamed": False})


def _loaded(model: Model, tokenizer: Any) -> tuple[Any, Any]:
    optional_import("torch", extra="models", purpose="Running a model")
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.hosts.load import load_language_model
    from attnflow.hosts.transformers.generate import checked_generator

    if model is None or isinstance(model, (str, os.PathLike)):
        loaded = load_language_model(model)
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    return checked_generator(model), tokenizer


def _completion_ids(tokenizer: Any, completion: str | Sequence[int]) -> list[int]:
    if isinstance(completion, str):
        if tokenizer is None:
            raise TokensError("A completion as text needs tokenizer=...; or pass its token ids.")
        ids = list(tokenizer(completion, add_special_tokens=False)["input_ids"])
    else:
        ids = [int(token) for token in completion]
    if not ids:
        raise TokensError(f"There is nothing to explain: the completion is {completion!r}.")
    return ids


def _check_new_tokens(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"max_new_tokens is how many tokens to make, at least 1; got {count!r}.")


def _check_room(model: Any, prompt: int, new: int) -> None:
    """The prompt and what is made must fit into the positions the model has."""
    if getattr(model.config, "is_encoder_decoder", False):
        return
    limit = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        return
    if prompt > limit:
        raise TokensError(
            f"The prompt has {prompt} tokens and {type(model).__name__} takes at most {limit}. "
            "Shorten it."
        )
    if prompt + new > limit:
        raise TokensError(
            f"{prompt} tokens of prompt and {new} new ones are {prompt + new}, and "
            f"{type(model).__name__} takes at most {limit}; ask for at most {limit - prompt}."
        )
