"""From a tokenizer's pieces to text that people read: the one rendering of a token.

Tokenizers mark where a word begins or goes on: WordPiece with `##`, SentencePiece with `▁` (and
`<0x0A>` for a byte it has no piece for), byte-level BPE with `Ġ` and one printable sign for each
byte. Which of them wrote a piece is decided by the whole sequence it stands in, so `surfaces` is
the way from pieces to text, and all else here and in `Tokens` is made from it:

`surfaces`   each piece as it stands in the text, with the space before it
`labels`     each piece alone, for a table or a figure: no spaces around it, line ends visible
`join`       some pieces of one sequence as one text: a word, a span
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

_BYTE_MARKS = ("Ġ", "Ċ")  # a space and a line end, as byte-level BPE writes those bytes
_CONTINUES = ("##",)  # WordPiece marks the pieces that go on a word
_BEGINS = ("Ġ", "▁", "Ċ")  # byte-level BPE and SentencePiece mark those that begin one
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # one byte, as SentencePiece writes it
_TORN = "…"  # a piece that holds a part of a character, which a later piece ends
_SPACE = "␣"


def surfaces(pieces: Sequence[str]) -> list[str]:
    """Return each piece as it stands in the text, with the space before it.

    A character whose bytes lie in several pieces stands in the one that ends it; those before it
    are empty. Special tokens stand for themselves.
    """
    if _is_byte_level(pieces):
        return _decoded([_byte_level_bytes(piece) for piece in pieces], pieces)
    if any(piece.startswith(_BEGINS) or _FALLBACK.fullmatch(piece) for piece in pieces):
        plain = [piece.replace("▁", " ") for piece in pieces]
        marks = [_FALLBACK.fullmatch(piece) for piece in pieces]
        return _decoded([bytes([int(mark[1], 16)]) if mark else None for mark in marks], plain)
    return [
        piece.removeprefix("##") if k == 0 or piece.startswith(_CONTINUES) else f" {piece}"
        for k, piece in enumerate(pieces)
    ]


def labels(pieces: Sequence[str]) -> list[str]:
    """Return each piece as people read it alone: no spaces around it, line ends visible."""
    return [
        _TORN if piece and not surface else visible(surface)
        for piece, surface in zip(pieces, surfaces(pieces), strict=True)
    ]


def join(parts: Iterable[str]) -> str:
    """Return some surfaces of one sequence as one text, without the space before it."""
    text = "".join(parts)
    return text.strip(" ") or text or _TORN


def parts_in(parts: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return the first of the parts that these characters of their text stand in, and one after the
    last.
    """
    ends = list(accumulate(map(len, parts)))
    return bisect_right(ends, start), bisect_left(ends, end) + 1


def visible(text: str) -> str:
    """Return a text without spaces around it, signs that do not print, as line ends, visible."""
    stripped = text.strip(" ").replace("\n", "⏎")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in stripped) or _SPACE


def written(piece: str) -> str:
    """Return the surface of a piece that stands alone; of a sequence, `surfaces` knows more.

    >>> written("▁of"), written("##ing")
    (' of', 'ing')
    """
    return surfaces([piece])[0]


def readable(piece: str) -> str:
    """Return the label of a piece that stands alone; of a sequence, `labels` knows more.

    >>> readable("ĠcafÃ©")
    'café'
    """
    return labels([piece])[0]


def is_special(piece: str) -> bool:
    """Tell if a token stands in brackets, such as `[CLS]` or `<s>`: no part of the text.

    >>> is_special("[CLS]"), is_special("<0x0A>"), is_special("key")
    (True, False, False)
    """
    bracketed = len(piece) > 2 and (piece[0], piece[-1]) in {("[", "]"), ("<", ">")}
    return bracketed and not _FALLBACK.fullmatch(piece)


