"""Requests of the page's visitors: a pydantic model of each, every refusal a sentence.

A request is read once, and carries itself out: it hands the model and what was sent to
`explainers.comparison`, as `attnflow report` does. It decides nothing: which method is the default,
which rows are the answer and how many tokens are written are the explainers' decisions.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from attnflow.errors import InputError, shorten
from attnflow.explainers.comparison import (
    Comparison,
    compare,
    compare_answers,
    compare_completions,
)
from attnflow.explainers.prompts import as_chat
from attnflow.methods import Method, make_method, trace_methods
from attnflow.show.view import View
from attnflow.tokens.documents import named_documents
from attnflow_connect.server.models import DEFAULT, Limits, OfferedModel

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

_CAREFUL = "careful"  # runs a language model again, and explains words: it stands alone
_ROLES = ("system", "user", "assistant")
_MOST_MESSAGES = 40
_MOST_METHODS = 6
_MOST_DOCUMENTS = 24
_LONGEST_NAME = 120
_LONGEST_TITLE = 90
_KINDS = {
    "string_type": "a text",
    "missing": "there",
    "model_type": "an object",
    "int_type": "a whole number",
    "list_type": "a list",
    "bool_type": "true or false",
}


def method_titles() -> dict[str, str]:
    """Return what a visitor may choose, with titles: the default, and every method there is now."""
    titles = {name: make_method(name).title for name in (*trace_methods(), _CAREFUL)}
    titles[_CAREFUL] += " (ten passes, slower)"
    return {DEFAULT: "The model’s default", **titles}


def _usual_count(function: Callable[..., Any]) -> int:
    """Return how many tokens a function writes when nobody says."""
    return int(inspect.signature(function).parameters["max_new_tokens"].default)


class _Strict(BaseModel):
    """Values are taken as sent, none is converted; a field that is not known is refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, protected_namespaces=()
    )


class BaseRequest(_Strict):
    """Fields and checks that all requests share; a check finds limits and models in the context."""

    task: ClassVar[str]
    ability: ClassVar[str]
    purpose: ClassVar[str]
    subject: ClassVar[str] = ""  # the field that the model reads
    limit: ClassVar[str] = "tokens"
    usual_tokens: ClassVar[int] = 0  # that are written when nobody says; 0 writes none

    model: str = ""
    methods: list[Any] = []

    @field_validator("model")
    @classmethod
    def _model_is_offered(cls, name: str, info: ValidationInfo) -> str:
        models: Mapping[str, OfferedModel] = _offer(info)["models"]
        able = [model.name for model in models.values() if getattr(model, cls.ability)]
        if name not in able:
            raise InputError(
                f"There is no model {shorten(name)} here to {cls.purpose}; this server offers "
                f"{', '.join(able) or 'none'}."
            )
        return name

    @field_validator("methods")
    @classmethod
    def _methods_are_known(cls, names: list[Any]) -> list[str]:
        if len(names) > _MOST_METHODS:
            raise InputError(f"Choose up to {_MOST_METHODS} methods; got {len(names)}.")
        known = method_titles()
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise InputError(f"Unknown method {shorten(name)}; allowed: {', '.join(known)}.")
        return list(dict.fromkeys(names))

    @field_validator("text", "prompt", "question", check_fields=False)
    @classmethod
    def _text_can_be_read(cls, text: str, info: ValidationInfo) -> str:
        if not text.strip():
            raise InputError("There is nothing to explain: the text is empty.")
        _check_length("The text has", len(text), "it", info)
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise InputError("The text is not valid Unicode: it holds half of a surrogate pair.")
        return text

    @field_validator("tokens", check_fields=False)
    @classmethod
    def _tokens_are_few(cls, count: int, info: ValidationInfo) -> int:
        limit = _offer(info)["limits"].new_tokens
        if not 1 <= count <= limit:
            raise InputError(f"'tokens' is from 1 to {limit}; got {shorten(count)}.")
        return count

    @property
    def wording(self) -> str:
        """The words that the model reads, for its tokens to be counted; a picture has none."""
        return str(getattr(self, self.subject)) if self.subject else ""

    def chosen(self) -> tuple[Method | None, ...]:
        """Return the methods, in the order they were sent; None is the default."""
        return tuple(None if name == DEFAULT else make_method(name) for name in self.methods)

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Do what is asked; return the results and the document that shows them."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """Return what was asked, for a link to fill the form; a picture is in the result."""
        return {"task": self.task, **self.model_dump(exclude={"image"})}


# -- texts ------------------------------------------------------------------------------------


class ExplainRequest(BaseRequest):
    """Explain a text; no methods means the usual ones."""

    task = "explain"
    ability = "explains"
    purpose = "explain a text"
    subject = "text"

    text: str = ""
    check: bool = True

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Apply every method to the text."""
        comparison = compare(model, self.text, self.chosen() or None, check=self.check)
        return comparison, comparison.view()


