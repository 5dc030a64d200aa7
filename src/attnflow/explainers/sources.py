"""The sources of a prompt, which may be taken away: each a list of positions.

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
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.errors import InputError
from attnflow.explainers.prompts import Prompt
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.tokens import Tokens, is_special
from attnflow.tokens.text import surfaces
from attnflow.tokens.units import LEVELS, CharSpan, Level, Unit, check_level, split_units, units

Floats = NDArray[np.float64]
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Sources:
    """Sources of a prompt of `length` tokens: names, positions, the coarser units they lie in."""

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
    def of_prompt(cls, model: Model, prompt: Prompt, level: Level = "word") -> Sources:
        """Divide a prompt, its chat template left out; without a tokenizer, into tokens.

        Documents that the prompt knows are its only ones: the question is none.
        """
        if level == "document" and prompt.pieces:
            names = tuple(_short("".join(pieces).strip()) for pieces in prompt.pieces)
            places = tuple(tuple(range(*span)) for span in prompt.spans if span is not None)
            return cls(names, places, len(prompt.ids), level)
        tokens, special = prompt_tokens(model.tokenizer, prompt.ids)
        template = [k for k, is_form in enumerate(prompt.form or ()) if is_form]
        return cls.of_tokens(
            tokens,
            level="token" if model.tokenizer is None and level == "word" else level,
            special=(*special, *template),
            exclude_first=not model.facts.encoder_decoder,
        )

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
        """Return the units of one level that the tokens of a prompt make up.

        inside: only these parts of the text are sources (characters), such as a chat's contents.
        documents: where the documents stand (characters), if the text does not show it.
        special: positions that are no source; default: the tokens in brackets, such as `<s>`.
        exclude_first: the first token is no source. exclude_last_word: nor is the last word.

        A word with an excluded token is no source; a sentence or a document goes on without it.
        """
        check_level(level)
        if special is None:
            special = [k for k, token in enumerate(tokens) if is_special(token)]
        framing = frozenset(special)
        excluded = framing | ({0} if exclude_first else set())
        if exclude_last_word:
            last = split_units(tokens, "word", framing=framing)
            excluded |= set(last[-1].tokens) if last else set()

        def divide(level: Level) -> list[Unit]:
            if level == "document" and documents is not None:
                return units(surfaces(tokens), documents)
            return split_units(tokens, level, inside=inside, framing=framing)

        pairs: list[tuple[Unit, tuple[int, ...]]] = []
        for unit in divide(level):
            rest = tuple(token for token in unit.tokens if token not in excluded)
            if rest and (level in ("sentence", "document") or rest == unit.tokens):
                pairs.append((unit, rest))
        if not pairs:
            raise InputError(f"The prompt has no {level} that can be a source.")
        groups: dict[str, tuple[int, ...]] = {}
        for coarser in LEVELS[LEVELS.index(level) + 1 :]:
            spans = [unit.span for unit in divide(coarser)]
            groups[coarser] = tuple(_number(unit, spans) for unit, _ in pairs)
        names = tuple(
            tokens[members[0]] if level == "token" else _short(unit.text) for unit, members in pairs
        )
        return cls(names, tuple(members for _, members in pairs), len(tokens), level, groups)

    @property
    def tokens(self) -> Tokens:
        """Names for the axis of a result, each at the position of its first token."""
        return Tokens(self.names, tuple(positions[0] for positions in self.positions))

    def hidden(self, choice: NDArray[np.bool_]) -> list[tuple[int, ...]]:
        """Return the prompt positions that each row of `choice` (sets, sources) takes away."""
        return [
            tuple(sorted({p for k in np.flatnonzero(row) for p in self.positions[k]}))
            for row in np.atleast_2d(choice)
        ]

    def containing(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Return which sources hold one of these positions."""
        members = set(positions)
        return tuple(k for k, own in enumerate(self.positions) if members & set(own))

    def scores(self, result: Attribution | ArrayLike) -> Floats:
        """Return a score for each source: the sum over its tokens and the targets of a result.

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
    """Return the tokens of a prompt, and which are special, those added in brackets included."""
    tokens = tokens_of(tokenizer, ids)
    if tokenizer is None:
        return tokens, ()
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    special = {*tokenizer.all_special_ids, *(k for name, k in added.items() if is_special(name))}
    return tokens, tuple(k for k, token in enumerate(ids) if token in special)


def strongest(scores: ArrayLike, count: int) -> tuple[int, ...]:
    """Return the sources with the highest scores; of equal ones the earlier first."""
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return tuple(order[:count].tolist())


def _number(unit: Unit, spans: Sequence[CharSpan]) -> int:
    """Return which of these spans a unit ends in; -1 where it ends in none."""
    last = unit.span[1] - 1 if unit.text.strip() else unit.span[0]
    return next((k for k, (start, end) in enumerate(spans) if start <= last < end), -1)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
