"""A result as static HTML: what a notebook shows. No script, no style sheet, nothing fetched.

The sentence comes first, then the text, shaded by what the target draws on; the numbers are folded
away. Notebook hosts strip scripts and style elements, so every colour is an inline style and tokens
are escaped: a token may well be `</script>`. Only what is worth a shade gets an element, so that a
long prompt stays small.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.passages import statements_of
from attnflow.show.how_sure import how_sure_html
from attnflow.show.png import picture_address
from attnflow.show.sentences import (
    UNIT_LEGENDS,
    caveats,
    is_framing,
    reading_place,
    sources_sentence,
    unit_of,
    word_row,
)
from attnflow.tokens.patches import enlarge

if TYPE_CHECKING:
    from attnflow.show.sentences import WordRow

__all__ = ["answer_html", "result_html", "shade"]

_ROWS = 12  # of the folded table
_SENTENCES = 6  # of the targets or statements that get a sentence
_SHADED = 120  # words that are shaded at most
_FAINTEST = 0.04  # a share of the strongest below which a word is left unshaded
_LONGEST = 6_000  # characters of text that a cell shows
_DEEP = (8, 69, 148)  # the dark end of a single-hue blue scale: readable to the colour-blind
_AGAINST = (154, 66, 0)
_BOX = (
    "font-family:system-ui,sans-serif;font-size:14px;line-height:1.6;max-width:860px;"
    "overflow-wrap:anywhere"
)
_QUIET = "opacity:.72;font-size:12px"
_CELL = "padding:1px 10px 1px 0;text-align:left;font-variant-numeric:tabular-nums"
_WARNING = "border-left:3px solid #c2410c;padding-left:8px;margin:4px 0"


def shade(share: float) -> tuple[str, str]:
    """Background and text colour for a share from −1 to 1: white to dark blue, or to brown.

    >>> shade(0.0), shade(1.0)
    (('#ffffff', '#111111'), ('#084594', '#ffffff'))
    """
    share = min(max(share, -1.0), 1.0)
    ends = _DEEP if share >= 0 else _AGAINST
    red, green, blue = (round(255 + (end - 255) * abs(share)) for end in ends)
    return f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if abs(share) > 0.55 else "#111111"


def result_html(result: Attribution) -> str:
    """What a notebook shows of a result.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["<b>", "key"])
    >>> page = result_html(Rollout()(trace, targets=["key"]))
    >>> "&lt;b&gt;" in page and "<b>" not in page
    True
    """
    rows = list(range(len(result.targets)))
    parts = [_line(html.escape(text), _WARNING) for text in caveats(result)]
    if result.prediction is not None:
        parts.append(
            _line(f"The model says <strong>{html.escape(str(result.prediction))}</strong>.")
        )
    elif "completion" in result.provenance:
        parts.append(_line(f"<strong>{html.escape(_completion(result))}</strong>"))
    parts += [_line(html.escape(text)) for text in _sentences(result, rows)]
    parts += _how_sure(result)
    parts += _reading(result, rows)
    return _box(parts)


def answer_html(result: Attribution, *, question: str, lines: Sequence[str]) -> str:
    """What a notebook shows of an answer: question, answer, a line for each statement, the text.

    >>> import numpy as np
    >>> from attnflow import Raw, Tokens
    >>> result = Attribution(
    ...     np.ones((1, 1, 2)) / 2, (1,), Tokens(("45",)), Tokens(("45", "Ġdays")), Raw(),
    ...     provenance={"completion": "45"},
    ... )
    >>> "How long?" in answer_html(result, question="How long?", lines=[])
    True
    """
    parts = [
        _line(html.escape(question), _QUIET),
        _line(f"<strong>{html.escape(_completion(result))}</strong>", "font-size:18px"),
        *(_line(html.escape(line)) for line in lines),
    ]
    return _box([*parts, *_how_sure(result), *_reading(result, list(range(len(result.targets))))])


def _how_sure(result: Attribution) -> list[str]:
    return [] if result.confirmation is None else [how_sure_html(result.confirmation)]


def _sentences(result: Attribution, rows: Sequence[int]) -> list[str]:
    if result.sources.grid is not None:
        return []
    if len(rows) == 1:
        prediction = result.prediction
        predicting = prediction is not None and prediction.position == result.targets.positions[0]
        subject = prediction.label if prediction is not None and predicting else None
        return [sources_sentence(result, rows, k=4, subject=subject)]
    if "completion" in result.provenance:
        statements = statements_of(result)
        if any(len(statement.sources) > 1 for statement in statements):
            return [str(statement) for statement in statements[:_SENTENCES]]
    sentences = [sources_sentence(result, [row], k=2) for row in rows[:_SENTENCES]]
    more = len(rows) - _SENTENCES
    return [*sentences, *([f"… and {more} more targets: result.row(...)."] if more > 0 else [])]


def _reading(result: Attribution, rows: Sequence[int]) -> list[str]:
    """The shaded text or the image, the legend, and the numbers folded away."""
    rows_to_show = rows if result.prediction is None else _predicting(result, rows)
    about = f"{result.title}, {reading_place(result)}. {UNIT_LEGENDS[unit_of(result)]}"
    parts = []
    if result.sources.grid is not None:
        parts.append(_map(result, rows_to_show[0]))
    else:
        row = word_row(result, rows_to_show)
        parts.append(f"<div style='margin:8px 0'>{_shaded(result, row)}</div>")
        parts.append(_table(row))
    more = "The interactive view: result.viewer()."
    return [*parts, _line(html.escape(f"{about} {more}"), _QUIET)]


def _predicting(result: Attribution, rows: Sequence[int]) -> Sequence[int]:
    position = None if result.prediction is None else result.prediction.position
    places = [row for row in rows if result.targets.positions[row] == position]
    return places or rows


def _shaded(result: Attribution, row: WordRow) -> str:
    """The text; words with a share worth seeing have a background, the rest is plain."""
    spelled = result.sources.surfaces()
    pairs = zip(row.names, np.abs(row.values).tolist(), strict=True)
    words = [0.0 if is_framing(name) else size for name, size in pairs]
    sizes = np.sort(words)[::-1]
    strongest = float(sizes[0]) or 1.0
    faintest = max(_FAINTEST * strongest, float(sizes[min(_SHADED, len(sizes) - 1)]))
    parts: list[str] = []
    length = 0
    for value, size, columns in zip(row.values.tolist(), words, row.columns, strict=True):
        surface = "".join(spelled[column] for column in columns)
        length += len(surface)
        if length > _LONGEST:
            parts.append(" …")
            break
        lit = size >= faintest and bool(surface.strip())
        number = row.number(value)
        parts.append(_word(surface, value / strongest, number) if lit else _escaped(surface))
    return "".join(parts)


def _word(surface: str, share: float, number: str) -> str:
    text = _escaped(surface)
    background, ink = shade(share)
    body = text.lstrip(" ")
    style = f"background:{background};color:{ink};border-radius:3px"
    space = text[: len(text) - len(body)]
    return f"{space}<span style='{style}' title='{html.escape(number)}'>{body}</span>"


def _escaped(surface: str) -> str:
    return html.escape(surface).replace("\n", "<br>")


def _table(row: WordRow) -> str:
    order = np.argsort(-np.abs(row.values), kind="stable")[:_ROWS].tolist()
    lines = "".join(
        f"<tr><td style='{_CELL}'>{html.escape(row.names[k])}</td>"
        f"<td style='{_CELL}'>{row.number(float(row.values[k]))}</td>"
        f"<td style='{_CELL}'>{row.values[k]:.3g}</td></tr>"
        for k in order
    )
    head = "".join(f"<th style='{_CELL}'>{name}</th>" for name in ("source", "part", "value"))
    summary = f"the {len(order)} strongest of {len(row.names)} as a table; to_pandas() has all"
    return (
        f"<details><summary style='{_QUIET};cursor:pointer'>{summary}</summary>"
        f"<table style='border-collapse:collapse'><tr>{head}</tr>{lines}</table></details>"
    )


def _map(result: Attribution, row: int) -> str:
    """What one target draws on over the patches of an image, as a picture of its own."""
    grid = result.sources.grid
    assert grid is not None  # the caller has looked
    patches: NDArray[np.float64] = result.layer(-1).values[0, row, grid.prefix :]
    shares = patches.reshape(grid.rows, grid.columns) / (float(np.abs(patches).max()) or 1.0)
    small = enlarge(np.maximum(shares, 0.0), grid.rows * 12, grid.columns * 12)
    pixels = 255 + (np.array(_DEEP) - 255) * small[..., None]
    name = html.escape(result.targets.text[row])
    return (
        f"<img alt='What {name} draws on' style='border-radius:6px;width:320px;max-width:100%' "
        f"src='{picture_address(np.clip(pixels, 0, 255).astype(np.uint8))}'>"
    )


def _completion(result: Attribution) -> str:
    text = str(result.provenance.get("completion") or "").strip()
    return text if len(text) <= 1_000 else f"{text[:999]}…"


def _line(text: str, style: str = "") -> str:
    return f"<div style='{style}'>{text}</div>" if style else f"<div>{text}</div>"


def _box(parts: Sequence[str]) -> str:
    return f"<div style='{_BOX}'>{''.join(parts)}</div>"