class _WritingRequest(BaseRequest):
    """Let the model write, and explain every token."""

    usual_tokens = _usual_count(compare_completions)

    tokens: int
    check: bool = True

    def _write(
        self, model: Model, prompt: Any, title: str, **options: Any
    ) -> tuple[Comparison, View]:
        methods = self.chosen() or (None,)
        writing = {"max_new_tokens": self.tokens, "check": self.check, **options}
        comparison = compare_completions(model, prompt, methods, **writing)
        if len(title) > _LONGEST_TITLE:
            title = f"{title[: _LONGEST_TITLE - 2]}…"
        return comparison, comparison.view(title=title)


class GenerateRequest(_WritingRequest):
    """Continue a prompt and attribute what is written."""

    task = "generate"
    ability = "generates"
    purpose = "continue a prompt"
    subject = "prompt"

    prompt: str = ""
    chat: bool = False

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Continue the prompt and explain every token; the heading is the prompt, which goes on."""
        prompt = as_chat(self.prompt) if self.chat else self.prompt
        return self._write(model, prompt, f"{self.prompt.strip()} …")


class ChatRequest(_WritingRequest):
    """Answer the last message of a conversation and attribute the answer to its messages."""

    task = "chat"
    ability = "chats"
    purpose = "talk with"

    class Message(_Strict):
        """A turn of a conversation."""

        role: str
        content: str

    messages: list[Message] = []

    @field_validator("messages")
    @classmethod
    def _messages_can_be_read(cls, messages: list[Message], info: ValidationInfo) -> list[Message]:
        if not 1 <= len(messages) <= _MOST_MESSAGES:
            raise InputError(f"Give 1 to {_MOST_MESSAGES} messages; got {len(messages)}.")
        for message in messages:
            if message.role not in _ROLES:
                roles = ", ".join(_ROLES)
                raise InputError(f"A role is one of {roles}; got {shorten(message.role)}.")
            if not message.content.strip():
                raise InputError("A message is empty: type something, or remove it.")
        length = sum(len(message.content) for message in messages)
        _check_length("The messages have", length, "them", info)
        return messages

    @property
    def wording(self) -> str:
        """All messages."""
        return "\n".join(message.content for message in self.messages)

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Answer the last message, which is the heading, and explain every token."""
        messages = [message.model_dump() for message in self.messages]
        return self._write(model, messages, self.messages[-1].content.strip())


