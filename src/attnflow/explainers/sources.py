"""What may be taken away from a prompt: its sources, each a list of positions.

What is no source is said in the open: the first token of a decoder, where attention rests whatever
stands there, the tokens that frame a text or a conversation, and, where it is asked for, the last
word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import SOURCE_TOKENS, Span, resolve_spans
from attnflow.errors import InputError, TokensError
from attnflow.tokens import Tokens, is_special
from attnflow.tokens.text import surfaces
from attnflow.tokens.units import (
    LEVELS,
    CharSpan,
    Level,
    Unit,
    check_level,
    split_units,
    tokens_in,
)

Floats = NDArray[np.float64]
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Sources:
    """Sources of a prompt: their names, and the prompt positions of each.

    length: how many tokens the prompt has. groups: for each coarser level, in which unit of it each
    source lies, by number; -1 where it lies in none.
    """

    names: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    length: int
    level: str = "spans"
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.positions):
            raise InputError(f"{len(self.names)} names for {len(self.positions)} sources.")
        outside = [p for each in self.positions for p in each if not 0 <= p < self.length]
        if outside or not all(self.positions):
            raise InputError(
                f"A source is at least one of the prompt's positions 0 to {self.length - 1}; got "
                f"{outside[0] if outside else 'none'}."
            )

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of_tokens(
        cls,
        tokens: Sequence[str],
        *,
        level: Level = "word",
        inside: Sequence[CharSpan] | None = None,
        documents: Sequence[CharSpan] | None = None,
        special: Sequence[int] | None = None,
        exclude_first: bool = True,
        exclude_last_word: bool = False,
    ) -> Sources:
        """The units of one level that the tokens of a prompt make up.

        inside: only these parts of the text are sources (characters), such as a chat's contents.
        documents: where the documents stand (characters), if the text does not show it.
        special: positions that are no source; default: the tokens in brackets, such as `<s>`.
        exclude_first: the first token is no source. exclude_last_word: nor is the last word.

        A word with an excluded token is no source; a sentence or a document goes on without it.
        """
        check_level(level)
        parts = documents if level == "document" and documents is not None else inside
        framing = frozenset(_special(tokens) if special is None else special)
        excluded = framing | ({0} if exclude_first else set())
        parts_are_units = level == "document" and documents is not None
        text_units = _units(tokens, level, parts, framing, parts_are_units=parts_are_units)
        if exclude_last_word:
            last = split_units(tokens, "word", framing=framing)
            excluded |= set(last[-1].tokens) if last else set()
        members = [_remaining(unit, level, excluded) for unit in text_units]
        pairs = [(unit, tuple(m)) for unit, m in zip(text_units, members, strict=True) if m]
        if not pairs:
            raise InputError(f"The prompt has no {level} that can be a source.")
        groups = _groups(tokens, level, [unit for unit, _ in pairs], inside, documents, framing)
        names = tuple(
            tokens[own[0]] if level == "token" else _short(unit.text) for unit, own in pairs
        )
        return cls(names, tuple(m for _, m in pairs), len(tokens), level, groups)

    @classmethod
    def of_spans(cls, tokens: Sequence[str], spans: Mapping[str, Span]) -> Sources:
        """Named spans: (start, end) positions, or a text that occurs once."""
        members = resolve_spans(Tokens.of(tokens), spans)
        positions = tuple(tuple(indices) for indices in members.values())
        return cls(tuple(members), positions, len(tokens))

    @property
    def tokens(self) -> Tokens:
        """Names for the axis of a result, each at the position of its first token."""
        return Tokens(self.names, tuple(positions[0] for positions in self.positions))

    def hidden(self, choice: NDArray[np.bool_]) -> list[tuple[int, ...]]:
        """The prompt positions that each row of `choice` (sets, sources) takes away."""
        return [
            tuple(sorted({p for k in np.flatnonzero(row) for p in self.positions[k]}))
            for row in np.atleast_2d(choice)
        ]

    def containing(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Which sources hold one of these positions."""
        members = set(positions)
        return tuple(k for k, own in enumerate(self.positions) if members & set(own))

    def scores(self, result: Attribution | ArrayLike) -> Floats:
        """One score for each source: the sum over its tokens and over the targets of a result.

        A result is read at its highest layer. A plain vector has one value for each prompt token,
        or one for each source where these are not as many.
        """
        if isinstance(result, Attribution):
            own = result.provenance.get(SOURCE_TOKENS)
            values = result.layer(-1).values[0].sum(axis=0)
            if own is not None and [tuple(each) for each in own] == list(self.positions):
                return np.asarray(values, dtype=np.float64)
            return self._of_tokens(values, result.sources.positions)
        values = np.asarray(result, dtype=np.float64)
        if values.shape == (self.length,):
            return self._of_tokens(values, range(self.length))
        if values.shape == (len(self),):
            return values
        raise InputError(
            f"Scores have the shape {values.shape}; a prompt of {self.length} tokens and "
            f"{len(self)} sources needs one value for each token or for each source."
        )

    def _of_tokens(self, values: Floats, positions: Sequence[int]) -> Floats:
        column = {position: k for k, position in enumerate(positions)}
        missing = [p for own in self.positions for p in own if p not in column]
        if missing:
            raise InputError(
                f"The result has no value for prompt position {missing[0]}; its sources stand at "
                f"{list(positions)[:20]}. Hand in a result over the prompt's tokens."
            )
        sums = [values[[column[p] for p in own]].sum() for own in self.positions]
        return np.asarray(sums, dtype=np.float64)


