"""A completion as it is asked about: its token ids, the parts of it that are meant, a contrast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from attnflow.attribution.rescaling import Span
from attnflow.errors import InputError, MethodError, TargetError, TokensError, shorten, whole_number
from attnflow.explainers.prompts import Prompt
from attnflow.hosts.inputs import after_start, checked_text, prefix_ids
from attnflow.hosts.model import Model
from attnflow.methods import Method
from attnflow.tokens import Tokens
from attnflow.trace.extras import OF_AN_ANSWER

ANSWER = "answer"
"""The name of the whole completion as one target."""

TargetRef = int | str | slice | range
"""A token by number (from 0, negative from the end) or text, a phrase, a span, or "answer"."""
TargetRefs = Sequence[TargetRef] | TargetRef | None
SourceRefs = Literal["prompt", "all"] | Mapping[str, Span]


@dataclass(frozen=True)
class Completion:
    """A prompt, the ids of what follows it, and what its result notes of how it was written.

    keys: keys and values of every layer, over the text up to its last token, where a pass over it
    has left them: whoever runs the end of it again need not read the prompt once more.
    """

    prompt: Prompt
    ids: list[int]
    notes: Mapping[str, Any] = field(default_factory=lambda: {"streamed": False})
    keys: list[tuple[Tensor, Tensor]] = field(default_factory=list, compare=False, repr=False)


def takes_gradients(method: Method) -> bool:
    """Return whether a method weighs attention by gradients."""
    return bool(OF_AN_ANSWER & set(method.requires.record))


def list_targets(targets: TargetRefs) -> tuple[TargetRef, ...] | None:
    """Return one target or several as several; None stays."""
    if targets is None:
        return None
    single = (
        isinstance(targets, (str, slice, range))
        or not isinstance(targets, Iterable)
        or whole_number(targets) is not None  # an array of no axes says that it can be iterated
    )
    return (targets,) if single else tuple(targets)  # type: ignore[return-value, arg-type]


def check_contrast(contrast: str, method: Method, targets: tuple[TargetRef, ...] | None) -> None:
    """Raise unless another text can be held against one target by this method."""
    if not contrast.strip():
        raise InputError(f"contrast={contrast!r} names no answer; write the one you expected.")
    if not takes_gradients(method):
        raise MethodError(
            f"contrast={shorten(contrast)} is about a gradient, and {method.name!r} takes "
            "none; method='gradient-attention' and 'gradient-rollout' do."
        )
    if targets is not None and len(targets) != 1:
        raise InputError(f"contrast= is about one target; got {len(targets)}.")


def completion_ids(model: Model, completion: str | Sequence[int]) -> list[int]:
    """Return a completion's token ids: as it follows its prompt, or as the decoder's own text."""
    if not isinstance(completion, str):
        try:
            ids = [int(token) for token in completion]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"completion is a text or a list of token ids; got {shorten(completion)}."
            ) from error
    elif model.tokenizer is None:
        raise TokensError("A completion as text needs tokenizer=...; or pass its token ids.")
    else:
        text = checked_text(completion, name="completion")
        if model.facts.encoder_decoder:
            ids = after_start(prefix_ids(model.tokenizer, text), model.facts)
        else:
            ids = list(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise TokensError(f"There is nothing to explain: the completion is {shorten(completion)}.")
    return ids


def check_room(model: Model, prompt: int, new: int) -> None:
    """Raise unless the prompt and what is made fit into the positions the model has."""
    limit, name = model.facts.max_length, type(model.module).__name__
    if limit is None or model.facts.encoder_decoder:
        return
    if prompt > limit:
        raise TokensError(
            f"The prompt has {prompt} tokens and {name} takes at most {limit}. Shorten it."
        )
    if prompt + new > limit:
        raise TokensError(
            f"{prompt} tokens of prompt and {new} new ones are {prompt + new}, and {name} takes "
            f"at most {limit}; ask for at most {limit - prompt}."
        )


@dataclass(frozen=True)
class CompletionTarget:
    """A part of a completion: what it is called, and which of its tokens it is, from 0."""

    text: str
    tokens: tuple[int, ...]


def resolve_targets(tokens: Tokens, targets: TargetRefs) -> tuple[CompletionTarget, ...]:
    """Return the targets that are meant; None is every token alone."""
    references = list_targets(targets)
    if references is None:
        return tuple(CompletionTarget(text, (k,)) for k, text in enumerate(tokens))
    if not references:
        raise TargetError(f"No target given; choose from {_listing(tokens)}.")
    return tuple(_resolve(tokens, each) for each in references)


def _resolve(tokens: Tokens, target: Any) -> CompletionTarget:
    if isinstance(target, str):
        numbers = _of_text(tokens, target)
    elif isinstance(target, (slice, range)):
        if (target.step or 1) != 1:
            raise TargetError(f"A span goes on token by token; got {shorten(target)}.")
        numbers = range(len(tokens))[target.start : target.stop]
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


def _of_text(tokens: Tokens, text: str) -> range:
    """Return a token of this text that occurs once, else the phrase that occurs once."""
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
    """One token of a completion, and another in its place: why this, not that? `text` says it."""

    number: int
    other: int
    text: str

    @classmethod
    def of(
        cls, tokenizer: Any, ids: Sequence[int], names: Tokens, target: CompletionTarget, text: str
    ) -> Contrast:
        """Return the first token in which a target and another text in its place differ."""
        if tokenizer is None:
            raise TokensError("A contrast is a text, which needs tokenizer=....")
        others = _ids_in_place(tokenizer, text, names.surfaces()[target.tokens[0]])
        pairs = zip(target.tokens, others, strict=False)
        differing = [(number, other) for number, other in pairs if ids[number] != other]
        if not differing:
            raise InputError(
                f"contrast={shorten(text)} and the target {shorten(target.text)} begin alike; "
                "name another answer."
            )
        readable = Tokens((target.text,)).text[0]
        return cls(*differing[0], f"{readable} rather than {text.strip()}")


def _ids_in_place(tokenizer: Any, text: str, surface: str) -> list[int]:
    """Encode a text as it would stand in the place of a token: after a space, or not."""
    expected = (" " if surface[:1].isspace() else "") + text.strip()
    ids: list[int] = []
    for form in (expected, text.strip()):
        ids = list(tokenizer(form, add_special_tokens=False)["input_ids"])
        names = Tokens(tuple(map(str, tokenizer.convert_ids_to_tokens(ids))))
        if "".join(names.surfaces()) == expected:
            return ids
    if not ids:
        raise InputError(f"contrast={shorten(text)} holds no token.")
    return ids
