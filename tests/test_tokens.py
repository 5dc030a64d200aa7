"""Targets by position and by token; word pieces to words."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow.errors import TargetError, TokensError
from attnflow.tokens import Grid, Tokens, is_special, readable, words_of_pieces
from attnflow.tokens.text import common_tokens, labels, surfaces

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


@pytest.mark.parametrize(
    ("pieces", "as_text", "as_labels"),
    [
        (["[CLS]", "un", "##lock", "it"], "[CLS] unlock it", ["[CLS]", "un", "lock", "it"]),
        (["<s>", "▁the", "▁ca", "fé"], "<s> the café", ["<s>", "the", "ca", "fé"]),
        (["▁a", "<0xE6>", "<0x9D>", "<0xB1>", "<0x0A>"], " a東\n", ["a", "…", "…", "東", "⏎"]),
        (["The", "ĠcafÃ©", "Ċ", "Ġ"], "The café\n ", ["The", "café", "⏎", "␣"]),
        (["ä½ł", "å¥½"], "你好", ["你", "好"]),  # byte-level BPE without a space
        (["naïve", "Łódź", "ān"], "naïve Łódź ān", ["naïve", "Łódź", "ān"]),  # letters, not bytes
        (["Ġa", "é"], " a\ufffd", ["a", "\ufffd"]),  # a character that is never ended
        (["Ġa", "é", "<|end|>"], " a\ufffd<|end|>", ["a", "\ufffd", "<|end|>"]),
        (["the", "key"], "the key", ["the", "key"]),
        (["a\tb", "\x00"], "a\tb \x00", ["a\\tb", "\\x00"]),
        (["", "a"], " a", ["␣", "a"]),
        ([], "", []),
    ],
)
def test_one_way_from_pieces_to_text(pieces: list[str], as_text: str, as_labels: list[str]) -> None:
    assert "".join(surfaces(pieces)) == as_text
    assert labels(pieces) == as_labels
    tokens = Tokens(tuple(pieces))
    assert tokens.text == tuple(as_labels)
    assert tokens.raw == tokens.texts == tuple(pieces)


def test_a_piece_alone_is_read_too() -> None:
    assert [readable(piece) for piece in ("ĠcafÃ©", "Ã©", "▁of", "##ing", "é")] == [
        *("café", "é", "of", "ing", "é")
    ]


def test_bytes_of_sentencepiece_are_no_special_tokens() -> None:
    assert not is_special("<0x0A>")
    assert words_of_pieces(["▁a", "<0xC3>", "<0xA9>", "▁b"]) == (0, 0, 0, 1)


def test_people_name_tokens_as_they_read_them() -> None:
    tokens = Tokens(("<s>", "ĠcafÃ©", "Ċ"))
    assert tokens.index_of("café") == 1
    assert tokens.index_of("⏎") == 2
    assert common_tokens(["ĠÃł", "Ġthe"]).tolist() == [False, True]


def test_a_tokenizer_that_ignores_spaces_does_not_make_one_word() -> None:
    """Its word numbers are all 0; the marks of its pieces still say where words begin."""
    tokens = Tokens(("▁the", "▁ca", "bin", "▁is"), words=(0, 0, 0, 0))
    assert tokens.groups() == [[0], [1, 2], [3]]
    with pytest.raises(TokensError, match="takes all 3 tokens for pieces of one word"):
        Tokens(("[CLS]", "t", "h", "e"), words=(None, 0, 0, 0)).groups()
    assert Tokens(("un", "##lock"), words=(0, 0)).groups() == [[0, 1]]
    assert Tokens(("don", "'", "t"), words=(0, 1, 2)).groups() == [[0], [1], [2]]


def test_targets_of_other_kinds() -> None:
    assert KEY.indices_of(np.array([0, 2])) == [0, 2]  # type: ignore[arg-type]
    assert KEY.indices_of(np.int64(2)) == [2]  # type: ignore[arg-type]
    assert KEY.indices_of(range(2)) == [0, 1]
    for wrong in (np.array([0.5]), np.array([True]), [[0]], None, b"key", {"a": 1}, object()):
        with pytest.raises(TargetError, match="a position"):
            KEY.index_of(wrong)  # type: ignore[arg-type]


def test_torch_scalars_are_targets() -> None:
    torch = pytest.importorskip("torch")
    assert KEY.index_of(torch.tensor(2)) == 2
    assert KEY.indices_of(torch.tensor([0, 2])) == [0, 2]
    for wrong in (torch.tensor(1.5), torch.tensor(True), torch.tensor([1, 2])):
        with pytest.raises(TargetError, match="a position"):
            KEY.index_of(wrong)


def test_messages_do_not_repeat_long_inputs() -> None:
    long = "x" * 100_000
    for call in (
        lambda: KEY.index_of(long),
        lambda: Tokens((long, long)).index_of("y"),
        lambda: Tokens((long, long)).index_of(long),
        lambda: KEY.span_of(long),
        lambda: Tokens.of(long),
        lambda: Tokens((long,)).span_of("y"),
    ):
        with pytest.raises((TargetError, TokensError)) as caught:
            call()
        assert len(str(caught.value)) < 1000


def test_positions_words_and_grids_are_checked() -> None:
    for wrong in ({"positions": (-1, 0)}, {"positions": (0.5, 1)}, {"words": ("x", 0)}):
        with pytest.raises(TokensError, match="are whole numbers from 0"):
            Tokens(("a", "b"), **wrong)  # type: ignore[arg-type]
    with pytest.raises(TokensError, match="rows is a whole number of at least 1; got 0"):
        Grid(0, 1, 0, 1, 1)
    with pytest.raises(TokensError, match="tokens is a int, 5; pass a list"):
        Tokens.of(5)  # type: ignore[arg-type]
