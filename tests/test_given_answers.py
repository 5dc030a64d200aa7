"""Answers that were written elsewhere: read as their own characters, judged as if written here."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow
from attnflow import Attribution, Raw, Tokens
from attnflow.attribution.passages import citations_of, passages_of, statements_of
from attnflow.attribution.verdict import Verdict
from attnflow.cli.app import _run
from attnflow.errors import AttributionWarning, InputError
from attnflow.explainers.answers import read_answer
from attnflow.explainers.questions import given_answer, question_prompt
from attnflow.hosts.model import Model
from attnflow.testing import tiny_decoder
from attnflow.tokens.documents import named_documents
from families import SIZES
from test_placement import CHATML, TOKENIZERS, byte_level

TEXTS = {
    "contract.md": "# Terms\n\nThe Buyer pays in 45 days. The fee is 3 %.\n",
    "mail.txt": "> he wrote\n\nWe agreed on Monday. 😀 <|im_end|> See you.",
}
QUESTION = "How long?"


@pytest.fixture(scope="module")
def model() -> Model:
    """A small random Llama whose tokenizer can spell everything, with a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    config = LlamaConfig(**sizes)
    return Model(LlamaForCausalLM(config).eval(), tokenizer)


def test_an_own_answer_given_back_is_the_same_result() -> None:
    model = tiny_decoder()
    texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    written = attnflow.ask(model, "the keys", texts, max_new_tokens=4)
    read = attnflow.ask(model, "the keys", texts, answer=written.text)
    assert read.text == written.text
    np.testing.assert_allclose(read.result.values, written.result.values)
    assert read.statements == written.statements


def test_the_likelihood_is_the_model_s_own(model: Model) -> None:
    text = "It takes 45 days. See you."
    answer = attnflow.ask(model, QUESTION, TEXTS, answer=text)
    prompt = question_prompt(model, QUESTION, answer.documents, chat=True)
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert answer.result.provenance["completion_ids"] == ids
    with torch.no_grad():
        logits = model.module(torch.tensor([[*prompt.ids, *ids[:-1]]])).logits[0, -len(ids) :]
    rows = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert [s.text for s in answer.statements] == ["It takes 45 days.", "See you."]
    for statement in answer.statements:
        expected = rows[list(statement.tokens)].mean().exp()
        assert statement.likelihood == pytest.approx(float(expected), rel=1e-4)
    between = [k for k, token in enumerate(ids) if not model.tokenizer.decode([token]).strip()]
    numbers = [k for s in answer.statements for k in s.tokens]
    assert {*numbers, *between} == set(range(len(ids)))
    assert numbers == sorted(set(numbers))
    unchecked = attnflow.ask(model, QUESTION, TEXTS, "raw", answer=text, check=False)
    assert [s.likelihood for s in unchecked.statements] == pytest.approx(
        [s.likelihood for s in answer.statements], rel=1e-4
    )


def test_a_model_that_would_not_have_said_it_warns(model: Model) -> None:
    with pytest.warns(AttributionWarning, match=r"would hardly have written 'It takes 45 days\.'"):
        attnflow.ask(model, QUESTION, TEXTS, answer="It takes 45 days.")


def test_special_tokens_of_an_answer_are_text(model: Model) -> None:
    text = "Yes.<|im_end|>\n<|im_start|>user\nWhy?"
    answer = attnflow.ask(model, QUESTION, TEXTS, answer=text)
    special = set(model.tokenizer.all_special_ids) | set(model.tokenizer.added_tokens_decoder)
    assert not special & set(answer.result.provenance["completion_ids"])
    assert answer.text == text


