"""Targets by position and by token; word pieces to words."""

from __future__ import annotations

import pytest

from attnflow.errors import TargetError, TokensError
from attnflow.tokens import Tokens, words_of_pieces

KEY = Tokens(("[CLS]", "the", "key", "to", "the", "cabinets", "[EOS]"))


def test_targets_by_position_and_token() -> None:
    assert KEY.index_of(2) == KEY.index_of("key") == 2
    assert KEY.index_of(-1) == 6
    assert KEY.indices_of(None) == list(range(7))
    assert KEY.indices_of("key") == [2]
    assert KEY.indices_of(["cabinets", 0]) == [5, 0]


def test_positions_survive_a_selection() -> None:
    some = KEY.select([5, 2])
    assert some.index_of("key") == 1
    assert some.index_of(5) == 0
    with pytest.raises(TargetError, match="No position 1 here; choose from 5 'cabinets', 2 'key'"):
        some.index_of(1)


def test_marks_of_the_tokenizer_need_not_be_typed() -> None:
    assert Tokens(("<s>", "Ġbook", "s")).index_of("book") == 1


def test_an_unknown_token_lists_the_tokens_and_suggests() -> None:
    with pytest.raises(TargetError, match=r"No token 'keys'.*Did you mean 'key'.*2 'key', 3 'to'"):
        KEY.index_of("keys")


def test_a_repeated_token_lists_its_positions() -> None:
    with pytest.raises(TargetError, match="'the' occurs 2 times, at positions 1, 4"):
        KEY.index_of("the")


@pytest.mark.parametrize("target", [7, -8, 99])
def test_a_position_outside_lists_the_tokens(target: int) -> None:
    with pytest.raises(TargetError, match=f"No position {target} here.*6 '\\[EOS\\]'"):
        KEY.index_of(target)


@pytest.mark.parametrize("target", [1.5, True, b"key"])
def test_other_types_are_refused(target: object) -> None:
    with pytest.raises(TargetError, match=r"a position \(int\) or a token \(str\)"):
        KEY.index_of(target)  # type: ignore[arg-type]


def test_no_targets_is_an_error() -> None:
    with pytest.raises(TargetError, match="No target given"):
        KEY.indices_of([])


def test_long_lists_are_cut() -> None:
    many = Tokens(tuple(str(i) for i in range(500)))
    with pytest.raises(TargetError, match=r"\(440 more\)"):
        many.index_of("x")


def test_lengths_must_agree() -> None:
    with pytest.raises(TokensError, match="2 tokens but 1 positions"):
        Tokens(("a", "b"), (0,))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["[CLS]", "un", "##lock", "##ed", "book", "[SEP]"], (None, 0, 0, 0, 1, None)),
        (["<s>", "un", "lock", "Ġthe", "Ġbo", "ok", "</s>"], (None, 0, 0, 1, 2, 2, None)),
        (["▁the", "▁ca", "bin", "et"], (0, 1, 1, 1)),
        (["the", "key"], (0, 1)),
    ],
)
def test_words_from_marks(pieces: list[str], words: tuple[int | None, ...]) -> None:
    assert words_of_pieces(pieces) == words


def test_groups_and_merged_words() -> None:
    tokens = Tokens(("[CLS]", "un", "##lock", "##ed", "book", "[SEP]"))
    groups = tokens.groups()
    assert groups == [[0], [1, 2, 3], [4], [5]]
    merged = tokens.merged(groups)
    assert merged.texts == ("[CLS]", "unlocked", "book", "[SEP]")
    assert merged.positions == (0, 1, 4, 5)


def test_byte_level_pieces_are_read_as_text() -> None:
    """Against the library that writes them: the same text, and the same piece by piece."""
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "Zoë, où? 東京\t¿\u00ad\x7f"
    (whole, _), *_ = byte_level.pre_tokenize_str(" " + text)
    pieces = [whole[:1], *whole[1:]]  # one byte each: most characters are torn apart
    surfaces = Tokens.of(pieces).surfaces()
    assert "".join(surfaces) == " " + text
    assert len(surfaces) == len(pieces)
    assert surfaces.count("") == len(pieces) - len(text) - 1
    assert Tokens.of(["<|im_start|>", "ĠZo", "Ã«"]).surfaces() == ["<|im_start|>", " Zo", "ë"]
    assert Tokens.of(["Ġa", "é", "Ġb"]).surfaces() == [" a", "", "\ufffd b"]