def prompt_tokens(tokenizer: Any, ids: Sequence[int]) -> tuple[Tokens, tuple[int, ...]]:
    """The tokens of a prompt, and which of them are special to their tokenizer.

    Also those that were added to its vocabulary and stand in brackets, as the signs of chats do.
    """
    if tokenizer is None:
        return Tokens(tuple(map(str, ids))), ()
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(ids))]
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    special = {*tokenizer.all_special_ids, *(k for name, k in added.items() if is_special(name))}
    return Tokens(tuple(names)), tuple(k for k, token in enumerate(ids) if token in special)


def spans_of_content(tokens: Sequence[str], form: Sequence[bool]) -> list[CharSpan]:
    """The characters of every run of tokens that a chat template (`form`) did not put there."""
    spans: list[CharSpan] = []
    at = 0
    for surface, framed in zip(surfaces(tokens), form, strict=True):
        end = at + len(surface)
        if not framed and spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], end)
        elif not framed:
            spans.append((at, end))
        at = end
    return spans


def strongest(scores: ArrayLike, count: int) -> tuple[int, ...]:
    """The sources with the highest scores, strongest first; of equal ones the earlier first."""
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return tuple(order[:count].tolist())


def content_spans(tokens: Sequence[str], contents: Sequence[str]) -> list[CharSpan]:
    """Where the messages of a conversation stand in its tokens; the rest is the chat template."""
    text = "".join(surfaces(tokens))
    spans: list[CharSpan] = []
    at = 0
    for content in contents:
        start = text.find(content.strip(), at)
        if start < 0:
            raise TokensError(
                f"The message {content[:60]!r} does not stand in the prompt as it is: the chat "
                "template changed it. Pass the prompt's text, or name spans of it."
            )
        at = start + len(content.strip())
        spans.append((start, at))
    return spans


def _special(tokens: Sequence[str]) -> set[int]:
    return {k for k, token in enumerate(tokens) if is_special(token)}


def _units(
    tokens: Sequence[str],
    level: Level,
    parts: Sequence[CharSpan] | None,
    framing: frozenset[int],
    *,
    parts_are_units: bool,
) -> list[Unit]:
    """`parts_are_units`: each part is a unit as it is."""
    if not parts_are_units or parts is None:
        return split_units(tokens, level, inside=parts, framing=framing)
    spelled = surfaces(tokens)
    text = "".join(spelled)
    members = [(span, tuple(tokens_in(spelled, span))) for span in parts]
    return [Unit(text[a:b].strip(), (a, b), own) for (a, b), own in members if own]


def _remaining(unit: Unit, level: Level, excluded: frozenset[int]) -> list[int]:
    if level in ("token", "word") and excluded & set(unit.tokens):
        return []
    return [token for token in unit.tokens if token not in excluded]


def _groups(
    tokens: Sequence[str],
    level: Level,
    members: Sequence[Unit],
    inside: Sequence[CharSpan] | None,
    documents: Sequence[CharSpan] | None,
    framing: frozenset[int],
) -> dict[str, tuple[int, ...]]:
    """In which unit of each coarser level every source lies."""
    groups: dict[str, tuple[int, ...]] = {}
    for coarser in LEVELS[LEVELS.index(level) + 1 :]:
        if coarser == "document" and documents is not None:
            spans = list(documents)
        else:
            spans = [
                unit.span for unit in split_units(tokens, coarser, inside=inside, framing=framing)
            ]
        groups[coarser] = tuple(_number(unit, spans) for unit in members)
    return groups


def _number(unit: Unit, spans: Sequence[CharSpan]) -> int:
    last = unit.span[1] - 1 if unit.text.strip() else unit.span[0]
    return next((k for k, (start, end) in enumerate(spans) if start <= last < end), -1)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
