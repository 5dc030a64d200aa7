"""Texts divided into tokens, words, sentences and documents."""

from __future__ import annotations

import pytest

from attnflow.errors import InputError
from attnflow.tokens.text import surfaces as pieces
from attnflow.tokens.units import split_units, text_spans, tokens_in

BYTES = ["The", "Ġold", "Ġhou", "se", ".", "Ċ", "Ċ", "He", "Ġleft", "!", "ĠWhy", "?"]


def spelled(text: str, level: str) -> list[str]:
    return [text[a:b] for a, b in text_spans(text, level)]  # type: ignore[arg-type]


def test_words_are_what_spaces_divide_and_line_ends_are_no_words() -> None:
    words = split_units(BYTES, "word")
    assert [unit.text for unit in words] == ["The", "old", "house.", "He", "left!", "Why?"]
    assert [unit.tokens for unit in words] == [(0,), (1,), (2, 3, 4), (7,), (8, 9), (10, 11)]


def test_sentences_and_documents_hold_every_visible_token_once() -> None:
    sentences = split_units(BYTES, "sentence")
    assert [unit.text for unit in sentences] == ["The old house.", "He left!", "Why?"]
    documents = split_units(BYTES, "document")
    assert [unit.tokens for unit in documents] == [(0, 1, 2, 3, 4), (7, 8, 9, 10, 11)]


def test_tokens_are_units_too_line_ends_included() -> None:
    assert [unit.tokens for unit in split_units(BYTES, "token")] == [(k,) for k in range(12)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("Q: Where?\nA: Anna lives in", ["Q: Where?", "A: Anna lives in"]),
        ("no end", ["no end"]),
        ("  ", []),
        ("One (of two.) Two", ["One (of two.)", "Two"]),
    ],
)
def test_a_sentence_ends_with_its_mark_or_its_line(text: str, sentences: list[str]) -> None:
    assert spelled(text, "sentence") == sentences


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("One.\n\nTwo.\nStill two.", ["One.", "Two.\nStill two."]),
        ("Document 1: A.\n\nMore.\nDocument 2: B.\n\nQuestion?",
         ["Document 1: A.\n\nMore.", "Document 2: B."]),
        ("[1] A.\n[2] B.", ["[1] A.", "[2] B."]),
        ("1. A\n2. B", ["1. A", "2. B"]),
        ("1. Only one number", ["1. Only one number"]),
        ("\n\n \n\n", []),
    ],
)  # fmt: skip
def test_documents_are_numbered_blocks_or_what_blank_lines_divide(
    text: str, documents: list[str]
) -> None:
    assert spelled(text, "document") == documents


def test_parts_are_divided_each_on_its_own() -> None:
    text = "".join(pieces(BYTES))
    start = text.index("left")
    units = split_units(BYTES, "sentence", inside=[(0, 7), (start, len(text))])
    assert [unit.text for unit in units] == ["The old", "left!", "Why?"]
    assert [unit.tokens for unit in split_units(BYTES, "token", inside=[(0, 7)])] == [(0,), (1,)]


def test_tokens_that_frame_a_text_are_no_part_of_its_words() -> None:
    tokens = ["<s>", "Hi", "Ġthere", "</s>", "Yes"]
    assert [u.tokens for u in split_units(tokens, "word", framing=[0, 3])] == [(1,), (2,), (4,)]
    assert [u.tokens for u in split_units(tokens, "sentence", framing=[0, 3])] == [(1, 2), (4,)]


def test_bytes_of_sentencepiece_are_read() -> None:
    assert pieces(["▁One", ".", "<0x0A>", "▁Two"]) == [" One", ".", "\n", " Two"]
    units = split_units(["▁One", "<0x0A>", "▁Two"], "sentence")
    assert [unit.tokens for unit in units] == [(0,), (2,)]


def test_a_token_belongs_where_its_last_visible_character_stands() -> None:
    assert tokens_in(["one", " two", "  ", "three"], (0, 5)) == [0]
    assert tokens_in(["one", " two", "  ", "three"], (3, 14)) == [1, 3]


def test_unknown_levels_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="Did you mean 'word'"):
        split_units(BYTES, "words")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tokenizer's"):
        text_spans("a", "token")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("## 1. Goods\nWe sell. Paper.", ["## 1. Goods", "We sell.", "Paper."]),
        (
            "1. on the website\n2) by mail\n(3) so\na. now",
            ["1. on the website", "2) by mail", "(3) so", "a. now"],
        ),
        ("**Care.** Keep it dry.", ["**Care.**", "Keep it dry."]),
        ("Title\n=====\nSo.", ["Title", "So."]),
        (
            "| No. | Mr. A. B. |\n|---|:-:|\n| 1. | approx. 5 min. |",
            ["| No. | Mr. A. B. |", "| 1. | approx. 5 min. |"],
        ),
        ("> Hello,\n>\n> it is so. Bye.", ["> Hello,", "> it is so.", "Bye."]),
        ("```py\nx = 1.5\ny = f(x).z\n```", ["x = 1.5", "y = f(x).z"]),
        (
            "Ask Mr. Pell, e.g. about No. 5, at 3.30 p.m. on Friday. No. Yes.",
            ["Ask Mr. Pell, e.g. about No. 5, at 3.30 p.m. on Friday.", "No.", "Yes."],
        ),
        ("By J. R. Brandvold of Acme Inc. in May.", ["By J. R. Brandvold of Acme Inc. in May."]),
        (
            "See Annex A. The grades are 12. Prices rose.",
            ["See Annex A.", "The grades are 12.", "Prices rose."],
        ),
        ("Kalt am 14. Januar. Gut.", ["Kalt am 14. Januar.", "Gut."]),
        (
            '"Why?" she asked. "No." He left... and came.',
            ['"Why?" she asked.', '"No."', "He left... and came."],
        ),
        ("第一句。第二句！「三？」", ["第一句。", "第二句！", "「三？」"]),
        ("صحيح؟ نعم. पहला है। दूसरा", ["صحيح؟", "نعم.", "पहला है।", "दूसरा"]),
        ("i came. he left .", ["i came.", "he left ."]),
        ("---", ["---"]),
    ],
)
def test_ordinary_documents_fall_into_sentences(text: str, sentences: list[str]) -> None:
    assert spelled(text, "sentence") == sentences


def test_a_line_broken_by_its_width_goes_on() -> None:
    first = "> this line of a reply was broken by the width of the program that wrote it,"
    assert spelled(f"{first}\n> and goes on. Bye.", "sentence") == [
        f"{first}\n> and goes on.",
        "Bye.",
    ]
    assert len(spelled(f"{first}\n>> another writer", "sentence")) == 2
    assert len(spelled(f"{first}\n>\n> a new paragraph", "sentence")) == 2
    assert len(spelled("short line,\nand the next", "sentence")) == 2


def test_long_texts_take_no_time() -> None:
    for text in ("word. " * 20_000, "x" * 200_000, "a.\n" * 20_000, "。" * 20_000):
        assert spelled(text, "sentence")
