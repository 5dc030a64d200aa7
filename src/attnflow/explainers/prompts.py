"""Prompts as a language model takes them: encoded, padded on the model's side, checked, neutral."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attnflow.errors import AttnflowError, InputError, TokensError, shorten
from attnflow.explainers.placement import (
    encode_placed,
    refuse_control,
    render_chat,
    spelled_places,
    token_spans,
)
from attnflow.hosts.adapter import device_of, on_device
from attnflow.hosts.inputs import (
    check_vocabulary,
    checked_text,
    checked_tokenizer,
    pad_rows,
    padding_to_the_right,
    tokens_of,
)
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.models import WRITER
from attnflow.tokens.text import common_tokens
from attnflow.tokens.units import CharSpan, pieces_at


@dataclass(frozen=True)
class Prompt:
    """One prompt without padding: token ids, and which of them a chat template put there.

    spans: the tokens of each message, or of each document, where it is known which they are; None
    for one that a template leaves out or repeats. pieces: of each document, the text of each of its
    tokens; together they are the document.
    """

    ids: list[int]
    form: tuple[bool, ...] | None = None
    spans: tuple[CharSpan | None, ...] = ()
    pieces: tuple[tuple[str, ...], ...] = ()


Message = Mapping[str, str]
Prompts = (
    str
    | Prompt
    | Sequence[str | Prompt]
    | Sequence[Message]
    | Sequence[Sequence[Message]]
    | Mapping[str, Tensor]
    | Mapping[str, Any]
)
_FILLER = " thing"


@dataclass(frozen=True)
class PromptBatch:
    """Some prompts padded to one length: ids and mask (batch, length), and each alone."""

    ids: Tensor
    mask: Tensor
    extra: Mapping[str, Tensor]
    several: bool
    prompts: tuple[Prompt, ...]

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.ids.shape[1])

    @property
    def padding(self) -> list[int]:
        """The number of positions of each example that are padding."""
        return (self.length - self.mask.sum(dim=1)).tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def inputs(self) -> dict[str, Tensor]:
        """Return the arguments of the model's generate()."""
        return {"input_ids": self.ids, "attention_mask": self.mask, **self.extra}


def encode_prompts(model: Model, prompts: Prompts) -> PromptBatch:
    """Encode texts, messages (special tokens in them are text), or inputs the user prepared."""
    if isinstance(prompts, Mapping):
        return _wrap_prompts(model, prompts)
    checked_tokenizer(model.tokenizer)
    if not isinstance(prompts, (str, Prompt, Sequence)) or not prompts:
        raise TokensError(f"There is nothing to continue: the prompt is {shorten(prompts)}.")
    rows: list[Any] = [prompts] if isinstance(prompts, (str, Prompt)) else list(prompts)
    single = isinstance(prompts, (str, Prompt)) or all(isinstance(row, Mapping) for row in rows)
    if isinstance(rows[0], Mapping) and single:  # the messages of one conversation
        rows = [rows]
    encoded = [_encode(model.tokenizer, row) for row in rows]
    for prompt in encoded:
        check_vocabulary(model.module, torch.tensor(prompt.ids))
    return _padded(model, encoded, not single)


def as_chat(text: str) -> list[Message]:
    """Return a text as a conversation of one message: the model's chat template is used."""
    return [{"role": "user", "content": text}]


def _padded(model: Model, prompts: Sequence[Prompt], several: bool) -> PromptBatch:
    """Pad on the side that the model's facts name: decoders on the left, encoders on the right."""
    tokens = (model.tokenizer.pad_token_id, model.tokenizer.eos_token_id)
    pad = next((token for token in tokens if token is not None), 0)
    side, device = model.facts.padding_side, device_of(model.module)
    ids, mask = pad_rows([prompt.ids for prompt in prompts], pad, side)
    return PromptBatch(ids.to(device), mask.to(device), {}, several, tuple(prompts))


