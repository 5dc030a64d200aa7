"""A row of the data as something to explain: its text, its documents, its completion, its id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnflow.corpus.files import Problem, RawRow
from attnflow.corpus.settings import Columns
from attnflow.errors import InputError, TokensError, shorten
from attnflow.hosts.inputs import checked_text

__all__ = ["CorpusText", "text_of"]

_BETWEEN = "\n\n"


@dataclass(frozen=True)
class CorpusText:
    """One text of a corpus.

    number: counted from 0 over the whole corpus. text: with its documents before it. problem: why
    it cannot be explained, where that is known before the model is asked.
    """

    number: int
    id: str | None = None
    text: str = ""
    completion: str | None = None
    documents: tuple[str, ...] = ()
    image: Any = None
    problem: str | None = None


def text_of(number: int, row: RawRow, columns: Columns) -> CorpusText:
    """The text of a row; one that cannot be used says why.

    >>> row = {"prompt": "Who left?", "documents": ["Ann left.", "Bo stayed."]}
    >>> text_of(0, row, Columns(prompt="prompt", documents="documents")).text
    'Ann left.\\n\\nBo stayed.\\n\\nWho left?'
    """
    if isinstance(row, Problem):
        return CorpusText(number, problem=row.sentence)
    key = None if columns.id is None or row.get(columns.id) is None else str(row[columns.id])
    try:
        return _checked(number, key, row, columns)
    except InputError as error:
        return CorpusText(number, key, problem=str(error))


def _checked(number: int, key: str | None, row: Mapping[str, Any], columns: Columns) -> CorpusText:
    if columns.image is not None:
        return CorpusText(number, key, image=_image(row[columns.image]))
    name = columns.text or columns.prompt or ""
    own = checked_text(_present(row, name), name=name)
    documents = () if columns.documents is None else _documents(row[columns.documents])
    completion = None if columns.completion is None else row[columns.completion]
    if completion is not None and (not isinstance(completion, str) or not completion):
        raise TokensError(f"The completion is a text that is not empty; got {shorten(completion)}.")
    return CorpusText(number, key, _BETWEEN.join([*documents, own]), completion, documents)


def _present(row: Mapping[str, Any], name: str) -> Any:
    if row[name] is None:
        raise TokensError(f"There is nothing to explain: the column {name!r} is empty here.")
    return row[name]


def _documents(value: Any) -> tuple[str, ...]:
    """A list of texts, or one in JSON, as a CSV file holds it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            message = f"The documents are not a list in JSON: {shorten(value, 60)}."
            raise InputError(message) from error
    texts = value or ()
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise InputError(f"The documents are a list of texts; got {shorten(value)}.")
    return tuple(checked_text(each, name="document").strip() for each in texts)


def _image(value: Any) -> Any:
    """A path or the bytes of a file; Hugging Face's image columns hold both in one object."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, (str, bytes)) and value:
        return value
    raise InputError(f"An image is a path, or the bytes of a file; got {shorten(value)}.")
