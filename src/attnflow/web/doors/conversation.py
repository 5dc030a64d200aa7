"""What every door reads and writes: a conversation over documents, and its cited answer."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import TYPE_CHECKING, Annotated, Any

from jinja2 import TemplateError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from attnflow.attribution.citations import Citation
from attnflow.errors import InputError, shorten
from attnflow.explainers.answers import Answer, ask
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.questions import STOPS, question_prompt, uses_chat, write_answer
from attnflow.tokens.documents import Document, distinct_documents
from attnflow.web.models import Limits

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

MOST_MESSAGES = 400
MOST_DOCUMENTS = 200


class Lenient(BaseModel):
    """A request, or a part of one: fields that are not known are ignored, as these APIs do."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Message(Lenient):
    """A turn: a text, or parts; one that calls tools says which."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


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


def answer_conversation(
    model: Model, conversation: Conversation, text: str | None = None
) -> CitedAnswer:
    """Let the model answer, or read the answer that is there (`text`), and cite the documents."""
    if not conversation.documents or (text is not None and not text.strip()):
        return _uncited(model, conversation, text)
    writing = {"max_new_tokens": conversation.max_tokens, **conversation.options}
    question, documents = _asked(model, conversation)
    answer = ask(model, question, documents, answer=text, **({} if text is not None else writing))
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


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    BeforeValidator(lambda stops: [stops] if isinstance(stops, str) else stops or []),
    Field(default=[], max_length=16),
]
"""Texts before which an answer ends; one, several or none."""


def writing_options(
    temperature: float | None, top_p: float | None, seed: int | None, stops: Sequence[str] = ()
) -> dict[str, Any]:
    """Return options of generate(): greedy unless a temperature above 0 is asked for."""
    ending = {STOPS: list(stops)} if stops else {}
    if not temperature:
        return ending
    number = secrets.randbelow(2**31) if seed is None else seed
    nucleus = {} if top_p is None else {"top_p": top_p}
    return {"seed": number, "temperature": temperature, **nucleus, **ending}


def message_of(role: str, content: str) -> dict[str, str]:
    """Return a message for the model's chat template; developers speak as the system."""
    return {"role": "system" if role == "developer" else role, "content": content}


def checked_messages(messages: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return messages without empty ones, or raise unless the user says something."""
    filled = [message for message in messages if message["content"].strip()]
    if not any(message["role"] == "user" for message in filled):
        raise InputError("There is no message of the user with a text.")
    return filled


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


def new_id(prefix: str) -> str:
    """Return a name that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Return the time in seconds, as these APIs tell it."""
    return int(time())


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