def words_of_pieces(pieces: Sequence[str]) -> tuple[int | None, ...]:
    """Guess word numbers from the marks tokenizers leave; without any mark each token is a word.

    Used only where no tokenizer told us. Tokens in brackets (`[CLS]`, `<s>`) are no words.

    >>> words_of_pieces(["[CLS]", "un", "##lock", "it"])
    (None, 0, 0, 1)
    """
    marked = any(begins_word(piece) for piece in pieces)
    words: list[int | None] = []
    word = -1
    for index, piece in enumerate(pieces):
        if is_special(piece):
            words.append(None)
            continue
        after_special = index == 0 or words[-1] is None
        goes_on = not begins_word(piece) if marked else piece.startswith(_CONTINUES)
        word += 0 if goes_on and not after_special else 1
        words.append(word)
    return tuple(words)


def begins_word(piece: str) -> bool:
    """Tell if the tokenizer's mark says that a word begins here."""
    return piece.startswith(_BEGINS)


def goes_on_word(piece: str) -> bool:
    """Tell if the tokenizer's mark says that a word goes on here."""
    return piece.startswith(_CONTINUES)


# Which byte each sign of byte-level BPE stands for: printable ones for themselves, and the others,
# in order, from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTES = {chr(b): b for b in _PRINTABLE} | {chr(256 + k): b for k, b in enumerate(_OTHERS)}


def _is_byte_level(pieces: Sequence[str]) -> bool:
    """Tell if these are signs for bytes.

    A mark says so. Without one (no space in the text, or one piece alone) they are if all of them,
    read as bytes, are text in UTF-8 beyond ASCII: ordinary accented letters are not, since two
    bytes in a row must fit each other.
    """
    if any(mark in piece for piece in pieces for mark in _BYTE_MARKS):
        return True
    signs = "".join(piece for piece in pieces if all(sign in _BYTES for sign in piece))
    if signs.isascii():
        return False
    try:
        return bytes(_BYTES[sign] for sign in signs).decode().isprintable()
    except UnicodeDecodeError:
        return False


def _byte_level_bytes(piece: str) -> bytes | None:
    """Return what a piece stands for; None for a special token, which ends what was begun."""
    if any(sign not in _BYTES for sign in piece) or (is_special(piece) and piece.isascii()):
        return None
    return bytes(_BYTES[sign] for sign in piece)


def _decoded(octets: Sequence[bytes | None], plain: Sequence[str]) -> list[str]:
    """Return bytes as text where a piece has some; what is no text becomes U+FFFD in its piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts: list[str] = []
    for part, piece in zip(octets, plain, strict=True):
        if part is not None:
            texts.append(decoder.decode(part))
            continue
        _end(decoder, texts)
        texts.append(piece)
    _end(decoder, texts)
    return texts


def _end(decoder: codecs.IncrementalDecoder, texts: list[str]) -> None:
    """A character that was begun and not ended stands in the piece that holds its last byte."""
    rest = decoder.decode(b"", final=True)
    decoder.reset()
    if rest:
        texts[-1] += rest


FUNCTION_WORDS = frozenset(
    """
    a an the this that these those
    i me my mine we us our ours you your yours he him his she her hers it its they them their
    who whom whose which what where when why how
    am is are was were be been being do does did done has have had having
    will would shall should can could may might must
    and or but nor so yet if then else than because while although though
    of in on at by for with from to into onto over under about above below between through
    as not no yes there here too very just also only own same such both each all any some more most
    """.split()  # noqa: SIM905 (a list of quoted words would be three pages)
)


def is_common(token: str, words: Collection[str] = FUNCTION_WORDS) -> bool:
    """Tell if a token is one of these words, or has no letter and no digit."""
    return _is_common(written(token), words)


def common_tokens(tokens: Sequence[str], words: Collection[str] | None = None) -> NDArray[np.bool_]:
    """Return a truth value for each token; `words` replaces the list of function words."""
    vocabulary = FUNCTION_WORDS if words is None else {word.strip().lower() for word in words}
    return np.array([_is_common(text, vocabulary) for text in surfaces(tokens)], dtype=bool)


def _is_common(surface: str, words: Collection[str]) -> bool:
    text = surface.strip().lower()
    return text in words or not any(character.isalnum() for character in text)
