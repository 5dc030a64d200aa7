"""Prompts as a language model takes them: encoded, padded on the model's side, checked, neutral."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attnflow.errors import InputError, TokensError, shorten
from attnflow.hosts.adapter import device_of, on_device
from attnflow.hosts.inputs import (
    check_vocabulary,
    checked_text,
    checked_tokenizer,
    padding_to_the_right,
    tokens_of,
)
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.tokens.text import common_tokens

Message = Mapping[str, str]
Prompts = (
    str
    | Sequence[str]
    | Sequence[Message]
    | Sequence[Sequence[Message]]
    | Mapping[str, Tensor]
    | Mapping[str, Any]
)
_FILLER = " thing"
_SIGN = "\ue000"  # of the private use area: in no template and in no text


@dataclass(frozen=True)
class Prompt:
    """One prompt without padding: token ids, and which of them a chat template put there."""

    ids: list[int]
    form: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class PromptBatch:
    """Some prompts padded to one length: ids and mask (batch, length), the mask 0 at padding."""

    ids: Tensor
    mask: Tensor
    extra: Mapping[str, Tensor]
    several: bool
    forms: tuple[tuple[bool, ...] | None, ...] = ()

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.ids.shape[1])

    @property
    def padding(self) -> list[int]:
        """How many positions of each example are padding."""
        return (self.length - self.mask.sum(dim=1)).tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def prompts(self) -> list[Prompt]:
        """Each example alone."""
        forms = self.forms or (None,) * len(self)
        rows = zip(self.ids, self.mask.bool(), forms, strict=True)
        return [Prompt(ids[words].tolist(), form) for ids, words, form in rows]

    def inputs(self) -> dict[str, Tensor]:
        """What the model's generate() takes."""
        return {"input_ids": self.ids, "attention_mask": self.mask, **self.extra}


def encode_prompts(model: Model, prompts: Prompts) -> PromptBatch:
    """Encode texts, conversations of messages, or inputs that the user prepared."""
    if isinstance(prompts, Mapping):
        return _wrap_prompts(model, prompts)
    checked_tokenizer(model.tokenizer)
    if not isinstance(prompts, (str, Sequence)) or not prompts:
        raise TokensError(f"There is nothing to continue: the prompt is {shorten(prompts)}.")
    single = isinstance(prompts, str) or all(isinstance(text, Mapping) for text in prompts)
    rows: list[Any] = [prompts] if single else list(prompts)
    encoded = [_encode(model.tokenizer, row) for row in rows]
    for prompt in encoded:
        check_vocabulary(model.module, torch.tensor(prompt.ids))
    return _padded(model, encoded, not single)


def as_chat(text: str) -> list[Message]:
    """Return a text as a conversation of one message: the model's chat template is used."""
    return [{"role": "user", "content": text}]


def _padded(model: Model, prompts: Sequence[Prompt], several: bool) -> PromptBatch:
    """Pad on the side that the model's facts name: a decoder goes on at the right, an encoder
    reads from the left and was trained so.
    """
    longest = max(len(prompt.ids) for prompt in prompts)
    tokens = (model.tokenizer.pad_token_id, model.tokenizer.eos_token_id)
    pad = next((token for token in tokens if token is not None), 0)

    def fill(row: list[int], value: int) -> list[int]:
        filling = [value] * (longest - len(row))
        return filling + row if model.facts.padding_side == "left" else row + filling

    ids = [fill(prompt.ids, pad) for prompt in prompts]
    mask = [fill([1] * len(prompt.ids), 0) for prompt in prompts]
    device = device_of(model.module)
    return PromptBatch(
        torch.tensor(ids, device=device),
        torch.tensor(mask, device=device),
        {},
        several,
        tuple(prompt.form for prompt in prompts),
    )


def _encode(tokenizer: Any, prompt: object) -> Prompt:
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        return _encode_chat(tokenizer, prompt)
    if isinstance(prompt, Mapping):
        raise TokensError(
            "A list of prompts holds either texts or the messages of one conversation; this one "
            "mixes them."
        )
    ids = list(tokenizer(checked_text(prompt, "continue", "prompt"))["input_ids"])
    if not ids:
        raise TokensError(f"There is nothing to continue: the prompt is {shorten(prompt)}.")
    return Prompt(ids)


def _encode_chat(tokenizer: Any, prompt: Any) -> Prompt:
    if getattr(tokenizer, "chat_template", None) is None:
        raise TokensError(
            "This model's tokenizer has no chat template; pass the prompt as one text."
        )
    messages = list(prompt)
    for message in messages:
        checked_text(message.get("content"), "continue", "message")
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    ids = list(tokenizer.apply_chat_template(messages, **options)["input_ids"])
    return Prompt(ids, _form(tokenizer, messages, ids))


