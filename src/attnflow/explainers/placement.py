"""Texts that people wrote, in the prompt that a model reads: where they stand, and that they are
text.

A place is known because the text was put there; it is never looked for. What a message, a document
or a question holds is text: a special token that is written there is spelled, it controls nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

from attnflow.errors import TokensError, shorten
from attnflow.tokens.text import is_special, surfaces
from attnflow.tokens.units import CharSpan

# Signs without a meaning, which hardly any text holds.
_PRIVATE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))


def render_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], *, verbatim: bool = False
) -> tuple[str, list[tuple[int, CharSpan]] | None]:
    """Return a conversation as its template writes it, and where each message stands, by number.

    The template is rendered once more with a sign in place of each message, the spaces around it
    left as they are. None where that shows another text around the messages: the template changed
    them. A message stands there without the spaces around it. verbatim: put the messages back as
    they are, also where the template would change them, as one does that leaves out thinking.
    """

    def render(turns: Sequence[Mapping[str, str]]) -> str:
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    text = render(messages)
    contents = [message["content"].strip() for message in messages]
    (sign,) = _signs(text, 1)
    marked = [
        {**message, "content": f"{sign}{number}{sign}".join(message["content"].split(content, 1))}
        for number, (message, content) in enumerate(zip(messages, contents, strict=True))
    ]
    try:
        pieces = re.split(f"{sign}(\\d+){sign}", render(marked))
    except Exception:  # templates raise what they like about messages that they do not like
        return text, None
    numbers = [int(number) for number in pieces[1::2]]
    pieces[1::2] = [contents[number] for number in numbers]
    if "".join(pieces) != text:
        if not verbatim:
            return text, None
        text = "".join(pieces)
    ends = list(accumulate(map(len, pieces)))
    return text, list(zip(numbers, zip(ends[::2], ends[1::2], strict=False), strict=True))


def encode_placed(
    tokenizer: Any, text: str, contents: Sequence[CharSpan], *, frame: bool
) -> tuple[list[int], list[CharSpan] | None]:
    """Return the token ids of a text, and the characters of each token, where they can be told.

    contents: parts that are text and nothing else. frame: whether begin and end tokens are added.
    """
    if not getattr(tokenizer, "is_fast", False):
        refuse_control(tokenizer, [text[slice(*span)] for span in contents])
        ids = list(tokenizer(text, add_special_tokens=frame)["input_ids"])
        return ids, spelled_places(tokenizer, ids, text)
    encoded = tokenizer(text, add_special_tokens=frame, return_offsets_mapping=True)
    ids, places = list(encoded["input_ids"]), [(a, b) for a, b in encoded["offset_mapping"]]
    controls = control_tokens(tokenizer)
    spelled: set[str] = set()
    while names := _controls_in(tokenizer, text, contents, ids, places, controls) - spelled:
        spelled |= names
        others = dict(zip(sorted(spelled), _signs(text, len(spelled)), strict=True))
        others = {name: sign * len(name) for name, sign in others.items()}
        backend = _renamed(tokenizer, len(tokenizer), tuple(others.items()))
        renamed = _rename(text, contents, list(controls.values()), others)
        encoding = backend.encode(renamed, add_special_tokens=frame)
        ids, places = list(encoding.ids), list(encoding.offsets)
    return ids, places


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that are no text: special ones, and the chat template's own in brackets."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    return {
        number: token.content
        for number, token in added.items()
        if token.special or (is_special(token.content) and token.content in template)
    }


def refuse_control(tokenizer: Any, contents: Sequence[str]) -> None:
    """Raise if a text holds a special token, where it could not be told from the template's own."""
    special = [str(token) for token in getattr(tokenizer, "all_special_tokens", ())]
    name = next((name for text in contents for name in special if name in text), None)
    if name is not None:
        raise TokensError(
            f"The text holds {shorten(name)}, a special token, and this tokenizer or its chat "
            "template gives no way to take it as text. Write it in another way, with a space in it."
        )


