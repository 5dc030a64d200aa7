"""Cohere's chat, version 2: documents beside the messages; citations of parts of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from attnflow.attribution.passages import Citation
from attnflow.errors import InputError
from attnflow_connect.doors import conversation as door
from attnflow_connect.doors.conversation import CitedAnswer, SentDocument, event

_TEXTS = ("text", "snippet", "content")  # where documents have their words


class CohereReply(door.Reply):
    """An answer as Cohere's chat writes it."""

    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": answer.text}],
            "citations": [_citation(answer, each) for each in answer.citations],
        }
        cited = {"citations": answer.records}
        return {"id": self.id, "message": message, **_finish(answer), "attnflow": cited}

    def opening(self) -> Iterator[str]:
        """Begin a stream."""
        message = {"role": "assistant", "content": [], "tool_plan": "", "citations": []}
        yield event("message-start", id=self.id, delta={"message": message})
        content = {"message": {"content": {"type": "text", "text": ""}}}
        yield event("content-start", index=0, delta=content)

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        yield event("content-delta", index=0, delta={"message": {"content": {"text": text}}})

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""
        yield event("content-end", index=0)
        for number, each in enumerate(answer.citations):
            cited = {"message": {"citations": _citation(answer, each)}}
            yield event("citation-start", index=number, delta=cited)
            yield event("citation-end", index=number)
        yield event("message-end", id=self.id, delta=_finish(answer), attnflow=answer.records)
        yield door.sse("[DONE]")


class CohereRequest(door.DoorRequest):
    """A request of a client to /v2/chat."""

    form = CohereReply
    messages: list[door.Message] = Field(min_length=1, max_length=door.MOST_MESSAGES)
    documents: door.Documents
    top_p: float | None = Field(default=None, gt=0, le=1, validation_alias="p")

    def turns(self, documents: list[SentDocument]) -> Iterator[tuple[str, str]]:
        """Yield the messages; documents that tools gave follow those beside the messages."""
        documents += [_document(each, k) for k, each in enumerate(self.documents)]
        for each in self.messages:
            yield each.role, _read(each.content, documents) or each.calls


def _document(entry: object, number: int) -> SentDocument:
    """Return a document of a request: a text, or fields of which one is its text."""
    data, name = entry, None
    if not isinstance(entry, str):
        fields = door.read_fields(entry, "document")
        data = fields.get("data") or {k: v for k, v in fields.items() if k != "id"}
        name = fields.get("id")
    data = {"text": data} if isinstance(data, str) else dict(door.read_fields(data, "data"))
    words = next((data[key] for key in _TEXTS if isinstance(data.get(key), str)), None)
    text = "\n".join(f"{k}: {v}" for k, v in data.items()) if words is None else words
    if not text.strip():
        raise InputError(f"Document {number + 1} is empty.")
    title = data.get("title")
    return SentDocument(text, title and str(title), str(name or f"doc:{number}"), data)


def _read(content: door.Content, documents: list[SentDocument]) -> str:
    """Return the text of a message; documents that tools gave are added to `documents`."""

    def read_other(part: Mapping[str, Any]) -> list[str]:
        if part.get("type") != "document":
            raise door.refuse_part(part.get("type"))
        documents.append(_document(part.get("document"), len(documents)))
        return []

    return door.read_parts(content, read_other)


def _citation(answer: CitedAnswer, citation: Citation) -> dict[str, Any]:
    document = answer.documents[citation.document_index]
    source = {"type": "document", "id": document.id, "document": dict(document.data)}
    return {
        "start": citation.start,
        "end": citation.end,
        "text": citation.text,
        "type": "TEXT_CONTENT",
        "sources": [source],
    }


def _finish(answer: CitedAnswer) -> dict[str, Any]:
    counts = answer.counts
    reason = "MAX_TOKENS" if answer.cut_off else "COMPLETE"
    if answer.stop is not None:
        reason = "STOP_SEQUENCE"
    return {"finish_reason": reason, "usage": {"billed_units": counts, "tokens": counts}}