def _form(tokenizer: Any, messages: Sequence[Message], ids: list[int]) -> tuple[bool, ...] | None:
    """True where a token comes from the template, not from a message; None if it cannot be told."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if list(encoded["input_ids"]) != ids:
        return None
    spans = _placed(tokenizer, text, messages) or list(_contents(text, messages))
    return tuple(
        not any(start < end and begin < stop for begin, end in spans)
        for start, stop in encoded["offset_mapping"]
    )


def _placed(tokenizer: Any, text: str, messages: Sequence[Message]) -> list[tuple[int, int]] | None:
    """Where the messages stand, by what the template puts around signs that no text has.

    Words of a message may also be words of the template ("user"), so looking for them is not
    enough. None where the template does more than to put its own text around the messages.
    """
    signs = [f"{_SIGN}{k}{_SIGN}" for k in range(len(messages))]
    marked = [{**m, "content": sign} for m, sign in zip(messages, signs, strict=True)]
    try:
        form = tokenizer.apply_chat_template(marked, add_generation_prompt=True, tokenize=False)
    except Exception:  # templates raise what they like about messages that they do not like
        return None
    spans: list[tuple[int, int]] = []
    place = 0
    for message, sign in zip(messages, signs, strict=True):
        before, mark, form = form.partition(sign)
        begin = place + len(before)
        after = form.partition(_SIGN)[0]
        ends = (begin + len(c) for c in (message["content"], message["content"].strip()))
        end = next((e for e in ends if text[begin:e] and text.startswith(after, e)), None)
        if not mark or text[place:begin] != before or end is None:
            return None
        spans.append((begin, end))
        place = end
    return spans if text[place:] == form else None


def _contents(text: str, messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Where each message's own words stand in the whole text."""
    place = 0
    for message in messages:
        content = message["content"].strip()
        start = text.find(content, place)
        if start >= 0:
            place = start + len(content)
            yield start, place


def _wrap_prompts(model: Model, inputs: Mapping[str, Tensor]) -> PromptBatch:
    """Check prepared inputs: `input_ids`, with padding, if any, on the side the model takes it."""
    if "input_ids" not in inputs:
        raise TokensError(
            "A prepared prompt needs 'input_ids'; got "
            f"{', '.join(map(shorten, inputs)) or 'nothing'}."
        )
    tensors = on_device(inputs, device_of(model.module))
    ids = tensors["input_ids"]
    if ids.ndim != 2 or 0 in ids.shape:
        raise TokensError(
            f"input_ids must have the shape (batch, length), not empty; got {tuple(ids.shape)}."
        )
    tensors.setdefault("attention_mask", torch.ones_like(ids))
    side = model.facts.padding_side
    if side == "right":
        tensors = padding_to_the_right(tensors, "attention_mask")
    ids, mask = tensors.pop("input_ids"), tensors.pop("attention_mask")
    _check_padding(ids, mask, side)
    check_vocabulary(model.module, ids)
    return PromptBatch(ids, mask, tensors, several=len(ids) > 1)


def _check_padding(ids: Tensor, mask: Tensor, side: Literal["left", "right"]) -> None:
    if mask.shape != ids.shape:
        raise TokensError(
            f"attention_mask has the shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}."
        )
    edge, steps = (mask[:, -1], mask.diff()) if side == "left" else (mask[:, 0], -mask.diff())
    if bool(edge.all()) and not bool((steps < 0).any()):
        return
    if side == "left":
        raise TokensError(
            "A prompt's padding stands on the left, where generation leaves it behind; this "
            "attention_mask has gaps or padding on the right. Tokenize with padding_side='left'."
        )
    raise TokensError("This attention_mask has gaps; padding stands together, at one end.")


def neutral_prompt(model: ModelLike, prompt: Prompts) -> dict[str, list[list[int]]]:
    """Return a prompt with nothing in it: every word that says something becomes one filler word.

    Special tokens, punctuation, function words and what a chat template put there stay where they
    are, so the neutral prompt has the same length and the same form, and draws the attention that
    form alone draws: a baseline, as `result.minus(generate(model, neutral_prompt(model, prompt),
    completion=...), name="neutral prompt", match="positions")`.

    >>> from attnflow.testing import tiny_decoder
    >>> len(neutral_prompt(tiny_decoder(), "the keys to")["input_ids"][0])
    3
    """
    loaded = as_model(model, default="smollm2")
    batch = encode_prompts(loaded, prompt)
    if len(batch) != 1:
        raise InputError(f"neutral_prompt() takes one prompt; got {len(batch)}.")
    (encoded,) = batch.prompts()
    row = neutral_ids(loaded.tokenizer, encoded.ids, encoded.form)
    return {"input_ids": [row], "attention_mask": [[1] * len(row)]}


def neutral_ids(
    tokenizer: Any, ids: Sequence[int], form: Sequence[bool] | None = None
) -> list[int]:
    """Return these ids with a filler in place of each word that says something.

    form: True where a chat template put a token, which stays.
    """
    if tokenizer is None:
        raise TokensError(
            "The neutral prompt is made with the tokenizer: attnflow.load(model, tokenizer=...)."
        )
    common = common_tokens(tokens_of(tokenizer, ids)).tolist()
    # Tokens beside the vocabulary are signs of form, also those not declared as special.
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    special = {*tokenizer.all_special_ids, *added.values()}
    filler = tokenizer(_FILLER, add_special_tokens=False)["input_ids"][-1]
    rows = zip(ids, common, form or [False] * len(common), strict=True)
    return [token if token in special or word or sign else filler for token, word, sign in rows]
