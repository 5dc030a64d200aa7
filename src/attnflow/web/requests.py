"""What a visitor may ask for: a pydantic model of each request, every refusal a sentence."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from attnflow.errors import InputError
from attnflow.methods import METHODS, Method, make_method
from attnflow.tokens.documents import named_documents
from attnflow.web.models import OfferedModel

__all__ = [
    "DEFAULT",
    "EXPLANATION_METHODS",
    "AskRequest",
    "BaseRequest",
    "ChatRequest",
    "GENERATION_METHODS",
    "ExplainRequest",
    "GenerateRequest",
    "Limits",
    "read_request",
]

DEFAULT = "default"
GENERATION_METHODS = (DEFAULT, "gradient-rollout", "rollout", "raw", "flow")
EXPLANATION_METHODS = (DEFAULT, *METHODS)
_ROLES = ("system", "user", "assistant")
_MOST_MESSAGES = 40
_MOST_METHODS = 6
_MOST_DOCUMENTS = 24
_KINDS = {
    "string_type": "a text",
    "missing": "there",
    "model_type": "an object",
    "int_type": "a whole number",
    "list_type": "a list",
    "bool_type": "true or false",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one visitor, and all together, may ask for."""

    body_bytes: int = 64 * 1024
    characters: int = 20_000
    tokens: int = 512
    flow_tokens: int = 128
    ask_tokens: int = 2_048
    new_tokens: int = 64
    waiting: int = 32
    results: int = 64
    seconds_to_send: float = 15.0


@dataclass(frozen=True)
class _Offer:
    """What the validators check against: the models there are, and the limits."""

    limits: Limits
    models: Mapping[str, OfferedModel] = field(default_factory=dict)


class BaseRequest(BaseModel):
    """What all requests share. Values are taken as they are sent, none is converted."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, protected_namespaces=()
    )
    task: ClassVar[str]
    ability: ClassVar[str]
    purpose: ClassVar[str]
    method_names: ClassVar[Collection[str]]

    model: str = ""

    @field_validator("model")
    @classmethod
    def _model_is_offered(cls, name: str, info: ValidationInfo) -> str:
        models = _offer_of(info).models.values()
        able = [model.name for model in models if getattr(model, cls.ability)]
        if name not in able:
            raise InputError(
                f"There is no model {_abridged(name)} here to {cls.purpose}; this server offers "
                f"{', '.join(able) or 'none'}."
            )
        return name

    @field_validator("text", "prompt", "question", check_fields=False)
    @classmethod
    def _text_can_be_read(cls, text: str, info: ValidationInfo) -> str:
        limit = _offer_of(info).limits.characters
        if not text.strip():
            raise InputError("There is nothing to explain: the text is empty.")
        if len(text) > limit:
            raise InputError(
                f"The text has {len(text):,} characters; this server takes up to {limit:,}. "
                "Shorten it, or use attnflow on the command line."
            )
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise InputError("The text is not valid Unicode: it holds half of a surrogate pair.")
        return text

    @field_validator("methods", check_fields=False)
    @classmethod
    def _methods_are_known(cls, names: list[Any]) -> list[str]:
        if len(names) > _MOST_METHODS:
            raise InputError(f"Choose up to {_MOST_METHODS} methods; got {len(names)}.")
        for name in names:
            if not isinstance(name, str) or name not in cls.method_names:
                raise InputError(
                    f"Unknown method {_abridged(name)}; allowed: {', '.join(cls.method_names)}."
                )
        return list(dict.fromkeys(names))

    @field_validator("tokens", check_fields=False)
    @classmethod
    def _tokens_are_few(cls, count: int, info: ValidationInfo) -> int:
        limit = _offer_of(info).limits.new_tokens
        if not 1 <= count <= limit:
            raise InputError(f"'tokens' is from 1 to {limit}; got {_abridged(count)}.")
        return count


class ExplainRequest(BaseRequest):
    """Explain a text with these methods; none means the usual ones."""

    task = "explain"
    ability = "explains"
    purpose = "explain a text"
    method_names = EXPLANATION_METHODS

    text: str = ""
    methods: list[Any] = []
    careful: bool = False
    confirm: bool = True

    def make_methods(self) -> tuple[Method | None, ...]:
        """The methods, in the order they were sent; None is the model's default."""
        return _methods(self.methods)


