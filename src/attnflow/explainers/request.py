"""What is asked of a completion: by which method, of which targets, from which sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from attnflow.attribution.rescaling import Span
from attnflow.errors import InputError, MethodError, TargetError, TokensError, shorten, whole_number
from attnflow.explainers.defaults import default_method
from attnflow.hosts.adapter import ModelFacts
from attnflow.hosts.inputs import checked_text
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.inputs import after_start, check_vocabulary, prefix_ids
from attnflow.methods import Method, make_method
from attnflow.tokens import Tokens
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS

ANSWER = "answer"
"""The name of the whole completion as one target."""

TargetRef = int | str | slice | range
"""A token by number (from 0, negative from the end) or text, a phrase, a span, or "answer"."""
TargetRefs = Sequence[TargetRef] | TargetRef | None
Sources = Literal["prompt", "all"] | Mapping[str, Span]


@dataclass(frozen=True)
class CompletionRequest:
    """What is to be computed of each completion.

    is_default: no method was asked for; a default rollout drops the prompt's sink, wherever it is.
    spans: named spans of the prompt as sources, in place of its tokens.
    """

    method: Method
    sources: Literal["prompt", "all"] = "prompt"
    is_default: bool = False
    targets: tuple[TargetRef, ...] | None = None
    contrast: str | None = None
    spans: Mapping[str, Span] | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        method: str | Method | None = None,
        sources: Sources = "prompt",
        targets: TargetRefs = None,
        contrast: str | None = None,
    ) -> CompletionRequest:
        """From what generate() takes; errors name what is allowed."""
        applied = default_method(model) if method is None else make_method(method)
        spans = sources if isinstance(sources, Mapping) else None
        side = "prompt" if isinstance(sources, Mapping) else sources
        if not isinstance(side, str) or side not in ("prompt", "all") or spans == {}:
            raise InputError(
                "sources is 'prompt', 'all', or spans of the prompt by name, such as "
                f"{{'contract': (0, 120)}}; got {shorten(sources)}."
            )
        if contrast is not None and not contrast.strip():
            raise InputError(f"contrast={contrast!r} names no answer; write the one you expected.")
        if contrast is not None and not takes_gradients(applied):
            raise MethodError(
                f"contrast={shorten(contrast)} is about a gradient, and {applied.name!r} takes "
                "none; method='gradient-attention' and 'gradient-rollout' do."
            )
        references = _listed_targets(targets)
        if contrast is not None and references is not None and len(references) != 1:
            raise InputError(f"contrast= is about one target; got {len(references)}.")
        return cls(applied, side, method is None, references, contrast, spans)


def takes_gradients(method: Method) -> bool:
    """Whether a method weighs attention by gradients."""
    return bool({GRADIENTS, GRADIENT_ATTENTION} & set(method.requires.record))


def _listed_targets(targets: TargetRefs) -> tuple[TargetRef, ...] | None:
    if targets is None:
        return None
    single = isinstance(targets, (str, slice, range)) or not isinstance(targets, Iterable)
    return (targets,) if single else tuple(targets)  # type: ignore[return-value, arg-type]


def _token_ids(ids: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(int(token) for token in ids)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is a text or a list of token ids; got {shorten(ids)}.") from error


def completion_ids(tokenizer: Any, completion: str | Sequence[int], facts: ModelFacts) -> list[int]:
    """A completion's token ids: as it follows its prompt, or as the decoder's own text."""
    if not isinstance(completion, str):
        ids = list(_token_ids(completion, "completion"))
    elif tokenizer is None:
        raise TokensError("A completion as text needs tokenizer=...; or pass its token ids.")
    elif facts.encoder_decoder:
        ids = after_start(prefix_ids(tokenizer, checked_text(completion, name="completion")), facts)
    else:
        ids = list(
            tokenizer(checked_text(completion, name="completion"), add_special_tokens=False)[
                "input_ids"
            ]
        )
    if not ids:
        raise TokensError(f"There is nothing to explain: the completion is {shorten(completion)}.")
    return ids


def check_completion(model: Any, facts: ModelFacts, ids: Sequence[int]) -> None:
    """That the model knows these tokens; the decoder of two stacks may have words of its own."""
    if not facts.encoder_decoder:
        check_vocabulary(model, torch.tensor(ids))


def checked_new_tokens(count: object) -> int:
    """How many tokens to make."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(
            f"max_new_tokens is how many tokens to make, at least 1; got {shorten(count)}."
        )
    return count


