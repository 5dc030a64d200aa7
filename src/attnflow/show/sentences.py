"""A result in sentences: what came from where, and what a reader must know first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import MEAN_OVER_LAYERS, Attribution
from attnflow.errors import TokensError
from attnflow.errors.percent import percent
from attnflow.methods import MEASURED_METHODS
from attnflow.tokens import Tokens
from attnflow.tokens.common_words import common_tokens
from attnflow.tokens.text import join, visible

__all__ = [
    "TABLE_LEGENDS",
    "UNIT_LEGENDS",
    "WordRow",
    "caveats",
    "is_framing",
    "place_of",
    "reading_place",
    "sources_sentence",
    "unit_of",
    "word_row",
]

UNIT_LEGENDS = {
    "share": "Percentages are shares of all that the target draws on.",
    "flow": "A flow is the most that could come through, from 0 to 1; flows do not add up.",
    "difference": "Differences from a baseline: + raises, − holds back.",
}
"""What the numbers of a result are, by `unit_of`."""
TABLE_LEGENDS = {
    **UNIT_LEGENDS,
    "share": "The numbers of a column are what the target draws on each source at that layer.",
}
"""The same under a table of plain numbers."""

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_WORTH_SAYING = 0.1  # the share of saturated flows from which a reader is told first
_NO_NEWS = 0.005  # a share that rounds to 0 %


@dataclass(frozen=True)
class WordRow:
    """What some targets together draw on, word by word: `values[k]` belongs to `names[k]`."""

    target: str
    names: tuple[str, ...]
    values: NDArray[np.float64]
    columns: tuple[tuple[int, ...], ...]
    unit: str

    @property
    def total(self) -> float:
        """The sum of absolute values: what a share is a share of."""
        return float(np.abs(self.values).sum())

    def number(self, value: float) -> str:
        """A value with its unit.

        >>> WordRow("a", ("b",), np.array([0.5]), ((0,),), "share").number(0.5)
        '100 %'
        """
        if self.unit == "share":
            return percent(value / self.total if self.total > 0 else 0.0)
        if self.unit == "difference":
            return f"{value:+.2f}".replace("-", "−")
        return f"flow {value:.2f}"


def unit_of(result: Attribution) -> str:
    """What the numbers of a row are: shares of it, signed differences, or flows.

    >>> from attnflow import AttentionTrace, Flow, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> unit_of(Rollout()(trace)), unit_of(Flow()(trace))
    ('share', 'flow')
    """
    if float(result.values.min(initial=0.0)) < 0:
        return "difference"
    return "flow" if "flow" in result.method.name else "share"


def word_row(result: Attribution, rows: Sequence[int] = (0,), *, layer: int = -1) -> WordRow:
    """The rows of some targets added up, pieces of a word together, at one layer.

    >>> from attnflow import AttentionTrace, Raw
    >>> weights = [[[0.2, 0.3, 0.5]] * 3]
    >>> trace = AttentionTrace.from_arrays(weights, ["Ġun", "lock", "Ġit"])
    >>> word_row(Raw()(trace), [2]).names
    ('unlock', 'it')
    """
    values = result.layer(layer).values[0, list(rows)].sum(axis=0)
    groups = _groups(result.sources)
    merged = result.sources.merged(groups)
    spelled = result.targets.surfaces()
    target = visible(join(spelled[row] for row in rows))
    sums = np.array([values[list(group)].sum() for group in groups])
    columns = tuple(tuple(group) for group in groups)
    return WordRow(target, merged.names, sums, columns, unit_of(result))


def sources_sentence(
    result: Attribution,
    rows: Sequence[int] = (0,),
    *,
    k: int = 3,
    layer: int = -1,
    subject: str | None = None,
    common: bool | Collection[str] = True,
) -> str:
    """What these targets came from: "*Russia* came from *Putin* (71 %)".

    subject: what the sentence is about, if not the targets' own words, such as a prediction.
    common: False leaves out punctuation and function words, a list leaves out its words.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["a", "key"])
    >>> sources_sentence(Rollout()(trace, targets=["key"]))
    '“key” came from “key” (75 %) and “a” (25 %).'
    """
    row = word_row(result, rows, layer=layer)
    name = row.target if subject is None else subject
    order = [n for n in _order(row) if not is_framing(row.names[n])]
    if common is not True:
        plain = [name.rstrip(_SUPERSCRIPTS) for name in row.names]
        skipped = common_tokens(plain, None if common is False else common)
        order = [n for n in order if not skipped[n]]
    raising = [n for n in order if row.values[n] > 0 and not _is_nothing(row, n)][:k]
    lowering = [n for n in order if row.values[n] < 0][: max(1, k - 1)]
    parts = []
    if raising:
        parts.append(f"“{name}” came from {_listing(row, raising)}")
    if lowering and row.unit == "difference":
        verb = "and was held back by" if parts else f"“{name}” was held back by"
        parts.append(f"{verb} {_listing(row, lowering)}")
    return f"{' '.join(parts) or f'“{name}” draws on nothing here'}."


def caveats(result: Attribution, rows: Sequence[int] | None = None) -> list[str]:
    """What must be said before any number: values that are the same whatever the target.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> caveats(Rollout()(trace))
    []
    """
    sentences = []
    result = result.layer(-1)
    layer = result.layers[0]
    if result.saturated is not None:
        marks = result.saturated[-1] if rows is None else result.saturated[-1, list(rows)]
        share = float(marks.mean())
        if share >= _WORTH_SAYING:
            sentences.append(
                f"{percent(share)} of these flows are saturated at {place_of(layer)}: they are the "
                "same for any target and say nothing about this one. Read a lower layer."
            )
    if layer in result.collapsed:
        sentences.append(
            f"The rows have collapsed at {place_of(layer)}: they are nearly the same for any "
            "target. Read a lower layer or use another method."
        )
    return sentences


def is_framing(name: str) -> bool:
    """Whether a word is a sign of form that no person wrote: a turn of a chat, a line end alone.

    >>> is_framing("<|im_start|>⁰"), is_framing("⏎⏎"), is_framing("key")
    (True, True, False)
    """
    plain = name.strip().rstrip(_SUPERSCRIPTS)
    return (plain.startswith("<|") and plain.endswith("|>")) or not plain.strip("⏎␣ \n")


def place_of(layer: int) -> str:
    """A layer in words.

    >>> place_of(3), place_of(0)
    ('layer 3', 'the mean of layers')
    """
    return "the mean of layers" if layer == MEAN_OVER_LAYERS else f"layer {layer}"


def reading_place(result: Attribution) -> str:
    """Where a result is read, in words: its highest layer, or the whole model that was run again.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> reading_place(Rollout()(trace))
    'layer 1'
    """
    if result.method.name in MEASURED_METHODS:
        return "the whole model"
    return place_of(max(result.layers))


def _groups(tokens: Tokens) -> list[list[int]]:
    try:
        return tokens.groups()
    except TokensError:  # pieces that nothing says the words of
        return [[k] for k in range(len(tokens))]


def _order(row: WordRow) -> list[int]:
    """Strongest first."""
    return np.argsort(-np.abs(row.values), kind="stable").tolist()


def _is_nothing(row: WordRow, index: int) -> bool:
    return row.unit == "share" and row.values[index] < _NO_NEWS * row.total


def _listing(row: WordRow, order: Sequence[int]) -> str:
    parts = [f"“{row.names[n]}” ({row.number(float(row.values[n]))})" for n in order]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
