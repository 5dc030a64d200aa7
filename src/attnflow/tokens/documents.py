"""Documents beside a question: their names, the text they make up, and where they stand in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count

from attnflow.errors import InputError, shorten
from attnflow.tokens.units import CharSpan

BETWEEN = "\n\n"
"""The blank line between documents, and before the question."""


@dataclass(frozen=True)
class Document:
    """A text with a name, such as that of its file.

    pages: where its pages begin, if it has any. passages: how many of how many a search kept; None
    where the text is whole.
    """

    name: str
    text: str
    pages: tuple[int, ...] = ()
    passages: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for field in ("name", "text"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise InputError(
                    f"A document's {field} is a text that is not empty; got {shorten(value)}."
                )


Documents = Sequence[str | Document | tuple[str, str] | Mapping[str, str]] | Mapping[str, str]
"""Texts, texts with names (as a mapping, as pairs, or each with a title), or `Document`s."""


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


def distinct_documents(texts: Iterable[tuple[str, str]]) -> tuple[Document, ...]:
    """Return documents by name and text; a name that is taken gets a number, as chunks need it."""
    documents: dict[str, Document] = {}
    for name, text in texts:
        others = (f"{name} ({number})" for number in count(2))
        free = next(each for each in chain([name], others) if each not in documents)
        documents[free] = Document(free, text)
    return tuple(documents.values())


def _document(number: int, entry: object) -> Document:
    if isinstance(entry, Document):
        return entry
    if isinstance(entry, str):
        return Document(f"document {number}", entry)
    if isinstance(entry, tuple) and len(entry) == 2:
        return Document(*entry)
    if isinstance(entry, Mapping) and "text" in entry:
        names = (entry.get(key) for key in ("name", "title", "id"))
        return Document(next(filter(None, names), f"document {number}"), entry["text"])
    raise InputError(
        f"A document is a text, a pair (name, text), or {{'title': ..., 'text': ...}}; got "
        f"{shorten(entry)}."
    )


def compose_prompt(
    question: str, documents: Sequence[Document], *, ending: str = ""
) -> tuple[str, list[CharSpan]]:
    """Return the documents without names, then the question; and the documents' places."""
    text, places = join_texts([*(document.text.strip() for document in documents), question])
    return text + ending, places[:-1]


def join_texts(texts: Sequence[str]) -> tuple[str, list[CharSpan]]:
    """Return texts as one, a blank line between them, and the characters of each."""
    starts = accumulate((len(text) + len(BETWEEN) for text in texts), initial=0)
    places = [(start, start + len(text)) for text, start in zip(texts, starts, strict=False)]
    return BETWEEN.join(texts), places
