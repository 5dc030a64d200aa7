"""Questions over documents: the documents' places, the ranking, the lines, the command."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow import Attribution, Raw, Tokens
from attnflow.attribution.passages import Statement, passages_of, rank_passages, statements_of
from attnflow.attribution.verdict import Verdict
from attnflow.cli.app import _run
from attnflow.cli.ask import _quotes
from attnflow.data import read_documents
from attnflow.errors import InputError
from attnflow.explainers.questions import question_text
from attnflow.testing import tiny_decoder
from attnflow.tokens.documents import Document, compose_prompt, named_documents

TEXTS = {
    "a.txt": "the keys to the cabinets . the author is old .",
    "b.txt": "the authors of the book are here .",
    "c.txt": "the book is old .",
}


@pytest.fixture(scope="module")
def writer() -> tuple[Any, Any]:
    return tiny_decoder()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, writer: tuple[Any, Any]) -> Path:
    """The tiny model and the documents as files."""
    place = tmp_path_factory.mktemp("asked")
    writer.module.save_pretrained(place / "model")
    writer.tokenizer.save_pretrained(place / "model")
    for name, text in TEXTS.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


def result_of(prompt: str, completion: str, values: Any, **about: Any) -> Attribution:
    """A result over the words of a prompt; a word begins with the mark of byte-level BPE."""
    sources = Tokens(pieces(prompt))
    targets = Tokens(pieces(completion))
    array = np.asarray(values, dtype=float)
    return Attribution(array, (1,), targets, sources, Raw(), provenance=about)


def pieces(text: str) -> tuple[str, ...]:
    return tuple(word.replace("\n", "Ċ").replace("_", "Ġ") for word in text.split(" "))


# -- documents ------------------------------------------------------------------------------------


def test_documents_have_names_and_are_checked() -> None:
    texts = ["One.", Document("x", "Two."), {"title": "y", "text": "Three."}, {"text": "Four."}]
    names = [document.name for document in named_documents(texts)]
    assert names == ["document 1", "x", "y", "document 4"]
    with pytest.raises(InputError, match="documents is a list of texts"):
        named_documents("one text")
    with pytest.raises(InputError, match="documents is empty"):
        named_documents([])
    with pytest.raises(InputError, match=r"Two documents are called 'a'"):
        named_documents([("a", "One."), ("a", "Two.")])
    with pytest.raises(InputError, match=r"A document's text is a text that is not empty; got ' '"):
        named_documents({"a": " "})
    with pytest.raises(InputError, match=r"a pair \(name, text\), or .*; got 3"):
        named_documents([3])  # type: ignore[list-item]


# -- dividing and ranking -------------------------------------------------------------------------


def test_shares_are_of_what_the_passages_get() -> None:
    prompt = "One .\n Two _days .\n Why ?"
    values = [[[0.1, 0.1, 0.2, 0.3, 0.1, 5.0, 5.0], [0.0, 0.0, 0.2, 0.0, 0.0, 1.0, 1.0]]]
    result = result_of(prompt, "_Two _days", values, documents=[["a", 0, 2], ["b", 2, 5]])
    ranked = rank_passages(result, [0, 1])
    assert [source.name for source in ranked] == ["b", "a"]
    assert [source.share for source in ranked] == pytest.approx([0.8, 0.2])
    assert str(statements_of(result)[0]) == '"Two days" draws on b, sentence 1 (80 %).'
    first, second = ranked
    both = Statement("Two days", (0, 1), (replace(first, share=0.6), replace(second, share=0.5)))
    assert both.shares == "draws on b, sentence 1 (60 %), then a (50 %)"
    named = replace(both, sources=both.sources[::-1])  # what the verdict names comes first
    assert named.shares == "draws on a, sentence 1 (50 %), and more on b (60 %)"
    assert _quotes(both) == ["Two days."]
    verdict = Verdict("together", ("b", "a"), 2, -0.1, -5.0, -0.1, -5.0, passages=(1, 0))
    assert _quotes(replace(both, verdict=verdict)) == [
        "b, sentence 1: Two days.", "a, sentence 1: One."
    ]  # fmt: skip


def test_what_speaks_against_counts_as_nothing() -> None:
    values = [[[0.5, -3.0, 0.5]]]
    result = result_of("A B C", "x", values, documents=[["a", 0, 1], ["b", 1, 2], ["c", 2, 3]])
    assert [source.share for source in rank_passages(result, [0])] == [0.5, 0.5, 0.0]
    nothing = result_of("A B C", "x", [[[0.0, -1.0, 0.0]]], documents=[["a", 0, 3]])
    assert str(statements_of(nothing)[0]) == '"x" draws on nothing in the prompt.'


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("Document _1: _A .\n Document _2: _B .", ["document 1", "document 2"]),
        ("A .\n\n B .\n\n Why ?", ["part 1", "part 2", "part 3"]),
        ("So . _Why ?", ["sentence 1", "sentence 2"]),
        (
            "<|im_start|> system \n Be _brief . <|im_end|> \n <|im_start|> user \n Why ?",
            ["message 1 (system)", "message 2 (user)"],
        ),
    ],
)
def test_a_prompt_falls_into_its_parts(prompt: str, names: list[str]) -> None:
    width = len(pieces(prompt))
    result = result_of(prompt, "x", np.ones((1, 1, width)))
    assert [passage.name for passage in passages_of(result)] == names


# -- asking ---------------------------------------------------------------------------------------


def test_ask_names_documents_and_confirms(writer: tuple[Any, Any]) -> None:
    model, tokenizer = writer
    answer = attnflow.ask((model, tokenizer), "the keys", TEXTS, max_new_tokens=4, confirm=True)
    assert {source.name for source in answer.statements[0].sources} == set(TEXTS)
    shares = [source.share for source in answer.statements[0].sources]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    assert str(answer).startswith(answer.text)
    confirmed = [omission.document for omission in answer.omissions]
    assert confirmed == [source.name for source in answer.statements[0].sources[:2]]
    for omission in answer.omissions:
        others = {n: t for n, t in TEXTS.items() if n != omission.document}
        again = attnflow.ask((model, tokenizer), "the keys", others, max_new_tokens=4)
        assert omission.answer == again.text
        assert omission.changed == (again.text.lower() != answer.text.lower())
    record = json.loads(json.dumps(answer.to_dict()))
    assert record["answer"] == answer.text
    assert "a.txt" in answer._repr_html_()


def test_every_statement_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model has no full stop: here every second token ends a sentence."""
    pairs = [slice(0, 2), slice(2, 4), slice(4, 6)]
    monkeypatch.setattr("attnflow.explainers.answers.statement_slices", lambda _: pairs)
    answer = attnflow.ask(tiny_decoder(), "the keys", TEXTS, max_new_tokens=6, min_new_tokens=6)
    assert len(answer.result.targets) == 3
    assert [len(text.split()) for text in answer.result.targets] == [2, 2, 2]


