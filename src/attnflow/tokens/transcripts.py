"""Transcripts of agents: what was said, thought, called and returned, from the usual formats.

A transcript is a list of messages as OpenAI's and Anthropic's interfaces or a chat template take
them. Its parts are texts, thinking, calls of tools and their results, each with a role and a trust:
what the system and the user say are *instructions*, what tools return and documents hold is *data*,
and the rest the model *wrote*.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from attnflow.errors import InputError, TargetError, shorten
from attnflow.tokens.units import sentence_spans

Kind = Literal["text", "thinking", "call", "result"]
Trust = Literal["instructions", "data", "wrote"]
ROLES = ("system", "user", "assistant", "tool")
_OTHER_ROLES = {"developer": "system", "function": "tool", "model": "assistant", "human": "user"}
_FRAMES: dict[Kind, tuple[str, str]] = {
    "text": ("", ""),
    "thinking": ("<think>\n", "\n</think>"),
    "call": ("<tool_call>\n", "\n</tool_call>"),
    "result": ("", ""),
}
_INLINE = re.compile(r"<(think|tool_call)>(.*?)</\1>", re.DOTALL)
_CALL = re.compile(r"(?:the )?(?:(first|second|third|last) )?call (?:to|of) (\S+)", re.IGNORECASE)
_ORDINALS = {"first": 0, "second": 1, "third": 2, "last": -1}


@dataclass(frozen=True)
class Part:
    """A piece of a transcript: a text, a thought, a call of a tool, or its result.

    message: its number, from 1. tool: what is called, or what returned it. arguments: of a call,
    the characters of `text` that are the value of each.
    """

    message: int
    role: str
    kind: Kind
    text: str
    trust: Trust
    tool: str | None = None
    arguments: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def content(self) -> tuple[int, int]:
        """The characters that say something: of a call, from its first argument to its last.

        The rest of a call is its form, which repeats that of calls before it.
        """
        spans = [span for span in self.arguments.values() if span[0] < span[1]]
        return (spans[0][0], spans[-1][1]) if spans else (0, len(self.text))

    @property
    def name(self) -> str:
        """The message and what part of it this is, for people."""
        if self.kind == "call":
            return f"message {self.message} (call to {self.tool})"
        what = "thinking" if self.kind == "thinking" else self.role
        return f"message {self.message} ({what}{f' {self.tool}' if self.tool else ''})"


@dataclass(frozen=True)
class Target:
    """The target in a transcript: a part, by its number, and characters of its text."""

    part: int
    span: tuple[int, int]


def read_transcript(messages: Any) -> tuple[Part, ...]:
    """Return the parts of a transcript: a list of messages, or a record that holds one.

    A message or a block of one may say `"trust": "data"` or `"instructions"`.
    """
    records: Any = messages
    before: list[Any] = []
    if isinstance(messages, Mapping):
        records = messages.get("messages", messages.get("input"))
        instructions = messages.get("system", messages.get("instructions"))
        before = [{"role": "system", "content": instructions}] if instructions else []
    is_list = isinstance(records, Sequence) and not isinstance(records, str) and records
    if not is_list or not all(isinstance(each, Mapping) for each in records):
        raise InputError(
            'A transcript is a list of messages, [{"role": "user", "content": "..."}, ...], or a '
            f'record with that list as "messages"; got {shorten(messages)}.'
        )
    tools: dict[str, str] = {}
    parts = [
        part
        for number, record in enumerate([*before, *records], 1)
        for part in _parts(record, number, tools)
    ]
    if not any(part.trust == "wrote" for part in parts):
        raise InputError("Nothing in this transcript was written by the assistant.")
    return tuple(parts)


def _parts(record: Mapping[str, Any], number: int, tools: dict[str, str]) -> Iterator[Part]:
    """Yield the parts of a message; tools: the name of the tool behind the id of each call."""
    role = _role(record)
    base = Part(number, role, "text", "", _trust(record, role))
    for key in ("reasoning_content", "reasoning"):
        if role == "assistant" and isinstance(record.get(key), str):
            yield from _some(replace(base, kind="thinking", text=record[key]))
    content = record.get("content", record.get("output"))
    if record.get("type") in _BLOCKS and "content" not in record:
        content = [record]
    blocks = [content] if isinstance(content, str | None) else content
    if not isinstance(blocks, Sequence):
        raise InputError(
            f"A message's content is a text or a list of blocks; got {shorten(record)}."
        )
    for block in blocks:
        yield from _block(block, base, record, tools)
    calls = list(record.get("tool_calls") or ())
    if record.get("function_call"):
        calls.append({"function": record["function_call"]})
    for call in calls:
        function = call.get("function", call)
        tools[str(call.get("id"))] = str(function.get("name"))
        yield _call(base, function.get("name"), function.get("arguments"))


def _role(record: Mapping[str, Any]) -> str:
    kind = record.get("type")
    implied = {
        "function_call": "assistant",
        "reasoning": "assistant",
        "function_call_output": "tool",
    }
    role = record.get("role", implied.get(str(kind)))
    role = _OTHER_ROLES.get(str(role), role)
    if role not in ROLES:
        raise InputError(f"A message's role is one of {', '.join(ROLES)}; got {shorten(record)}.")
    return str(role)


def _trust(record: Mapping[str, Any], role: str) -> Trust:
    if role == "assistant":
        return "wrote"
    trust = record.get("trust", "data" if role == "tool" else "instructions")
    if trust not in ("instructions", "data"):
        raise InputError(f'A message\'s trust is "instructions" or "data"; got {shorten(trust)}.')
    return "data" if trust == "data" else "instructions"


_BLOCKS = ("function_call", "function_call_output", "reasoning")


def _block(
    block: Any, base: Part, record: Mapping[str, Any], tools: dict[str, str]
) -> Iterator[Part]:
    """Yield the parts of one block of a message."""
    if block is None:
        return
    if isinstance(block, str):
        block = {"type": "text", "text": block}
    kind = block.get("type", "text")
    trust = _trust({**record, **block}, base.role)
    if kind in ("tool_use", "function_call"):
        tools[str(block.get("id", block.get("call_id")))] = str(block.get("name"))
        yield _call(base, block.get("name"), block.get("input", block.get("arguments")))
    elif kind in ("thinking", "reasoning"):
        text = block.get("thinking") or _joined(block.get("summary") or block.get("content"))
        yield from _some(replace(base, kind="thinking", text=text))
    elif kind in ("tool_result", "function_call_output") or base.role == "tool":
        ids = (
            block.get(key, record.get(key)) for key in ("tool_use_id", "call_id", "tool_call_id")
        )
        tool = next((tools[str(each)] for each in ids if str(each) in tools), record.get("name"))
        text = _joined(block.get("content", block.get("output", block.get("text"))))
        trust = _trust({**record, **block}, "tool")
        yield from _some(Part(base.message, "tool", "result", text, trust, tool))
    elif kind == "document":
        source = block.get("source", {})
        yield from _some(replace(base, text=_joined(source.get("data", source)), trust="data"))
    elif kind in ("text", "input_text", "output_text"):
        text = str(block.get("text", ""))
        yield from (
            _inline(base, text)
            if base.role == "assistant"
            else _some(replace(base, text=text, trust=trust))
        )
    elif kind != "redacted_thinking":
        yield replace(base, text=f"[{kind}]", trust=trust)  # an image keeps its place


def _inline(base: Part, text: str) -> Iterator[Part]:
    """Yield the parts of what a model wrote, in which thinking and calls may stand as text."""
    place = 0
    for match in _INLINE.finditer(text):
        yield from _some(replace(base, text=text[place : match.start()]))
        place = match.end()
        if match[1] == "think":
            yield from _some(replace(base, kind="thinking", text=match[2]))
            continue
        try:
            call = json.loads(match[2])
            yield _call(base, call["name"], call.get("arguments", {}))
        except (ValueError, TypeError, KeyError, AttributeError):
            yield from _some(replace(base, text=match[0]))
    yield from _some(replace(base, text=text[place:]))


def _some(part: Part) -> Iterator[Part]:
    """Yield a part that says something, without the spaces around it."""
    if part.text.strip():
        yield replace(part, text=part.text.strip())


def _joined(content: Any) -> str:
    """Return the text of what a tool returned: a text, blocks of it, or any value as JSON."""
    if isinstance(content, str | None):
        return content or ""
    if isinstance(content, list) and all(isinstance(each, str | Mapping) for each in content):
        texts = [each if isinstance(each, str) else each.get("text") for each in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return json.dumps(content, ensure_ascii=False)


def _call(base: Part, name: Any, arguments: Any) -> Part:
    """Return a call as text, `{"name": ..., "arguments": {...}}`, as most open models write it."""
    values = arguments
    if isinstance(arguments, str):
        try:
            values = json.loads(arguments or "{}")
        except ValueError:
            values = arguments  # what the model wrote, broken as it is
    head = f'{{"name": {json.dumps(str(name))}, "arguments": '
    if not isinstance(values, Mapping):
        return replace(base, kind="call", text=f"{head}{values}}}", tool=str(name))
    text, places = f"{head}{{", {}
    for number, (key, value) in enumerate(values.items()):
        text += f"{', ' if number else ''}{json.dumps(str(key))}: "
        content = json.dumps(value, ensure_ascii=False)
        quotes = int(isinstance(value, str) and len(value) > 0)
        places[str(key)] = (len(text) + quotes, len(text) + len(content) - quotes)
        text += content
    return replace(base, kind="call", text=f"{text}}}}}", tool=str(name), arguments=places)


def compose_messages(
    parts: Sequence[Part],
) -> tuple[list[dict[str, str]], list[tuple[int, tuple[int, int]]]]:
    """Return messages as a chat template takes them, and of each part its message and characters.

    Thinking stands in `<think>`, a call in `<tool_call>`, as most open models write them.
    """
    messages: list[dict[str, str]] = []
    places: list[tuple[int, tuple[int, int]]] = []
    for part, before in zip(parts, [None, *parts], strict=False):
        begin, end = _FRAMES[part.kind]
        turn = (part.message, part.role)
        goes_on = before is not None and (before.message, before.role) == turn
        if goes_on and part.role != "tool":
            messages[-1]["content"] += "\n\n" if before and before.kind == "thinking" else "\n"
        else:
            messages.append({"role": part.role, "content": ""})
        start = len(messages[-1]["content"]) + len(begin)
        messages[-1]["content"] += f"{begin}{part.text}{end}"
        places.append((len(messages) - 1, (start, start + len(part.text))))
    return messages, places


def find_target(parts: Sequence[Part], target: str | None = None) -> Target:
    """Return what is meant: a call, an argument of one, a phrase that was written, or the last.

    target: "the call to NAME" ("the second call to NAME"), by its arguments; "NAME.ARGUMENT"; "the
    answer" (the last text); or words that the assistant wrote. None is the last call, else the last
    text.
    """
    numbers = [k for k, part in enumerate(parts) if part.trust == "wrote"]
    calls = [k for k in numbers if parts[k].kind == "call"]
    texts = [k for k in numbers if parts[k].kind == "text"]
    if target is None or target.strip().lower() in ("the answer", "answer"):
        candidates = texts if target is not None else calls or texts or numbers
        if not candidates:
            raise TargetError(f"There is no answer in words here. {_offer(parts, calls)}")
        return _all_of(parts, candidates[-1])
    if (match := _CALL.fullmatch(target.strip())) is not None:
        return _all_of(parts, _numbered(parts, calls, match[2].strip("'\"`"), match[1]))
    name, _, argument = target.strip().rpartition(".")
    for number in reversed(calls):
        if parts[number].tool == name and argument in parts[number].arguments:
            return Target(number, parts[number].arguments[argument])
        if parts[number].tool == target.strip():
            return _all_of(parts, number)
    return _phrase(parts, numbers, calls, target.strip())


def _all_of(parts: Sequence[Part], number: int) -> Target:
    return Target(number, parts[number].content)


def _numbered(parts: Sequence[Part], calls: Sequence[int], name: str, which: str | None) -> int:
    members = [k for k in calls if parts[k].tool == name]
    place = _ORDINALS.get((which or "last").lower(), -1)
    if which is None and len(members) > 1:
        raise TargetError(
            f"There are {len(members)} calls to {name}: say the first, second, third or last call "
            f"to {name}."
        )
    if not -len(members) <= place < len(members):
        raise TargetError(f"No such call to {shorten(name)}. {_offer(parts, calls)}")
    return members[place]


def _phrase(
    parts: Sequence[Part], numbers: Sequence[int], calls: Sequence[int], phrase: str
) -> Target:
    """Return a phrase where it was written, thinking last; one that stands twice is ambiguous."""
    ranked = sorted(numbers, key=lambda k: parts[k].kind == "thinking")
    hits = [(k, parts[k].text.find(phrase)) for k in ranked if phrase and phrase in parts[k].text]
    if not hits:
        raise TargetError(f"The assistant did not write {shorten(phrase)}. {_offer(parts, calls)}")
    number, start = hits[0]
    count = sum(parts[k].text.count(phrase) for k, _ in hits if parts[k].kind != "thinking")
    if count > 1:
        raise TargetError(
            f"The assistant wrote {shorten(phrase)} {count} times; give more words around it."
        )
    return Target(number, (start, start + len(phrase)))


def _offer(parts: Sequence[Part], calls: Sequence[int]) -> str:
    """Return what can be asked for, in a sentence."""
    names = ", ".join(f"the call to {parts[k].tool}" for k in calls)
    texts = [
        part.text[slice(*span)]
        for part in parts
        if part.trust == "wrote" and part.kind != "call"
        for span in sentence_spans(part.text)
    ]
    sentences = f"It wrote {', '.join(map(shorten, texts[-3:]))}." if texts else ""
    return f"{f'There is {names}. ' if names else ''}{sentences}".strip()
