"""A result as static HTML: what a notebook shows. No script, no style sheet, nothing fetched.

Notebook hosts strip scripts and style elements, so every colour is an inline style and tokens are
escaped: a token may well be `</script>`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnflow.tokens import Tokens

__all__ = ["attribution_table", "shade"]

_SHOWN_SOURCES = 64  # a notebook cell is for a look; the viewer and to_pandas() hold everything
_SHOWN_TARGETS = 16
_CELL = "padding:2px 5px;text-align:right;font-variant-numeric:tabular-nums"
_HEAD = "padding:2px 5px;text-align:right;font-weight:600"
_DEEP = (8, 69, 148)  # the dark end of a single-hue blue scale: readable to the colour-blind


def shade(share: float) -> tuple[str, str]:
    """Background and text colour for a share from 0 to 1: white to dark blue.

    >>> shade(0.0), shade(1.0)
    (('#ffffff', '#111111'), ('#084594', '#ffffff'))
    """
    share = min(max(share, 0.0), 1.0)
    red, green, blue = (round(255 + (end - 255) * share) for end in _DEEP)
    return f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if share > 0.55 else "#111111"


def attribution_table(
    values: NDArray[np.float64],
    *,
    layers: Sequence[int],
    targets: Tokens,
    sources: Tokens,
    title: str,
    remarks: Sequence[str],
) -> str:
    """One target: sources × layers. Several targets: targets × sources at the highest layer.

    >>> table = attribution_table(
    ...     np.ones((1, 1, 2)), layers=[1], targets=Tokens(("a",)), sources=Tokens(("a", "<b>")),
    ...     title="Raw()", remarks=[],
    ... )
    >>> "&lt;b&gt;" in table and "<b>" not in table
    True
    """
    if len(targets) == 1:
        columns = [f"layer {number}" for number in layers]
        rows, grid = list(sources), values[:, 0, :].T
        caption = f"sources of {targets[0]!r}"
    else:
        columns, rows = list(sources), list(targets)
        grid = values[list(layers).index(max(layers))]
        caption = f"targets (rows) × sources (columns), layer {max(layers)}"
    row_limit = _SHOWN_SOURCES if len(targets) == 1 else _SHOWN_TARGETS
    body, cut = _body(grid, rows[:row_limit], columns[:_SHOWN_SOURCES])
    notes = [caption, *remarks]
    if cut or len(rows) > row_limit:
        notes.append(f"{len(rows)} × {len(columns)} in all; to_pandas() has every value")
    return (
        "<div style='font-family:system-ui,sans-serif;font-size:13px;overflow-x:auto'>"
        f"<div style='font-weight:600'>{html.escape(title)}</div>"
        f"<div style='opacity:.75'>{html.escape('; '.join(notes))}</div>"
        f"<table style='border-collapse:collapse'>{body}</table></div>"
    )


def _body(grid: NDArray[np.float64], rows: list[str], columns: list[str]) -> tuple[str, bool]:
    numbers = grid[: len(rows), : len(columns)]
    strongest = float(numbers.max(initial=0.0)) or 1.0
    head = "".join(f"<th style='{_HEAD}'>{html.escape(name)}</th>" for name in columns)
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(rows, numbers.tolist(), strict=True):
        cells = "".join(_cell(value, value / strongest) for value in row)
        lines.append(f"<tr><th style='{_HEAD}'>{html.escape(name)}</th>{cells}</tr>")
    return "".join(lines), grid.shape[1] > len(columns)


def _cell(value: float, share: float) -> str:
    background, ink = shade(share)
    return f"<td style='{_CELL};background:{background};color:{ink}'>{value:.3f}</td>"
