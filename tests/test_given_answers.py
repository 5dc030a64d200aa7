"""Answers that were written elsewhere: read as their own characters, judged as if written here."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow
from attnflow.attribution.passages import passages_of, statements_of
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