def test_verdicts_are_what_the_model_says_without_the_documents(writer: tuple[Any, Any]) -> None:
    """Each number held against passes in which a mask takes the tokens away.

    The sentence, of little use here, is hidden from the question and the answer only.
    """
    model, tokenizer = writer
    answer = attnflow.ask((model, tokenizer), "the keys", TEXTS, max_new_tokens=4)
    (statement,) = answer.statements
    verdict, result = statement.verdict, answer.result
    assert verdict is not None
    marks = result.provenance["documents"]
    every = [k for _, first, end in marks for k in range(first, end)]
    best = passages_of(result)[statement.sources[0].passage]
    number = statement.sources[0].sentence
    sentence = best.sentences[(number or 1) - 1].tokens
    ids, length = result.provenance["completion_ids"], result.provenance["prompt_length"]
    text, _ = question_text("the keys", answer.documents, chat=False)
    prompt = tokenizer(text)["input_ids"]
    assert len(prompt) == length

    def read(hidden: Any, start: int = 0) -> list[float]:
        count = length + len(ids) - 1
        seen = torch.ones(count, count, dtype=torch.bool).tril()
        seen[start:, list(hidden)] = False
        seen.fill_diagonal_(True)  # a row that sees nothing has no weights
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([[*prompt, *ids[:-1]]]),
                attention_mask=torch.zeros(1, 1, count, count).masked_fill(~seen, -1e30),
                position_ids=torch.arange(count)[None],
            ).logits[0, -len(ids) :]
        return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()

    # of the words that stand only in documents, that which they make likelier
    outside = {id_ for place, id_ in enumerate(prompt) if place not in every}
    new = [k for k, id_ in enumerate(ids) if id_ not in outside]
    base, prior = read(()), read(every)
    told = max(new, key=lambda k: math.exp(base[k] / 2) * (base[k] - prior[k]))
    assert verdict.word == tokenizer.convert_ids_to_tokens(ids)[told].lstrip("Ġ")
    alone = set(every) - set(best.columns)
    found = (verdict.log_prob, verdict.without, verdict.alone, verdict.prior)
    expected = [read(hidden)[told] for hidden in ((), sentence, alone, every)]
    expected[1] = read(sentence, max(every) + 1)[told]
    assert found == pytest.approx(expected, abs=1e-4)
    assert verdict.tokens == 1
    assert verdict.reason[1:] in answer._repr_html_()
    unchecked = attnflow.ask((model, tokenizer), "the keys", TEXTS, max_new_tokens=4, check=False)
    assert unchecked.statements[0].verdict is None
    assert {s.place for s in unchecked.statements[0].sources} == {
        s.place for s in statement.sources
    }


