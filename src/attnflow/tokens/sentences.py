"""A text divided into sentences, as a reader of ordinary documents would divide it.

Headings, items of lists and rows of tables are sentences of their own. Where it is in doubt, two
sentences stay together: half a sentence says nothing as a source.
"""

from __future__ import annotations

import re

from attnflow.tokens.text import FUNCTION_WORDS

Span = tuple[int, int]

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


def sentence_spans(text: str) -> list[Span]:
    """Return where the sentences of a text begin and end, in characters.

    A sentence ends with a word that ends in a full stop, question mark or exclamation mark, unless
    that is an abbreviation or the number of an item, or with its line, unless a long line goes on
    in small letters. A row of a table is one sentence. Rules and fences belong to none.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    spans: list[Span] = []
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


def _ends(text: str, line: int, word: Span, following: Span) -> bool:
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
