"""What a visitor may ask for: read from JSON, checked, every refusal a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.errors import InputError
from attnflow.methods import METHODS, Method, make_method
from attnflow.web.models import OfferedModel

__all__ = ["DEFAULT", "GENERATION_METHODS", "Explain", "Generate", "Limits", "read_request"]

DEFAULT = "default"
GENERATION_METHODS = (DEFAULT, "rollout", "raw", "flow")
_MOST_METHODS = 6


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one visitor, and all together, may ask for."""

    body_bytes: int = 64 * 1024
    characters: int = 20_000
    tokens: int = 512
    flow_tokens: int = 128
    new_tokens: int = 64
    waiting: int = 32
    results: int = 64
    seconds_to_send: float = 15.0


@dataclass(frozen=True)
class Explain:
    """Explain a text with these methods; none means the usual ones."""

    offer: OfferedModel
    text: str
    methods: tuple[Method, ...]


@dataclass(frozen=True)
class Generate:
    """Continue a prompt; None among the methods is the default of generate()."""

    offer: OfferedModel
    prompt: str
    methods: tuple[Method | None, ...]
    tokens: int
    chat: bool


@dataclass(frozen=True)
class _Fields:
    """The fields of a request, taken one by one; what is left over was a mistake."""

    values: dict[str, Any]

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.values.pop(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InputError(f"{name!r} must be {_KINDS[kind]}; got {_shown(value)}.")
        return value

    def close(self, allowed: Sequence[str]) -> None:
        if self.values:
            raise InputError(
                f"Unknown field {_shown(next(iter(self.values)))}; the fields are "
                f"{', '.join(allowed)}."
            )


_KINDS = {str: "a text", int: "a whole number", list: "a list", bool: "true or false"}


def read_request(
    body: bytes,
    kind: type[Explain] | type[Generate],
    offers: Mapping[str, OfferedModel],
    limits: Limits,
) -> Explain | Generate:
    """The request in a body, or an InputError that says what is wrong with it."""
    fields = _Fields(_parsed(body))
    reader: Callable[..., Explain | Generate] = _explain if kind is Explain else _generate
    return reader(fields, offers, limits)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The request is not JSON ({_first(error)}).") from None
    if not isinstance(found, dict):
        raise InputError(f"The request must be a JSON object; got {_shown(found)}.")
    return found


def _explain(fields: _Fields, offers: Mapping[str, OfferedModel], limits: Limits) -> Explain:
    offer = _offer(fields, offers, "explains")
    text = _text(fields, "text", limits)
    names = _names(fields, [], METHODS)
    fields.close(("model", "text", "methods"))
    return Explain(offer, text, tuple(make_method(name) for name in names))


def _generate(fields: _Fields, offers: Mapping[str, OfferedModel], limits: Limits) -> Generate:
    offer = _offer(fields, offers, "generates")
    prompt = _text(fields, "prompt", limits)
    names = _names(fields, [DEFAULT], GENERATION_METHODS)
    tokens = fields.take("tokens", int, 12)
    if not 1 <= tokens <= limits.new_tokens:
        raise InputError(f"'tokens' is from 1 to {limits.new_tokens}; got {_shown(tokens)}.")
    chat = fields.take("chat", bool, False)
    fields.close(("model", "prompt", "methods", "tokens", "chat"))
    methods = tuple(None if name == DEFAULT else make_method(name) for name in names)
    return Generate(offer, prompt, methods or (None,), tokens, chat)


def _offer(fields: _Fields, offers: Mapping[str, OfferedModel], ability: str) -> OfferedModel:
    name = fields.take("model", str, "")
    able = [offer.name for offer in offers.values() if getattr(offer, ability)]
    if name not in able:
        verb = {"explains": "explain a text", "generates": "continue a prompt"}[ability]
        raise InputError(
            f"There is no model {_shown(name)} here to {verb}; this server offers "
            f"{', '.join(able) or 'none'}."
        )
    return offers[name]


def _text(fields: _Fields, name: str, limits: Limits) -> str:
    text: str = fields.take(name, str, "")
    if not text.strip():
        raise InputError("There is nothing to explain: the text is empty.")
    if len(text) > limits.characters:
        raise InputError(
            f"The text has {len(text):,} characters; this server takes up to "
            f"{limits.characters:,}. Shorten it, or use attnflow on the command line."
        )
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise InputError("The text is not valid Unicode: it holds half of a surrogate pair.")
    return text


def _names(fields: _Fields, default: list[str], allowed: Mapping[str, Any] | Sequence[str]) -> Any:
    names = fields.take("methods", list, default)
    if len(names) > _MOST_METHODS:
        raise InputError(f"Choose up to {_MOST_METHODS} methods; got {len(names)}.")
    for name in names:
        if not isinstance(name, str) or name not in allowed:
            raise InputError(f"Unknown method {_shown(name)}; allowed: {', '.join(allowed)}.")
    return list(dict.fromkeys(names))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
