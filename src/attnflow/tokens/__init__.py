"""Sources and targets: tokens, words, spans, patches of an image, common words."""

from __future__ import annotations

from attnflow.tokens.patches import Grid
from attnflow.tokens.sequence import TokenRef, Tokens
from attnflow.tokens.text import is_special, readable, words_of_pieces, written

__all__ = ["Grid", "TokenRef", "Tokens", "is_special", "readable", "words_of_pieces", "written"]
