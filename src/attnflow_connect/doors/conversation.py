"""A conversation over documents and its cited answer, which every door reads and writes."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from jinja2 import TemplateError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from attnflow.attribution.passages import Citation
from attnflow.errors import InputError, shorten
from attnflow.explainers.answers import Answer, ask
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.questions import STOPS, question_prompt, uses_chat, write_answer
from attnflow.tokens.documents import Document, distinct_documents
from attnflow_connect.server.models import Limits

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

MOST_MESSAGES = 400
Content = str | list[dict[str, Any]] | None
Documents = Annotated[list[str | dict[str, Any]], Field(default=[], max_length=200)]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    BeforeValidator(lambda stops: [stops] if isinstance(stops, str) else stops or []),
]
"""Texts before which an answer ends; one, several or none."""


class Lenient(BaseModel):
    """A request, or a part of one: fields that are not known are ignored, as these APIs do."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Message(Lenient):
    """A turn: a text, or parts; one that calls tools says which."""

    role: str
    content: Content = None
    tool_calls: list[Any] | None = None

    @property
    def calls(self) -> str:
        """The calls of tools as text, which any template takes."""
        return json.dumps(self.tool_calls, ensure_ascii=False) if self.tool_calls else ""


@dataclass(frozen=True)
class SentDocument:
    """A document of a request: its text, its title or id, and what else was sent with it."""

    text: str
    title: str | None = None
    id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    cited: bool = True


@dataclass(frozen=True)
class Conversation:
    """A request as every door understands it. options: for the model's generate()."""

    model: str
    messages: Sequence[Mapping[str, str]]
    documents: Sequence[SentDocument]
    max_tokens: int
    stream: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """All that the model reads of it."""
        return [m["content"] for m in self.messages] + [d.text for d in self.documents]


@dataclass(frozen=True)
class CitedAnswer:
    """An answer, its citations, the documents they number, and counts of tokens."""

    text: str
    citations: tuple[Citation, ...]
    documents: Sequence[SentDocument]
    prompt_tokens: int
    new_tokens: int
    cut_off: bool = False
    stop: str | None = None

    @property
    def records(self) -> list[dict[str, Any]]:
        """The full records, as every door gives them in a field of its own."""
        return [citation.to_dict() for citation in self.citations]

    @property
    def counts(self) -> dict[str, int]:
        """The counts of tokens, under the names that most doors have for them."""
        return {"input_tokens": self.prompt_tokens, "output_tokens": self.new_tokens}


class Reply(ABC):
    """An answer in the form of one API, at once or as the events of a stream."""

    prefix: ClassVar[str] = ""  # of its id

    def __init__(self, model: str) -> None:
        self.model, self.created = model, int(time())
        self.id = new_id(self.prefix)

    @abstractmethod
    def whole(self, answer: CitedAnswer) -> dict[str, Any]:
        """Return the answer at once."""

    @abstractmethod
    def opening(self) -> Iterator[str]:
        """Begin a stream."""

    @abstractmethod
    def piece(self, text: str) -> Iterator[str]:
        """Go on with a piece of text."""

    @abstractmethod
    def closing(self, answer: CitedAnswer) -> Iterator[str]:
        """End with the citations."""


class DoorRequest(Lenient, ABC):
    """A request to any door: how the answer is written; each API adds what it is about."""

    form: ClassVar[type[Reply]]
    model: str = ""
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    stop_sequences: Stops = Field(default=[], max_length=16)
    stream: bool = False

    @abstractmethod
    def turns(self, documents: list[SentDocument]) -> Iterator[tuple[str, str]]:
        """Yield the role and the text of each message; documents are added to `documents`."""

    def reply(self, model: str) -> Reply:
        """Return what writes the answer."""
        return self.form(model)

    def conversation(self, usual_tokens: int) -> Conversation:
        """Return it as every door understands it; one in which no user says anything is refused."""
        documents: list[SentDocument] = []
        messages = [
            {"role": "system" if role == "developer" else role, "content": text}
            for role, text in self.turns(documents)
            if text.strip()
        ]
        if not any(message["role"] == "user" for message in messages):
            raise InputError("There is no message of the user with a text.")
        return Conversation(
            model=self.model,
            messages=messages,
            documents=documents,
            max_tokens=self.max_tokens or usual_tokens,
            stream=self.stream,
            options=self._writing_options(),
        )

    def _writing_options(self) -> dict[str, Any]:
        """Return options of generate(): greedy unless a temperature above 0 is asked for."""
        ending = {STOPS: list(self.stop_sequences)} if self.stop_sequences else {}
        if not self.temperature:
            return ending
        number = secrets.randbelow(2**31) if self.seed is None else self.seed
        nucleus = {} if self.top_p is None else {"top_p": self.top_p}
        return {"seed": number, "temperature": self.temperature, **nucleus, **ending}


