"""A text divided into tokens, words, sentences or documents, each as a set of token positions.

The text is what the pieces of a tokenizer spell, so a prompt needs nothing but its tokens: no
tokenizer, no offsets. A token belongs to the unit that its last visible character stands in; a
token of spaces and line ends alone belongs to no word, sentence or document.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, get_args

from attnflow.errors import InputError, did_you_mean, shorten
from attnflow.tokens.sentences import sentence_spans
from attnflow.tokens.text import surfaces as pieces

Level = Literal["token", "word", "sentence", "document"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the finest to the coarsest."""

CharSpan = tuple[int, int]
"""Characters of a text, from start up to, not including, end."""

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_NUMBERED = re.compile(
    r"^[^\S\n]*(?:(?:document|passage|source|text|paragraph)\s+\d+\s*[:.)]|\[\d+\]|\(\d+\)|\d+[.)]\s)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Unit:
    """A word, sentence or document: where it stands in the text, and which tokens it is made of."""

    text: str
    span: CharSpan
    tokens: tuple[int, ...]


def split_units(
    tokens: Sequence[str],
    level: Level,
    *,
    inside: Sequence[CharSpan] | None = None,
    framing: Collection[int] = (),
) -> list[Unit]:
    """Return the units of a level that the tokens of a text make up, in order.

    inside: parts of the text that are divided, each on its own, in characters of what the tokens
    spell. framing: tokens that are no text, such as those that begin a turn of a chat: they divide
    what stands beside them.
    """
    check_level(level)
    surfaces = [
        "\n" * len(piece) if k in framing else piece for k, piece in enumerate(pieces(tokens))
    ]
    text = "".join(surfaces)
    parts = [(0, len(text))] if inside is None else list(inside)
    if level == "token":
        ends = accumulate(map(len, surfaces))
        spans = [(end - len(piece), end) for end, piece in zip(ends, surfaces, strict=True)]
        return [
            Unit(surfaces[k], span, (k,))
            for k, span in enumerate(spans)
            if any(start <= _place(surfaces[k], span[0]) < end for start, end in parts)
        ]
    spans = [
        (start + first, start + last)
        for start, end in parts
        for first, last in text_spans(text[start:end], level)
    ]
    return units(surfaces, spans)


def units(surfaces: Sequence[str], spans: Sequence[CharSpan]) -> list[Unit]:
    """Return a unit for each span of characters; those without tokens are left out."""
    text = "".join(surfaces)
    return [
        Unit(text[start:end].strip(), (start, end), tuple(tokens))
        for start, end in spans
        if (tokens := tokens_in(surfaces, (start, end)))
    ]


def pieces_at(text: str, starts: Sequence[int]) -> list[str]:
    """Return the part of a text that each token stands for; together they are the text.

    starts: where each token begins. Of tokens that share a character the last one has it.

    >>> pieces_at("45 days", [0, 3])
    ['45 ', 'days']
    """
    if not starts:
        return []
    places = [0, *accumulate((min(max(start, 0), len(text)) for start in starts[1:]), max)]
    return [text[a:b] for a, b in pairwise([*places, len(text)])]


def tokens_in(surfaces: Sequence[str], span: CharSpan) -> list[int]:
    """Return the tokens whose last visible character stands in a span of characters."""
    ends = list(accumulate(map(len, surfaces)))
    members: list[int] = []
    torn: list[int] = []  # parts of a character, which stand where the token that ends it does
    first = bisect_right(ends, span[0])
    while first > 0 and not surfaces[first - 1]:
        first -= 1
    for k in range(first, len(surfaces)):
        begin = ends[k] - len(surfaces[k])
        if begin >= span[1]:
            break
        if not surfaces[k]:
            torn.append(k)
            continue
        last = begin + len(surfaces[k].rstrip()) - 1
        if surfaces[k].strip() and span[0] <= last < span[1]:
            members += [*torn, k]
        torn = []
    return members


def text_spans(text: str, level: Level) -> list[CharSpan]:
    """Return where the words, sentences or documents of a text begin and end, in characters.

    Words are what spaces divide; of sentences see `sentence_spans`. Documents begin with a number
    (`Document 2:`, `[2]`, `2.`) where at least two lines do, and are otherwise what blank lines
    divide.
    """
    check_level(level)
    if level == "token":
        raise InputError("Tokens are the tokenizer's; a text alone is divided into words or more.")
    return _SPLITTERS[level](text)


def check_level(level: str) -> None:
    """Raise an error that names the levels, for one that does not exist."""
    if not isinstance(level, str) or level not in LEVELS:
        hint, names = did_you_mean(level, LEVELS), ", ".join(LEVELS)
        raise InputError(f"Unknown level {shorten(level)}.{hint} The levels are {names}.")


def _words(text: str) -> list[CharSpan]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _documents(text: str) -> list[CharSpan]:
    numbered = [match.start() for match in _NUMBERED.finditer(text)]
    if len(numbered) < 2:
        gaps = [match.span() for match in _BLANK_LINE.finditer(text)]
        starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)]
        return _stripped(text, zip(starts, ends, strict=True))
    # The last document ends with its paragraph: what follows is the question.
    gap = _BLANK_LINE.search(text, numbered[-1])
    last = (numbered[-1], len(text) if gap is None else gap.start())
    return _stripped(text, [*pairwise(numbered), last])


def _stripped(text: str, spans: Iterable[CharSpan]) -> list[CharSpan]:
    """Return spans without the spaces around each; empty ones are left out."""
    return [
        (end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip()))
        for start, end in spans
        if text[start:end].strip()
    ]


_SPLITTERS: Mapping[str, Callable[[str], list[CharSpan]]] = {
    "word": _words,
    "sentence": sentence_spans,
    "document": _documents,
}


def _place(surface: str, start: int) -> int:
    """Return the last visible character of a token, or its first where none is visible."""
    return start + max(0, len(surface.rstrip()) - 1)