@pytest.mark.parametrize("method", ["careful", "leave-one-out", "raw"])
def test_ask_takes_every_method(writer: tuple[Any, Any], method: str) -> None:
    """A method that runs the model again explains the statements, and not each token."""
    model, tokenizer = writer
    plain = attnflow.ask((model, tokenizer), "the keys", TEXTS, max_new_tokens=4)
    answer = attnflow.ask((model, tokenizer), "the keys", TEXTS, max_new_tokens=4, method=method)
    assert answer.text == plain.text
    assert {source.name for source in answer.statements[0].sources} <= set(TEXTS)
    assert answer.statements[0].verdict is not None
    if method != "raw":
        assert len(answer.result.targets) == len(plain.statements)
        (mark,) = [m for m in answer.result.provenance["documents"] if m[0] == "c.txt"]
        known = ["the", "book", "is"]  # the other words are unknown, and no sources
        assert list(answer.result.sources)[mark[1] : mark[2]] == known


def test_messages_are_sources(writer: tuple[Any, Any], tmp_path: Path) -> None:
    """By the tokens that the template did not put there; a message may hold its words."""
    model, tokenizer = writer
    tokenizer = type(tokenizer).from_pretrained(_saved(tokenizer, tmp_path))
    tokenizer.chat_template = "{% for m in messages %}is {{ m['content'] }} .{% endfor %} to"
    turns = [
        {"role": "user", "content": "the keys"},
        {"role": "assistant", "content": "is the book of"},
        {"role": "user", "content": "the author"},
    ]
    for method in (None, "careful"):
        result = attnflow.generate((model, tokenizer), turns, method, max_new_tokens=3)
        passages = passages_of(result)
        names = ["message 1 (user)", "message 2 (assistant)", "message 3 (user)"]
        assert [passage.name for passage in passages] == names
        texts = [" ".join(result.sources[k] for k in passage.columns) for passage in passages]
        assert texts == [turn["content"] for turn in turns]
        assert {p.kind for p in passages} == {"message"}


