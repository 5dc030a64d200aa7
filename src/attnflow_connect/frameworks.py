"""The part that the modules of all frameworks share: documents come in, callers ask in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from threading import Lock
from typing import Any

from attnflow.attribution.passages import Statement
from attnflow.explainers.answers import Answer, ask
from attnflow.hosts.load import as_model
from attnflow.hosts.model import Model
from attnflow.models import WRITER
from attnflow.tokens.documents import Document, distinct_documents

ALONE = Lock()
"""Frameworks call from several threads, and a model is not made for two at once."""
_NAMES = ("title", "name", "file_name", "source", "file_path", "url")  # where loaders put one


def framework_documents(
    texts: Iterable[tuple[str, Mapping[str, Any]]],
) -> tuple[Document, ...]:
    """Return documents from their texts and metadata; chunks of one file are numbered.

    >>> [d.name for d in framework_documents([("one", {"source": "a.pdf"}), ("two", {})])]
    ['a.pdf', 'document 2']
    """
    return distinct_documents(
        (next((str(about[key]) for key in _NAMES if about.get(key)), f"document {number}"), text)
        for number, (text, about) in enumerate(texts, 1)
    )


def load_once(model: Any) -> Any:
    """Return a model as `ask` takes it; one by its name is loaded at the first call only."""
    if model is None or isinstance(model, str | PathLike):
        return _named(None if model is None else str(model))
    return model


@lru_cache(maxsize=1)
def _named(model: str | None) -> Model:
    return as_model(model, default=WRITER)


def ask_alone(model: Any, question: Any, documents: Any, **options: Any) -> Answer:
    """Return `attnflow.ask` of one caller after the other."""
    with ALONE:
        return ask(load_once(model), question, documents, **options)


def grounded_part(statements: Sequence[Statement]) -> float:
    """Return the part of an answer's statements that rest on a document, from 0 to 1.

    >>> grounded_part([])
    0.0
    """
    kinds = [statement.verdict.kind for statement in statements if statement.verdict is not None]
    return sum(kind != "none" for kind in kinds) / len(kinds) if kinds else 0.0
