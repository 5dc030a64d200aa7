"""How a token is written by its tokenizer, and how people read it.

Tokenizers mark where a word begins or goes on: WordPiece with `##`, SentencePiece with `▁`,
byte-level BPE with `Ġ` and one printable sign for each byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["is_special", "join_pieces", "readable", "surfaces_of", "words_of_pieces", "written"]

_BYTE_MARKS = ("Ġ", "Ċ")  # a space and a line end, as byte-level BPE writes those bytes
_CONTINUES = ("##",)  # WordPiece marks the pieces that go on a word
_BEGINS = ("Ġ", "▁", "Ċ")  # byte-level BPE and SentencePiece mark those that begin one


def words_of_pieces(pieces: Sequence[str]) -> tuple[int | None, ...]:
    """Guess word numbers from the marks tokenizers leave; without any mark each token is a word.

    Used only where no tokenizer told us. Tokens in brackets (`[CLS]`, `<s>`) are no words.
    """
    begins_marked = any(piece.startswith(_BEGINS) for piece in pieces)
    words: list[int | None] = []
    word = -1
    for index, piece in enumerate(pieces):
        if is_special(piece):
            words.append(None)
            continue
        after_special = index == 0 or words[-1] is None
        if begins_marked:
            goes_on = not piece.startswith(_BEGINS) and not after_special
        else:
            goes_on = piece.startswith(_CONTINUES) and not after_special
        word += 0 if goes_on else 1
        words.append(word)
    return tuple(words)


def surfaces_of(tokens: Sequence[str]) -> list[str]:
    """Each token as it stands in the text, with the space before it."""
    if any(token.startswith(_BYTE_MARKS) for token in tokens):
        return _from_bytes(tokens)
    if any(token.startswith(_BEGINS) for token in tokens):
        return [written(token) for token in tokens]
    goes_on = [k == 0 or token.startswith(_CONTINUES) for k, token in enumerate(tokens)]
    return [
        written(token) if glued else f" {token}"
        for token, glued in zip(tokens, goes_on, strict=True)
    ]


def written(piece: str) -> str:
    """A piece as it stands in the text: the tokenizer's marks are spaces and line ends."""
    if piece.startswith("##"):
        return piece[2:]
    return piece.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


def readable(piece: str) -> str:
    """A piece alone, as people read it: no spaces around it, line ends and the like visible."""
    text = written(piece).strip(" ").replace("\n", "⏎")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) or "␣"


def _byte_signs() -> dict[str, int]:
    """Which byte each sign of byte-level BPE stands for: printable ones for themselves, and the
    others, in order, from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(others)}


_BYTES = _byte_signs()


def _from_bytes(pieces: Sequence[str]) -> list[str]:
    """Pieces of byte-level BPE as text. A character whose bytes lie in several pieces stands in the
    one that ends it; a piece that is no such writing (a special token) stands for itself.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = []
    for piece in pieces:
        if all(sign in _BYTES for sign in piece):
            texts.append(decoder.decode(bytes(_BYTES[sign] for sign in piece)))
        else:
            texts.append(decoder.decode(b"", final=True) + piece)
            decoder.reset()
    return texts


def is_special(piece: str) -> bool:
    """Whether a token stands in brackets, such as `[CLS]` or `<s>`: no part of the text."""
    return len(piece) > 2 and (piece[0], piece[-1]) in {("[", "]"), ("<", ">")}


def join_pieces(pieces: Sequence[str]) -> str:
    """The surface of a word: its pieces without the tokenizer's marks."""
    return "".join(piece.removeprefix("##").lstrip("Ġ▁") or piece for piece in pieces)