class AskRequest(BaseRequest):
    """Answer a question from documents."""

    task = "ask"
    ability = "generates"
    purpose = "answer a question"
    limit = "ask_tokens"
    usual_tokens = _usual_count(compare_answers)

    class Document(_Strict):
        """A document: its name and its text."""

        name: str
        text: str

    question: str = ""
    documents: list[Document] = []
    tokens: int
    chat: bool | None = None
    confirm: bool = False

    @field_validator("documents")
    @classmethod
    def _documents_can_be_read(
        cls, documents: list[Document], info: ValidationInfo
    ) -> list[Document]:
        if len(documents) > _MOST_DOCUMENTS:
            raise InputError(f"Give up to {_MOST_DOCUMENTS} documents; got {len(documents)}.")
        length = sum(len(document.text) for document in documents)
        _check_length("The documents have", length, "them", info)
        named_documents([(document.name, document.text) for document in documents])
        return documents

    @property
    def wording(self) -> str:
        """The documents and the question."""
        return "\n\n".join([*(document.text for document in self.documents), self.question])

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Answer the question; the view has a line for each statement."""
        answer, comparison = compare_answers(
            model,
            self.question,
            [(document.name, document.text) for document in self.documents],
            self.chosen() or (None,),
            max_new_tokens=self.tokens,
            chat=self.chat,
            confirm=self.confirm,
        )
        return comparison, {**comparison.view(title=self.question), "lines": answer.lines}


# -- images -----------------------------------------------------------------------------------


class ImageRequest(BaseRequest):
    """Say what is in an image and which of its parts that draws on.

    The image is the bytes of a file in base64, with or without a `data:` address.
    """

    task = "image"
    ability = "sees"
    purpose = "look at an image"

    image: str = ""
    name: str = "image"

    @field_validator("image")
    @classmethod
    def _image_can_be_read(cls, text: str, info: ValidationInfo) -> str:
        most = _offer(info)["limits"].image_bytes
        if not text.strip():
            raise InputError("There is no image: drop one on the page, or choose a file.")
        if len(text) > most:
            raise InputError(f"The image is larger than {most // 2**20} MB. Make it smaller first.")
        _decode(text)
        return text

    @field_validator("name")
    @classmethod
    def _name_is_short(cls, name: str) -> str:
        return name[:_LONGEST_NAME] or "image"

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Apply every method to the image; the heading is the name of the file."""
        comparison = compare(model, _decode(self.image), self.chosen() or None)
        return comparison, comparison.view(title=self.name)


class ImageQuestionRequest(ImageRequest, _WritingRequest):
    """Answer a question about an image and say which of its parts each word draws on."""

    task = "image-question"
    ability = "answers"
    purpose = "answer a question about an image"
    subject = "question"

    question: str = ""

    def carry_out(self, model: Model) -> tuple[Comparison, View]:
        """Answer the question, which is the heading, and explain every word."""
        images = [_decode(self.image)]
        return self._write(model, self.question, self.question.strip(), images=images)


REQUESTS: tuple[type[BaseRequest], ...] = (
    *(ExplainRequest, GenerateRequest, ChatRequest, AskRequest),
    *(ImageRequest, ImageQuestionRequest),
)

R = TypeVar("R", bound=BaseRequest)


def read_request(
    body: bytes, kind: type[R], models: Mapping[str, OfferedModel], limits: Limits
) -> R:
    """Read the request in a body, or raise an InputError that says what is wrong with it."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"The request is not JSON ({reason}).") from None
    if not isinstance(record, dict):
        raise InputError(f"The request must be a JSON object; got {shorten(record)}.")
    if kind.usual_tokens:
        record.setdefault("tokens", min(kind.usual_tokens, limits.new_tokens))
    try:
        return kind.model_validate(record, context={"models": models, "limits": limits})
    except ValidationError as error:
        raise InputError(_sentence(error.errors()[0], kind.model_fields)) from None


def _offer(info: ValidationInfo) -> Any:
    assert info.context is not None  # `read_request` is the only way in
    return info.context


def _check_length(subject: str, length: int, pronoun: str, info: ValidationInfo) -> None:
    limit = _offer(info)["limits"].characters
    if length > limit:
        raise InputError(
            f"{subject} {length:,} characters; this server takes up to {limit:,}. Shorten "
            f"{pronoun}, or use attnflow on the command line."
        )


def _decode(image: str) -> bytes:
    try:
        return base64.b64decode(image.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"The image is not in base64 ({error}).") from error


def _sentence(error: ErrorDetails, names: Iterable[str]) -> str:
    """Put pydantic's first objection in our words; an InputError speaks for itself."""
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return f"Unknown field {shorten(name)}; the fields are {', '.join(names)}."
    kind = _KINDS.get(error["type"], error["msg"])
    return f"{name!r} must be {kind}; got {shorten(error['input'])}."