def check_room(model: Any, facts: ModelFacts, prompt: int, new: int) -> None:
    """The prompt and what is made must fit into the positions the model has."""
    limit = facts.max_length
    if limit is None or facts.encoder_decoder:
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


@dataclass(frozen=True)
class CompletionTarget:
    """A part of a completion: what it is called, and which of its tokens it is, from 0."""

    text: str
    tokens: tuple[int, ...]


def resolve_targets(
    tokens: Tokens, targets: Sequence[TargetRef] | TargetRef | None
) -> tuple[CompletionTarget, ...]:
    """The targets that are meant; None is every token alone."""
    if targets is None:
        return tuple(CompletionTarget(text, (k,)) for k, text in enumerate(tokens))
    single = (
        isinstance(targets, (str, slice, range))
        or not isinstance(targets, Iterable)
        or whole_number(targets) is not None  # an array of no axes says that it can be iterated
    )
    references: list[Any] = [targets] if single else list(targets)  # type: ignore[arg-type]
    if not references:
        raise TargetError(f"No target given; choose from {_listing(tokens)}.")
    return tuple(_resolve(tokens, each) for each in references)


def _resolve(tokens: Tokens, target: Any) -> CompletionTarget:
    if isinstance(target, str):
        numbers = _of_text(tokens, target)
    elif isinstance(target, (slice, range)):
        numbers = range(len(tokens))[_as_slice(target)]
    else:
        number = whole_number(target)
        if number is None or not -len(tokens) <= number < len(tokens):
            raise TargetError(
                f"No token {shorten(target)} in the completion; choose from {_listing(tokens)}, a "
                f"phrase of it, a slice, or {ANSWER!r} for all of it."
            )
        numbers = range(len(tokens))[number : number + 1 or None]
    if not len(numbers):
        raise TargetError(
            f"{shorten(target)} holds no token of the completion, which has {len(tokens)}."
        )
    return CompletionTarget(_text(tokens, numbers), tuple(numbers))


def _as_slice(target: slice | range) -> slice:
    if (target.step or 1) != 1:
        raise TargetError(f"A span goes on token by token; got {shorten(target)}.")
    return slice(target.start, target.stop)


def _of_text(tokens: Tokens, text: str) -> range:
    """A token of this text that occurs once, else the phrase that occurs once."""
    if text == ANSWER:
        return range(len(tokens))
    plain = Tokens(tokens.texts)  # positions as targets are counted, from 0
    if len(plain.occurrences_of(text)) >= 1:
        index = plain.index_of(text)
        return range(index, index + 1)
    return range(*plain.span_of(text.strip()))


def _text(tokens: Tokens, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return tokens[numbers[0]]
    parts = tokens.surfaces()
    return "".join(parts[k] for k in numbers).strip() or ANSWER


def _listing(tokens: Tokens) -> str:
    return Tokens(tokens.texts).listing()


@dataclass(frozen=True)
class Contrast:
    """One token of a completion, and another that might have stood there: why this, not that?

    number: which token of the completion. other: the id of the other token. text: both in words.
    """

    number: int
    other: int
    text: str

    @classmethod
    def of(
        cls, tokenizer: Any, ids: Sequence[int], names: Tokens, target: CompletionTarget, text: str
    ) -> Contrast:
        """The first token in which a target and another text in its place differ."""
        if tokenizer is None:
            raise TokensError("A contrast is a text, which needs tokenizer=....")
        first, *_ = target.tokens
        other = _ids_in_place(tokenizer, text, names.surfaces()[first])
        own = [ids[k] for k in target.tokens]
        pairs = zip(target.tokens, own, other, strict=False)
        differing = [(number, instead) for number, token, instead in pairs if token != instead]
        if not differing:
            raise InputError(
                f"contrast={shorten(text)} and the target {shorten(target.text)} begin alike; "
                "name another answer."
            )
        number, instead = differing[0]
        said_text = _text(names, target.tokens)
        readable = Tokens((said_text,)).text[0]
        return cls(number, instead, f"{readable} rather than {text.strip()}")


def _ids_in_place(tokenizer: Any, text: str, surface: str) -> list[int]:
    """A text as it would stand where a token with this surface stands: after a space, or not."""
    space = " " if surface[:1].isspace() else ""
    expected = space + text.strip()
    ids: list[int] = []
    for form in (expected, text.strip()):
        ids = list(tokenizer(form, add_special_tokens=False)["input_ids"])
        names = Tokens(tuple(map(str, tokenizer.convert_ids_to_tokens(ids))))
        if "".join(names.surfaces()) == expected:
            return ids
    if not ids:
        raise InputError(f"contrast={shorten(text)} holds no token.")
    return ids