class DocumentField(BaseModel):
    """A document of a question: its name and its text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    name: str
    text: str


class AskRequest(BaseRequest):
    """Answer a question from documents."""

    task = "ask"
    ability = "generates"
    purpose = "answer a question"
    method_names = GENERATION_METHODS

    question: str = ""
    documents: list[DocumentField] = []
    methods: list[Any] = [DEFAULT]
    tokens: int = 40
    chat: bool | None = None
    careful: bool = False
    confirm: bool = False

    def make_methods(self) -> tuple[Method | None, ...]:
        """The methods, in the order they were sent; None is the default of ask()."""
        return _methods(self.methods or [DEFAULT])

    @field_validator("documents")
    @classmethod
    def _documents_can_be_read(
        cls, documents: list[DocumentField], info: ValidationInfo
    ) -> list[DocumentField]:
        limit = _offer_of(info).limits.characters
        if len(documents) > _MOST_DOCUMENTS:
            raise InputError(f"Give up to {_MOST_DOCUMENTS} documents; got {len(documents)}.")
        length = sum(len(document.text) for document in documents)
        if length > limit:
            raise InputError(
                f"The documents have {length:,} characters; this server takes up to {limit:,}. "
                "Shorten them, or use attnflow on the command line."
            )
        named_documents([(document.name, document.text) for document in documents])
        return documents

    def named(self) -> list[tuple[str, str]]:
        """The documents as pairs of a name and a text."""
        return [(document.name, document.text) for document in self.documents]


class GenerateRequest(BaseRequest):
    """Continue a prompt and attribute what is written."""

    task = "generate"
    ability = "generates"
    purpose = "continue a prompt"
    method_names = GENERATION_METHODS

    prompt: str = ""
    methods: list[Any] = [DEFAULT]
    tokens: int = 12
    chat: bool = False
    careful: bool = False
    confirm: bool = True

    def make_methods(self) -> tuple[Method | None, ...]:
        """The methods, in the order they were sent; None is the default of generate()."""
        return _methods(self.methods or [DEFAULT])


class MessageField(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    role: str
    content: str


class ChatRequest(BaseRequest):
    """Answer the last message of a conversation and attribute the answer to its messages."""

    task = "chat"
    ability = "chats"
    purpose = "talk with"
    method_names = GENERATION_METHODS

    messages: list[MessageField] = []
    methods: list[Any] = [DEFAULT]
    tokens: int = 40
    careful: bool = False
    confirm: bool = True

    @field_validator("messages")
    @classmethod
    def _messages_can_be_read(
        cls, messages: list[MessageField], info: ValidationInfo
    ) -> list[MessageField]:
        limit = _offer_of(info).limits.characters
        if not 1 <= len(messages) <= _MOST_MESSAGES:
            raise InputError(f"Give 1 to {_MOST_MESSAGES} messages; got {len(messages)}.")
        for message in messages:
            if message.role not in _ROLES:
                raise InputError(
                    f"A role is one of {', '.join(_ROLES)}; got {_abridged(message.role)}."
                )
            if not message.content.strip():
                raise InputError("A message is empty: type something, or remove it.")
        length = sum(len(message.content) for message in messages)
        if length > limit:
            raise InputError(
                f"The messages have {length:,} characters; this server takes up to {limit:,}. "
                "Shorten them, or use attnflow on the command line."
            )
        return messages

    def make_methods(self) -> tuple[Method | None, ...]:
        """The methods, in the order they were sent; None is the default of generate()."""
        return _methods(self.methods or [DEFAULT])

    def turns(self) -> list[dict[str, str]]:
        """The messages as chat templates take them."""
        return [message.model_dump() for message in self.messages]


R = TypeVar("R", ExplainRequest, GenerateRequest, AskRequest, ChatRequest)


def read_request(
    body: bytes, kind: type[R], models: Mapping[str, OfferedModel], limits: Limits
) -> R:
    """The request in a body, or an InputError that says what is wrong with it.

    >>> read_request(b"[1]", ExplainRequest, {}, Limits())
    Traceback (most recent call last):
    attnflow.errors.InputError: The request must be a JSON object; got [1].
    """
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The request is not JSON ({_first_line(error)}).") from None
    if not isinstance(record, dict):
        raise InputError(f"The request must be a JSON object; got {_abridged(record)}.")
    try:
        return kind.model_validate(record, context=_Offer(limits, models))
    except ValidationError as error:
        raise InputError(_sentence(error.errors()[0], kind.model_fields)) from None


def _methods(names: Iterable[str]) -> tuple[Method | None, ...]:
    return tuple(None if name == DEFAULT else make_method(name) for name in names)


def _offer_of(info: ValidationInfo) -> _Offer:
    assert isinstance(info.context, _Offer)  # `read_request` is the only way in
    return info.context


def _sentence(error: ErrorDetails, names: Iterable[str]) -> str:
    """pydantic's first objection in our words; an InputError of a validator speaks for itself."""
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return f"Unknown field {_abridged(name)}; the fields are {', '.join(names)}."
    kind = _KINDS.get(error["type"], error["msg"])
    return f"{name!r} must be {kind}; got {_abridged(error['input'])}."


def _abridged(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
