"""Tokens with their positions and words: what targets and sources are called.

A token's *position* is where it stood in the sequence the model saw. It stays with the token
when a result is cut down to some targets, so `row(5)` means the same before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

from attnflow.errors import TargetError, TokensError, did_you_mean
from attnflow.tokens.patches import Grid
from attnflow.tokens.text import join_pieces, surfaces_of, words_of_pieces

__all__ = ["TokenRef", "Tokens"]

TokenRef = int | str
"""How a user names a position: by number (negative: from the end) or by the token itself."""

_LISTED = 60  # error messages list this many tokens before they cut the list short


@dataclass(frozen=True)
class Tokens(Sequence[str]):
    """A sequence of tokens; `words[i]` is the word that token i is a piece of, if known.

    `grid` is set where the tokens are the patches of an image.
    """

    texts: tuple[str, ...]
    positions: tuple[int, ...] = ()
    words: tuple[int | None, ...] | None = None
    grid: Grid | None = None

    def __post_init__(self) -> None:
        for text in self.texts:
            if not isinstance(text, str):
                raise TokensError(f"Tokens must be strings; got {text!r} ({type(text).__name__}).")
        if not self.positions:
            object.__setattr__(self, "positions", tuple(range(len(self.texts))))
        for name, field in (("positions", self.positions), ("words", self.words)):
            if field is not None and len(field) != len(self.texts):
                raise TokensError(f"{len(self.texts)} tokens but {len(field)} {name}.")
        if self.grid is not None and self.grid.length != len(self.texts):
            raise TokensError(f"{len(self.texts)} tokens but {self.grid.length} on the grid.")

    @classmethod
    def of(cls, tokens: Sequence[str]) -> Tokens:
        """Accept what a user has: `Tokens` as they are, any other sequence of strings."""
        if isinstance(tokens, Tokens):
            return tokens
        if isinstance(tokens, str):
            raise TokensError(
                f"tokens is one string, {tokens!r}; pass a list with one string for each position, "
                "for example text.split()."
            )
        return cls(tuple(tokens))

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.texts[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def index_of(self, target: TokenRef) -> int:
        """The index within these tokens of a position or of a token that occurs once."""
        if isinstance(target, str):
            return self._index_of_text(target)
        if isinstance(target, bool) or not hasattr(target, "__index__"):
            raise TargetError(
                f"A target is a position (int) or a token (str); got {target!r} "
                f"({type(target).__name__})."
            )
        return self._index_of_position(int(target))

    def indices_of(self, targets: Sequence[TokenRef] | TokenRef | None) -> list[int]:
        """Indices of several targets; `None` means all, a single one stands for itself."""
        if targets is None:
            return list(range(len(self)))
        if isinstance(targets, str) or not isinstance(targets, Sequence):
            targets = [targets]
        if not targets:
            raise TargetError(f"No target given; choose from {self.listing()}.")
        return [self.index_of(target) for target in targets]

    def occurrences_of(self, targets: Sequence[TokenRef]) -> list[int]:
        """Indices of these positions, and of these tokens wherever they occur, in order."""
        found: set[int] = set()
        for target in targets:
            if isinstance(target, str):
                found.update(self._occurrences_of_text(target))
            else:
                found.add(self.index_of(target))
        return sorted(found)

    def span_of(self, text: str) -> tuple[int, int]:
        """The first index and the one after the last of a text that occurs once."""
        surfaces = self.surfaces()
        whole = "".join(surfaces)
        start = whole.find(text)
        if not text.strip() or start < 0 or whole.find(text, start + 1) >= 0:
            count = 0 if not text.strip() or start < 0 else whole.count(text)
            raise TargetError(
                f"The text {text!r} occurs {count} times in {whole!r}; give one that occurs once, "
                "or positions (start, end)."
            )
        ends = list(accumulate(map(len, surfaces)))
        first = next(k for k, end in enumerate(ends) if end > start)
        last = next(k for k, end in enumerate(ends) if end >= start + len(text))
        return first, last + 1

    def surfaces(self) -> list[str]:
        """Each token as it stands in the text, with the space before it."""
        return surfaces_of(self.texts)

    def _occurrences_of_text(self, text: str) -> list[int]:
        found = [index for index, token in enumerate(self.texts) if token == text]
        # "book" for the byte-level piece "Ġbook": people write what they read
        return found or [index for index, t in enumerate(self.texts) if join_pieces([t]) == text]

    def _index_of_text(self, text: str) -> int:
        found = self._occurrences_of_text(text)
        if len(found) == 1:
            return found[0]
        if found:
            positions = ", ".join(str(self.positions[index]) for index in found)
            raise TargetError(
                f"The token {text!r} occurs {len(found)} times, at positions {positions}; "
                "name the one you mean by its position."
            )
        hint = did_you_mean(text, [token.lower() for token in self.texts])
        raise TargetError(f"No token {text!r} here.{hint} The tokens are {self.listing()}.")

    def _index_of_position(self, position: int) -> int:
        wanted = position if position >= 0 else self._length_seen() + position
        try:
            return self.positions.index(wanted)
        except ValueError:
            raise TargetError(
                f"No position {position} here; choose from {self.listing()}."
            ) from None

    def _length_seen(self) -> int:
        return max(self.positions, default=-1) + 1

    def select(self, indices: Sequence[int]) -> Tokens:
        """The tokens at these indices, each with its position and word."""
        words = None if self.words is None else tuple(self.words[i] for i in indices)
        return Tokens(
            tuple(self.texts[i] for i in indices), tuple(self.positions[i] for i in indices), words
        )

    def listing(self) -> str:
        """The tokens with their positions, as error messages show them."""
        pairs = [f"{p} {t!r}" for p, t in zip(self.positions, self.texts, strict=True)]
        if len(pairs) > _LISTED:
            pairs = [*pairs[:_LISTED], f"... ({len(pairs) - _LISTED} more)"]
        return ", ".join(pairs)

    def groups(self) -> list[list[int]]:
        """Indices grouped by word, in order; a token that is no piece of a word stands alone."""
        words = words_of_pieces(self.texts) if self.words is None else self.words
        groups: list[list[int]] = []
        previous: int | None = None
        for index, word in enumerate(words):
            if word is not None and word == previous:
                groups[-1].append(index)
            else:
                groups.append([index])
            previous = word
        return groups

    def merged(self, groups: Sequence[Sequence[int]]) -> Tokens:
        """One token for each group: its pieces joined, at the position of the first."""
        texts = tuple(join_pieces([self.texts[i] for i in group]) for group in groups)
        return Tokens(texts, tuple(self.positions[group[0]] for group in groups))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        return {
            "texts": list(self.texts),
            "positions": list(self.positions),
            "words": None if self.words is None else list(self.words),
            "grid": None if self.grid is None else self.grid.to_dict(),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Tokens:
        """The inverse of `to_dict`."""
        words, grid = record["words"], record["grid"]
        return cls(
            tuple(record["texts"]),
            tuple(record["positions"]),
            None if words is None else tuple(words),
            None if grid is None else Grid(**grid),
        )
