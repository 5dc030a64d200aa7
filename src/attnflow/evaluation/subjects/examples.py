"""Examples to evaluate on, and how the rows of a file become them.

A table of prompts has the columns `prompt`, and, where known, `completion`, `expected` (the right
answer: a prompt that the model answers otherwise is left out), and the true source: `answer` as a
text that occurs once in the prompt, or `start` and `end` in characters. JSON may also say what of
the prompt is a source: `sources`, and where its documents stand: `documents`; each is a list of
texts that occur once in the prompt, or of pairs of a first and a last character.

A table of images has a column `path` (or `image`), relative to the table, and may have `label` (the
right answer), `box` (where the true thing is, in pixels of the photo held upright: left top right
bottom) and `question` (for models that are asked about an image).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from attnflow.data import Row, find_column, list_photos, read_value, rows
from attnflow.errors import InputError, shorten
from attnflow.errors.arguments import check_fields, checked_arguments
from attnflow.tokens.patches import PICTURE_ENDINGS
from attnflow.tokens.units import CharSpan

PathLike = str | os.PathLike[str]
Box = tuple[float, float, float, float]


# -- texts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledText:
    """A text, its right answer where the file gives one (a class by name or number), its line.

    >>> LabelledText("the key to the cabinets", "singular")
    LabelledText(text='the key to the cabinets', label='singular')
    """

    text: str
    label: str | None = None
    line: int = field(default=0, compare=False, repr=False)


@checked_arguments
def read_texts(path: PathLike, *, column: str | None = None) -> list[LabelledText]:
    """Return the texts of a file in its order, empty ones left out; `column` is where they are."""
    texts = [each for row in rows(path) if (each := _read_text(row, column)).text]
    if not texts:
        raise InputError(f"{shorten(str(path))} holds no text.")
    return texts


def _read_text(row: Row, column: str | None) -> LabelledText:
    names = list(row.values)
    name = find_column(names, "text", column)
    if name is None:
        raise InputError(
            f"{row.place} has no column 'text' or 'sentence'. The columns are "
            f"{', '.join(map(repr, names)) or 'none'}; name the one with the texts: --column "
            "(column=)."
        )
    text = row.values[name]
    if text is not None and not isinstance(text, str):
        raise InputError(f"{row.place}: {name!r} is not a text but {shorten(text)}.")
    others = {each: value for each, value in row.values.items() if each != name}
    label = read_value(others, "label")
    return LabelledText((text or "").strip(), _strip(label), row.line or row.number + 1)


# -- prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompletionPrompt:
    """One prompt.

    completion: as it follows the prompt; None is the model's own, by greedy search.
    answer: where the true source stands, in characters of the prompt; None if it is not known.
    expected: the right answer; a prompt that is answered otherwise is left out.
    inside: only these parts of the prompt are sources. documents: where its documents stand.
    stated: the part of the prompt whose sentences are compared, the question left out.

    >>> CompletionPrompt("Anna lives in Rome. Anna lives in", answer=(14, 18)).answer
    (14, 18)
    """

    prompt: str
    completion: str | None = None
    answer: CharSpan | None = None
    expected: str | None = None
    inside: tuple[CharSpan, ...] | None = None
    documents: tuple[CharSpan, ...] | None = None
    stated: CharSpan | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise InputError(f"A prompt is a text; got {shorten(self.prompt)}.")
        check_fields(self)
        parts = (spans for spans in (self.inside, self.documents) if spans is not None)
        for span in (self.answer, self.stated, *chain.from_iterable(parts)):
            if span is not None and not 0 <= span[0] < span[1] <= len(self.prompt):
                raise InputError(
                    f"The span {shorten(span)} is not a part of a prompt of {len(self.prompt)} "
                    "characters."
                )


@checked_arguments
def read_prompts(path: PathLike) -> list[CompletionPrompt]:
    """Return the prompts of a file, in its order; errors name the line."""
    prompts = [_read_prompt(row) for row in rows(path)]
    if not prompts:
        raise InputError(f"{shorten(str(path))} holds no prompt.")
    return prompts


def _read_prompt(row: Row) -> CompletionPrompt:
    values = {str(name).lower(): value for name, value in row.values.items()}
    prompt = values.get("prompt", values.get("text"))
    if not isinstance(prompt, str) or not prompt.strip():
        names = ", ".join(map(repr, row.values))
        raise InputError(f"{row.place} has no text in a column 'prompt'; its columns are {names}.")
    try:
        return CompletionPrompt(
            prompt,
            completion=values.get("completion") or None,
            answer=_read_answer(prompt, values),
            expected=values.get("expected") or None,
            inside=_read_spans(prompt, values.get("sources"), "sources"),
            documents=_read_spans(prompt, values.get("documents"), "documents"),
        )
    except InputError as error:
        raise InputError(f"{row.place}: {error}") from error


def _read_answer(prompt: str, values: Mapping[str, Any]) -> CharSpan | None:
    start, end = values.get("start"), values.get("end")
    if start not in (None, "") and end not in (None, ""):
        try:
            return int(str(start)), int(str(end))
        except ValueError as error:
            raise InputError(f"start={start!r} and end={end!r} are not numbers.") from error
    answer = values.get("answer")
    return _find_span(prompt, answer, "answer") if answer else None


def _read_spans(prompt: str, places: Any, name: str) -> tuple[CharSpan, ...] | None:
    if not places:
        return None
    if not isinstance(places, list):
        raise InputError(f"{name!r} is a list of texts or of spans; got {shorten(places)}.")
    return tuple(_find_span(prompt, place, name) for place in places)


def _find_span(prompt: str, place: Any, name: str) -> CharSpan:
    """Return a pair of characters as it is; of a text the place where it occurs, once."""
    if isinstance(place, list):
        if len(place) != 2 or not all(isinstance(end, int) for end in place):
            raise InputError(f"{name}: a span is two characters' numbers; got {shorten(place)}.")
        return place[0], place[1]
    text = str(place)
    starts = [match.start() for match in re.finditer(re.escape(text), prompt)]
    if len(starts) != 1:
        way_out = "'start' and 'end'" if name == "answer" else "[start, end] instead"
        raise InputError(
            f"The {name} {shorten(text)} occurs {len(starts)} times in the prompt; give {way_out}."
        )
    return starts[0], starts[0] + len(text)


# -- images ---------------------------------------------------------------------------------------


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
        """The name that tables call it by."""
        return Path(self.image).name if isinstance(self.image, (str, Path)) else "image"


def read_images(path: PathLike) -> list[ImageExample]:
    """Return the image, those of a folder, by name, or those of a table, in its order."""
    place = Path(path).expanduser()
    if place.is_dir():
        return [ImageExample(photo) for photo in list_photos(place)]
    if place.is_file() and place.suffix.lower() in PICTURE_ENDINGS:
        return [ImageExample(place)]
    examples = [_read_image(row) for row in rows(place)]
    if not examples:
        raise InputError(f"{shorten(str(place))} names no image.")
    return examples


def _read_image(row: Row) -> ImageExample:
    image = read_value(row.values, "image")
    if image is None:
        names = ", ".join(map(repr, row.values)) or "none"
        raise InputError(f"{row.place} has no path: it has the columns {names}, and needs 'path'.")
    return ImageExample(
        row.file.parent / str(image),
        _strip(read_value(row.values, "label")),
        _read_box(read_value(row.values, "box"), row.place),
        _strip(read_value(row.values, "question")),
    )


def _read_box(value: Any, place: str) -> Box | None:
    if value is None:
        return None
    numbers = re.findall(r"-?\d+(?:\.\d+)?", value) if isinstance(value, str) else value
    try:
        left, top, right, bottom = (float(number) for number in numbers)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{place}: a box is four numbers, left top right bottom; got {shorten(value)}."
        ) from error
    if not (left < right and top < bottom):
        raise InputError(
            f"{place}: a box is left top right bottom, the first two below the last two; got "
            f"{shorten(value)}."
        )
    return left, top, right, bottom


def _strip(value: Any) -> str | None:
    return None if value is None else str(value).strip() or None
