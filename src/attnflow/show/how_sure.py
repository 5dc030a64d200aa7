"""How sure is this explanation? The confirmation of a result drawn as two bars: the answer's
probability with the named sources, and with all of them hidden.
"""

from __future__ import annotations

import html

from attnflow.attribution import Confirmation

__all__ = ["how_sure_html", "how_sure_lines"]

_WIDTH = 30  # characters of a bar that stands for certainty
_EIGHTHS = " ▏▎▍▌▋▊▉"
_QUIET = "opacity:.72;font-size:12px"
_TRACK = (
    "display:inline-block;width:180px;height:9px;border-radius:3px;margin-right:8px;"
    "background:linear-gradient(90deg,{colour} {share:.1f}%,rgba(128,128,128,.25) {share:.1f}%)"
)
_WITH, _WITHOUT = "#084594", "#9a4200"


def how_sure_lines(confirmation: Confirmation) -> list[str]:
    """For a terminal: the sentence, what it means, and a bar for each probability.

    >>> sure = Confirmation(("Rome",), ((3,),), ("Rome",), (-0.1,), (-4.6,))
    >>> for line in how_sure_lines(sure)[1:]:
    ...     print(line)
      with it     ███████████████████████████▏   p 0.90
      without it  ▎                              p 0.01
    """
    lines = [f"How sure? {confirmation} {confirmation.verdict}"]
    rows = _rows(confirmation)
    width = max(len(label) for label, _ in rows)
    return [
        *lines,
        *(f"  {label:{width}}  {_bar(p):{_WIDTH}} p {_number(p)}" for label, p in rows),
    ]


def how_sure_html(confirmation: Confirmation) -> str:
    """For a notebook: the same with inline styles only.

    >>> sure = Confirmation(("<b>",), ((3,),), ("Rome",), (-0.1,), (-4.6,))
    >>> "&lt;b&gt;" in how_sure_html(sure) and "<b>" not in how_sure_html(sure)
    True
    """
    sentence = html.escape(f"How sure? {confirmation} {confirmation.verdict}")
    colours = (_WITH, _WITHOUT)
    rows = "".join(
        f"<div><span style='{_TRACK.format(colour=colour, share=100 * p)}'></span>"
        f"<span style='{_QUIET}'>{label}: p {_number(p)}</span></div>"
        for (label, p), colour in zip(_rows(confirmation), colours, strict=True)
    )
    return f"<div style='margin:8px 0'><div>{sentence}</div>{rows}</div>"


def _rows(confirmation: Confirmation) -> list[tuple[str, float]]:
    them = "it" if len(confirmation.sources) == 1 else "them"
    pair = confirmation.probability, confirmation.probability_without
    return list(zip((f"with {them}", f"without {them}"), pair, strict=True))


def _bar(probability: float) -> str:
    eighths = round(8 * _WIDTH * min(max(probability, 0.0), 1.0))
    rest = _EIGHTHS[eighths % 8].strip()
    return "█" * (eighths // 8) + rest


def _number(probability: float) -> str:
    return f"{probability:.2f}" if probability >= 0.005 else f"{probability:.1g}"
