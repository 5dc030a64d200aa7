"""A result in sentences: what draws on what, and what a reader must know first.

Every sentence about a result is written here once; the terminal, the notebook and the view document
show it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import MEAN_OVER_LAYERS, Attribution, Verdict
from attnflow.attribution.passages import statements_of
from attnflow.attribution.patch_maps import patch_maps, region_of
from attnflow.attribution.verdict import UNCHECKED
from attnflow.errors import TokensError, listing, percent
from attnflow.tokens import Tokens
from attnflow.tokens.text import common_tokens, join, visible

UNIT_LEGENDS = {
    "share": "Percentages are shares of all that the target draws on.",
    "flow": "A flow is the most that could come through, from 0 to 1; flows do not add up.",
    "difference": "+ speaks for it, − against it.",
}
"""The meaning of the numbers of a result, by `unit_of`."""
TABLE_LEGENDS = {
    **UNIT_LEGENDS,
    "share": "The numbers of a column are what the target draws on each source at that layer.",
}
"""The same under a table of plain numbers."""

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_MARKUP = re.compile(r"<(\|.*\||bos|start_of_turn|end_of_turn)>")
_LONGEST_ROLE = 4  # tokens, with the sign before it
_WORTH_SAYING = 0.1  # the share of saturated flows from which a reader is told first
_NO_NEWS = 0.005  # a share that rounds to 0 %


# -- numbers and places -----------------------------------------------------------------------


def short_number(value: float, digits: int) -> str:
    """Write a number with so many digits after the point, without a zero alone before it."""
    number = f"{value:.{digits}f}"
    sign = "-" if number.startswith("-") else ""
    size = number.removeprefix("-")
    return sign + (size[1:] if size.startswith("0.") else size)


def place_of(layer: int) -> str:
    """Name a layer in words."""
    return "the mean of layers" if layer == MEAN_OVER_LAYERS else f"layer {layer}"


def reading_place(result: Attribution) -> str:
    """Name where a result is read: its highest layer, or the whole model that was run again."""
    if result.method.reruns_model:
        return "the whole model"
    return place_of(max(result.layers))


def unit_of(result: Attribution) -> str:
    """Return what the numbers of a row are: shares of it, signed differences, or flows."""
    if float(result.values.min(initial=0.0)) < 0:
        return "difference"
    return "flow" if "flow" in result.method.name else "share"


# -- what draws on what -----------------------------------------------------------------------


@dataclass(frozen=True)
class WordRow:
    """Words that some targets together draw on: `values[k]` belongs to `names[k]`."""

    target: str
    names: tuple[str, ...]
    values: NDArray[np.float64]
    columns: tuple[tuple[int, ...], ...]
    unit: str

    @property
    def total(self) -> float:
        """The sum of absolute values: what a share is a share of."""
        return float(np.abs(self.values).sum())

    @property
    def order(self) -> list[int]:
        """The indices of the words, strongest first."""
        return np.argsort(-np.abs(self.values), kind="stable").tolist()

    def number(self, value: float) -> str:
        """Write a value with its unit."""
        if self.unit == "share":
            return percent(value / self.total if self.total > 0 else 0.0)
        if self.unit == "difference":
            return f"{value:+.2f}".replace("-", "−")
        return f"flow {value:.2f}"

    def listing(self, order: Sequence[int]) -> str:
        """List words with their numbers."""
        return listing([f"“{self.names[n]}” ({self.number(self.values[n])})" for n in order])


def word_row(result: Attribution, rows: Sequence[int] = (0,), *, layer: int = -1) -> WordRow:
    """Add up the rows of some targets, pieces of a word together, at one layer."""
    values = result.layer(layer).values[0, list(rows)].sum(axis=0)
    groups = _groups(result.sources)
    spelled = result.targets.surfaces()
    return WordRow(
        target=visible(join(spelled[row] for row in rows)),
        names=result.sources.merged(groups).names,
        values=np.array([values[list(group)].sum() for group in groups]),
        columns=tuple(tuple(group) for group in groups),
        unit=unit_of(result),
    )


def sources_sentence(
    result: Attribution,
    rows: Sequence[int] = (0,),
    *,
    k: int = 3,
    layer: int = -1,
    subject: str | None = None,
    common: bool | Collection[str] = True,
) -> str:
    """Say what these targets draw on: "*Russia* draws on *Putin* (71 %)".

    subject: what the sentence is about, if not the targets' own words, such as a prediction.
    common: False leaves out punctuation and function words, a list leaves out its words.
    """
    row = word_row(result, rows, layer=layer)
    name = row.target if subject is None else subject
    order = [n for n in row.order if not is_framing(row.names[n])]
    if common is not True:
        plain = [word.rstrip(_SUPERSCRIPTS) for word in row.names]
        skipped = common_tokens(plain, None if common is False else common)
        order = [n for n in order if not skipped[n]]
    least = _NO_NEWS * row.total if row.unit == "share" else 0.0
    raising = [n for n in order if row.values[n] > 0 and row.values[n] >= least][:k]
    lowering = [n for n in order if row.values[n] < 0][: max(1, k - 1)]
    parts = []
    if raising:
        parts.append(f"“{name}” draws on {row.listing(raising)}")
    if lowering and row.unit == "difference":
        verb = "and is held back by" if parts else f"“{name}” is held back by"
        parts.append(f"{verb} {row.listing(lowering)}")
    return f"{' '.join(parts) or f'“{name}” draws on nothing here'}."


def answer_subject(result: Attribution) -> str | None:
    """Return what a sentence about the first target is about: the prediction, if read there."""
    prediction = result.prediction
    return prediction.label if prediction is not None and 0 in prediction_rows(result) else None


def prediction_rows(result: Attribution) -> list[int]:
    """Return the rows of the position that the prediction was read from, where there are any."""
    place = None if result.prediction is None else result.prediction.position
    return [row for row, position in enumerate(result.targets.positions) if position == place]


def is_framing(name: str) -> bool:
    """Tell whether a word is a sign of form that no person wrote: a turn of a chat, a line end."""
    plain = name.strip().rstrip(_SUPERSCRIPTS)
    return _MARKUP.fullmatch(plain) is not None or not plain.strip("⏎␣ \n")


def framing_tokens(texts: Sequence[str]) -> list[bool]:
    """Tell which tokens are such signs; who speaks, between one and a line end, is one too."""
    framing = [is_framing(text) for text in texts]
    for k, text in enumerate(texts):
        end = k + 1
        while _MARKUP.fullmatch(text.strip()) and end < len(texts) and texts[end].isalnum():
            end += 1
        if end - k <= _LONGEST_ROLE and end < len(texts) and texts[end].startswith("\n"):
            framing[k + 1 : end] = [True] * (end - k - 1)
    return framing


def _groups(tokens: Tokens) -> list[list[int]]:
    try:
        return tokens.groups()
    except TokensError:  # pieces that nothing says the words of
        return [[k] for k in range(len(tokens))]


def result_lines(result: Attribution, *, most: int = 5) -> list[str]:
    """Say a result in sentences: the answer, what it rests on, and what its targets draw on.

    most: how many targets, or words of a completion, get a sentence.
    """
    completion = result.provenance.get("completion")
    lines = [] if completion is None else [str(completion).strip()]
    if result.prediction is not None:
        lines = [f"The model says {result.prediction}."]
    lines += [sentence for sentence, _ in verdict_sentences(result)]
    pictures = image_sentences(result)
    if pictures:
        return [*lines, *pictures[:most]]
    subject = answer_subject(result) if len(result.targets) == 1 else None
    words = [[0]] if len(result.targets) == 1 else _groups(result.targets)
    lines += [sources_sentence(result, word, subject=subject) for word in words[:most]]
    more = len(words) - most
    return [*lines, *([f"… and {more} more; .top(target=...) lists theirs."] if more > 0 else [])]


# -- pictures ---------------------------------------------------------------------------------


def picture_sentence(result: Attribution, *, subject: str | None = None) -> str:
    """Say which region of the picture stands out of what falls on patches, and its share of it."""
    name = result.targets.text[0] if subject is None else subject
    maps = [np.maximum(patches.values, 0.0) for patches in patch_maps(result)]
    total = sum(float(each.sum()) for each in maps)
    if total <= 0:
        return f"“{name}” draws on nothing of the picture here."
    index = int(np.argmax([each.sum() for each in maps]))
    region, part = region_of(maps[index]), float(maps[index].sum()) / total
    picture = "the picture" if len(maps) == 1 else f"picture {index + 1}"
    if region is None:
        return f"“{name}” draws on {picture} as a whole: no part of it stands out."
    return (
        f"“{name}” draws most on {region.name} of {picture}: {percent(part * region.share)} of "
        f"what falls on it, on {percent(region.area)} of its area."
    )


def answer_sentence(result: Attribution, *, k: int = 3, subject: str | None = None) -> str:
    """Say what the word (or `subject`) of an answer about images draws on: regions, and words."""
    values = np.maximum(result.layer(-1).values[0, 0], 0.0)
    name, total = subject or result.targets.text[0], float(values.sum())
    if total <= 0:
        return f"“{name}” draws on nothing here."
    phrases: list[tuple[float, str]] = []
    images, words = result.sources.images, values.copy()
    for image, patches in zip(images, patch_maps(result), strict=True):
        columns = slice(image.start, image.start + image.grid.length)
        share = float(values[columns].sum()) / total
        region = region_of(patches.values)
        called = "the image" if len(images) == 1 else image.name
        phrase = f"{called} as a whole ({percent(share)})"
        if region is not None:
            on_patches = float(np.maximum(patches.values, 0.0).sum()) / total
            shares = f"{percent(region.share * on_patches)}; all of it {percent(share)}"
            phrase = f"{region.name} of {called} ({shares})"
        phrases.append((share, phrase))
        words[columns] = 0.0
    for index in np.argsort(-words, kind="stable")[:k].tolist():
        share = float(words[index]) / total
        phrases.append((share, f"“{result.sources.text[index]}” ({percent(share)})"))
    strongest = sorted(phrases, key=lambda phrase: -phrase[0])[:k]
    return f"“{name}” draws on {listing([t for share, t in strongest if share >= _NO_NEWS])}."


def image_sentences(result: Attribution) -> list[str]:
    """Say what each target draws on in its images, and beside them; none without images."""
    if result.sources.grid is None and not result.sources.images:
        return []
    say = picture_sentence if result.sources.grid is not None else answer_sentence
    answered = prediction_rows(result)
    return [
        say(_row(result, k), subject=result.prediction.label)
        if k in answered and result.prediction is not None
        else say(_row(result, k))
        for k in range(len(result.targets))
    ]


def _row(result: Attribution, number: int) -> Attribution:
    """Return one target by its number: positions may occur twice."""
    top = result.layer(-1)
    values, target = top.values[:, number : number + 1], top.targets.select([number])
    return Attribution(values, top.layers, target, top.sources, top.method)


# -- what a reader must know ------------------------------------------------------------------


def caveats(result: Attribution) -> list[str]:
    """Say what must be known before any number: values that are the same whatever the target."""
    sentences = []
    layer = max(result.layers)
    if result.saturated is not None:
        shares = dict(zip(result.layers, result.saturated.mean(axis=(1, 2)).tolist(), strict=True))
        if shares[layer] >= _WORTH_SAYING:
            clear = [number for number, share in shares.items() if share < _WORTH_SAYING]
            lower = f" Up to layer {max(clear)} less than 10 % are." if clear else ""
            sentences.append(
                f"{percent(shares[layer])} of these flows are saturated at {place_of(layer)}: they "
                f"are the same for any target and say nothing about this one.{lower} Read a lower "
                "layer, or let `attnflow evaluate` say which method to trust for this model."
            )
    if layer in result.collapsed:
        sentences.append(
            f"The rows have collapsed at {place_of(layer)}: they are nearly the same for any "
            "target. Read a lower layer or use another method."
        )
    return sentences


def remarks(result: Attribution) -> list[str]:
    """Say what a reader should know beside the numbers, after the caveats."""
    reason = result.provenance.get(UNCHECKED)
    unchecked = [] if reason is None else [f"nothing was hidden to check this: {reason}"]
    if result.prediction is None:
        return unchecked
    if not result.prediction.pooled:
        return [*_other_answers(result, result.prediction.position), *unchecked]
    return [
        "the answer is read from the mean of all positions: no row of one position is its "
        "explanation",
        *unchecked,
    ]


def _other_answers(result: Attribution, place: int) -> list[str]:
    """Name the other tokens that a token classifier has an unusual label for."""
    labels = result.provenance.get("predictions")
    if labels is None or result.targets.positions != (place,):
        return []
    usual = max(set(labels), key=labels.count)
    names = zip(result.sources.text, result.sources.positions, strict=True)
    others = [
        f"“{name.strip()}” ({labels[k]})" for name, k in names if k != place and labels[k] != usual
    ]
    if not others:
        return []
    return [
        f"this explains “{result.targets.text[0].strip()}” alone; name another token as target for "
        f"its own answer: {', '.join(others)}"
    ]


def sentence_of(verdict: Verdict, subject: str = "the answer") -> str:
    """Say what the answer, or a statement of it, rests on, and the number behind it."""
    claim = f"{subject} {verdict.linked_claim}"
    if verdict.kind == "none":  # that stands first
        claim = verdict.claim.replace("found", f"found for {subject}", 1)
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in (claim, verdict.reason))


def verdict_sentences(result: Attribution) -> list[tuple[str, Verdict]]:
    """Say what each statement of an answer over documents rests on, or else the whole answer."""
    if len(result.verdicts) == 1:
        return [(sentence_of(verdict), verdict) for verdict in result.verdicts if verdict]
    return [
        (sentence_of(statement.verdict, f"“{statement.text}”"), statement.verdict)
        for statement in statements_of(result)
        if statement.verdict is not None
    ]
