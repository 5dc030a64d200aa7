"""Frameworks, each with the real package: what it shows is what `attnflow.ask` says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import attnflow
from attnflow.attribution import passages
from attnflow.errors import InputError
from attnflow.explainers import answers
from attnflow.explainers.defaults import default_method
from attnflow.hosts.model import Model
from attnflow.show.page import embedded_json
from browser import installed_browser, running_browser
from test_doors_http import QUESTION, TEXTS, certain, model
from test_framework_clients import large_package

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before it is imported
__all__ = ["certain", "model"]  # fixtures
ANSWER = "It takes 45 days. We met on Monday."
# Of the packages themselves, at import.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def expected(model: Model) -> Any:
    return attnflow.ask(model, QUESTION, TEXTS, answer=ANSWER)


def check_record(record: Any, citation: Any) -> None:
    assert record == citation.to_dict()
    document = list(TEXTS.values())[record["document_index"]]
    assert document[record["cited_start"] : record["cited_end"]] == record["cited_text"]


def test_a_model_by_its_name_is_loaded_once(
    model: Model, monkeypatch: pytest.MonkeyPatch, expected: Any
) -> None:
    from attnflow_connect import frameworks

    names: list[Any] = []
    monkeypatch.setattr(frameworks, "as_model", lambda name, **_: names.append(name) or model)
    for _ in range(2):
        answer = frameworks.ask_alone("a/name", QUESTION, TEXTS, answer=ANSWER)
        assert answer.citations == expected.citations
    assert names == ["a/name"]
    frameworks._named.cache_clear()


# -- LangChain ------------------------------------------------------------------------------------


def langchain_documents() -> list[Any]:
    documents = pytest.importorskip("langchain_core.documents")
    return [documents.Document(text, metadata={"source": k}) for k, text in TEXTS.items()]


def check_annotations(block: Any, answer: Any) -> None:
    assert block["text"] == answer.text
    assert len(block["annotations"]) == len(answer.citations) > 0
    for annotation, citation in zip(block["annotations"], answer.citations, strict=True):
        assert annotation["type"] == "citation"
        span = slice(annotation["start_index"], annotation["end_index"])
        assert answer.text[span] == citation.text
        assert (annotation["title"], annotation["cited_text"]) == (
            citation.document, citation.cited_text,
        )  # fmt: skip
        check_record(annotation["extras"], citation)


def test_langchain_cites_a_message_that_is_there(model: Model, expected: Any) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    from attnflow_connect.langchain import AddCitations

    reasoning = {"type": "reasoning", "reasoning": "Well."}
    parts = [{"type": "text", "text": part} for part in (ANSWER[:17], ANSWER[17:])]
    message = messages.AIMessage([parts[0], reasoning, parts[1]], id="7", name="Ana")
    entry = {"question": QUESTION, "documents": langchain_documents(), "answer": message}
    cited = AddCitations(model).invoke(entry)
    assert (cited.id, cited.name, cited.text) == ("7", "Ana", ANSWER)
    assert cited.content_blocks[0] == reasoning
    check_annotations(cited.content_blocks[1], expected)
    assert "annotations" not in message.content[0]  # the message that was given is as it was
    two = AddCitations(model).batch([entry, {**entry, "answer": ANSWER}])  # from two threads
    assert two[0] == cited
    check_annotations(two[1].content_blocks[0], expected)


def test_langchain_in_a_chain(model: Model) -> None:
    runnables = pytest.importorskip("langchain_core.runnables")
    from attnflow_connect.langchain import AddCitations

    documents = langchain_documents()
    documents[0].metadata = {"url": "https://example.org/terms", "title": "Terms"}
    find = runnables.RunnablePassthrough.assign(documents=lambda _: documents)
    chain = find | AddCitations(model, max_new_tokens=6)
    message = asyncio.run(chain.ainvoke({"question": QUESTION}))
    own = attnflow.ask(model, QUESTION, TEXTS, max_new_tokens=6)
    assert message.text == own.text
    addresses = [a.get("url") for a in message.content_blocks[0]["annotations"]]
    urls = ["https://example.org/terms", None]
    assert addresses == [urls[citation.document_index] for citation in own.citations]


def test_langchain_chat_model_plain_and_streamed(model: Model) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    from attnflow_connect.langchain import ChatAttnflow

    chat = ChatAttnflow(model=model, max_tokens=6)
    turns = [messages.SystemMessage("Be brief."), messages.HumanMessage(QUESTION)]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    own = attnflow.ask(model, plain, TEXTS, default_method(model, cited=True), max_new_tokens=6)
    documents = langchain_documents()
    whole = chat.invoke(turns, documents=documents)
    check_annotations(whole.content_blocks[0], own)
    assert whole.usage_metadata["output_tokens"] == 6
    assert whole.response_metadata["finish_reason"] == "length"
    chunks = list(chat.bind(documents=documents).stream(turns))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.content == whole.content
    assert total.usage_metadata == whole.usage_metadata
    # without documents there is nothing to cite: a text, which goes on in a conversation
    bare = chat.invoke(turns)
    assert isinstance(bare.content, str)
    assert "".join(chunk.text for chunk in chat.stream(turns)) == bare.content
    assert chat.invoke([*turns, whole, messages.HumanMessage("And?")], max_tokens=2).text
    with pytest.raises(InputError, match=r"stop=\['x'\] is not known here"):
        chat.invoke(turns, stop=["x"])
    with pytest.raises(InputError, match="stop="):
        list(chat.stream(turns, stop=["x"]))


# -- LlamaIndex -----------------------------------------------------------------------------------


class Writer:
    """Some other model, as a response synthesizer has it."""

    def synthesize(self, query: Any, nodes: Any) -> str:
        return ANSWER


def test_llama_index_query_engine(model: Model, expected: Any) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    from llama_index.core.base.llms.types import CitationBlock
    from llama_index.core.retrievers import BaseRetriever

    from attnflow_connect.llamaindex import AttnflowQueryEngine

    class Retriever(BaseRetriever):  # type: ignore[misc]
        nodes: Any = ()

        def _retrieve(self, query: Any) -> Any:
            return self.nodes

    retriever = Retriever()
    writer: Any = Writer()
    engine = AttnflowQueryEngine(retriever, model, response_synthesizer=writer)
    assert str(engine.query(QUESTION)) == "Empty Response"
    nodes = [schema.TextNode(text=t, metadata={"file_name": k}) for k, t in TEXTS.items()]
    retriever.nodes = [schema.NodeWithScore(node=node, score=1.0) for node in nodes]
    response = engine.query(QUESTION)
    assert str(response) == ANSWER
    assert response.source_nodes == retriever.nodes
    blocks = response.metadata["citations"]
    assert len(blocks) == len(expected.citations) > 0
    for block, record, citation in zip(
        blocks, response.metadata["attnflow"], expected.citations, strict=True
    ):
        assert isinstance(block, CitationBlock)
        assert block.cited_content.text == citation.cited_text
        assert block.title == citation.document
        assert block.source == nodes[citation.document_index].node_id
        places = block.additional_location_info
        assert ANSWER[places["start"] : places["end"]] == citation.text
        check_record(record, citation)
    again = asyncio.run(AttnflowQueryEngine(retriever, model, max_new_tokens=4).aquery(QUESTION))
    assert str(again) == attnflow.ask(model, QUESTION, TEXTS, max_new_tokens=4).text


# -- Haystack -------------------------------------------------------------------------------------


def test_haystack_component_in_a_pipeline(model: Model, expected: Any) -> None:
    haystack = pytest.importorskip("haystack")
    from haystack.dataclasses import ChatMessage

    from attnflow_connect.haystack import AttnflowAnswerBuilder

    documents = [haystack.Document(content=t, meta={"name": k}) for k, t in TEXTS.items()]
    pipeline = haystack.Pipeline()
    pipeline.add_component("cite", AttnflowAnswerBuilder(model))
    replies = [ChatMessage.from_assistant(ANSWER, meta={"model": "other"}), ANSWER]
    for reply in replies:
        given = {"query": QUESTION, "documents": documents, "replies": [reply]}
        (answer,) = pipeline.run({"cite": given})["cite"]["answers"]
        assert (answer.data, answer.query) == (ANSWER, QUESTION)
        for record, citation in zip(answer.meta["citations"], expected.citations, strict=True):
            check_record(record, citation)
        cited = {citation.document_index for citation in expected.citations}
        assert [d.meta["referenced"] for d in answer.documents] == [k in cited for k in range(2)]
        assert [d.content for d in answer.documents] == list(TEXTS.values())
    (answer,) = pipeline.run({"cite": {"query": QUESTION, "documents": documents}})["cite"][
        "answers"
    ]
    assert answer.data == attnflow.ask(model, QUESTION, TEXTS).text
    with pytest.raises(InputError, match="names its model: give a name or a folder"):
        pipeline.dumps()
    named = haystack.Pipeline()
    named.add_component("cite", AttnflowAnswerBuilder("./my-model", {"max_new_tokens": 3}))
    trusted = ["attnflow_connect.haystack"]  # Haystack loads from elsewhere only if told
    pipeline = haystack.Pipeline.loads(named.dumps(), allowed_modules=trusted)
    again = pipeline.get_component("cite")
    assert (again.model, again.options) == ("./my-model", {"max_new_tokens": 3})


# -- MLflow and Ragas -----------------------------------------------------------------------------


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch, certain: None) -> None:
    """Of two statements the first rests on a document, the second needs none."""
    usual = answers.statements_of

    def mixed(result: Any) -> Any:
        return (passages.statements_of(result)[0], *usual(result)[1:])

    monkeypatch.setattr(answers, "statements_of", mixed)


def test_mlflow_scorer(
    model: Model, half: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = large_package("mlflow")
    from attnflow_connect.scorers import mlflow_scorer

    monkeypatch.setenv("MLFLOW_GENAI_EVAL_MAX_WORKERS", "2")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    scorer = mlflow_scorer(model)
    texts = list(TEXTS.values())
    inputs = {"question": QUESTION, "documents": texts}
    feedback = scorer(inputs=inputs, outputs={"response": ANSWER})
    assert feedback.value == 0.5
    assert feedback.rationale.startswith('"It takes 45 days." rests on')
    assert len(feedback.rationale.splitlines()) == 2

    @mlflow.trace(span_type="RETRIEVER")
    def retrieve(question: str) -> Any:
        return [{"page_content": text} for text in texts]

    @mlflow.trace
    def answer(question: str) -> str:
        retrieve(question)
        return ANSWER

    data = [{"inputs": {"question": QUESTION}}, {"inputs": {"question": "And?"}}]
    result = mlflow.genai.evaluate(data=data, predict_fn=answer, scorers=[scorer])
    assert result.metrics["grounded/mean"] == 0.5
    with pytest.raises(InputError, match="There are no documents for the answer"):
        scorer(inputs={"question": QUESTION}, outputs=ANSWER)


def test_ragas_metric(model: Model, half: None) -> None:
    large_package("ragas")
    from attnflow_connect.scorers import ragas_metric

    metric = ragas_metric(model)
    given = {"user_input": QUESTION, "response": ANSWER, "retrieved_contexts": [*TEXTS.values()]}
    result = metric.score(**given)
    assert result.value == 0.5
    assert result.reason.count("rests on") == 1
    assert [r.value for r in metric.batch_score([given, given])] == [0.5, 0.5]


# -- datasets -------------------------------------------------------------------------------------


def test_datasets_map(model: Model, half: None, expected: Any) -> None:
    datasets = pytest.importorskip("datasets")
    from attnflow_connect.datasets import CitationColumns

    named = [{"title": k, "text": text} for k, text in TEXTS.items()]
    rows = datasets.Dataset.from_dict(
        {"question": [None, QUESTION], "answer": ["", ANSWER], "documents": [named, named]}
    )
    columns = CitationColumns(model)
    features = columns.features(rows.features)  # the first batch has no citation
    made = rows.map(columns, batched=True, batch_size=1, features=features)
    assert made[0]["error"] == "There is nothing to explain: the answer is ''."
    assert (made[0]["citations"], made[0]["grounded"]) == ([], None)
    assert (made[1]["error"], made[1]["grounded"]) == (None, 0.5)
    assert made[1]["verdicts"] == ["rests", "none"]
    for record, citation in zip(made[1]["citations"], expected.citations, strict=True):
        check_record(record, citation)
    one = rows.select([1]).map(CitationColumns(model), batched=True)  # types from what it gives
    assert one[0]["citations"] == made[1]["citations"]


# -- the widget -----------------------------------------------------------------------------------

NOTEBOOK = """<!doctype html><body style="margin: 0"><div id="cell"></div><script type="module">
const state = {state};
const source = new Blob([state._esm], {{ type: "text/javascript" }});
const widget = await import(URL.createObjectURL(source)); // as anywidget loads it
globalThis.sent = [];
const model = {{
  get: (name) => state[name],
  set: (name, value) => (state[name] = value),
  save_changes: () => sent.push(state.number),
  on() {{}},
  off() {{}},
}};
globalThis.end = widget.default.render({{ model, el: document.getElementById("cell") }});
</script>"""


def test_a_click_in_the_widget_is_heard_in_python(
    model: Model, expected: Any, tmp_path: Path
) -> None:
    pytest.importorskip("anywidget")
    program = installed_browser()
    if program is None:
        pytest.skip("no browser: install Chromium or set ATTNFLOW_BROWSER")
    from attnflow_connect.widget import AnswerWidget

    widget = AnswerWidget(expected, height=600)
    heard: list[str] = []
    widget.observe(lambda change: heard.append(change.new.text), "statement")
    state = {name: getattr(widget, name) for name in ("_esm", "html", "height")}
    (tmp_path / "notebook.html").write_text(NOTEBOOK.format(state=embedded_json(state)))
    (tmp_path / "alone.html").write_text(widget.html)
    with running_browser(program, tmp_path / "profile") as browser:
        tab = browser.new_page()
        tab.size(1200, 600)
        tab.go((tmp_path / "alone.html").as_uri())  # where the statement stands in a frame
        tab.wait("document.querySelectorAll('.af-written').length === 2")
        x, y = tab.place("document.querySelectorAll('.af-written')[1]")
        assert tab.run("document.querySelector('.af-answer-text').textContent") == ANSWER
        tab.go((tmp_path / "notebook.html").as_uri())
        for _ in range(100):  # the page in the frame is not to be looked into
            tab.wait("globalThis.end")
            for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
                tab.mouse(kind, x, y)
            if tab.run("sent.length"):
                break
        widget.set_state({"number": tab.run("sent.at(-1)")})  # as a notebook does
        assert not tab.errors
    assert heard == ["We met on Monday."] == [widget.statement.text]
    assert [citation.text for citation in widget.citations] == ["We met on Monday."]
