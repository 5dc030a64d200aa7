"""Tokens with their positions and words: what targets and sources are called.

A token's *position* is where it stood in the sequence the model saw. It stays with the token
when a result is cut down to some targets, so `row(5)` means the same before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from attnflow.errors import TargetError, TokensError, did_you_mean, shorten, whole_number
from attnflow.tokens.patches import Grid, ImagePatches
from attnflow.tokens.text import (
    begins_word,
    goes_on_word,
    join,
    labels,
    parts_in,
    surfaces,
    words_of_pieces,
)

TokenRef = int | str
"""How a user names a position: by number (negative: from the end) or by the token itself."""

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONGEST_LIST = 60  # error messages list this many tokens before they cut the list short


@dataclass(frozen=True)
class Tokens(Sequence[str]):
    """A sequence of tokens, each with its position and, if known, the word it is a piece of.

    `texts` are the tokens as the tokenizer writes them; `raw` is the same, and `text` is what
    people read. `words[i]` numbers the word that token i is a piece of, None for no word. `grid`
    is set where the tokens are the patches of an image. `images` says where each image stands where
    patches of one or several images and words are in one row.

    >>> tokens = Tokens(("<s>", "ĠcafÃ©", "s"))
    >>> tokens.text
    ('<s>', 'café', 's')
    >>> tokens.index_of("café"), tokens.index_of(-1)
    (1, 2)
    """

    texts: tuple[str, ...]
    positions: tuple[int, ...] = ()
    words: tuple[int | None, ...] | None = None
    grid: Grid | None = None
    images: tuple[ImagePatches, ...] = ()

    def __post_init__(self) -> None:
        texts, positions = _listed("texts", self.texts), _listed("positions", self.positions)
        for text in texts:
            if not isinstance(text, str):
                raise TokensError(
                    f"Tokens must be strings; got {shorten(text)} ({type(text).__name__})."
                )
        numbers = {"positions": _numbers("positions", positions or range(len(texts)))}
        if self.words is not None:
            words = _listed("words", self.words)
            numbers["words"] = _numbers("words", words, or_none=True)
        for name, field in numbers.items():
            if len(field) != len(texts):
                raise TokensError(f"{len(texts)} tokens but {len(field)} {name}.")
        for name, field in {"texts": texts, **numbers}.items():
            object.__setattr__(self, name, field)
        if self.grid is not None and self.grid.length != len(self.texts):
            raise TokensError(f"{len(self.texts)} tokens but {self.grid.length} on the grid.")
        for image in self.images:
            if not 0 <= image.start <= len(self.texts) - image.grid.length:
                raise TokensError(
                    f"{image.name} has {image.grid.length} positions from {image.start} on; there "
                    f"are {len(self.texts)} tokens."
                )

    @classmethod
    def of(cls, tokens: Sequence[str]) -> Tokens:
        """Accept what a user has: `Tokens` as they are, any other sequence of strings.

        >>> len(Tokens.of(["the", "key"]))
        2
        """
        if isinstance(tokens, Tokens):
            return tokens
        if isinstance(tokens, str) or not isinstance(tokens, Iterable):
            what = "one string" if isinstance(tokens, str) else f"a {type(tokens).__name__}"
            raise TokensError(
                f"tokens is {what}, {shorten(tokens)}; pass a list with one string for each "
                "position, for example text.split()."
            )
        return cls(_listed("tokens", tokens))

    @property
    def raw(self) -> tuple[str, ...]:
        """The tokens as the tokenizer writes them: the same as `texts`."""
        return self.texts

    @cached_property
    def text(self) -> tuple[str, ...]:
        """The tokens as people read them, without spaces around them, line ends visible."""
        return tuple(labels(self.texts))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The same, and where a word occurs twice with its position as a superscript.

        >>> Tokens(("the", "key", "to", "the", "cabinets")).names
        ('the⁰', 'key', 'to', 'the³', 'cabinets')
        """
        count = Counter(self.text)
        return tuple(
            text if count[text] == 1 else f"{text}{str(position).translate(_SUPERSCRIPTS)}"
            for text, position in zip(self.text, self.positions, strict=True)
        )

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
        position = whole_number(target)
        if position is None:
            raise TargetError(
                f"A target is a position (int) or a token (str); got {shorten(target)} "
                f"({type(target).__name__})."
            )
        length = max(self.positions, default=-1) + 1  # of the sequence the model saw
        try:
            return self.positions.index(position if position >= 0 else length + position)
        except ValueError:
            raise TargetError(
                f"No position {shorten(position)} here; choose from {self.listing()}."
            ) from None

    def indices_of(self, targets: Sequence[TokenRef] | TokenRef | None) -> list[int]:
        """Indices of several targets; `None` means all, a single one stands for itself.

        >>> Tokens(("the", "key")).indices_of(["key", 0])
        [1, 0]
        """
        if targets is None:
            return list(range(len(self)))
        several = _several(targets)
        if not several:
            raise TargetError(f"No target given; choose from {self.listing()}.")
        return [self.index_of(target) for target in several]

    def occurrences_of(
        self, targets: Sequence[TokenRef] | TokenRef, *, required: bool = False
    ) -> list[int]:
        """Indices of these positions, and of these tokens wherever they occur, in order.

        A token that does not occur is passed over, or with `required` is an error.

        >>> Tokens(("a", ",", "b", ",")).occurrences_of([0, ","])
        [0, 1, 3]
        """
        indices: set[int] = set()
        for target in _several(targets):
            places = self._occurrences_of_text(target) if isinstance(target, str) else []
            if not places and (required or not isinstance(target, str)):
                places = [self.index_of(target)]  # or says that it is not there, and what is
            indices.update(places)
        return sorted(indices)

    def span_of(self, text: str) -> tuple[int, int]:
        """The first index and the one after the last of a text that occurs once.

        >>> Tokens(("the", "old", "key")).span_of("old key")
        (1, 3)
        """
        parts = self.surfaces()
        full = "".join(parts)
        start = full.find(text)
        if not text.strip() or start < 0 or full.find(text, start + 1) >= 0:
            count = 0 if not text.strip() or start < 0 else full.count(text)
            raise TargetError(
                f"The text {shorten(text)} occurs {count} times in {shorten(full)}; give one that "
                "occurs once, or positions (start, end)."
            )
        return parts_in(parts, start, start + len(text))

    def surfaces(self) -> list[str]:
        """Each token as it stands in the text, with the space before it."""
        return surfaces(self.texts)

    def _occurrences_of_text(self, text: str) -> list[int]:
        exact = [index for index, token in enumerate(self.texts) if token == text]
        # "book" for the byte-level piece "Ġbook": people write what they read
        return exact or [index for index, token in enumerate(self.text) if token == text]

    def _index_of_text(self, text: str) -> int:
        indices = self._occurrences_of_text(text)
        if len(indices) == 1:
            return indices[0]
        if indices:
            places = shorten([self.positions[index] for index in indices]).strip("[]")
            raise TargetError(
                f"The token {shorten(text)} occurs {len(indices)} times, at positions {places}; "
                "name the one you mean by its position."
            )
        hint = did_you_mean(text, [token.lower() for token in self.text])
        raise TargetError(f"No token {shorten(text)} here.{hint} The tokens are {self.listing()}.")

    def select(self, indices: Sequence[int]) -> Tokens:
        """The tokens at these indices, each with its position and word, and whole images."""
        return Tokens(
            tuple(self.texts[i] for i in indices),
            tuple(self.positions[i] for i in indices),
            None if self.words is None else tuple(self.words[i] for i in indices),
            images=self._images_within([[index] for index in indices]),
        )

    def _images_within(self, groups: Sequence[Sequence[int]]) -> tuple[ImagePatches, ...]:
        """The images all of whose positions stand alone and in order in these groups."""
        if not self.images:
            return ()
        alone = [group[0] if len(group) == 1 else -1 for group in groups]
        images = []
        for image in self.images:
            positions = list(range(image.start, image.start + image.grid.length))
            start = alone.index(image.start) if image.start in alone else 0
            if alone[start : start + len(positions)] == positions:
                images.append(ImagePatches(image.name, image.grid, start))
        return tuple(images)

    def listing(self) -> str:
        """The tokens with their positions, as error messages show them."""
        pairs = zip(self.positions[:_LONGEST_LIST], self.text, strict=False)
        entries = [f"{position} {shorten(token, 40)}" for position, token in pairs]
        if len(self) > _LONGEST_LIST:
            entries.append(f"... ({len(self) - _LONGEST_LIST} more)")
        return ", ".join(entries)

    def groups(self) -> list[list[int]]:
        """Indices grouped by word, in order; a token that is no piece of a word stands alone.

        A mark of the tokenizer begins a word even where its word numbers do not: those of a
        tokenizer that takes no notice of spaces make the text one word.

        >>> Tokens(("[CLS]", "un", "##lock", "it")).groups()
        [[0], [1, 2], [3]]
        """
        words = words_of_pieces(self.texts) if self.words is None else self._checked_words()
        groups: list[list[int]] = []
        previous: int | None = None
        for index, word in enumerate(words):
            goes_on = word is not None and word == previous
            if goes_on and not (self.words and begins_word(self.texts[index])):
                groups[-1].append(index)
            else:
                groups.append([index])
            previous = word
        return groups

    def _checked_words(self) -> tuple[int | None, ...]:
        """The tokenizer's word numbers, unless they and the tokens' marks say nothing of words."""
        words = self.words or ()
        pieces = [t for t, word in zip(self.texts, words, strict=True) if word is not None]
        one_word = len(set(words) - {None}) == 1 and len(pieces) > 1
        if one_word and not any(begins_word(p) or goes_on_word(p) for p in pieces):
            raise TokensError(
                f"The tokenizer takes all {len(pieces)} tokens for pieces of one word, and they "
                f"carry no marks that say where words begin: {shorten(pieces)}. Leave words apart "
                '(level="token"), or make Tokens with words= of your own.'
            )
        return words

    def merged(self, groups: Sequence[Sequence[int]]) -> Tokens:
        """One token for each group: its pieces joined as text, at the position of the first.

        >>> Tokens(("Ġun", "lock")).merged([[0, 1]]).texts
        ('unlock',)
        """
        parts = self.surfaces()
        return Tokens(
            tuple(join(parts[i] for i in group) for group in groups),
            tuple(self.positions[group[0]] for group in groups),
            images=self._images_within(groups),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        return {
            "texts": list(self.texts),
            "positions": list(self.positions),
            "words": None if self.words is None else list(self.words),
            "grid": None if self.grid is None else self.grid.to_dict(),
            **({"images": [image.to_dict() for image in self.images]} if self.images else {}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Tokens:
        """The inverse of `to_dict`.

        >>> Tokens.from_dict(Tokens(("a", "b")).to_dict()).texts
        ('a', 'b')
        """
        texts, positions = record["texts"], record["positions"]
        words, grid = record["words"], record["grid"]
        for name, entries in (("texts", texts), ("positions", positions), ("words", words or [])):
            if not isinstance(entries, list):
                raise TokensError(f"{name} must be a list; got {shorten(entries)}.")
        if len(positions) != len(texts):
            raise TokensError(f"{len(texts)} tokens but {len(positions)} positions.")
        return cls(
            tuple(texts),
            tuple(positions),
            None if words is None else tuple(words),
            None if grid is None else Grid(**grid),
            tuple(ImagePatches.from_dict(image) for image in record.get("images", ())),
        )


def _several(targets: Any) -> list[Any]:
    """One or several targets as a list: numpy arrays and torch tensors too."""
    plain = targets.tolist() if hasattr(targets, "tolist") else targets
    if isinstance(plain, (str, bytes, Mapping)) or not isinstance(plain, Iterable):
        return [plain]
    return list(plain)


def _listed(name: str, values: object) -> tuple[Any, ...]:
    """Several values as a tuple, or an error that says what they should be."""
    with suppress(TypeError):  # arrays and tensors without an axis can be iterated in name only
        if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
            return tuple(values)
    raise TokensError(f"{name} is a list with one entry for each token; got {shorten(values)}.")


def _numbers(name: str, entries: Iterable[Any], *, or_none: bool = False) -> tuple[Any, ...]:
    """Whole numbers of at least 0, or None where allowed."""
    entries = tuple(entries)
    if set(map(type, entries)) <= {int} and min(entries, default=0) >= 0:
        return entries  # a long text has many of them
    numbers = []
    for entry in entries:
        number = whole_number(entry)
        if (number is None or number < 0) and not (or_none and entry is None):
            raise TokensError(
                f"{name} are whole numbers from 0{', or None' if or_none else ''}; got "
                f"{shorten(entry)}."
            )
        numbers.append(number)
    return tuple(numbers)
