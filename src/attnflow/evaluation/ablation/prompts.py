"""Prompts to evaluate on: a text, its completion, and where the answer stands, if that is known.

A file holds one prompt a line (.jsonl), or a table (.csv, .tsv, .parquet) with the columns
`prompt`, and, where known, `completion`, `expected` (the right answer: a prompt that the model
answers otherwise is left out), and the true source: `answer` as a text that occurs once in the
prompt, or `start` and `end` in characters. A line of .jsonl may also say what of the prompt is a
source: `sources`, and where its documents stand: `documents`; each is a list of texts that occur
once in the prompt, or of pairs of a first and a last character.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, InputError, optional_import, shorten
from attnflow.errors.arguments import check_fields, checked_arguments
from attnflow.tokens.units import CharSpan

__all__ = ["CompletionPrompt", "is_answered", "read_prompts"]

_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")


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
        several = [spans for spans in (self.inside, self.documents) if spans is not None]
        spans = [self.answer, self.stated, *(span for part in several for span in part)]
        for span in spans:
            if span is not None and not 0 <= span[0] < span[1] <= len(self.prompt):
                raise InputError(
                    f"The span {shorten(span)} is not a part of a prompt of {len(self.prompt)} "
                    "characters."
                )


@checked_arguments
def read_prompts(path: str | os.PathLike[str]) -> list[CompletionPrompt]:
    """The prompts of a file, in its order; errors name the line.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "prompts.jsonl")
    >>> _ = path.write_text('{"prompt": "Tom lives in Rome."}', encoding="utf-8")
    >>> read_prompts(path)[0].prompt
    'Tom lives in Rome.'
    >>> folder.cleanup()
    """
    path = Path(path)
    if not _is_file(path):
        raise FileError(f"There is no file {shorten(str(path))} to read prompts from.")
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise InputError(
            f"{str(path)!r} ends in {suffix or 'nothing'!r}; prompts are read from "
            f"{', '.join(_FORMATS)}."
        )
    prompts = [_prompt(f"Line {line} of {str(path)!r}", row) for line, row in _rows(path, suffix)]
    if not prompts:
        raise InputError(f"{str(path)!r} holds no prompt.")
    return prompts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _rows(path: Path, suffix: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if suffix == ".parquet":
        parquet = optional_import("pyarrow.parquet", extra="evaluate", purpose="A .parquet file")
        try:
            yield from enumerate(parquet.read_table(path).to_pylist(), start=1)
        except (OSError, ValueError) as error:
            raise FileError(f"{str(path)!r} cannot be read as Parquet: {error}.") from error
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            if suffix == ".jsonl":
                yield from _objects(path, lines)
            else:
                table = csv.DictReader(lines, delimiter="," if suffix == ".csv" else "\t")
                yield from ((table.line_num, row) for row in table)
    except UnicodeDecodeError as error:
        raise FileError(f"{str(path)!r} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except csv.Error as error:
        raise InputError(f"{str(path)!r} is not a table: {error}.") from error


def _objects(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"Line {number} of {str(path)!r} is not JSON ({error}).") from error
        if isinstance(record, str):
            record = {"prompt": record}
        if not isinstance(record, Mapping):
            raise InputError(f"Line {number} of {str(path)!r} is not an object: {line[:60]!r}.")
        yield number, record


def _prompt(where: str, row: Mapping[str, Any]) -> CompletionPrompt:
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        columns = ", ".join(repr(name) for name in row)
        raise InputError(f"{where} has no text in a column 'prompt'; its columns are {columns}.")
    try:
        return CompletionPrompt(
            prompt,
            completion=row.get("completion") or None,
            answer=_answer(prompt, row),
            expected=row.get("expected") or None,
            inside=_spans(prompt, row.get("sources"), "sources"),
            documents=_spans(prompt, row.get("documents"), "documents"),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _answer(prompt: str, row: Mapping[str, Any]) -> CharSpan | None:
    start, end = row.get("start"), row.get("end")
    if start not in (None, "") and end not in (None, ""):
        try:
            return int(str(start)), int(str(end))
        except ValueError as error:
            raise InputError(f"start={start!r} and end={end!r} are not numbers.") from error
    answer = row.get("answer")
    return _span(prompt, answer, "answer") if answer else None


def _spans(prompt: str, parts: Any, name: str) -> tuple[CharSpan, ...] | None:
    if not parts:
        return None
    if not isinstance(parts, list):
        raise InputError(f"{name!r} is a list of texts or of spans; got {shorten(parts)}.")
    return tuple(_span(prompt, part, name) for part in parts)


def _span(prompt: str, part: Any, name: str) -> CharSpan:
    """A pair of characters as it is; of a text the place where it occurs, once."""
    if isinstance(part, list):
        if len(part) != 2 or not all(isinstance(end, int) for end in part):
            raise InputError(f"{name}: a span is two characters' numbers; got {shorten(part)}.")
        return part[0], part[1]
    text = str(part)
    places = [match.start() for match in re.finditer(re.escape(text), prompt)]
    if len(places) != 1:
        way_out = "'start' and 'end'" if name == "answer" else "[start, end] instead"
        raise InputError(
            f"The {name} {shorten(text)} occurs {len(places)} times in the prompt; give {way_out}."
        )
    return places[0], places[0] + len(text)


def is_answered(expected: str, completion: str, *, cut_off: bool) -> bool:
    """Whether a completion gives the expected answer, articles and punctuation aside.

    cut_off: the completion ended because it was long enough; then it may be the beginning of the
    answer.

    >>> is_answered("the Normans", " Normans.", cut_off=False)
    True
    >>> is_answered("Madrid", " Mad", cut_off=True), is_answered("Madrid", " Mad", cut_off=False)
    (True, False)
    """
    right, reply = _normal(expected), _normal(completion)
    begins = cut_off and bool(completion.strip()) and expected.startswith(completion.strip())
    return (bool(right) and f" {right} " in f" {reply} ") or begins


def _normal(text: str) -> str:
    plain = re.sub(r"\b(the|a|an)\b|[^a-z0-9 ]", "", text.lower().replace("\n", " "))
    return " ".join(plain.split())
