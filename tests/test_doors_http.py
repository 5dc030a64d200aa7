"""The doors for clients that people have: the official ones, unchanged, and a real server."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch

import attnflow
from attnflow.attribution import passages
from attnflow.attribution.verdict import Verdict
from attnflow.explainers.defaults import default_method
from attnflow.hosts.model import Model
from attnflow_connect.server.models import Limits, OfferedModel
from families import SIZES
from hostile_doors import GOOD, try_door_bodies
from later import Later
from serving import JSON, Client, serving
from test_placement import CHATML, byte_level

if TYPE_CHECKING:
    import anthropic
    import cohere
    import openai
else:
    anthropic, cohere, openai = map(Later, ("anthropic", "cohere", "openai"))

TEXTS = {
    "contract.md": "# Terms\n\nThe Buyer pays in 45 days. The fee is 3 %.\n",
    "mail.txt": "> he wrote\n\nWe agreed on Monday. 😀 See you.",
}
QUESTION = "How long?"
NAME = "tiny/writer"


@pytest.fixture(scope="module")
def model() -> Model:
    """A small random Llama whose tokenizer can spell everything, with a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    return Model(LlamaForCausalLM(LlamaConfig(**sizes)).eval(), tokenizer)


@pytest.fixture(scope="module")
def client(model: Model) -> Iterator[Client]:
    offer = OfferedModel(NAME, "", explains=True, generates=True, chats=True, load=lambda: model)
    with serving([offer], Limits(answer_tokens=12)) as client:
        yield client


