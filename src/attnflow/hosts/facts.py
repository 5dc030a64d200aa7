"""What must be known of a model to run it and to read its answer, asked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["AnswerPosition", "ModelFacts"]

AnswerPosition = Literal["first", "last", "mask", "each", "mean"]


@dataclass(frozen=True)
class ModelFacts:
    """What a model's config and class say of it (`Adapter.facts`).

    causal: no position attends to a later one. False for an encoder–decoder, whose decoder is.
    encoder_decoder: the inputs are read by an encoder, the answer is written by a decoder.
    answer: the position the answer is read from: the "first", the "last" that is no padding, the
        first "mask", or "each" where every position has an answer of its own; "mean" where the
        head reads the mean of all positions; None where the model has no head that is known.
    padding_side: where a batch of prompts is padded when the model writes.
    start_token: what the decoder of an encoder–decoder starts with.
    end_token: what ends a text, where the model names it.
    decoder_reads_input: the decoder reads the input once more, shifted by one, and the answer is
        read at its last end token, as the classifiers of encoder–decoders do.
    pad_token: what the model itself takes for padding.
    max_length: the most tokens one text may have, where the model has a limit.
    """

    causal: bool = False
    encoder_decoder: bool = False
    answer: AnswerPosition | None = None
    padding_side: Literal["left", "right"] = "right"
    start_token: int | None = None
    end_token: int | None = None
    decoder_reads_input: bool = False
    pad_token: int | None = None
    max_length: int | None = None
