"""OpenAI's responses: texts and files as input; citations in the output text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from attnflow_connect.doors import conversation as door
from attnflow_connect.doors.conversation import CitedAnswer, SentDocument
from attnflow_connect.doors.openai_chat import read_content, sent_documents, url_citations


class Item(door.Lenient):
    """An item of the input: a message, or what a tool said."""

    type: str = "message"
    role: str = "user"
    content: door.Content = None
    output: door.Content = None


class ResponsesReply(door.Reply):
    """An answer as responses write it."""

    prefix = "resp_"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.item, self.events = door.new_id("msg_"), 0

    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""
        usage = {
            **answer.counts,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.new_tokens,
        }
        status = "incomplete" if answer.cut_off else "completed"
        reason = {"reason": "max_output_tokens"} if answer.cut_off else None
        return {
            **self._frame(status, [self._message(status, [_part(answer)])]),
            "usage": usage,
            "incomplete_details": reason,
            "attnflow": {"citations": answer.records},
        }

    def opening(self) -> Iterator[str]:
        """Begin a stream."""
        frame = self._frame("in_progress", [])
        yield self._event("response.created", response=frame)
        yield self._event("response.in_progress", response=frame)
        message = self._message("in_progress", [])
        yield self._event("response.output_item.added", output_index=0, item=message)
        part = {"type": "output_text", "text": "", "annotations": []}
        yield self._event("response.content_part.added", **self._place, part=part)

    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations, then all of it again, as this API does."""
        part, response = _part(answer), self.whole(answer)
        for number, annotation in enumerate(part["annotations"]):
            yield self._event(
                "response.output_text.annotation.added",
                **self._place,
                annotation_index=number,
                annotation=annotation,
            )
        yield self._event("response.output_text.done", **self._place, text=answer.text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=part)
        item = response["output"][0]
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        self.events += 1
        return door.event(kind, sequence_number=self.events - 1, **fields)

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        about = {"id": self.item, "type": "message", "role": "assistant"}
        return {**about, "status": status, "content": content}

    def _frame(self, status: str, output: list[Any]) -> dict[str, Any]:
        return {
            **{"id": self.id, "object": "response", "created_at": self.created},
            **{"status": status, "model": self.model, "output": output, "error": None},
            **{"parallel_tool_calls": False, "tool_choice": "none", "tools": []},
        }


class ResponsesRequest(door.DoorRequest):
    """A request of a client to /v1/responses."""

    form = ResponsesReply
    input: str | list[Item] = Field(max_length=10_000_000)
    instructions: str | None = None
    documents: door.Documents
    max_tokens: int | None = Field(default=None, ge=1, validation_alias="max_output_tokens")

    def turns(self, documents: list[SentDocument]) -> Iterator[tuple[str, str]]:
        """Yield the instructions and the messages; files in these follow the documents."""
        documents += sent_documents(self.documents)
        files: list[SentDocument] = []
        items = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        yield "system", self.instructions or ""
        for item in items[: door.MOST_MESSAGES]:
            role = "tool" if item.type.endswith("_output") else item.role
            yield role, read_content(item.content or item.output, files)
        documents += files


def _part(answer: CitedAnswer) -> dict[str, Any]:
    """Return the output text and its citations; each has its record, which LangChain hands on."""
    cited = [
        {"type": "url_citation", **each["url_citation"], "attnflow": record}
        for each, record in zip(url_citations(answer), answer.records, strict=True)
    ]
    return {"type": "output_text", "text": answer.text, "annotations": cited, "logprobs": []}
