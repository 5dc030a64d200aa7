"""Prompts as a language model takes them: encoded, padded on the left, checked, and neutral."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnflow.errors import InputError, TokensError
from attnflow.hosts.adapter import device_of
from attnflow.tokens import Tokens
from attnflow.tokens.common_words import common_tokens

__all__ = ["Message", "Prompt", "Prompts", "encode_prompts", "neutral_ids", "wrap_prompts"]

Message = Mapping[str, str]
Prompts = str | Sequence[str] | Sequence[Message] | Mapping[str, Tensor]
_FILLER = " thing"


@dataclass(frozen=True)
class Prompt:
    """Some prompts of one length, padding on the left: `padding[b]` positions of example b."""

    ids: Tensor
    mask: Tensor
    extra: Mapping[str, Tensor]
    several: bool

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.ids.shape[1])

    @property
    def padding(self) -> list[int]:
        """How many positions of each example are padding."""
        return (self.length - self.mask.sum(dim=1)).tolist()

    def own_ids(self, example: int) -> list[int]:
        """The example's tokens without padding."""
        return self.ids[example, self.padding[example] :].tolist()

    def inputs(self) -> dict[str, Tensor]:
        """What the model's generate() takes."""
        return {"input_ids": self.ids, "attention_mask": self.mask, **self.extra}


def encode_prompts(model: Any, tokenizer: Any, prompts: Prompts, *, chat: bool) -> Prompt:
    """Texts, a conversation, or inputs the user prepared."""
    if isinstance(prompts, Mapping):
        if chat:
            raise InputError("chat=True is for texts; prepared inputs are taken as they are.")
        return wrap_prompts(model, prompts)
    if tokenizer is None:
        raise TokensError(
            "A text needs the model's tokenizer: pass tokenizer=AutoTokenizer.from_pretrained(...),"
            " or pass the model's name instead of the loaded model."
        )
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    conversation = bool(texts) and all(isinstance(text, Mapping) for text in texts)
    rows = [texts] if conversation else texts
    ids = [_encoded(tokenizer, row, chat or conversation) for row in rows]
    if not ids or not all(ids):
        raise TokensError(f"There is nothing to continue: the prompt is {prompts!r}.")
    longest = max(map(len, ids))
    pad = next((p for p in (tokenizer.pad_token_id, tokenizer.eos_token_id) if p is not None), 0)
    padded = torch.tensor([[pad] * (longest - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    several = not isinstance(prompts, str) and not conversation
    device = device_of(model)
    return Prompt(padded.to(device), mask.to(device), {}, several)


def _encoded(tokenizer: Any, prompt: Any, chat: bool) -> list[int]:
    if not chat:
        if not isinstance(prompt, str) or not prompt.strip():
            raise TokensError(f"There is nothing to continue: the prompt is {prompt!r}.")
        return list(tokenizer(prompt)["input_ids"])
    if getattr(tokenizer, "chat_template", None) is None:
        raise TokensError("This model's tokenizer has no chat template; leave out chat=True.")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    encoded = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(encoded["input_ids"])


def wrap_prompts(model: Any, inputs: Mapping[str, Tensor]) -> Prompt:
    """Prepared inputs: `input_ids`, with padding, if any, on the left."""
    if "input_ids" not in inputs:
        raise TokensError(
            f"A prepared prompt needs 'input_ids'; got {', '.join(map(repr, inputs)) or 'nothing'}."
        )
    device = device_of(model)
    ids = torch.as_tensor(inputs["input_ids"]).to(device)
    if ids.ndim != 2 or 0 in ids.shape:
        raise TokensError(
            f"input_ids must have the shape (batch, length), not empty; got {tuple(ids.shape)}."
        )
    mask = torch.as_tensor(inputs.get("attention_mask", torch.ones_like(ids))).to(device)
    if mask.shape != ids.shape or not bool(mask[:, -1].all()) or bool((mask.diff() < 0).any()):
        raise TokensError(
            "A prompt's padding stands on the left, where generation leaves it behind; this "
            "attention_mask has gaps or padding on the right. Tokenize with padding_side='left'."
        )
    extra = {
        name: torch.as_tensor(value).to(device)
        for name, value in inputs.items()
        if name not in ("input_ids", "attention_mask")
    }
    return Prompt(ids, mask, extra, several=len(ids) > 1)


def neutral_ids(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The same prompt with nothing in it: every word that says something becomes one filler word.

    Special tokens, punctuation and function words stay where they are, so the neutral prompt has
    the same length and the same form, and draws the attention that form alone draws.
    """
    if tokenizer is None:
        raise TokensError(
            "The neutral prompt is made with the tokenizer: pass tokenizer=..., or baseline=None."
        )
    tokens = Tokens(tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))))
    kept = common_tokens(tokens)
    special = set(tokenizer.all_special_ids)
    filler = tokenizer(_FILLER, add_special_tokens=False)["input_ids"][-1]
    return [
        token if token in special or common else filler
        for token, common in zip(ids, kept.tolist(), strict=True)
    ]
