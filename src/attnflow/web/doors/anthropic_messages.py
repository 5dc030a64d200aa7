"""Anthropic's messages: document blocks whose characters are cited."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from attnflow.attribution.citations import Citation
from attnflow.errors import InputError
from attnflow.web.doors.conversation import (
    MOST_MESSAGES,
    CitedAnswer,
    Conversation,
    Lenient,
    SentDocument,
    Stops,
    checked_messages,
    decode_file,
    message_of,
    new_id,
    refuse_part,
    sse,
    writing_options,
)

Blocks = str | list[dict[str, Any]]


class Message(Lenient):
    """A turn: a text, or blocks."""

    role: str
    content: Blocks


class MessagesRequest(Lenient):
    """What a client sends to /v1/messages."""

    model: str = ""
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: Blocks | None = None
    max_tokens: int = Field(default=1024, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop_sequences: Stops
    stream: bool = False

    def conversation(self, usual_tokens: int) -> Conversation:
        """Return it as every door understands it."""
        documents: list[SentDocument] = []
        messages = [message_of("system", _read(self.system or "", documents))]
        messages += [message_of(m.role, _read(m.content, documents)) for m in self.messages]
        return Conversation(
            model=self.model,
            messages=checked_messages(messages),
            documents=documents,
            max_tokens=self.max_tokens,
            stream=self.stream,
            options=writing_options(self.temperature, self.top_p, None, self.stop_sequences),
        )

    def reply(self, model: str) -> MessagesReply:
        """Return what writes the answer."""
        return MessagesReply(model)


class MessagesReply:
    """An answer as messages write it: a block for each statement; streamed, one block, whose
    citations follow its text.
    """

    def __init__(self, model: str) -> None:
        self.about = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}

    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""
        return {
            **self.about,
            "content": list(_blocks(answer)),
            **_stop(answer),
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.new_tokens},
            "attnflow": {"citations": answer.records},
        }

    def opening(self) -> Iterator[str]:
        """Begin a stream."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        message: dict[str, Any] = {**self.about, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**message, "usage": usage})
        block = {"type": "text", "text": "", "citations": []}
        yield _event("content_block_start", index=0, content_block=block)

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        delta = {"type": "text_delta", "text": text}
        yield _event("content_block_delta", index=0, delta=delta)

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""
        for each in answer.citations:
            delta = {"type": "citations_delta", "citation": _citation(answer, each)}
            yield _event("content_block_delta", index=0, delta=delta)
        yield _event("content_block_stop", index=0)
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.new_tokens}
        cited = {"citations": answer.records}
        yield _event("message_delta", delta=_stop(answer), usage=usage, attnflow=cited)
        yield _event("message_stop")


def _read(content: Blocks, documents: list[SentDocument]) -> str:
    """Return the text of a message; its documents are added to `documents`."""
    if isinstance(content, str):
        return content
    texts = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "document":
            documents.append(_document(block, len(documents) + 1))
        elif kind == "tool_result":
            texts.append(_read(block.get("content") or "", documents))
        elif kind == "tool_use":
            texts.append(json.dumps({k: block.get(k) for k in ("name", "input")}))
        else:
            raise refuse_part(kind)
    return "\n".join(texts)


def _document(block: Mapping[str, Any], number: int) -> SentDocument:
    source = block.get("source") or {}
    title = block.get("title")
    name, kind = str(title or f"document {number}"), source.get("type")
    if kind == "base64" and str(source.get("media_type")).startswith("text/"):
        text = decode_file(str(source.get("data") or ""), name)
    elif kind == "text":
        text = str(source.get("data") or "")
    else:
        raise InputError(f"The document {name!r} must be plain text; got the source {kind!r}.")
    if not text.strip():
        raise InputError(f"The document {name!r} is empty.")
    enabled = bool((block.get("citations") or {}).get("enabled"))
    return SentDocument(text, title, None, {}, cited=enabled)


def _blocks(answer: CitedAnswer) -> Iterator[dict[str, Any]]:
    """Yield the answer cut where its statements begin and end; together the blocks are it."""
    place = 0
    for start, end in sorted({(c.start, c.end) for c in answer.citations}):
        if start > place:
            yield {"type": "text", "text": answer.text[place:start], "citations": None}
        cited = [_citation(answer, each) for each in answer.citations if each.start == start]
        yield {"type": "text", "text": answer.text[start:end], "citations": cited}
        place = end
    if place < len(answer.text) or not answer.text:
        yield {"type": "text", "text": answer.text[place:], "citations": None}


def _citation(answer: CitedAnswer, citation: Citation) -> dict[str, Any]:
    return {
        "type": "char_location",
        "cited_text": citation.cited_text,
        "document_index": citation.document_index,
        "document_title": answer.documents[citation.document_index].title,
        "start_char_index": citation.cited_start,
        "end_char_index": citation.cited_end,
        "file_id": None,
    }


def _stop(answer: CitedAnswer) -> dict[str, Any]:
    reason = "max_tokens" if answer.cut_off else "end_turn"
    if answer.stop is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _event(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)
