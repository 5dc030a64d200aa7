"""What happens to the answer when one token is hidden, left out, or seen by all and silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnflow.errors import MethodError, shorten
from attnflow.errors.arguments import check_named
from attnflow.evaluation.importance.base import Measure, Task
from attnflow.evaluation.importance.passes import Row, Text
from attnflow.hosts.adapter import TokenIds
from attnflow.hosts.intervention import Intervention

__all__ = ["BlankOut", "BlankToken", "ValueZeroing", "blank_positions", "check_blank"]

BlankToken = Literal["unk", "mask", "pad", "delete"]


@dataclass(frozen=True, kw_only=True)
class BlankOut(Measure):
    """Blank-out: the change of the score when one token is blanked, one pass for each token.

    by: what takes the token's place, "unk", "mask" or "pad"; or "delete" to close the gap.
    keep: "special" leaves the tokens that frame the text alone; or the tokens to leave alone, for
        example ("[EOS]",). A token for a masked word always stays: the answer is read there.
    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> importance = BlankOut(by="unk")(None, ["the key to the cabinets"])
    >>> importance[0].answer, len(importance[0].values)
    ('singular', 7)
    """

    name: ClassVar[str] = "blank-out"
    by: BlankToken = "unk"
    keep: Literal["special"] | tuple[str, ...] = "special"
    signed: bool = False

    def __post_init__(self) -> None:
        check_named("by", self.by, get_args(BlankToken))
        if isinstance(self.keep, str) and self.keep != "special":
            raise MethodError(
                f"keep={shorten(self.keep)}: 'special', or a tuple of tokens: keep=('[EOS]',)."
            )
        super().__post_init__()
        if not isinstance(self.keep, str):
            object.__setattr__(self, "keep", tuple(self.keep))

    def _measure(self, task: Task) -> list[NDArray[np.float64]]:
        ids = task.passes.ids
        check_blank(ids, self.by)
        places = [(k, i) for k, text in enumerate(task.texts) for i in self._hidden(text, ids)]
        rows = [blank_positions(task.texts[k].row, [i], ids, self.by) for k, i in places]
        numbers = [k for k, _ in places]
        scores = task.scores(rows, numbers, keeps_positions=self.by != "delete")
        return task.effects(places, scores, signed=self.signed)

    def _hidden(self, text: Text, ids: TokenIds) -> list[int]:
        if isinstance(self.keep, str):
            is_blanked = text.is_word
        else:
            is_blanked = np.array([token not in self.keep for token in text.tokens])
        is_blanked = is_blanked & (text.row["input_ids"] != ids.blanks.get("mask", -1))
        if self.by == "delete" and len(text.tokens) < 2:
            return []  # an empty text is no text
        return np.flatnonzero(is_blanked).tolist()


@dataclass(frozen=True, kw_only=True)
class ValueZeroing(Measure):
    """Value zeroing: the change of the score when a token's values are zero in every layer.

    The tokens and the attention of the first layer stay as they are, so nothing unseen in training
    is put in their place. A token keeps its own residual stream; nobody else draws on it.

    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> ValueZeroing()(None, ["the key to the cabinets"])[0].top(1)[0].token
    'to'
    """

    name: ClassVar[str] = "value-zeroing"
    signed: bool = False

    def _measure(self, task: Task) -> list[NDArray[np.float64]]:
        places = [(k, i) for k, text in enumerate(task.texts) for i in range(len(text.tokens))]
        passes = task.passes

        def forward(inputs: Mapping[str, Tensor], numbers: Sequence[int]) -> Any:
            silent = Intervention(zero_values=[[places[r][1]] for r in numbers])
            return passes.adapter.run_with(passes.model, inputs, silent)

        rows = [task.texts[k].row for k, _ in places]
        scores = task.scores(rows, [k for k, _ in places], forward=forward)
        return task.effects(places, scores, signed=self.signed)


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
