"""Texts and images as a transformers model takes them, and the names of their positions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedModel

from attnflow.errors import ModelError, TokensError, shorten
from attnflow.hosts.adapter import ModelFacts
from attnflow.tokens import Tokens

_NO_TOKENIZER = (
    "A text needs the model's tokenizer: pass attnflow.load(model, tokenizer=AutoTokenizer."
    "from_pretrained(...)), or pass the model's name instead of the loaded model."
)


def checked_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer, or an error that says where one comes from."""
    if tokenizer is None:
        raise TokensError(_NO_TOKENIZER)
    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TokensError(f"tokenizer={shorten(tokenizer)} is not a tokenizer. {_NO_TOKENIZER}")
    return tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str]) -> Any:
    """With the tokenizer's special tokens; padded on the right, as left would shift positions."""
    checked_tokenizer(tokenizer)
    if len(texts) > 1 and getattr(tokenizer, "pad_token_id", None) is None:
        return tokenizer(list(texts))  # `padded` fills it up
    options = {"padding": True, "padding_side": "right"} if len(texts) > 1 else {}
    return tokenizer(list(texts), return_tensors="pt", **options)


def padded(encoded: Any, facts: ModelFacts) -> Mapping[str, Tensor]:
    """Texts of a tokenizer that has no padding token, filled up on the right, with their mask."""
    rows = encoded["input_ids"]
    if isinstance(rows, Tensor):
        return encoded
    longest = max(map(len, rows))
    fill = {"input_ids": facts.pad_token or 0}
    masks = {"attention_mask": [[1] * len(row) for row in rows]}
    return {
        name: torch.tensor([[*row, *[fill.get(name, 0)] * (longest - len(row))] for row in lines])
        for name, lines in {**encoded, **masks}.items()
    }


def words_of(encoded: Any, texts: Sequence[str]) -> tuple[tuple[int | None, ...], ...] | None:
    """Return for each text the word that each position is a piece of, where the tokenizer tells.

    Some tokenizers take a space for a letter like any other, and a sentence for one word. Where
    there are fewer words than the spaces make, the spaces decide.
    """
    if not encoded.is_fast:
        return None
    return tuple(_words(encoded, example, text) for example, text in enumerate(texts))


def _words(encoded: Any, example: int, text: str) -> tuple[int | None, ...]:
    words: list[int | None] = list(encoded.word_ids(example))
    if len({word for word in words if word is not None}) >= len(text.split()):
        return tuple(words)
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    spans = [encoded.token_to_chars(example, k) for k in range(len(words))]
    return tuple(
        None if word is None or span is None else _word_at(starts, text, span.start, span.end)
        for word, span in zip(words, spans, strict=True)
    )


def _word_at(starts: Sequence[int], text: str, start: int, end: int) -> int | None:
    """The word that the characters from start to end belong to; a token may begin with a space."""
    first = next((k for k in range(start, end) if not text[k].isspace()), None)
    return None if first is None else sum(begin <= first for begin in starts) - 1


def prefix_ids(tokenizer: Any, text: str) -> list[int]:
    """Return a decoder's text as a beginning: what the tokenizer puts before it, no end."""
    if tokenizer is None:
        raise TokensError(_NO_TOKENIZER)
    framed = list(tokenizer(text_target=text)["input_ids"])
    plain = list(tokenizer(text_target=text, add_special_tokens=False)["input_ids"])
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[: start + len(plain)]
    return plain


def decoder_inputs(
    tokenizer: Any, texts: Sequence[str] | None, count: int, facts: ModelFacts
) -> dict[str, Tensor]:
    """Return the decoder's start token, then the text that it has written so far, if any."""
    if facts.start_token is None:
        raise TokensError("The model names no token to start its decoder with.")
    if texts is None:
        return {"decoder_input_ids": torch.full((count, 1), facts.start_token)}
    if len(texts) != count:
        raise TokensError(f"{len(texts)} decoder texts were given for {count} texts.")
    rows = [after_start(prefix_ids(tokenizer, text), facts) for text in texts]
    longest = 1 + max(map(len, rows))
    pad = facts.pad_token or 0
    ids = [[facts.start_token, *row, *[pad] * (longest - 1 - len(row))] for row in rows]
    mask = [[1] * (1 + len(row)) + [0] * (longest - 1 - len(row)) for row in rows]
    return {"decoder_input_ids": torch.tensor(ids), "decoder_attention_mask": torch.tensor(mask)}


def check_vocabulary(model: Any, ids: Tensor) -> None:
    """Check that the model has a vector for every one of these tokens of its input."""
    words = model.get_input_embeddings()
    count = getattr(words, "num_embeddings", None)
    if count is None or ids.is_floating_point() or not ids.numel():
        return
    outside = ids[(ids < 0) | (ids >= count)]
    if outside.numel():
        raise TokensError(
            f"The token with the number {int(outside[0])} is none of the {count} that "
            f"{type(model).__name__} knows. The tokenizer is another model's, or tokens were added "
            "to it and not to the model (model.resize_token_embeddings)."
        )


def shifted_input(ids: Tensor, facts: ModelFacts) -> Tensor:
    """Return what such a decoder reads: the start token, then the input but its last token."""
    if facts.start_token is None:
        raise TokensError("The model names no token to start its decoder with.")
    return torch.cat([torch.full_like(ids[:, :1], facts.start_token), ids[:, :-1]], dim=1)


def after_start(ids: list[int], facts: ModelFacts) -> list[int]:
    """Without the start token, if the tokenizer has put it there already."""
    return ids[1:] if ids[:1] == [facts.start_token] else ids


def tokens_of(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the tokens of these ids by name; by number where there is no tokenizer."""
    names = list(ids) if tokenizer is None else tokenizer.convert_ids_to_tokens(list(ids))
    return Tokens(tuple(map(str, names)))


_PROCESSORS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()


def own_processor(model: PreTrainedModel) -> Any:
    """Return the image processor that was saved beside the model's weights; loaded once."""
    if model in _PROCESSORS:
        return _PROCESSORS[model]
    name = str(getattr(model.config, "name_or_path", ""))
    hint = "pass one: processor=..., for example AutoImageProcessor.from_pretrained(...)."
    if not name:
        raise ModelError(
            f"This {type(model).__name__} was not loaded from a folder or a name, so there is no "
            f"image processor beside it; {hint}"
        )
    try:
        # Pillow's: the same pixels whether or not torchvision is installed.
        processor = AutoImageProcessor.from_pretrained(name, backend="pil")
    # The library raises many unrelated types where a processor is missing; all mean the same here.
    except Exception as error:
        raise ModelError(
            f"The model {shorten(name)} has no image processor that can be loaded "
            f"({type(error).__name__}: {str(error)[:200]}). Images need one beside the weights "
            f"(preprocessor_config.json); or {hint}"
        ) from error
    return _PROCESSORS.setdefault(model, processor)