def token_spans(places: Sequence[CharSpan], spans: Sequence[CharSpan]) -> list[CharSpan | None]:
    """Return the tokens of parts of a text, by each token's characters; None for a part of none."""
    tokens: list[CharSpan | None] = []
    end = 0
    for start, stop in spans:
        members = [k for k, (a, b) in enumerate(places) if a < stop and start < b and k >= end]
        tokens.append((members[0], members[-1] + 1) if members else None)
        end = members[-1] + 1 if members else end
    return tokens


def spelled_places(tokenizer: Any, ids: Sequence[int], text: str) -> list[CharSpan] | None:
    """Return the characters of each token by what the tokens spell, spaces and capitals aside; None
    where that is not the whole text.
    """
    visible = [k for k, sign in enumerate(text) if not sign.isspace()]
    letters = "".join(text[k] for k in visible).lower()
    pieces = surfaces([str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))])
    special = set(getattr(tokenizer, "all_special_ids", ()))
    for skipped in (special, set[int]()):
        parts = [
            "" if number in skipped else "".join(piece.split()).lower()
            for number, piece in zip(ids, pieces, strict=True)
        ]
        if "".join(parts) == letters and len(letters) == len(visible):
            ends = accumulate(map(len, parts))
            return [
                (visible[end - len(part)], visible[end - 1] + 1) if part else (0, 0)
                for part, end in zip(parts, ends, strict=True)
            ]
    return None


def _signs(text: str, count: int) -> list[str]:
    """Return signs that do not stand in a text."""
    return list(islice((chr(code) for code in _PRIVATE if chr(code) not in text), count))


def _controls_in(
    tokenizer: Any,
    text: str,
    contents: Sequence[CharSpan],
    ids: Sequence[int],
    places: Sequence[CharSpan],
    controls: Mapping[int, str],
) -> set[str]:
    """Return the control tokens among the tokens of the contents; unknown words are none."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    return {
        controls[number]
        for number, (a, b) in zip(ids, places, strict=True)
        if number in controls and any(a < stop and start < b for start, stop in contents)
        if number != unknown or controls[number] in text
    }


def _rename(
    text: str, contents: Sequence[CharSpan], controls: Sequence[str], others: Mapping[str, str]
) -> str:
    """Return a text in which the template writes some of its control tokens by other names."""
    longest_first = sorted(controls, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    parts: list[str] = []
    place = 0
    for start, stop in [*sorted(contents), (len(text), len(text))]:
        frame = pattern.sub(lambda match: others.get(match[0], match[0]), text[place:start])
        parts += [frame, text[start:stop]]
        place = stop
    return "".join(parts)


@lru_cache(maxsize=2)  # it takes a second, and a corpus may hold the same token in every text
def _renamed(tokenizer: Any, size: int, names: tuple[tuple[str, str], ...]) -> Any:
    """Return the tokenizer with other names for some tokens: their old names are plain text.

    To tell it not to look for them is not enough: a vocabulary may hold them as words. size: how
    many tokens it has, for one to which tokens were added since.
    """
    from tokenizers import Tokenizer

    others = dict(names)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    model = state["model"]
    added = [token for token in state["added_tokens"] if token["content"] in others]
    numbers = {others[token["content"]]: token["id"] for token in added}
    for token in added:
        token |= {"content": others[token["content"]], "normalized": False}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {others.get(name, name): k for name, k in model["vocab"].items()}
    else:
        model["vocab"] = [[others.get(name, name), score] for name, score in model["vocab"]]
    if model.get("unk_token") in others:
        model["unk_token"] = others[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [
            pair for pair in model["merges"] if not {*pair, "".join(pair)} & others.keys()
        ]
    backend = Tokenizer.from_str(json.dumps(state))
    backend.no_truncation()
    backend.no_padding()
    if any(backend.token_to_id(name) != number for name, number in numbers.items()):
        raise TokensError(
            f"The text holds {shorten(next(iter(others)))}, a special token, and this tokenizer "
            "cannot take it as text. Write it in another way, with a space in it."
        )
    return backend
