"""Tokens of a text blanked: they are deleted, or take the blank that is named; or they stay, and
their values are silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MethodError, TokensError
from attnflow.hosts.adapter import TokenIds
from attnflow.hosts.model import Model
from attnflow.hosts.recorder import Intervention

BlankToken = Literal["unk", "mask", "pad", "delete"]
Row = Mapping[str, NDArray[np.int64]]
"""One text as a model takes it: an array over its positions for each of the model's inputs."""


def blank_token(tokenizer: Any) -> int:
    """Return the unknown token, a space, or padding; what begins or ends a text is no blank."""
    frame = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    space = tokenizer(" ", add_special_tokens=False)["input_ids"]
    choices = [tokenizer.unk_token_id, *(space if len(space) == 1 else []), tokenizer.pad_token_id]
    usable = [token for token in choices if token is not None and token not in frame]
    if not usable:
        raise TokensError(
            "This tokenizer has no unknown token, no space and no padding token to blank with; "
            "name a token: blank=..., or take by='hide' or by='delete'."
        )
    return int(usable[0])


def word_blank(model: Model) -> tuple[BlankToken, int] | None:
    """Return what stands in a word's place to hide it, and its number: the unknown token, or the
    mask. Padding would move where an answer is read.
    """
    if model.tokenizer is None:
        return None
    blanks = model.adapter.token_ids(model.module, model.tokenizer).blanks
    names: tuple[BlankToken, ...] = ("unk", "mask")
    return next(((name, blanks[name]) for name in names if name in blanks), None)


def check_blank(ids: TokenIds, by: BlankToken) -> None:
    """Raise an error where the tokenizer has no token that blanks others."""
    if by != "delete" and by not in ids.blanks:
        there = ", ".join(repr(name) for name in (*ids.blanks, "delete"))
        raise MethodError(f"by={by!r}: this tokenizer has no such token. There are {there}.")


def blank_positions(row: Row, positions: Sequence[int], ids: TokenIds, by: BlankToken) -> Row:
    """Return the row with these positions blanked, or without them."""
    if by == "delete":
        return {name: np.delete(values, positions) for name, values in row.items()}
    changed = row["input_ids"].copy()
    changed[list(positions)] = ids.blanks[by]
    return {**row, "input_ids": changed}


def silence_values(positions: Sequence[int]) -> Intervention:
    """Return the change by which one position of each row is attended to and says nothing."""
    return Intervention(zero_values=[[position] for position in positions])
