"""Texts that commands read: documents from files, patterns and standard input, prompts likewise."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from pathlib import Path

from attnflow.errors import FileError, InputError
from attnflow.tokens.documents import Document, named_documents

__all__ = ["STANDARD_INPUT", "read_documents", "read_text"]

STANDARD_INPUT = "-"
_LARGEST = 2_000_000  # bytes of a document: far more than any prompt takes


def read_documents(places: Sequence[str]) -> tuple[Document, ...]:
    """The documents that --document names: files, patterns such as 'notes/*.txt', or - ."""
    if not places:
        raise InputError(
            "There is no document: add --document FILE (repeatable; a pattern such as 'docs/*.txt',"
            " or - for standard input)."
        )
    files = [file for place in places for file in _files(place)]
    short = [Path(file).name for file in files]
    names = [
        name if short.count(name) == 1 else file for name, file in zip(short, files, strict=True)
    ]
    texts = [_read(file) for file in files]
    return named_documents(
        [
            ("standard input" if file == STANDARD_INPUT else name, text)
            for file, name, text in zip(files, names, texts, strict=True)
        ]
    )


def read_text(text: str | None, file: Path | None, name: str = "TEXT") -> str:
    """A text from the command line, from --file, or from standard input (-)."""
    if (text is None) == (file is None):
        raise InputError(f"Give {name} or --file, and only one of them; - reads standard input.")
    if file is not None:
        return _read(str(file))
    return _read(STANDARD_INPUT) if text == STANDARD_INPUT else str(text)


def _files(place: str) -> list[str]:
    if place == STANDARD_INPUT or Path(place).is_file():
        return [place]
    matches = sorted(
        name
        for name in glob.glob(place, recursive=True)  # noqa: PTH207 (an absolute pattern too)
        if Path(name).is_file()
    )
    if not matches:
        raise InputError(
            f"--document {place!r}: there is no such file, and no file fits it as a pattern."
        )
    return matches


def _read(place: str) -> str:
    label = "Standard input" if place == STANDARD_INPUT else repr(place)
    try:
        data = sys.stdin.buffer.read() if place == STANDARD_INPUT else _bytes(Path(place))
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{label} is not UTF-8 text ({error.reason}). Save it as UTF-8."
        ) from error
    if not text.strip():
        raise InputError(f"{label} is empty.")
    return text.strip()


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r}.")
    if path.stat().st_size > _LARGEST:
        raise InputError(
            f"{str(path)!r} has {path.stat().st_size:,} bytes; a document of up to {_LARGEST:,} "
            "is read. Cut it into parts."
        )
    return path.read_bytes()
