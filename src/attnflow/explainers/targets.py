"""Which parts of a completion are explained: tokens, words, phrases, or all of it as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.errors import InputError, TargetError, TokensError, shorten, whole_number
from attnflow.tokens import Tokens

__all__ = ["ANSWER", "CompletionTarget", "Contrast", "TargetRef", "resolve_targets"]

ANSWER = "answer"
"""The name of the whole completion as one target."""

TargetRef = int | str | slice | range
"""A token by number (from 0, negative from the end) or text, a phrase, a span, or "answer"."""


@dataclass(frozen=True)
class CompletionTarget:
    """A part of a completion: what it is called, and which of its tokens it is, from 0.

    >>> CompletionTarget("45 days", (3, 4)).tokens
    (3, 4)
    """

    text: str
    tokens: tuple[int, ...]


def resolve_targets(
    tokens: Tokens, targets: Sequence[TargetRef] | TargetRef | None
) -> tuple[CompletionTarget, ...]:
    """The targets that are meant; None is every token alone.

    >>> written = Tokens(("Ġwithin", "Ġ45", "Ġdays", "."))
    >>> [target.text for target in resolve_targets(written, ["45 days", -1, "answer"])]
    ['45 days', '.', 'within 45 days.']
    """
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
