"""LangChain: citations as annotations of an AIMessage, and a chat model that writes them.

>>> from attnflow.testing import tiny_decoder
>>> source = Document("the keys to the cabinets .", metadata={"source": "a.txt"})
>>> entry = {"question": "the keys", "documents": [source], "answer": "the cabinets"}
>>> AddCitations(tiny_decoder()).invoke(entry).text
'the cabinets'
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from threading import Thread
from time import sleep
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig

from attnflow.attribution.passages import Citation
from attnflow.errors import InputError
from attnflow.explainers.questions import uses_chat
from attnflow.hosts.load import as_model
from attnflow.hosts.model import Model
from attnflow_connect.doors.conversation import CitedAnswer, answer_conversation, fitted
from attnflow_connect.doors.openai_chat import ChatRequest, finish_reason
from attnflow_connect.frameworks import ALONE, ask_alone, framework_documents, load_once
from attnflow_connect.server.jobs import Job
from attnflow_connect.server.models import Limits

_STANDARD = {"output_version": "v1"}  # the content is in LangChain's own blocks
_ANY_LENGTH = Limits(prompt_tokens=sys.maxsize, answer_tokens=sys.maxsize)
_PAUSE = 0.02  # seconds between two looks at what is written


class AddCitations(Runnable[Mapping[str, Any], AIMessage]):
    """A step of a chain that cites an answer: {"question", "documents", "answer"} → AIMessage.

    answer: a text or an AIMessage, whoever wrote it; without one the model here answers. The
    message keeps all that it has; its text gets annotations. options: for `attnflow.ask`.
    """

    def __init__(self, model: Any = None, **options: Any) -> None:
        self.model, self.options = model, options

    def invoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """Return the answer with its citations."""
        return self._call_with_config(self._cite, input, config)

    def _cite(self, entry: Mapping[str, Any]) -> AIMessage:
        sources, message = list(entry["documents"]), entry.get("answer")
        text = message.text if isinstance(message, BaseMessage) else message
        documents = framework_documents((each.page_content, each.metadata) for each in sources)
        question = entry.get("question")
        answer = ask_alone(self.model, question, documents, answer=text, **self.options)
        cited = _annotations(answer.citations, [_address(each.metadata) for each in sources])
        block: Any = _text_block(answer.text, annotations=cited)
        if not isinstance(message, AIMessage):
            return AIMessage(content=[block], response_metadata=dict(_STANDARD))
        others = [each for each in message.content_blocks if each["type"] != "text"]
        about = {**message.response_metadata, **_STANDARD}
        return message.model_copy(update={"content": [*others, block], "response_metadata": about})


class ChatAttnflow(BaseChatModel):
    """A chat model over a Hugging Face model; `invoke(messages, documents=[...])` cites them.

    model: as `attnflow.load` takes it; None is SmolLM2. Documents are placed before the user's last
    message. Streamed, the citations come behind the text.
    """

    model: Any = None
    max_tokens: int = 256
    temperature: float | None = None

    @cached_property
    def _loaded(self) -> Model:
        with ALONE:
            return as_model(load_once(self.model))

    @property
    def _llm_type(self) -> str:
        return "attnflow"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        answer = self._answer(messages, stop, kwargs)
        message = AIMessage(content=_content(answer, answer.text), **_about(answer))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        chats = uses_chat(self._loaded.tokenizer, None)
        job = Job(lambda: self._answer(messages, stop, kwargs))
        Thread(target=job.run, daemon=True).start()
        is_cited, text = bool(kwargs.get("documents")), ""
        try:
            while job.state in ("waiting", "running"):
                longer = job.text.strip() if chats else ""
                if len(longer) > len(text):
                    piece, text = longer[len(text) :], longer
                    content: Any = [_text_block(piece)] if is_cited else piece
                    yield ChatGenerationChunk(message=AIMessageChunk(content=content))
                sleep(_PAUSE)
            answer = job.outcome()
        finally:  # also when nobody reads on
            job.cancel()
        last = _content(answer, answer.text[len(text) :])
        yield ChatGenerationChunk(
            message=AIMessageChunk(content=last, chunk_position="last", **_about(answer))
        )

    def _answer(
        self, messages: Sequence[BaseMessage], stop: Any, options: Mapping[str, Any]
    ) -> CitedAnswer:
        if stop:
            raise InputError(f"This model writes to its own end; stop={stop!r} is not known here.")
        sources: Sequence[Document] = options.get("documents") or ()
        names = framework_documents((each.page_content, each.metadata) for each in sources)
        documents = [
            {"title": each.name, "text": each.text, "url": _address(source.metadata)}
            for each, source in zip(names, sources, strict=True)
        ]
        usual = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        turns = convert_to_openai_messages(messages)
        request = ChatRequest(**{**usual, **options, "messages": turns, "documents": documents})
        conversation = fitted(request.conversation(self.max_tokens), self._loaded, _ANY_LENGTH)
        with ALONE:
            return answer_conversation(self._loaded, conversation)


def _content(answer: CitedAnswer, text: str) -> Any:
    """Return the end of an answer as content: its text, and with documents its citations."""
    if not answer.documents:
        return text
    addresses = [document.data.get("url") for document in answer.documents]
    return [_text_block(text, annotations=_annotations(answer.citations, addresses))]


def _text_block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, "index": 0, **more}  # chunks of one number are joined


def _annotations(
    citations: Iterable[Citation], addresses: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Return citations as LangChain has them; the full record stands in the extras."""
    blocks = []
    for citation in citations:
        address = addresses[citation.document_index]
        blocks.append({
            "type": "citation",
            "title": citation.document,
            "start_index": citation.start,
            "end_index": citation.end,
            "cited_text": citation.cited_text,
            **({"url": address} if address else {}),
            "extras": citation.to_dict(),
        })  # fmt: skip
    return blocks


def _address(metadata: Mapping[str, Any]) -> str | None:
    """Return where a document can be looked at, if its loader noted that."""
    places = (str(metadata.get(key) or "") for key in ("url", "source"))
    return next((place for place in places if "://" in place), None)


def _about(answer: CitedAnswer) -> dict[str, Any]:
    """Return what a message says beside its content."""
    return {
        "response_metadata": {
            "finish_reason": finish_reason(answer),
            **(_STANDARD if answer.documents else {}),
        },
        "usage_metadata": {**answer.counts, "total_tokens": sum(answer.counts.values())},
    }