def _encode(tokenizer: Any, prompt: object) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        placed = _place_messages(tokenizer, prompt)
        spans = placed.spans([placed.place_of(number) for number in range(len(prompt))])
        return Prompt(placed.ids, placed.form, spans)
    if isinstance(prompt, Mapping):
        raise TokensError(
            "A list of prompts holds either texts or the messages of one conversation; this one "
            "mixes them."
        )
    ids = list(tokenizer(checked_text(prompt, "continue", "prompt"))["input_ids"])
    if not ids:
        raise TokensError(f"There is nothing to continue: the prompt is {shorten(prompt)}.")
    return Prompt(ids)


@dataclass(frozen=True)
class _PlacedTokens:
    """Token ids, the characters of each (None: unknown), and where each message stands."""

    ids: list[int]
    characters: list[CharSpan] | None
    places: list[tuple[int, CharSpan]]

    @property
    def form(self) -> tuple[bool, ...] | None:
        """True where a token comes from the template, not from a message."""
        if self.characters is None:
            return None
        tokens = token_spans(self.characters, [span for _, span in self.places])
        members = {k for span in tokens if span is not None for k in range(*span)}
        return tuple(k not in members for k in range(len(self.ids)))

    def place_of(self, number: int) -> CharSpan | None:
        """Return where a message stands; None unless the template puts it in one place."""
        places = [span for other, span in self.places if other == number]
        return places[0] if len(places) == 1 else None

    def within(self, parts: Sequence[tuple[int, CharSpan]]) -> list[CharSpan | None]:
        """Return where parts of messages stand, each a message's number and characters of it."""
        begins = {number: self.place_of(number) for number, _ in parts}
        places = [(begins[number], span) for number, span in parts]
        return [None if b is None else (b[0] + s[0], b[0] + s[1]) for b, s in places]

    def spans(self, parts: Sequence[CharSpan | None]) -> tuple[CharSpan | None, ...]:
        """Return the tokens of parts of the text."""
        if self.characters is None:
            return (None,) * len(parts)
        known = [part for part in parts if part is not None]
        spans = iter(token_spans(self.characters, known))
        return tuple(None if part is None else next(spans) for part in parts)

    def pieces(self, text: str, place: CharSpan | None, tokens: CharSpan | None) -> tuple[str, ...]:
        """Return the text of each token of a part of the text, which stands in this place."""
        if self.characters is None or place is None or tokens is None:
            return ()
        starts = [start - place[0] for start, _ in self.characters[slice(*tokens)]]
        return tuple(pieces_at(text, starts))


