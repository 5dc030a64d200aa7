"""Cohere's chat, version 2: documents beside the messages; citations of parts of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from attnflow.attribution.citations import Citation
from attnflow.errors import InputError
from attnflow.web.doors.conversation import (
    MOST_DOCUMENTS,
    MOST_MESSAGES,
    CitedAnswer,
    Conversation,
    Lenient,
    Message,
    SentDocument,
    Stops,
    checked_messages,
    message_of,
    new_id,
    refuse_part,
    sse,
    writing_options,
)

_TEXTS = ("text", "snippet", "content")  # where documents have their words


class CohereRequest(Lenient):
    """What a client sends to /v2/chat."""

    model: str = ""
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    documents: list[str | dict[str, Any]] = Field(default=[], max_length=MOST_DOCUMENTS)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    stop_sequences: Stops
    stream: bool = False

    def conversation(self, usual_tokens: int) -> Conversation:
        """Return it as every door understands it."""
        documents = [_document(each, k) for k, each in enumerate(self.documents)]
        messages = []
        for each in self.messages:
            calls = json.dumps(each.tool_calls, ensure_ascii=False) if each.tool_calls else ""
            messages.append(message_of(each.role, _read(each.content, documents) or calls))
        return Conversation(
            model=self.model,
            messages=checked_messages(messages),
            documents=documents,
            max_tokens=self.max_tokens or usual_tokens,
            stream=self.stream,
            options=writing_options(self.temperature, self.p, self.seed, self.stop_sequences),
        )

    def reply(self, model: str) -> CohereReply:
        """Return what writes the answer."""
        return CohereReply()


class CohereReply:
    """An answer as Cohere's chat writes it."""

    def __init__(self) -> None:
        self.id = new_id("")

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
        yield _event("message-start", id=self.id, delta={"message": message})
        content = {"message": {"content": {"type": "text", "text": ""}}}
        yield _event("content-start", index=0, delta=content)

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        yield _event("content-delta", index=0, delta={"message": {"content": {"text": text}}})

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""
        yield _event("content-end", index=0)
        for number, each in enumerate(answer.citations):
            cited = {"message": {"citations": _citation(answer, each)}}
            yield _event("citation-start", index=number, delta=cited)
            yield _event("citation-end", index=number)
        yield _event("message-end", id=self.id, delta=_finish(answer), attnflow=answer.records)
        yield sse("[DONE]")


def _document(entry: str | Mapping[str, Any], number: int) -> SentDocument:
    """Return a document of a request: a text, or fields of which one is its text."""
    if isinstance(entry, str):
        data, name = {"text": entry}, None
    else:
        fields = entry.get("data") or {k: v for k, v in entry.items() if k != "id"}
        data = {"text": fields} if isinstance(fields, str) else dict(fields)
        name = entry.get("id")
    words = next((data[key] for key in _TEXTS if isinstance(data.get(key), str)), None)
    text = "\n".join(f"{k}: {v}" for k, v in data.items()) if words is None else words
    if not text.strip():
        raise InputError(f"Document {number + 1} is empty.")
    title = data.get("title")
    return SentDocument(text, title and str(title), str(name or f"doc:{number}"), data)


def _read(content: str | Sequence[Mapping[str, Any]] | None, documents: list[SentDocument]) -> str:
    """Return the text of a message; documents that tools gave are added to `documents`."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.get("type") == "text":
            texts.append(str(part.get("text") or ""))
        elif part.get("type") == "document":
            documents.append(_document(part.get("document") or {}, len(documents)))
        else:
            raise refuse_part(part.get("type"))
    return "\n".join(texts)


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
    counts = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.new_tokens}
    reason = "MAX_TOKENS" if answer.cut_off else "COMPLETE"
    if answer.stop is not None:
        reason = "STOP_SEQUENCE"
    return {"finish_reason": reason, "usage": {"billed_units": counts, "tokens": counts}}


def _event(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)
