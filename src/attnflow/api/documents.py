"""Documents put before a question, and a result that knows where each of them stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS
from attnflow.errors import InputError
from attnflow.tokens.documents import Document, compose_prompt, document_tokens

if TYPE_CHECKING:
    from attnflow.generation.prompts import Prompts

__all__ = ["mark_documents", "prompt_with_documents"]


def prompt_with_documents(prompt: Prompts, documents: Sequence[Document]) -> Prompts:
    """The prompt with the documents before it; of a conversation, before its last message.

    >>> prompt_with_documents("How long?", [Document("a.txt", "45 days.")])
    '45 days.\\n\\nHow long?'
    """
    if isinstance(prompt, str):
        return compose_prompt(prompt, documents)
    messages: list[Any] = list(prompt) if isinstance(prompt, Sequence) else []
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise InputError(
            "documents go with one question, or with one conversation of messages; got a "
            f"{type(prompt).__name__}. Ask one question at a time."
        )
    last = dict(messages[-1])
    last["content"] = compose_prompt(str(last["content"]), documents)
    return [*messages[:-1], last]


def mark_documents(
    result: Attribution, documents: Sequence[Document], tokenizer: Any = None
) -> Attribution:
    """The same result with a note of where each document stands among its sources.

    >>> import numpy as np
    >>> from attnflow import Raw, Tokens
    >>> sources = Tokens(("45", "Ġdays", ".", "ĠHow"))
    >>> result = Attribution(np.ones((1, 1, 4)) / 4, (1,), Tokens(("45",)), sources, Raw())
    >>> marked = mark_documents(result, [Document("a.txt", "45 days.")])
    >>> marked.provenance["documents"]
    [['a.txt', 0, 3]]
    """

    def tokenize(text: str) -> list[str]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]

    known = None if tokenizer is None else tokenize
    places = document_tokens(list(result.sources), documents, known)
    marks = [[name, first, end] for name, (first, end) in places]
    return replace(result, provenance={**result.provenance, DOCUMENTS: marks})
