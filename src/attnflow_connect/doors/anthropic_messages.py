"""Anthropic's messages: document blocks whose characters are cited."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from attnflow.attribution.passages import Citation
from attnflow.errors import InputError
from attnflow_connect.doors import conversation as door
from attnflow_connect.doors.conversation import CitedAnswer, SentDocument, event

Blocks = str | list[dict[str, Any]]


class Message(door.Lenient):
    """A turn: a text, or blocks."""

    role: str
    content: Blocks


class MessagesReply(door.Reply):
    """An answer as messages write it: a block for each statement; streamed, one block, whose
    citations follow its text.
    """

    prefix = "msg_"

    @property
    def about(self) -> dict[str, Any]:
        """The fields that every message has."""
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""
        return {
            **self.about,
            "content": list(_blocks(answer)),
            **_stop(answer),
            "usage": answer.counts,
            "attnflow": {"citations": answer.records},
        }

    def opening(self) -> Iterator[str]:
        """Begin a stream."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        message: dict[str, Any] = {**self.about, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None}
        yield event("message_start", message={**message, "usage": usage})
        block = {"type": "text", "text": "", "citations": []}
        yield event("content_block_start", index=0, content_block=block)

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        delta = {"type": "text_delta", "text": text}
        yield event("content_block_delta", index=0, delta=delta)

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""
        for each in answer.citations:
            delta = {"type": "citations_delta", "citation": _citation(answer, each)}
            yield event("content_block_delta", index=0, delta=delta)
        yield event("content_block_stop", index=0)
        cited = {"citations": answer.records}
        yield event("message_delta", delta=_stop(answer), usage=answer.counts, attnflow=cited)
        yield event("message_stop")


class MessagesRequest(door.DoorRequest):
    """A request of a client to /v1/messages."""

    form = MessagesReply
    messages: list[Message] = Field(min_length=1, max_length=door.MOST_MESSAGES)
    system: Blocks | None = None
    max_tokens: int = Field(default=1024, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1)

    def turns(self, documents: list[SentDocument]) -> Iterator[tuple[str, str]]:
        """Yield the system's message and those of the conversation."""
        yield "system", _read(self.system, documents)
        for message in self.messages:
            yield message.role, _read(message.content, documents)


def _read(content: door.Content, documents: list[SentDocument]) -> str:
    """Return the text of a message; its documents are added to `documents`."""

    def read_other(block: Mapping[str, Any]) -> list[str]:
        kind = block.get("type")
        if kind == "document":
            documents.append(_document(block, len(documents) + 1))
            return []
        if kind == "tool_result":
            return [_read(block.get("content"), documents)]
        if kind == "tool_use":
            return [json.dumps({k: block.get(k) for k in ("name", "input")})]
        raise door.refuse_part(kind)

    return door.read_parts(content, read_other)


def _document(block: Mapping[str, Any], number: int) -> SentDocument:
    source = door.read_fields(block.get("source"), "source")
    title = str(block.get("title") or "") or None
    name, kind = title or f"document {number}", source.get("type")
    if kind == "base64" and str(source.get("media_type")).startswith("text/"):
        text = door.decode_file(str(source.get("data") or ""), name)
    elif kind == "text":
        text = str(source.get("data") or "")
    else:
        raise InputError(f"The document {name!r} must be plain text; got the source {kind!r}.")
    if not text.strip():
        raise InputError(f"The document {name!r} is empty.")
    enabled = bool(door.read_fields(block.get("citations"), "citations").get("enabled"))
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
