"""Hostile bodies for the doors, drawn from a seed: one value anywhere in a good request is another.

Each answer must be the API's own: an answer, or a refusal in words, never a failure of the server.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from serving import JSON, Answer, Client

_FILE = "data:text/plain;base64," + base64.b64encode(b"The fee is 3 %.").decode()
_TEXTS = ["The Buyer pays in 45 days.", {"title": "a", "text": "See you there.", "url": "x"}]
_CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_ASKED = {"role": "user", "content": [{"type": "text", "text": "How long?"}]}
_BLOCK = {
    "type": "document",
    "title": "a",
    "source": {"type": "text", "media_type": "text/plain", "data": "The fee is 3 %."},
    "citations": {"enabled": True},
}
_CODED = {"type": "base64", "media_type": "text/plain", "data": _FILE.partition(",")[2]}
_USED = {"type": "tool_use", "id": "1", "name": "look", "input": {"for": "fees"}}
_SAID = {"type": "tool_result", "tool_use_id": "1", "content": [_BLOCK]}

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "Nothing."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "How long?"},
                    {"type": "file", "file": {"filename": "b", "file_data": _FILE}},
                ],
            },
        ],
        "documents": _TEXTS,
        "max_tokens": 2,
        "max_completion_tokens": 2,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "How long?"}]},
            {"type": "function_call_output", "call_id": "1", "output": "Nothing."},
            {
                "role": "user",
                "content": [{"type": "input_file", "filename": "b", "file_data": _FILE}],
            },
        ],
        "instructions": "Be brief.",
        "documents": _TEXTS,
        "max_output_tokens": 2,
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [_BLOCK, {**_BLOCK, "source": _CODED}]},
            {"role": "assistant", "content": [_USED]},
            {"role": "user", "content": [_SAID, {"type": "text", "text": "How long?"}]},
        ],
        "max_tokens": 2,
        "stop_sequences": ["END"],
    },
    "/v2/chat": {
        "messages": [
            {"role": "assistant", "tool_calls": [_CALL]},
            {
                "role": "tool",
                "content": [{"type": "document", "document": {"id": "t", "data": "No fee."}}],
            },
            _ASKED,
        ],
        "documents": ["The fee is 3 %.", {"id": "d", "data": {"text": "No.", "title": "a"}}],
        "max_tokens": 2,
        "stop_sequences": ["END"],
        "p": 0.9,
    },
}
GOOD["/v1/messages/count_tokens"] = GOOD["/v1/messages"]
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2.5, 10**30, float("nan"), float("inf"), "", " ", "text"),
    *("x" * 3_000, "\ud800", "\x00", "🙂", "</script>", "data:,%ff", "data:;base64,!", [], {}),
    *(
        [None],
        [[]],
        [{}],
        ["a"],
        [1],
        {"": {}},
        {"type": "text"},
        {"type": "document"},
        {"text": 1},
    ),
    *({"type": "file", "file": "b"}, {"type": "image_url"}, {"data": [1]}, {"id": {}, "data": 5}),
)
_BODIES = (b"", b"{", b"null", b"[" * 9_000, b"\xff\xfe{}", b'{"a":1e999}', b"9" * 5000, b"{}" * 9)
_REFUSALS = (400, 404, 413, 429)


def try_door_bodies(client: Client, count: int, seed: int) -> list[str]:
    """Send damaged and odd bodies to every door; return a line for each that was not refused in
    words, nor answered in the form of its API.
    """
    rng, wrong = random.Random(seed), []
    for _ in range(count):
        path = rng.choice(list(GOOD))
        body = _body(rng, path)
        answer = client.send("POST", path, body, JSON)
        problem = _problem(path, answer)
        if problem:
            wrong.append(f"{path} {body[:600]!r}: {answer.status} {problem}")
    return wrong


def _problem(path: str, answer: Answer) -> str:
    """Return what is wrong with an answer; nothing where it is as it should be."""
    text = answer.body.decode()
    if "should not have happened" in text or answer.status not in (200, *_REFUSALS):
        return text[-300:]
    if answer.status == 200:
        return "" if text.strip() else "empty"
    error = answer.json if path.startswith("/v2/") else answer.json["error"]
    sentence = str(error["message"])
    return "" if len(sentence) > 15 and sentence.endswith((".", ")")) else sentence


def _body(rng: random.Random, path: str) -> bytes:
    record = copy.deepcopy(GOOD[path])
    record["stream"] = rng.random() < 0.3
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(_places(record)))
        if rng.random() < 0.15:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
    body = json.dumps(record).encode()
    cut, place = rng.random(), rng.randrange(len(body))
    if cut < 0.05:
        return body[:place]
    if cut < 0.10:
        return body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
    return rng.choice(_BODIES) if cut < 0.15 else body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a record that holds a value: its holder and the key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
