"""Texts with labels, as GLUE keeps them: one line each, columns divided by tabs, a header."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnflow.errors import FileError

__all__ = ["LabelledText", "read_labelled_texts"]

_TEXT_COLUMNS = ("sentence", "text")
_LABEL_COLUMN = "label"


class LabelledText(NamedTuple):
    """A text and its label, as an index of the model's labels; None where the file has none."""

    text: str
    label: int | None


def read_labelled_texts(
    path: str | os.PathLike[str], labels: Sequence[str]
) -> tuple[LabelledText, ...]:
    """Read a TSV with the columns `sentence` (or `text`) and, where there are labels, `label`.

    A label is a number, counted from 0, or one of the names in `labels`. Other columns are
    ignored. Quotation marks are part of the text, as in GLUE's own files.
    """
    lines = _read_lines(path)
    header = [name.strip().lower() for name in lines[0].split("\t")]
    text_column = _text_column(path, header)
    label_column = header.index(_LABEL_COLUMN) if _LABEL_COLUMN in header else None
    found = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            cells = line.split("\t")
            if len(cells) != len(header) or not cells[text_column].strip():
                raise FileError(
                    f"Line {number} of {os.fspath(path)!r} should have {len(header)} columns "
                    f"({', '.join(header)}) with a tab between, and a text; it is {line!r}."
                )
            label = None
            if label_column is not None:
                label = _label(path, number, cells[label_column], labels)
            found.append(LabelledText(cells[text_column].strip(), label))
    if not found:
        raise FileError(f"{os.fspath(path)!r} has a header and no texts.")
    return tuple(found)


def _read_lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{os.fspath(path)!r} cannot be read as text: {error}.") from error
    if not content.strip():
        raise FileError(f"{os.fspath(path)!r} is empty.")
    # Not splitlines(), which also ends a line at rare characters that may stand inside a text.
    return [line.removesuffix("\r") for line in content.split("\n")]


def _text_column(path: str | os.PathLike[str], header: Sequence[str]) -> int:
    for name in _TEXT_COLUMNS:
        if name in header:
            return header.index(name)
    raise FileError(
        f"The first line of {os.fspath(path)!r} must name its columns, 'sentence' (or 'text') and "
        f"'label' with a tab between, as GLUE's files do; it is {list(header)}."
    )


def _label(path: str | os.PathLike[str], number: int, cell: str, labels: Sequence[str]) -> int:
    allowed = {name.lower(): k for k, name in enumerate(labels)}
    allowed |= {str(k): k for k in range(len(labels))}
    wanted = cell.strip().lower()
    if wanted not in allowed:
        listed = ", ".join(f"{k} ({name})" for k, name in enumerate(labels))
        raise FileError(
            f"Line {number} of {os.fspath(path)!r} has the label {cell.strip()!r}; the model's "
            f"labels are {listed}. Texts without labels need a header without 'label'."
        )
    return allowed[wanted]
