"""The frameworks' own clients of OpenAI, unchanged, against a real server: citations arrive."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from serving import Client
from test_doors_http import NAME, QUESTION, TEXTS, certain, client, expected, model

__all__ = ["certain", "client", "expected", "model"]  # fixtures
DOCUMENTS = {"documents": [{"title": name, "text": text} for name, text in TEXTS.items()]}
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"
)


def large_package(name: str) -> Any:
    """Return a package that only `make frameworks` installs; one that is there must work."""
    try:
        is_there = find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        is_there = False
    if not is_there:
        pytest.skip(f"{name} is not installed here; `make frameworks` tests it")
    return import_module(name)


def check_records(records: Any, expected: Any) -> None:
    assert records == [citation.to_dict() for citation in expected.citations]


def joined(chunks: Any) -> Any:
    total: Any = None
    for chunk in chunks:
        total = chunk if total is None else total + chunk
    return total


def test_langchain(client: Client, expected: Any) -> None:
    library = large_package("langchain_openai")
    about = {"base_url": f"{client.address}v1", "api_key": "x", "model": NAME, "max_tokens": 12}
    chat = library.ChatOpenAI(**about, use_responses_api=True, extra_body=DOCUMENTS)
    for message in (chat.invoke(QUESTION), joined(chat.stream(QUESTION))):
        assert message.text == expected.text
        (block,) = [block for block in message.content_blocks if block["type"] == "text"]
        cited = [(a["type"], a["start_index"], a["end_index"]) for a in block["annotations"]]
        assert cited == [("citation", c.start, c.end) for c in expected.citations]
        check_records([a["extras"]["attnflow"] for a in block["annotations"]], expected)
    # Of chat completions this client hands on no field in which citations could stand.
    chat = library.ChatOpenAI(**about, extra_body=DOCUMENTS)
    for message in (chat.invoke(QUESTION), joined(chat.stream(QUESTION))):
        assert message.text == expected.text


def test_llama_index_chat_completions(client: Client, expected: Any) -> None:
    library = large_package("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    llm = library.OpenAILike(
        api_base=f"{client.address}v1", api_key="x", model=NAME, max_tokens=12, is_chat_model=True,
        temperature=0, additional_kwargs={"extra_body": DOCUMENTS},
    )  # fmt: skip
    turns = [ChatMessage(role="user", content=QUESTION)]
    whole = llm.chat(turns)
    assert whole.message.content == expected.text
    check_records(whole.raw.attnflow["citations"], expected)
    assert len(whole.raw.choices[0].message.annotations) == len(expected.citations)
    chunks = list(llm.stream_chat(turns))
    assert chunks[-1].message.content == expected.text
    (last,) = [chunk.raw for chunk in chunks if getattr(chunk.raw, "attnflow", None)]
    check_records(last.attnflow["citations"], expected)
    assert len(last.choices[0].delta.annotations) == len(expected.citations)


def test_llama_index_responses(client: Client, expected: Any) -> None:
    library = large_package("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    llm = library.OpenAILikeResponses(
        api_base=f"{client.address}v1", api_key="x", model=NAME, max_output_tokens=12,
        is_chat_model=True, temperature=0, additional_kwargs={"extra_body": DOCUMENTS},
    )  # fmt: skip
    turns = [ChatMessage(role="user", content=QUESTION)]
    whole, chunks = llm.chat(turns), list(llm.stream_chat(turns))
    assert whole.message.content == "".join(chunk.delta for chunk in chunks) == expected.text
    for response in (whole, chunks[-1]):
        cited = response.additional_kwargs["annotations"]
        check_records(
            [a["attnflow"] if isinstance(a, dict) else a.attnflow for a in cited], expected
        )
