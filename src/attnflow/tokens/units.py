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

from attnflow.errors import InputError
from attnflow.errors.arguments import check_named
from attnflow.tokens.text import FUNCTION_WORDS
from attnflow.tokens.text import surfaces as pieces

# -- sentences, as a reader of ordinary documents would divide a text -----------------------------
#
# Headings, items of lists and rows of tables are sentences of their own. Where it is in doubt, two
# sentences stay together: half a sentence says nothing as a source.

CharSpan = tuple[int, int]
"""Characters of a text, from start up to, not including, end."""

# Words are what spaces divide; where a script has no spaces, its full stop divides.
_WORD = re.compile(r"\S*?[。！？｡]+[」』”’）)]*|\S+")
_END = re.compile(r"[.!?。！？｡؟۔।…][\"')\]”’»」』）*_]*$")
_OPENING = "\"'([{“„‘«*_"
# Lines that say nothing: reply marks, rules under headings and in tables, fences around code.
_RULE = re.compile(r"[>|:=*_+~#\s-]*|[>\s]*(?:```|~~~)\w*")
_ITEM = re.compile(r"[\s>#*_-]*\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[ivxIVX]{1,5})[.)][*_]*")
_TABLE = re.compile(r"[ >]*\|")
_REPLY = re.compile(r"[> ]*")
_INITIALS = re.compile(r"[a-z]\.|(?:[A-Z]\.)+")
_MONTH = re.compile(r"Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez")
_NEVER_LAST = {
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Rev", "Capt", "Lt", "Sgt", "Hr", "Fr"),
    *("e.g", "i.e", "cf", "vs", "ca", "approx", "z.B", "d.h", "bzw"),
}
_BEFORE_NUMBERS = {"no", "nr", "art", "sec", "fig", "p", "pp", "vol", "ch", "ext", "tel", "abs"}
_BEFORE_SMALL = {"etc", "inc", "ltd", "co", "corp", "jr", "sr", "max", "min", "incl"}
_WRAPPED = 60  # characters of a line that goes on in the next: shorter ones end where they end


def sentence_spans(text: str) -> list[CharSpan]:
    """Return where the sentences of a text begin and end, in characters.

    A sentence ends with a word that ends in a full stop, question mark or exclamation mark, unless
    that is an abbreviation or the number of an item, or with its line, unless a long line goes on
    in small letters. A row of a table is one sentence. Rules and fences belong to none.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    spans: list[CharSpan] = []
    start, line, place = None, 0, 0
    for k, (begin, end) in enumerate(words):
        start = begin if start is None else start
        line = max(line, text.rfind("\n", place, begin) + 1)
        place = end
        following = words[k + 1] if k + 1 < len(words) else None
        if following is None or _ends(text, line, (begin, end), following):
            spans.append((start, end))
            start = None
    saying = [span for span in spans if not _RULE.fullmatch(text[slice(*span)])]
    return saying or spans


def _ends(text: str, line: int, word: CharSpan, following: CharSpan) -> bool:
    """Tell if a word ends its sentence; line: where its line begins."""
    if "\n" in text[word[1] : following[0]]:
        return not _goes_on(text, line, word[1], following[0])
    begins_line = word[1] - line < _WRAPPED and _ITEM.fullmatch(text, line, word[1])
    return bool(
        _END.search(text, *word)
        and not begins_line
        and not _TABLE.match(text, line)
        and not _is_short(text[slice(*word)], text[slice(*following)])
    )


def _goes_on(text: str, line: int, end: int, following: int) -> bool:
    """Tell if a line was broken by its width: it is long, and the next begins with a small letter.

    following: where the next word stands. Lines of a reply are marked alike.
    """
    if end - line < _WRAPPED or not (text[end - 1].isalnum() or text[end - 1] == ","):
        return False
    marks = [_REPLY.match(text, place) for place in (line, following)]
    first, second = (mark[0].replace(" ", "") if mark else "" for mark in marks)
    place = marks[1].end() if marks[1] else following
    is_next = text.count("\n", end, place) == 1
    return is_next and first == second and text[place : place + 1].islower()


def _is_short(word: str, following: str) -> bool:
    """Tell if the sentence goes on: after an abbreviation, an initial, an ordinal, a quotation."""
    after = following.lstrip(_OPENING)
    if word[-1] in '"”’»' and after[:1].islower():
        return True
    name = word.strip(_OPENING)
    stem = name.removesuffix(".")
    if stem == name or not stem:
        return False
    if stem in _NEVER_LAST or (stem.lower() in _BEFORE_NUMBERS and after[:1].isdigit()):
        return True
    if stem.isdigit() and len(stem) <= 2:
        return bool(_MONTH.match(after))
    if _INITIALS.fullmatch(name):
        return not (after[:1].isupper() and after.rstrip(".,").lower() in FUNCTION_WORDS)
    return ("." in stem or stem.lower() in _BEFORE_SMALL) and after[:1].islower()


# -- units of every level ------------------------------------------------------------------------

Level = Literal["token", "word", "sentence", "document"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the finest to the coarsest."""

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
    check_named("level", level, LEVELS, InputError)


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
