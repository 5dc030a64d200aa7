"""Documents that do not fit into a model: the passages that a lexical search finds are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.errors import TokensError, optional_import
from attnflow.explainers.questions import question_prompt, uses_chat
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.models import WRITER
from attnflow.tokens.documents import BETWEEN, Document, Documents, named_documents
from attnflow.tokens.units import CharSpan, text_spans

_LONGEST = 800  # characters of a passage: a paragraph, or as many sentences
_GAP = 2  # tokens between two passages, at most
_BLANK = re.compile(r"\n\s*\n")


def select_passages(
    model: ModelLike,
    question: str,
    documents: Documents,
    *,
    max_new_tokens: int = 64,
    chat: bool | None = None,
) -> tuple[Document, ...]:
    """Return documents that fit into the model beside the question: all, or the best passages.

    Passages are ranked by BM25, which counts the question's words in them, and stay in their order.
    Each `Document.passages` says how many of how many are kept.

    >>> from attnflow.testing import tiny_decoder
    >>> texts = ["the keys .", "the author ."]
    >>> fitting = select_passages(tiny_decoder(), "the keys", texts, max_new_tokens=4)
    >>> [document.passages for document in fitting]
    [None, None]
    """
    loaded = as_model(model, default=WRITER)
    collection = named_documents(documents)
    templated = uses_chat(loaded.tokenizer, chat)
    excess = excess_tokens(loaded, question, collection, templated, max_new_tokens)
    if excess <= 0:
        return collection
    spans = [_passages(document.text) for document in collection]
    texts = [d.text[slice(*s)] for d, own in zip(collection, spans, strict=True) for s in own]
    order = np.argsort(-_scores(question, texts), kind="stable").tolist()
    sizes = [len(ids) for ids in loaded.tokenizer(texts, add_special_tokens=False)["input_ids"]]
    room = sum(sizes) - excess
    members: set[int] = set()
    for number in order:
        if sizes[number] + _GAP <= room:
            members.add(number)
            room -= sizes[number] + _GAP
    if not members:
        raise TokensError("No passage of the documents fits into the model beside the question.")
    numbers = iter(range(len(texts)))
    marks = [[next(numbers) in members for _ in own] for own in spans]
    return tuple(
        _shorten(document, [span for span, is_kept in zip(own, flags, strict=True) if is_kept], own)
        for document, own, flags in zip(collection, spans, marks, strict=True)
        if any(flags)
    )


def excess_tokens(
    model: Model, question: Any, documents: Sequence[Document], chat: bool, new: int
) -> int:
    """Return how many tokens the documents and the question have too many, `new` ones to come."""
    limit = model.facts.max_length
    if limit is None or model.facts.encoder_decoder:
        return 0
    return len(question_prompt(model, question, documents, chat).ids) + new - limit


def _passages(text: str) -> list[CharSpan]:
    """Return the paragraphs of a text, and of long ones as many sentences as make up a passage."""
    spans: list[CharSpan] = []
    place = 0
    for gap in [*_BLANK.finditer(text), None]:
        end = len(text) if gap is None else gap.start()
        paragraph = text[place:end]
        sentences = [(place + a, place + b) for a, b in text_spans(paragraph, "sentence")]
        begin = len(spans)
        for first, last in sentences if paragraph.strip() else ():
            if len(spans) > begin and last - spans[-1][0] <= _LONGEST:
                spans[-1] = (spans[-1][0], last)
            else:
                spans.append((first, last))
        place = end if gap is None else gap.end()
    return spans


def _scores(question: str, texts: Sequence[str]) -> Any:
    bm25s = optional_import("bm25s", extra="files", purpose="Selecting passages")
    words = [re.findall(r"\w+", text.casefold()) for text in [question, *texts]]
    index = bm25s.BM25()
    index.index(words[1:], show_progress=False)
    return index.get_scores(words[0])


def _shorten(document: Document, spans: Sequence[CharSpan], own: Sequence[CharSpan]) -> Document:
    """Return a document of these passages alone, its pages where they begin now."""
    text, starts = "", []
    for start, end in spans:
        text += BETWEEN if text else ""
        starts.append((start, len(text)))
        text += document.text[start:end]
    pages = tuple(
        next((place for start, place in starts if start >= page), len(text))
        for page in document.pages
    )
    return Document(document.name, text, pages, (len(spans), len(own)))
