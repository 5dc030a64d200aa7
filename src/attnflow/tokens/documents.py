"""Documents beside a question: their names, the prompt they make up, and where they stand in it.

A document keeps its place through any tokenizer that spells what it reads: it is looked for in what
the prompt's tokens spell, spaces and capitals aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnflow.errors import InputError, TokensError, shorten
from attnflow.tokens.text import parts_in, surfaces
from attnflow.tokens.units import CharSpan


@dataclass(frozen=True)
class Document:
    """A text with a name, such as that of its file."""

    name: str
    text: str

    def __post_init__(self) -> None:
        for field in ("name", "text"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise InputError(
                    f"A document's {field} is a text that is not empty; got {shorten(value)}."
                )


Documents = Sequence[str | Document | tuple[str, str]] | Mapping[str, str]
"""Texts, texts with names (as a mapping or as pairs), or `Document`s."""


def named_documents(documents: Documents) -> tuple[Document, ...]:
    """Return what a user has as documents; a text without a name is called by its number."""
    if isinstance(documents, str) or not isinstance(documents, (Sequence, Mapping)):
        raise InputError(
            "documents is a list of texts, or texts by name, {'a.txt': '...'}; got "
            f"{shorten(documents)}."
        )
    entries = list(documents.items()) if isinstance(documents, Mapping) else list(documents)
    if not entries:
        raise InputError("documents is empty; give at least one text.")
    texts = tuple(_document(number, entry) for number, entry in enumerate(entries, start=1))
    names = [document.name for document in texts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"Two documents are called {shorten(twice)}; give each its own name.")
    return texts


def _document(number: int, entry: object) -> Document:
    if isinstance(entry, Document):
        return entry
    if isinstance(entry, str):
        return Document(f"document {number}", entry)
    if isinstance(entry, tuple) and len(entry) == 2:
        return Document(*entry)
    raise InputError(f"A document is a text, or a pair (name, text); got {shorten(entry)}.")


def compose_prompt(question: str, documents: Sequence[Document], *, ending: str = "") -> str:
    """Return the documents, a blank line between them, then the question.

    Names are left out: a small model takes headings for the beginning of its answer.
    """
    return "\n\n".join([*(document.text.strip() for document in documents), question + ending])


def document_tokens(
    tokens: Sequence[str],
    documents: Sequence[Document],
    tokenize: Callable[[str], list[str]] | None = None,
) -> list[tuple[str, CharSpan]]:
    """Return the name of each document with its first token and the one after its last.

    tokenize: the tokens of a text, for those that do not spell it, such as unknown words.
    """
    plain = [_plain(surface) for surface in surfaces(tokens)]
    places: list[tuple[str, CharSpan]] = []
    at = 0
    for document in documents:
        span = _spelled(plain, _plain(document.text), at)
        if span is None and tokenize is not None:
            span = _sequence(list(tokens), tokenize(document.text.strip()), at)
        if span is None:
            raise TokensError(
                f"The document {shorten(document.name)} does not stand in the prompt as it is: the "
                "tokenizer or the chat template changed it. Name spans of the prompt instead: "
                "result.spans({...})."
            )
        places.append((document.name, span))
        at = span[1]
    return places


def _spelled(plain: Sequence[str], content: str, first: int) -> CharSpan | None:
    """Return the tokens from `first` on that spell a text."""
    start = "".join(plain[first:]).find(content)
    if start < 0:
        return None
    begin, end = parts_in(plain[first:], start, start + len(content))
    return first + begin, first + end


def _sequence(tokens: list[str], part: list[str], first: int) -> CharSpan | None:
    """Return the place of some tokens in a row; the first may be written otherwise."""
    for start in range(first, len(tokens) - len(part) + 1):
        if tokens[start + 1 : start + len(part)] == part[1:]:
            return start, start + len(part)
    return None


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
