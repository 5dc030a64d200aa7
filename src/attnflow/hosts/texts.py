"""Texts as they are handed in: checked before anything is run."""

from __future__ import annotations

from attnflow.errors import TokensError, shorten

__all__ = ["checked_text"]


def checked_text(text: object, purpose: str = "explain", name: str = "text") -> str:
    """The text, or an error that says why there is nothing to do with it.

    >>> checked_text("the keys")
    'the keys'
    """
    if not isinstance(text, str):
        raise TokensError(
            f"A text or a mapping of prepared inputs is needed; got {type(text).__name__}."
        )
    if not text.strip():
        raise TokensError(f"There is nothing to {purpose}: the {name} is {shorten(text)}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokensError(
            f"The text has half a character at place {error.start} ({text[error.start]!r}, a lone "
            "surrogate), which no tokenizer takes. Read the file with the encoding it was written "
            "in, or replace what cannot be read: text.encode('utf-8', 'replace').decode()."
        ) from error
    return text