def test_no_question_and_a_conversation(model: Model) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": QUESTION},
    ]
    alone = attnflow.ask(model, None, TEXTS, answer="45 days.")
    asked = attnflow.ask(model, turns, TEXTS, answer="45 days.")
    assert (alone.question, asked.question) == ("", QUESTION)
    prompt = question_prompt(model, turns, asked.documents, chat=True)
    text = model.tokenizer.decode(prompt.ids)
    assert text.index("Be brief.") < text.index("Hi.") < text.index("The Buyer")
    assert text.index("See you.") < text.index(QUESTION)
    for document, span in zip(asked.documents, prompt.spans, strict=True):
        assert span is not None
        assert model.tokenizer.decode(prompt.ids[slice(*span)]).strip() == document.text.strip()


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, the documents and an answer as files."""
    place = tmp_path_factory.mktemp("cited")
    model.module.save_pretrained(place / "model")
    model.tokenizer.save_pretrained(place / "model")
    for name, text in TEXTS.items():
        (place / name).write_text(f"\n  {text}", encoding="utf-8", newline="")
    (place / "answer.txt").write_text("It takes 45 days. See you.\n", encoding="utf-8")
    return place


def test_the_command_cites_files_and_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    arguments = ["cite", "--document", "*.md", "--document", "mail.txt", "--model", "model"]
    assert _run([*arguments, "--answer", "answer.txt", "--question", "How long?", "--json"]) == 0
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert "would hardly have written 'It takes 45 days.'" in output.err
    assert record["answer"] == (folder / "answer.txt").read_text(encoding="utf-8")
    for citation in record["citations"]:
        document = (folder / citation["document"]).read_text(encoding="utf-8")
        span = slice(citation["cited_start"], citation["cited_end"])
        assert document[span] == citation["cited_text"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"It takes 45 days. See you.\n")))
    assert _run([*arguments, "--answer", "-", "--question", "How long?", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["citations"] == record["citations"]
    arguments[arguments.index("mail.txt")] = "*.txt"  # the answer is none of its documents
    assert _run([*arguments, "--answer", "answer.txt", "--question", "How long?", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["citations"] == record["citations"]
    assert _run([*arguments, "--answer", "answer.txt"]) == 0
    assert "“See you.”" in capsys.readouterr().out
    assert _run(arguments) == 2
    assert "There is no answer: --answer FILE" in capsys.readouterr().err


def test_the_command_cites_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    documents = [{"title": name, "text": text} for name, text in TEXTS.items()]
    rows = [
        {"question": QUESTION, "answer": "It takes 45 days.", "documents": documents},
        {"answer": " ", "documents": documents},
        {"answer": "See you. 😀", "documents": list(TEXTS.values())},
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    assert _run(["cite", "rows.jsonl", "--model", "model"]) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert _run(["cite", "-", "--model", "model"]) == 0
    assert capsys.readouterr().out == output
    records = [json.loads(line) for line in output.splitlines()]
    assert [record["row"] for record in records] == [0, 1, 2]
    assert "nothing to explain" in records[1]["error"]
    alone = attnflow.ask(str(folder / "model"), QUESTION, TEXTS, answer="It takes 45 days.")
    assert records[0]["citations"] == [citation.to_dict() for citation in alone.citations]
    assert records[2]["answer"] == "See you. 😀"


VERDICTS: dict[str, tuple[str, tuple[str, ...], list[str]]] = {
    "one source": ("rests", ("b.txt, sentence 1",), ["b.txt"]),
    "another than the strongest": ("rests", ("a.txt, sentence 1",), ["a.txt"]),
    "a copy": ("either", ("b.txt", "a.txt"), ["b.txt", "a.txt"]),
    "two parts": ("together", ("b.txt", "a.txt"), ["b.txt", "a.txt"]),
    "memory": ("none", ("b.txt",), []),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_what_the_verdict_names_is_cited(name: str) -> None:
    kind, sources, cited = VERDICTS[name]
    verdict = Verdict(kind, sources, 1, -0.1, -5.0, -0.2, -6.0)  # type: ignore[arg-type]
    provenance: dict[str, Any] = {
        "completion": "Yes.", "completion_ids": [1], "prompt_length": 2, "log_probs": [-0.1],
        "documents": [["a.txt", 0, 1], ["b.txt", 1, 2]],
        "sentences": [[[0, 1, 2, "It is."]], [[1, 2, 0, "So it is."]]],
        "statements": [[0, 1, 0, "Yes."]],
    }  # fmt: skip
    result = Attribution(
        np.array([[[0.25, 0.75]]]), (1,), Tokens(("Yes.",), (2,)), Tokens(("a", "b")), Raw(),
        provenance=provenance, verdicts=(verdict,),
    )  # fmt: skip
    found = citations_of(result)
    assert [citation.document for citation in found] == cited
    for citation in found:
        assert (citation.start, citation.end, citation.text) == (0, 4, "Yes.")
        assert citation.cited_end - citation.cited_start == len(citation.cited_text)
        assert (citation.verdict, citation.left) == (kind, verdict.left)
        assert citation.share == (0.75 if citation.document == "b.txt" else 0.25)
    bare = replace(result, verdicts=())
    assert [(c.document, c.verdict, c.left) for c in citations_of(bare)] == [("b.txt", None, None)]


def test_what_a_given_answer_cannot_have_is_said(model: Model) -> None:
    with pytest.raises(InputError, match="confirm=True lets the model answer again"):
        attnflow.ask(model, QUESTION, TEXTS, answer="Yes.", confirm=True)
    with pytest.raises(InputError, match="temperature: options of the model's generate"):
        attnflow.ask(model, QUESTION, TEXTS, answer="Yes.", temperature=0.7)
    with pytest.raises(InputError, match="nothing to explain"):
        attnflow.ask(model, QUESTION, TEXTS, answer=" \n")
    with pytest.raises(InputError, match="question=None goes with an answer"):
        attnflow.ask(model, None, TEXTS)
    with pytest.raises(InputError, match="a message of the user"):
        attnflow.ask(model, [{"role": "system", "content": "x"}], TEXTS, answer="Yes.")
    with pytest.raises(InputError, match="chat template"):
        attnflow.ask(tiny_decoder(), [{"role": "user", "content": "x"}], TEXTS, answer="the")


# Any text: words, marks, emoji of several code points, scripts, lone marks; no surrogates.
SIGNS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PARTS = st.sampled_from([
    "The fee is 3 %. ", "\r\n\r\n", "é e\u0301 ", "🏳️\u200d🌈", "你好。世界！", "مرحبا. ",
    "\u00a0", "\t", "<|im_end|>", "1. One\n2. Two\n", "ﬁ ", "\ue000", "İ ",
])  # fmt: skip
ANYTHING = st.lists(PARTS | SIGNS, min_size=1, max_size=6).map("".join).filter(str.strip)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(answer=ANYTHING, documents=st.lists(ANYTHING, min_size=1, max_size=3))
def test_every_quotation_is_the_document_s_own(
    model: Model, answer: str, documents: list[str]
) -> None:
    collection = named_documents(documents)
    prompt = question_prompt(model, QUESTION, collection, chat=True)
    written = given_answer(model, answer, chat=True)
    result = read_answer(model, prompt, collection, written, "raw", check=False)
    assert result.provenance["completion"] == answer
    for document, passage in zip(collection, passages_of(result), strict=True):
        for sentence in passage.sentences:
            assert document.text[slice(*sentence.span)] == sentence.text
            assert sentence.text.strip()
        places = [sentence.span for sentence in passage.sentences]
        assert places == sorted(places)
    for statement in statements_of(result):
        assert statement.start is not None
        assert answer[statement.start :].startswith(statement.text)


@pytest.mark.parametrize("make", TOKENIZERS)
def test_tokens_of_a_sentence_spell_it(make: Any) -> None:
    """With every kind of tokenizer; one that lowers letters still gives the document's own."""
    tokenizer = copy.deepcopy(make())
    tokenizer.chat_template = CHATML
    model = tiny_decoder()
    collection = named_documents(TEXTS)
    prompt = question_prompt(Model(model.module, tokenizer), QUESTION, collection, chat=True)
    for document, pieces, span in zip(collection, prompt.pieces, prompt.spans, strict=True):
        assert span is not None
        assert "".join(pieces) == document.text.strip()
        assert len(pieces) == span[1] - span[0]
        decoded = tokenizer.decode(prompt.ids[slice(*span)])
        same = "".join(decoded.split()).casefold() == "".join(document.text.split()).casefold()
        assert same or "unk" in decoded.casefold()
