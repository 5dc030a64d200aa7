"""A language model of two layers that is written down instead of learned.

It answers questions about drawn scenes by the attention one would hope for. In the first layer a
word such as "circle" attends to the image tokens that show one and takes over their colour ("red"
likewise takes over a shape). In the second layer "?" attends to that word and reads the answer off
it; after "left of" it attends to the leftmost object instead. Every number below is a direction in
the residual stream (64 wide) or a weight between two of them.

The sizes follow from RMSNorm: every token carries `BULK` = 2 beside a few ones, so what a layer
reads is about three times what was written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from attnflow.models.drawn_scenes import COLOURS, SHAPES

__all__ = ["BULK", "COLOUR", "OBJECT", "PLACE", "SHAPE", "wire"]

COLOUR, SHAPE = slice(0, 6), slice(6, 12)  # what a word says, what an image token shows
CONTENT, QUESTION, START, PLAIN = 12, 13, 18, 19  # kinds of words
SIDE = slice(14, 18)  # left, right, above, below
FETCHED_COLOUR, FETCHED_SHAPE = slice(20, 26), slice(26, 32)  # of the object that a word names
PLACE = slice(32, 34)  # of an image token: x and y, from -1 to 1
OBJECT = 34  # 1 for an image token that shows an object
ANSWER_COLOUR, ANSWER_SHAPE = slice(40, 46), slice(46, 52)
ASKED_SIDE = slice(52, 56)
PLACE_ANSWER = 57  # of a word of the answer: a side was asked for
BULK = 56  # 2 everywhere, so that all tokens are about equally long

_HEAD = 16
_FREE = (2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15)  # of a head: turned by less than .3 in a scene
_WRITTEN = 0.37  # what is read three times as long is written as it was


def wire(model: LlavaForConditionalGeneration, tokenizer: Any) -> None:
    """Write the language model down; the vision tower and the connector stay as they are."""
    with torch.no_grad():
        language: Any = model.model.language_model
        for name, parameter in language.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        language.embed_tokens.weight.copy_(_embeddings(tokenizer, language.embed_tokens.weight))
        first, second = language.layers
        _match(first.self_attn, 0, SHAPE, SHAPE, 1.73)
        _hand_on(first.self_attn, 0, COLOUR, FETCHED_COLOUR)
        _match(first.self_attn, 1, COLOUR, COLOUR, 1.73)
        _hand_on(first.self_attn, 1, SHAPE, FETCHED_SHAPE)
        _look_for_side(first.self_attn, 2, QUESTION)
        _hand_on(first.self_attn, 2, SIDE, ASKED_SIDE)
        _look_for_side(first.self_attn, 3, CONTENT)
        first.self_attn.v_proj.weight[3 * _HEAD, SIDE] = 1.0
        first.self_attn.o_proj.weight[PLACE_ANSWER, 3 * _HEAD] = _WRITTEN
        _read_the_named_object(second.self_attn, 0)
        _find_the_outermost(second.self_attn, 1)
        _rest(second.self_attn, 2)
        _rest(second.self_attn, 3)
        _name_the_shape_too(second.mlp)
        model.lm_head.weight.copy_(_answers(tokenizer, model.lm_head.weight))


def _numbers(place: slice | int) -> list[int]:
    return [place] if isinstance(place, int) else list(range(place.start, place.stop))


def _embeddings(tokenizer: Any, like: Tensor) -> Tensor:
    """Each word's kind, and what it says."""
    rows = torch.zeros_like(like)
    rows[:, BULK] = 2.0
    ids = tokenizer.get_vocab()
    sides = dict(zip(("left", "right", "above", "below"), _numbers(SIDE), strict=True))
    for word, number in ids.items():
        rows[number, sides.get(word, PLAIN)] = 1.0
    rows[ids["<bos>"], START] = 1.0
    rows[ids["?"], [QUESTION, PLAIN]] = torch.tensor([1.0, 0.0])
    for words, place in ((COLOURS, COLOUR), (SHAPES, SHAPE)):
        for word, direction in zip(words, _numbers(place), strict=True):
            rows[ids[word], PLAIN] = 0.0
            rows[ids[word], [direction, CONTENT]] = 1.0
    return rows