@pytest.fixture(autouse=True)
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model needs no document: here every statement rests on its strongest source."""
    usual = passages.statements_of

    def resting(result: Any) -> Any:
        from dataclasses import replace

        numbers = (1, -0.1, -5.0, -0.2, -6.0)
        return tuple(
            replace(each, verdict=Verdict("rests", (each.sources[0].name,), *numbers))
            for each in usual(result)
        )

    monkeypatch.setattr(passages, "statements_of", resting)


@pytest.fixture(scope="module")
def expected(model: Model) -> Any:
    """The same answer in Python, by the method of citations."""
    turns = [{"role": "user", "content": QUESTION}]
    return attnflow.ask(model, turns, TEXTS, default_method(model, cited=True), max_new_tokens=12)


def check_records(records: Any, text: str) -> None:
    assert records
    for record in records:
        document = TEXTS[record["document"]]
        assert list(TEXTS)[record["document_index"]] == record["document"]
        assert document[record["cited_start"] : record["cited_end"]] == record["cited_text"]
        assert text[record["start"] : record["end"]] == record["text"]
        assert record["verdict"] == "rests"
        assert 0 < record["left"] < 1


# -- OpenAI ---------------------------------------------------------------------------------------


@pytest.fixture
def gpt(client: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.address}v1", api_key="x", max_retries=0) as made:
        yield made


CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": QUESTION}],
    "extra_body": {"documents": [{"title": k, "text": v} for k, v in TEXTS.items()]},
}


def test_chat_completions(gpt: openai.OpenAI, expected: Any) -> None:
    answer = gpt.chat.completions.create(**CHAT, max_tokens=12)
    message = answer.choices[0].message
    assert message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert message.annotations
    places = [each.url_citation for each in message.annotations]
    assert [(p.start_index, p.end_index, p.title) for p in places] == [
        (c.start, c.end, c.document) for c in expected.citations
    ]
    check_records(answer.model_extra["attnflow"]["citations"], expected.text)  # type: ignore[index]


def test_chunks_of_one_title_are_told_apart(gpt: openai.OpenAI) -> None:
    chunks = [{"title": "file", "text": text} for text in (*TEXTS.values(), "We met on Friday.")]
    answer = gpt.chat.completions.create(**{**CHAT, "extra_body": {"documents": chunks}})
    (record,) = answer.model_extra["attnflow"]["citations"]  # type: ignore[index]
    number = record["document_index"]
    assert record["document"] == ["file", "file (2)", "file (3)"][number]
    assert record["cited_text"] in chunks[number]["text"]


def test_streamed_chat_completions(gpt: openai.OpenAI, expected: Any) -> None:
    options = {"include_usage": True}
    with gpt.chat.completions.create(
        **CHAT, max_tokens=12, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == expected.text
    assert len(deltas[-1].model_extra["annotations"]) == len(expected.citations)  # type: ignore[index]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    with_records = [chunk for chunk in chunks if "attnflow" in (chunk.model_extra or {})]
    check_records(with_records[0].model_extra["attnflow"]["citations"], expected.text)  # type: ignore[index]


def test_responses_plain_and_streamed(gpt: openai.OpenAI, expected: Any) -> None:
    arguments: dict[str, Any] = {
        "model": NAME, "input": QUESTION, "max_output_tokens": 12,
        "extra_body": CHAT["extra_body"],
    }  # fmt: skip
    answer = gpt.responses.create(**arguments)
    assert answer.output_text == expected.text
    part: Any = answer.output[0].content[0]  # type: ignore[union-attr]
    cited = [(c.start, c.end, c.document, c.to_dict()) for c in expected.citations]
    assert [(a.start_index, a.end_index, a.title, a.attnflow) for a in part.annotations] == cited
    with gpt.responses.stream(**arguments) as stream:
        events: list[Any] = list(stream)
    assert events[-1].type == "response.incomplete"  # it was cut off after twelve tokens
    final = events[-1].response
    assert final.output_text == expected.text
    added = [event for event in events if event.type == "response.output_text.annotation.added"]
    assert len(added) == len(cited)
    assert final.output[0].content[0].annotations == part.annotations


TEXT_PART = {"type": "text", "text": "?"}


def test_files_in_messages_and_tools(gpt: openai.OpenAI) -> None:
    import base64

    data = base64.b64encode(TEXTS["contract.md"].encode()).decode()
    file = {"filename": "contract.md", "file_data": f"data:text/plain;base64,{data}"}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "file", "file": file}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "45"},
    ]
    answer = gpt.chat.completions.create(model=NAME, messages=messages, max_tokens=3)
    records = answer.model_extra["attnflow"]["citations"]  # type: ignore[index]
    assert {record["document"] for record in records} == {"contract.md"}
    bare = gpt.chat.completions.create(model="", messages=CHAT["messages"], max_tokens=3)
    assert bare.choices[0].message.annotations == []


def test_models_and_errors_of_openai(gpt: openai.OpenAI) -> None:
    assert [model.id for model in gpt.models.list()] == [NAME]
    assert gpt.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt-9' here"):
        gpt.chat.completions.create(**{**CHAT, "model": "gpt-9"})
    with pytest.raises(openai.BadRequestError, match="no message of the user"):
        gpt.chat.completions.create(model=NAME, messages=[{"role": "system", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        gpt.chat.completions.create(**CHAT, max_tokens=0)
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(openai.BadRequestError, match="reads texts; got a part of the type"):
        gpt.chat.completions.create(model=NAME, messages=[{"role": "user", "content": image}])  # type: ignore[list-item,misc]


# -- Anthropic ------------------------------------------------------------------------------------


@pytest.fixture
def claude(client: Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=client.address, api_key="x", max_retries=0) as made:
        yield made


def documents(enabled: bool = True) -> list[Any]:
    return [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            "title": name,
            "citations": {"enabled": enabled},
        }
        for name, text in TEXTS.items()
    ]


def question(enabled: bool = True) -> dict[str, Any]:
    content = [*documents(enabled), {"type": "text", "text": QUESTION}]
    return {
        "model": NAME, "max_tokens": 12, "messages": [{"role": "user", "content": content}],
    }  # fmt: skip


def check_char_locations(found: Any, expected: Any) -> None:
    assert [(c.document_title, c.start_char_index, c.end_char_index) for c in found] == [
        (c.document, c.cited_start, c.cited_end) for c in expected.citations
    ]
    for each in found:
        text = TEXTS[list(TEXTS)[each.document_index]]
        assert text[each.start_char_index : each.end_char_index] == each.cited_text


def test_messages(claude: anthropic.Anthropic, expected: Any) -> None:
    answer = claude.messages.create(**question())
    assert "".join(block.text for block in answer.content if block.type == "text") == expected.text
    found = [c for block in answer.content for c in getattr(block, "citations", None) or []]
    check_char_locations(found, expected)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 12
    plain = claude.messages.create(**question(enabled=False))
    assert not any(getattr(block, "citations", None) for block in plain.content)
    counted = claude.messages.count_tokens(model=NAME, messages=question()["messages"])
    assert counted.input_tokens == answer.usage.input_tokens


def test_streamed_messages(claude: anthropic.Anthropic, expected: Any) -> None:
    with claude.messages.stream(**question()) as stream:
        deltas = [event for event in stream if event.type == "citation"]
        final = stream.get_final_message()
    assert len(deltas) == len(expected.citations)
    (block,) = final.content
    assert block.type == "text"
    assert block.text == expected.text
    check_char_locations(block.citations, expected)


def test_models_and_errors_of_anthropic(claude: anthropic.Anthropic) -> None:
    assert [model.id for model in claude.models.list()] == [NAME]
    with pytest.raises(anthropic.NotFoundError, match="There is no model"):
        claude.messages.create(**{**question(), "model": "claude-x"})
    pdf = {"type": "document", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match="must be plain text; got the source 'url'"):
        claude.messages.create(
            model=NAME,
            max_tokens=3,
            messages=[{"role": "user", "content": [pdf]}],  # type: ignore[list-item,typeddict-item]
        )


# -- Cohere ---------------------------------------------------------------------------------------


def sent() -> dict[str, Any]:
    named = [{"id": k, "data": {"text": v, "title": k}} for k, v in TEXTS.items()]
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": NAME, "messages": messages, "documents": named, "max_tokens": 12}


@pytest.fixture
def command(client: Client) -> Iterator[cohere.ClientV2]:
    with httpx.Client(timeout=60) as connection:
        address = client.address.rstrip("/")
        yield cohere.ClientV2(api_key="x", base_url=address, httpx_client=connection)


def check_cohere(found: Any, expected: Any) -> None:
    assert [(c.start, c.end, c.text, c.sources[0].id) for c in found] == [
        (c.start, c.end, c.text, c.document) for c in expected.citations
    ]
    assert found[0].sources[0].document["text"] == TEXTS[found[0].sources[0].id]


def test_cohere_chat(command: cohere.ClientV2, expected: Any) -> None:
    answer = command.chat(**sent())
    assert answer.message.content is not None
    assert answer.message.content[0].text == expected.text  # type: ignore[union-attr]
    check_cohere(answer.message.citations, expected)
    assert answer.finish_reason == "MAX_TOKENS"


def test_streamed_cohere_chat(command: cohere.ClientV2, expected: Any) -> None:
    events: list[Any] = list(command.chat_stream(**sent()))
    pieces = [e.delta.message.content.text for e in events if e.type == "content-delta"]
    assert "".join(pieces) == expected.text
    cited = [e.delta.message.citations for e in events if e.type == "citation-start"]
    check_cohere(cited, expected)
    assert events[-1].type == "message-end"


def test_errors_of_cohere(command: cohere.ClientV2) -> None:
    with pytest.raises(cohere.NotFoundError, match="There is no model"):
        command.chat(**{**sent(), "model": "command-x"})


# -- where an answer is to end ---------------------------------------------------------------------


def test_stops_end_an_answer_and_are_no_part_of_it(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, command: cohere.ClientV2, expected: Any
) -> None:
    text: str = expected.text
    stop = text[5:8]  # inside of tokens, perhaps
    before = text[: text.index(stop)]
    stops = ["never", stop]
    chat = gpt.chat.completions.create(**CHAT, max_tokens=12, stop=stops).choices[0]
    assert (chat.message.content, chat.finish_reason) == (before.strip(), "stop")
    pieces = gpt.chat.completions.create(**CHAT, max_tokens=12, stop=stop, stream=True)
    deltas = [chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices]
    assert "".join(deltas) == before.strip()
    told = claude.messages.create(**question(), stop_sequences=stops)
    assert (told.stop_reason, told.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in told.content if block.type == "text") == before.strip()
    answer = command.chat(**sent(), stop_sequences=stops)
    assert answer.finish_reason == "STOP_SEQUENCE"
    assert answer.message.content[0].text == before.strip()  # type: ignore[index,union-attr]
    empty = gpt.chat.completions.create(**CHAT, max_tokens=12, stop=text[0]).choices[0]
    assert (empty.message.content, empty.message.annotations) == ("", [])
    with pytest.raises(openai.BadRequestError, match="at least 1 character"):
        gpt.chat.completions.create(**CHAT, stop=[""])


# -- what no client sends -------------------------------------------------------------------------

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v2/chat")
BODIES: list[Any] = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'"' + b"[" * 5000,
    *(json.dumps(each).encode() for each in (
        {}, {"messages": []}, {"messages": "x"}, {"messages": [{"role": 3}]}, {"input": {"a": 1}},
        {"messages": [{"role": "user", "content": "\ud800"}], "input": "\ud800"},
        {"messages": [{"role": "user", "content": [{"type": ["x"]}]}], "input": [{"content": 3}]},
        {"messages": [{"role": "user", "content": "x"}], "documents": [{"text": 3}], "input": "x",
         "model": ["y"]},
        {"messages": [{"role": "user", "content": "x"}] * 1000, "input": 7},
    )),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_malformed_bodies_are_refused_in_words(client: Client, path: str) -> None:
    for body in BODIES:
        answer = client.send("POST", path, body, JSON)
        assert answer.status in (400, 404), (body[:60], answer)
        record = answer.json
        message = record["message"] if path == "/v2/chat" else record["error"]["message"]
        assert len(message) > 10


def test_a_value_of_another_kind_is_refused_in_words(client: Client) -> None:
    assert {client.post(path, body).status for path, body in GOOD.items()} == {200}
    assert try_door_bodies(client, 120, seed=3) == []


def test_unknown_fields_are_ignored(client: Client, expected: Any) -> None:
    body = {k: v for k, v in CHAT.items() if k != "extra_body"} | CHAT["extra_body"]
    with httpx.Client(base_url=client.address) as plain:
        body |= {"logit_bias": {}, "user": "me", "nonsense": [1], "max_tokens": 12}
        answer = plain.post("v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == expected.text
