"""Images to evaluate on: a folder of them, or a table that names them.

A table (.csv, .tsv, .jsonl, .parquet) has a column `path` (or `image`), relative to the table, and
may have `label` (the right answer), `box` (where the true thing is, in pixels of the photo held
upright: left top right bottom) and `question` (for models that are asked about an image).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.data import list_photos
from attnflow.errors import FileError, InputError, optional_import, shorten
from attnflow.tokens.pictures import PICTURE_ENDINGS

__all__ = ["Box", "ImageExample", "holds_images", "read_images"]

Box = tuple[float, float, float, float]
_PATHS = ("path", "image")
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class ImageExample:
    """One image, and what is known of it.

    box: (left, top, right, bottom) in pixels of the photo held upright.

    >>> ImageExample("cat.jpg", label="cat", box=(10, 20, 110, 90)).box
    (10, 20, 110, 90)
    """

    image: Any
    label: str | None = None
    box: Box | None = None
    question: str | None = None

    @property
    def name(self) -> str:
        """What tables call it."""
        return Path(self.image).name if isinstance(self.image, (str, Path)) else "image"


def holds_images(place: Path) -> bool:
    """Whether it is an image, a folder with images, or a table with a column of their paths.

    >>> import tempfile
    >>> table = Path(tempfile.mkdtemp()) / "scenes.csv"
    >>> _ = table.write_text("path,label\\ncat.png,cat\\n", encoding="utf-8")
    >>> holds_images(table)
    True
    """
    if place.is_dir():
        return any(file.suffix.lower() in PICTURE_ENDINGS for file in place.iterdir())
    if place.is_file() and place.suffix.lower() in PICTURE_ENDINGS:
        return True
    if not place.is_file() or place.suffix.lower() not in _TABLES:
        return False
    try:
        first = next(_rows(place), {})
    except (InputError, FileError):
        return False  # who reads it says what is wrong
    value = str(first.get(_path_column(first) or "", ""))
    return value.lower().endswith(PICTURE_ENDINGS)


def read_images(place: Path) -> list[ImageExample]:
    """The image, those of a folder, by name, or those of a table, in its order.

    >>> import tempfile
    >>> table = Path(tempfile.mkdtemp()) / "scenes.jsonl"
    >>> _ = table.write_text('{"path": "a.png", "box": [1, 2, 3, 4]}', encoding="utf-8")
    >>> read_images(table)[0].box
    (1.0, 2.0, 3.0, 4.0)
    """
    if place.is_dir():
        return [ImageExample(path) for path in list_photos(place)]
    if not place.is_file():
        raise FileError(f"There is no image, folder or table {str(place)!r}.")
    if place.suffix.lower() in PICTURE_ENDINGS:
        return [ImageExample(place)]
    examples = [_example(place, number, row) for number, row in enumerate(_rows(place), start=1)]
    if not examples:
        raise InputError(f"{str(place)!r} names no image.")
    return examples


def _example(place: Path, number: int, row: Mapping[str, Any]) -> ImageExample:
    where = f"Row {number} of {str(place)!r}"
    column = _path_column(row)
    if column is None or not row[column]:
        names = ", ".join(map(repr, row)) or "none"
        raise InputError(f"{where} has no path: it has the columns {names}, and needs 'path'.")
    fields = {str(name).lower(): value for name, value in row.items()}
    return ImageExample(
        place.parent / str(row[column]),
        _text(fields.get("label")),
        _box(fields.get("box"), where),
        _text(fields.get("question")),
    )


def _path_column(row: Mapping[str, Any]) -> str | None:
    return next((name for name in row if str(name).lower() in _PATHS), None)


def _text(value: Any) -> str | None:
    text = "" if value is None else str(value).strip()
    return text or None


def _box(value: Any, where: str) -> Box | None:
    if value is None or value == "":
        return None
    parts = re.findall(r"-?\d+(?:\.\d+)?", value) if isinstance(value, str) else value
    try:
        left, top, right, bottom = (float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: a box is four numbers, left top right bottom; got {shorten(value)}."
        ) from error
    if not (left < right and top < bottom):
        raise InputError(
            f"{where}: a box is left top right bottom, the first two below the last two; got "
            f"{shorten(value)}."
        )
    return left, top, right, bottom


def _rows(place: Path) -> Iterator[Mapping[str, Any]]:
    suffix = place.suffix.lower()
    if suffix == ".parquet":
        parquet = optional_import("pyarrow.parquet", extra="evaluate", purpose="Reading .parquet")
        try:
            yield from parquet.read_table(place).to_pylist()
        except (OSError, ValueError) as error:
            raise FileError(f"{str(place)!r} cannot be read as Parquet: {error}.") from error
        return
    try:
        content = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{str(place)!r} cannot be read as UTF-8 text: {error}.") from error
    if suffix == ".jsonl":
        yield from _json_rows(place, content)
    elif suffix in (".csv", ".tsv"):
        yield from csv.DictReader(content.splitlines(), delimiter="," if suffix == ".csv" else "\t")
    else:
        raise InputError(f"{str(place)!r}: images are named in {', '.join(_TABLES)}.")


def _json_rows(place: Path, content: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"Line {number} of {str(place)!r} is not JSON ({error}).") from error
        if not isinstance(row, Mapping):
            raise InputError(f"Line {number} of {str(place)!r} is not an object: {line[:60]!r}.")
        yield row