def answer_conversation(
    model: Model, conversation: Conversation, text: str | None = None
) -> CitedAnswer:
    """Let the model answer, or read the answer that is there (`text`), and cite the documents."""
    if not conversation.documents or (text is not None and not text.strip()):
        return _uncited(model, conversation, text)
    writing = {"max_new_tokens": conversation.max_tokens, **conversation.options}
    question, documents = _asked(model, conversation)
    method = default_method(model, cited=True)
    writing = {} if text is not None else writing
    answer = ask(model, question, documents, method, answer=text, **writing)
    return cite_answer(answer, conversation)


def _asked(model: Model, conversation: Conversation) -> tuple[Any, tuple[Document, ...]]:
    """Return the question and the documents as `ask` takes them."""
    chat = uses_chat(model.tokenizer, None)
    messages: Any = conversation.messages if chat else conversation.messages[-1]["content"]
    return messages, distinct_documents(
        (each.title or each.id or f"document {number}", each.text)
        for number, each in enumerate(conversation.documents, 1)
    )


def prompt_of(model: Model, conversation: Conversation) -> Prompt:
    """Return what the model reads."""
    messages, documents = _asked(model, conversation)
    try:
        if not documents:
            return encode_prompts(model, messages).prompts[0]
        chat = uses_chat(model.tokenizer, None)
        return question_prompt(model, messages, documents, chat)
    except TemplateError as error:  # raised by the model's own template
        raise InputError(f"The model's chat template refuses these messages: {error}.") from error


def cite_answer(answer: Answer, conversation: Conversation) -> CitedAnswer:
    """Return an answer as the doors render it, without citations of what is not to be cited."""
    about, documents = answer.result.provenance, conversation.documents
    count = len(about["completion_ids"])
    return CitedAnswer(
        text=answer.text,
        citations=tuple(c for c in answer.citations if documents[c.document_index].cited),
        documents=documents,
        prompt_tokens=int(about["prompt_length"]),
        new_tokens=count,
        cut_off="stop" not in about and count >= conversation.max_tokens,
        stop=about.get("stop"),
    )


def _uncited(model: Model, conversation: Conversation, text: str | None) -> CitedAnswer:
    """Answer without documents: there is nothing to cite."""
    prompt = prompt_of(model, conversation)
    count = len(prompt.ids)
    if text is not None:
        return CitedAnswer(text, (), (), count, 0)
    limit, chat = conversation.max_tokens, uses_chat(model.tokenizer, None)
    answer = write_answer(model, prompt, chat, limit, conversation.options)
    new = len(answer.ids)
    cut_off = answer.stop is None and new >= limit
    return CitedAnswer(answer.text, (), (), count, new, cut_off, answer.stop)


def read_parts(content: Content, read_other: Callable[[Mapping[str, Any]], list[str]]) -> str:
    """Return the text of a message; `read_other` gives the texts of a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):  # inside what a tool gave nothing has looked at it yet
        raise InputError(f"'content' is a text or a list of parts; got {shorten(content)}.")
    texts: list[str] = []
    for part in (read_fields(each, "content") for each in content):
        if part.get("type") in ("text", "input_text", "output_text"):
            texts.append(str(part.get("text") or ""))
        else:
            texts += read_other(part)
    return "\n".join(texts)


def read_fields(value: object, name: str) -> Mapping[str, Any]:
    """Return the fields of a part of a request; one that was left out has none."""
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"{name!r} must be an object with fields; got {shorten(value)}.")
    return value or {}


def decode_file(data: str, name: str) -> str:
    """Return the text of a file that was sent as base64, with or without a `data:` address."""
    try:
        return base64.b64decode(data.rpartition(",")[2], validate=True).decode("utf-8-sig")
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"The file {shorten(name)} is no UTF-8 text in base64 ({error}). Send its text."
        ) from error


def refuse_part(kind: object) -> InputError:
    """Return the refusal of a part of a message that is no text."""
    return InputError(f"This server reads texts; got a part of the type {shorten(kind)}.")


def sse(record: Mapping[str, Any] | str, event: str | None = None) -> str:
    """Return one server-sent event."""
    data = record if isinstance(record, str) else json.dumps(record, ensure_ascii=False)
    return f"event: {event}\ndata: {data}\n\n" if event else f"data: {data}\n\n"


def event(kind: str, **fields: Any) -> str:
    """Return a server-sent event that says its kind twice, as most of these APIs do."""
    return sse({"type": kind, **fields}, kind)


def new_id(prefix: str) -> str:
    """Return a name that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def fitted(conversation: Conversation, model: Model, limits: Limits) -> Conversation:
    """Return a conversation whose answer has no more tokens than there is room for.

    One that is itself too long is refused.
    """
    count, most = len(prompt_of(model, conversation).ids), limits.prompt_tokens
    if count > most:
        raise InputError(
            f"The messages and documents have {count:,} tokens; this server reads up to {most:,}."
        )
    room = (model.facts.max_length or count + limits.answer_tokens) - count
    new = max(1, min(conversation.max_tokens, limits.answer_tokens, room))
    return replace(conversation, max_tokens=new)
