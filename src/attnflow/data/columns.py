"""Which column plays which part: the one that is named, or the first with a usual name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from attnflow.data.find import Data, find_files, rows
from attnflow.errors import AttnflowError, InputError, did_you_mean
from attnflow.tokens.patches import PICTURE_ENDINGS

__all__ = ["Subject", "find_column", "name_subject", "read_value"]

Subject = Literal["text", "prompt", "image"]
USUAL_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text", "sentence"),
    "image": ("path", "image"),
}


def find_column(present: Sequence[str], role: str, name: str | None = None) -> str | None:
    """Return the column of a role: the one that is named, or one with a usual name; None if none.

    A name that was given must be there; a usual one may be written in any case.

    >>> find_column(["id", "Sentence"], "text"), find_column(["id"], "label")
    ('Sentence', None)
    """
    if name is not None:
        if name in present:
            return name
        raise InputError(
            f"There is no column {name!r} for the {role}.{did_you_mean(name, present)} The columns "
            f"are {', '.join(map(repr, present)) or 'none'}."
        )
    for usual in USUAL_NAMES.get(role, (role,)):
        for column in present:
            if str(column).lower() == usual:
                return column
    return None


def read_value(values: Mapping[str, Any], role: str, name: str | None = None) -> Any:
    """Return what a row holds for a role; None where it holds nothing.

    >>> read_value({"Label": " 1"}, "label"), read_value({"Label": ""}, "label")
    (' 1', None)
    """
    column = find_column(list(values), role, name)
    value = None if column is None else values[column]
    return None if isinstance(value, str) and not value.strip() else value


def name_subject(data: Data) -> Subject:
    """Return what data are about: images, prompts that a model continues, or texts that it reads.

    Images are a picture, a folder of them, or a table whose first row names one. Prompts are a
    table with a column `prompt`. What cannot be read counts as texts: reading it says why.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "prompts.jsonl"
    >>> _ = path.write_text('{"prompt": "Anna lives in"}', encoding="utf-8")
    >>> name_subject(path)
    'prompt'
    """
    if isinstance(data, (str, os.PathLike)) and _holds_photos(Path(data).expanduser()):
        return "image"
    try:
        file = find_files(data)[0]
        first = next(rows(file.path), None)
        columns = file.columns() if first is None else list(first.values)
    except AttnflowError:
        return "text"
    image = None if first is None else read_value(first.values, "image")
    if str(image or "").lower().endswith(PICTURE_ENDINGS):
        return "image"
    return "prompt" if find_column(columns, "prompt") is not None else "text"


def _holds_photos(place: Path) -> bool:
    try:
        files = list(place.iterdir()) if place.is_dir() else [place]
    except (OSError, ValueError):
        return False
    return any(file.suffix.lower() in PICTURE_ENDINGS for file in files)