def _saved(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


def test_documents_stay_with_a_saved_result(writer: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = writer
    result = attnflow.ask(
        (model, tokenizer), "the keys", TEXTS, max_new_tokens=3, min_new_tokens=2
    ).result
    result.save(tmp_path / "x.json")
    back = Attribution.load(tmp_path / "x.json")
    assert [passage.name for passage in passages_of(back)] == list(TEXTS)
    assert statements_of(back) == statements_of(result)


def test_what_cannot_be_asked_is_said(writer: tuple[Any, Any]) -> None:
    model, tokenizer = writer
    with pytest.raises(InputError, match="A question is a text that is not empty; got ''"):
        attnflow.ask((model, tokenizer), "", TEXTS)


def test_documents_go_before_the_question() -> None:
    assert compose_prompt("Why?", [Document("a", " So.\n")]) == ("So.\n\nWhy?", [(0, 3)])


# -- the command ----------------------------------------------------------------------------------


def test_files_of_one_name_are_called_by_their_folders(folder: Path, tmp_path: Path) -> None:
    assert [d.name for d in read_documents([str(folder / "*.txt")])] == list(TEXTS)
    (tmp_path / "a.txt").write_text("another", encoding="utf-8")
    names = [d.name for d in read_documents([str(folder / "a.txt"), str(tmp_path / "a.txt")])]
    assert names == [str(folder / "a.txt"), str(tmp_path / "a.txt")]


def test_the_command_answers_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / name) for name in TEXTS]
    options = ["--model", str(folder / "model"), "--max-new-tokens", "4"]
    assert _run(["ask", "the keys", *files, *options, "--confirm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"No source found for “{lines[0]}”")  # a model of random numbers
    assert any(line.startswith("without ") for line in lines)
    page = folder / "answer.html"
    assert _run(["ask", "the keys", *files, *options, "--output", str(page)]) == 0
    assert "a.txt" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert _run(["ask", "the keys", *files, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == lines[0]


def test_the_command_says_how_sure_and_takes_methods(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--documents", str(folder / "a.txt"), str(folder / "b.txt")]
    options = ["--model", str(folder / "model"), "--max-new-tokens", "4"]
    assert _run(["ask", "the keys", *files, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("does not need the documents" in line for line in lines)
    assert not any("Shares" in line for line in lines)  # none is told
    options += ["--no-check"]
    assert _run(["ask", "the keys", *files, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"“{lines[0]}” draws on ")
    assert "sentence" in lines[2]
    assert _run(["ask", "the keys", *files, *options, "--method", "careful"]) == 0
    assert "the whole model" in capsys.readouterr().out
    assert _run(["ask", "the keys", *files, *options, "--method", "rollout"]) == 0
    assert "Rollout" in capsys.readouterr().out


def test_a_conversation_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chatty = tmp_path / "chatty"
    chatty.mkdir()
    for file in (folder / "model").iterdir():
        (chatty / file.name).write_bytes(file.read_bytes())
    (chatty / "chat_template.jinja").write_text(
        "{% for m in messages %}is {{ m['content'] }} .{% endfor %} to", encoding="utf-8"
    )
    turns = ["--message", "system=the book is old", "--message", "user=the keys"]
    options = ["--model", str(chatty), "--max-new-tokens", "4"]
    assert _run(["generate", *turns, *options]) == 0
    said = capsys.readouterr().out
    assert re.search(r"draws on (message \d \((system|user)\)|all alike: no message)", said)
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "the keys"}]', encoding="utf-8")
    assert _run(["generate", "--message", str(chat), *options]) == 0
    capsys.readouterr()
    for wrong, sentence in (
        (["generate", "--message", "the keys", *options], "must read ROLE=TEXT"),
        (["generate", "x", "--message", "user=the keys", *options], "only one of them"),
        (["generate", "--message", "user= ", *options], "content are texts"),
    ):
        assert _run(wrong) == 2
        assert sentence in capsys.readouterr().err


def test_the_command_checks_before_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["ask", "why?"]) == 2
    assert "There is no document: name files" in capsys.readouterr().err
    assert _run(["ask", "why?", "nowhere.txt"]) == 2
    assert "there is no such file" in capsys.readouterr().err