def encode_transcript(
    tokenizer: Any, messages: Sequence[Message], parts: Sequence[tuple[int, CharSpan]]
) -> Prompt:
    """Encode a conversation as it went; the spans are those of parts of its messages, in order.

    parts: the message's number, from 0, and the characters of it. A template without a role for
    tools gets what they return as a user's message; without a template each message follows its
    role.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        placed = _place_plainly(tokenizer, messages)
        return Prompt(placed.ids, placed.form, placed.spans(placed.within(parts)))
    as_user = [{**m, "role": "user"} if m["role"] == "tool" else m for m in messages]
    for turns in (messages, as_user):
        try:
            placed = _place_messages(tokenizer, turns, verbatim=True)
        except AttnflowError:
            raise
        except Exception as error:  # templates raise what they like about roles they do not know
            reason = str(error)
            continue
        places = placed.within(parts)
        if placed.characters is not None and None not in places:
            return Prompt(placed.ids, placed.form, placed.spans(places))
        reason = "it leaves messages out, or repeats them"
    raise TokensError(
        f"The model's chat template does not take this transcript: {reason}. Merge messages of one "
        "role that follow each other, or leave out the role that it does not know."
    )


def _place_plainly(tokenizer: Any, messages: Sequence[Message]) -> _PlacedTokens:
    text, places = "", []
    for number, message in enumerate(messages):
        text += f"{chr(10) * 2 if text else ''}{message['role']}: "
        places.append((number, (len(text), len(text) + len(message["content"]))))
        text += message["content"]
    ids, characters = encode_placed(tokenizer, text, [span for _, span in places], frame=True)
    return _PlacedTokens(ids, characters, places)


def _place_messages(
    tokenizer: Any, messages: Sequence[Message], *, verbatim: bool = False
) -> _PlacedTokens:
    if getattr(tokenizer, "chat_template", None) is None:
        raise TokensError(
            "This model's tokenizer has no chat template; pass the prompt as one text."
        )
    contents = [checked_text(m.get("content"), "continue", "message") for m in messages]
    text, places = render_chat(tokenizer, messages, verbatim=verbatim)
    is_fast = getattr(tokenizer, "is_fast", False)
    if places is None or not is_fast:
        refuse_control(tokenizer, contents)
    characters: list[CharSpan] | None
    if is_fast:
        spans = [span for _, span in places or ()]
        ids, characters = encode_placed(tokenizer, text, spans, frame=False)
    else:
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        ids = list(tokenizer.apply_chat_template(messages, **options)["input_ids"])
        characters = spelled_places(tokenizer, ids, text)
    return _PlacedTokens(ids, None if places is None else characters, places or [])


def encode_parts(
    tokenizer: Any,
    text: str,
    parts: Sequence[CharSpan],
    *,
    chat: bool = False,
    special: bool = False,
    around: tuple[Sequence[Message], Sequence[Message]] = ((), ()),
) -> Prompt:
    """Encode a text of several parts, such as documents; the spans are those of the parts.

    parts: in characters of the text, which begins with a visible one. chat: whether it is a
    message, for the chat template. special: whether special tokens in it are read as such, where
    it is no message; otherwise they are text. around: the messages before it, and those after it.
    """
    checked_tokenizer(tokenizer)
    if chat:
        before, after = around
        placed = _place_messages(tokenizer, [*before, *as_chat(text), *after])
        place = placed.place_of(len(before))
    else:
        place = (0, len(checked_text(text, "continue", "prompt")))
        ids, characters = encode_placed(tokenizer, text, [] if special else [place], frame=True)
        placed = _PlacedTokens(ids, characters, [])
    shifted = [None if place is None else (place[0] + a, place[0] + b) for a, b in parts]
    spans = placed.spans(shifted)
    if None in spans:
        first, end = parts[spans.index(None)]
        raise TokensError(
            f"Nothing says which tokens of the prompt the document {shorten(text[first:end])} has "
            "become: the chat template or the tokenizer changes it. Leave the template out "
            "(chat=False, --no-chat), or explain a prompt of your own with generate()."
        )
    pieces = tuple(
        placed.pieces(text[slice(*part)], place, tokens)
        for part, place, tokens in zip(parts, shifted, spans, strict=True)
    )
    return Prompt(placed.ids, placed.form if chat else None, spans, pieces)


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
    rows = zip(ids, mask.bool(), strict=True)
    prompts = tuple(Prompt(row[words].tolist()) for row, words in rows)
    return PromptBatch(ids, mask, tensors, len(ids) > 1, prompts)


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
    loaded = as_model(model, default=WRITER)
    batch = encode_prompts(loaded, prompt)
    if len(batch) != 1:
        raise InputError(f"neutral_prompt() takes one prompt; got {len(batch)}.")
    (encoded,) = batch.prompts
    row = neutral_ids(loaded.tokenizer, encoded.ids, encoded.form)
    return {"input_ids": [row], "attention_mask": [[1] * len(row)]}


def neutral_ids(
    tokenizer: Any, ids: Sequence[int], form: Sequence[bool] | None = None
) -> list[int]:
    """Return ids with a filler for each word that says something; a template's `form` stays."""
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