def _match(attention: Any, head: int, query: slice, key: slice, strength: float) -> None:
    """Like attends to like in these directions; words only ask, image tokens answer."""
    pairs = zip(_FREE, _numbers(query), _numbers(key), strict=False)
    for dimension, asked, shown in pairs:
        attention.q_proj.weight[head * _HEAD + dimension, asked] = strength
        attention.k_proj.weight[head * _HEAD + dimension, shown] = strength
        attention.k_proj.weight[head * _HEAD + dimension, CONTENT] = -strength
    _rest(attention, head, _FREE[-1], 0.8)


def _hand_on(attention: Any, head: int, source: slice, target: slice) -> None:
    """What is read in one set of directions is written to another."""
    for dimension, (read, written) in enumerate(
        zip(_numbers(source), _numbers(target), strict=True)
    ):
        attention.v_proj.weight[head * _HEAD + dimension, read] = 1.0
        attention.o_proj.weight[written, head * _HEAD + dimension] = _WRITTEN


def _rest(attention: Any, head: int, dimension: int = _FREE[0], strength: float = 1.5) -> None:
    """A head that finds nothing attends to the start of the text, as heads of real models do."""
    attention.q_proj.weight[head * _HEAD + dimension, BULK] = strength
    attention.k_proj.weight[head * _HEAD + dimension, START] = 1.5 * strength


def _look_for_side(attention: Any, head: int, who: int) -> None:
    """Words of this kind look for "left", "right", "above" or "below"."""
    row = head * _HEAD + _FREE[0]
    attention.q_proj.weight[row, who] = 1.8
    attention.k_proj.weight[row, SIDE] = 1.8
    attention.k_proj.weight[row, START] = 1.3


def _read_the_named_object(attention: Any, head: int) -> None:
    """ "?" attends to the word that names an object, unless a side is asked for."""
    row = head * _HEAD + _FREE[0]
    attention.q_proj.weight[row, QUESTION] = 1.75
    attention.q_proj.weight[row, ASKED_SIDE] = -3.5
    attention.k_proj.weight[row, CONTENT] = 1.75
    for dimension, (read, written) in enumerate(
        zip(
            [*_numbers(FETCHED_COLOUR), *_numbers(FETCHED_SHAPE)],
            [*_numbers(ANSWER_COLOUR), *_numbers(ANSWER_SHAPE)],
            strict=True,
        )
    ):
        attention.v_proj.weight[head * _HEAD + dimension, read] = 1.0
        attention.o_proj.weight[written, head * _HEAD + dimension] = _WRITTEN


def _find_the_outermost(attention: Any, head: int) -> None:
    """Where a side is asked for, "?" attends to the object furthest on that side.

    A place is asked for only where one object is on that side, so it is the outermost.
    """
    x, y = _numbers(PLACE)
    ways = ((x, -1.0), (x, 1.0), (y, -1.0), (y, 1.0))
    for dimension, asked, (axis, sign) in zip(_FREE, _numbers(ASKED_SIDE), ways, strict=False):
        row = head * _HEAD + dimension
        attention.q_proj.weight[row, asked] = 2.0
        attention.k_proj.weight[row, axis] = 1.5 * sign
        attention.k_proj.weight[row, OBJECT] = 3.0
    _rest(attention, head, _FREE[-1], 1.0)
    _hand_on(attention, head, COLOUR, ANSWER_COLOUR)


def _name_the_shape_too(mlp: Any) -> None:
    """After a colour that answers for a place, the shape of the object of that colour follows."""
    for unit, (fetched, answer) in enumerate(
        zip(_numbers(FETCHED_SHAPE), _numbers(ANSWER_SHAPE), strict=True)
    ):
        mlp.gate_proj.weight[unit, COLOUR] = 4.0
        mlp.gate_proj.weight[unit, PLACE_ANSWER] = 4.0
        mlp.gate_proj.weight[unit, BULK] = -3.0
        mlp.up_proj.weight[unit, fetched] = 1.0
        mlp.down_proj.weight[answer, unit] = 0.075


def _answers(tokenizer: Any, like: Tensor) -> Tensor:
    """The answer's word; after a word that answers, the end."""
    rows = torch.zeros_like(like)
    ids = tokenizer.get_vocab()
    for words, place in ((COLOURS, ANSWER_COLOUR), (SHAPES, ANSWER_SHAPE)):
        for word, direction in zip(words, _numbers(place), strict=True):
            rows[ids[word], direction] = 2.5
    rows[tokenizer.eos_token_id, CONTENT] = 2.0
    return rows
