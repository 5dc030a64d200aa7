"""OpenAI's chat completions: `documents` beside the messages, or files in them; annotations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pydantic import Field

from attnflow.attribution.passages import Citation
from attnflow.tokens.documents import named_documents
from attnflow_connect.doors import conversation as door
from attnflow_connect.doors.conversation import CitedAnswer, SentDocument, sse


class ChatRequest(door.DoorRequest):
    """A request of a client to /v1/chat/completions."""

    messages: list[door.Message] = Field(min_length=1, max_length=door.MOST_MESSAGES)
    documents: door.Documents
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop_sequences: door.Stops = Field(default=[], max_length=16, validation_alias="stop")
    stream_options: dict[str, Any] | None = None

    def turns(self, documents: list[SentDocument]) -> Iterator[tuple[str, str]]:
        """Yield the messages; files in them follow the documents beside them."""
        documents += sent_documents(self.documents)
        files: list[SentDocument] = []
        for each in self.messages:
            yield each.role, read_content(each.content, files) or each.calls
        documents += files

    def conversation(self, usual_tokens: int) -> door.Conversation:
        """Return it as every door understands it; the newer name of the limit comes first."""
        conversation, newer = super().conversation(usual_tokens), self.max_completion_tokens
        return conversation if newer is None else replace(conversation, max_tokens=newer)

    def reply(self, model: str) -> ChatReply:
        """Return what writes the answer."""
        return ChatReply(model, bool((self.stream_options or {}).get("include_usage")))


class ChatReply(door.Reply):
    """An answer as chat completions write it; streamed, the text first and citations last."""

    prefix = "chatcmpl-"

    def __init__(self, model: str, counts_tokens: bool = False) -> None:
        super().__init__(model)
        self.about = {"id": self.id, "created": self.created, "model": model}
        self.counts_tokens = counts_tokens

    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""
        message = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "annotations": url_citations(answer),
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(answer),
        }
        return {
            **self.about,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(answer),
            "attnflow": {"citations": answer.records},
        }

    def opening(self) -> Iterator[str]:
        """Begin a stream."""
        yield self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        yield self._chunk({"content": text})

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""
        cited = {"annotations": url_citations(answer)}
        yield self._chunk(cited, finish_reason(answer), attnflow={"citations": answer.records})
        if self.counts_tokens:
            yield sse({**self._frame([]), "usage": _usage(answer)})
        yield sse("[DONE]")

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**self._frame([choice]), **more})

    def _frame(self, choices: Sequence[Any]) -> dict[str, Any]:
        return {**self.about, "object": "chat.completion.chunk", "choices": list(choices)}


def url_citations(answer: CitedAnswer) -> list[dict[str, Any]]:
    """Return citations of addresses: a document's own, or its title, with the characters cited."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": citation.start,
                "end_index": citation.end,
                "title": citation.document,
                "url": f"{_address(answer, citation)}#char={citation.cited_start},"
                f"{citation.cited_end}",
            },
        }
        for citation in answer.citations
    ]


def sent_documents(documents: Sequence[str | Mapping[str, Any]]) -> list[SentDocument]:
    """Return the documents of a request, as vLLM and chat templates take them."""
    files = []
    for number, entry in enumerate(documents, 1):
        data: dict[str, Any] = {"text": entry} if isinstance(entry, str) else dict(entry)
        if "text" not in data:  # some clients call it so
            data["text"] = next((data[k] for k in ("content", "contents") if k in data), None)
        titles = {key: data[key] for key in ("title", "name", "id") if data.get(key) is not None}
        title = next(iter(titles.values()), f"document {number}")
        (document,) = named_documents([(str(title), data["text"])])
        files.append(SentDocument(document.text, document.name, str(data.get("id") or title), data))
    return files


def read_content(content: door.Content, files: list[SentDocument]) -> str:
    """Return the text of a message; files among its parts are added to `files`."""

    def read_other(part: Mapping[str, Any]) -> list[str]:
        if part.get("type") not in ("file", "input_file"):
            raise door.refuse_part(part.get("type"))
        file = door.read_fields(part.get("file"), "file") or part
        name = str(file.get("filename") or f"file {len(files) + 1}")
        text = door.decode_file(str(file.get("file_data") or ""), name)
        files.append(SentDocument(text, name, str(file.get("file_id") or name)))
        return []

    return door.read_parts(content, read_other)


def _address(answer: CitedAnswer, citation: Citation) -> str:
    url = answer.documents[citation.document_index].data.get("url")
    return str(url) if url else f"document:{quote(citation.document)}"


def finish_reason(answer: CitedAnswer) -> str:
    """Return why the answer ends."""
    return "length" if answer.cut_off else "stop"


def _usage(answer: CitedAnswer) -> dict[str, int]:
    counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.new_tokens}
    return {**counts, "total_tokens": sum(counts.values())}
