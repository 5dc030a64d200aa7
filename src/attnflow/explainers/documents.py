"""Documents put before a question, messages of a conversation, and results that know where each of
them stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS, MESSAGES
from attnflow.errors import TokensError
from attnflow.tokens.documents import Document, document_tokens

if TYPE_CHECKING:
    from attnflow.explainers.prompts import Message


def messages_of(prompt: Any) -> list[Message]:
    """The messages, if the prompt is a conversation; otherwise none."""
    messages = list(prompt) if isinstance(prompt, Sequence) else []
    return messages if all(isinstance(message, Mapping) for message in messages) else []


def mark_messages(
    result: Attribution,
    messages: Sequence[Message],
    form: Sequence[bool] | None,
    tokenizer: Any = None,
) -> Attribution:
    """The same result with a note of where each message stands among its sources.

    form: True where a token of the prompt comes from the chat template. Without it, or where two
    messages touch, they are looked for by their words; if one is not found, nothing is noted.
    """
    names = [f"message {k} ({message['role']})" for k, message in enumerate(messages, 1)]
    runs = _content_runs(form or ())
    if len(runs) != len(messages):
        texts = [Document(n, str(m["content"])) for n, m in zip(names, messages, strict=True)]
        try:
            places = document_tokens(list(result.sources), texts, _tokenize(tokenizer))
        except TokensError:
            return result
        marks = [[name, first, end] for name, (first, end) in places]
    else:
        spans = [_columns(result, first, end) for first, end in runs]
        marks = [[name, *span] for name, span in zip(names, spans, strict=True) if span[1]]
    return replace(result, provenance={**result.provenance, MESSAGES: marks})


def _content_runs(form: Sequence[bool]) -> list[tuple[int, int]]:
    """First and end of each row of tokens that a person wrote."""
    starts = [k for k, sign in enumerate(form) if not sign and (k == 0 or form[k - 1])]
    ends = [k + 1 for k, sign in enumerate(form) if not sign and all(form[k + 1 : k + 2])]
    return list(zip(starts, ends, strict=True))


def _columns(result: Attribution, first: int, end: int) -> tuple[int, int]:
    """The sources that lie between two positions of the prompt; (0, 0) where there are none."""
    positions = result.sources.positions
    columns = [k for k, position in enumerate(positions) if first <= position < end]
    return (columns[0], columns[-1] + 1) if columns else (0, 0)


def mark_documents(
    result: Attribution,
    documents: Sequence[Document],
    tokenizer: Any = None,
    prompt: Sequence[str] | None = None,
) -> Attribution:
    """The same result with a note of where each document stands among its sources.

    prompt: the prompt's tokens, where the sources are others, such as its words.
    """
    tokens = list(result.sources if prompt is None else prompt)
    places = document_tokens(tokens, documents, _tokenize(tokenizer))
    spans = [(name, span if prompt is None else _columns(result, *span)) for name, span in places]
    marks = [[name, *span] for name, span in spans if span[1]]
    return replace(result, provenance={**result.provenance, DOCUMENTS: marks})


def _tokenize(tokenizer: Any) -> Callable[[str], list[str]] | None:
    """The tokens of a text by name, where there is a tokenizer."""

    def tokenize(text: str) -> list[str]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]

    return None if tokenizer is None else tokenize
