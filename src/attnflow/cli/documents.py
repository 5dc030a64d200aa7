"""Texts that commands read: documents from files, patterns and standard input, prompts likewise."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from attnflow.errors import FileError, InputError, shorten
from attnflow.tokens.documents import Document, named_documents

__all__ = ["STANDARD_INPUT", "read_documents", "read_messages", "read_text"]

STANDARD_INPUT = "-"
ROLES = ("system", "user", "assistant")
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


def read_messages(turns: Sequence[str]) -> list[dict[str, str]]:
    """The messages that --message names: ROLE=TEXT each, or one file of JSON with all of them.

    >>> read_messages(["system=Be brief.", "user=Why?"])[1]
    {'role': 'user', 'content': 'Why?'}
    """
    if len(turns) == 1 and turns[0].endswith(".json"):
        return [_message(turn) for turn in _listed_messages(Path(turns[0]))]
    messages = []
    for turn in turns:
        role, equals, content = turn.partition("=")
        if not equals or role.strip() not in ROLES:
            raise InputError(
                f"--message {turn[:60]!r} must read ROLE=TEXT, where the role is one of "
                f"{', '.join(ROLES)}; or name one .json file with a list of messages."
            )
        messages.append({"role": role.strip(), "content": content})
    return [_message(message) for message in messages]


def _listed_messages(path: Path) -> list[object]:
    try:
        record = json.loads(_read(str(path)))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON ({error}).") from error
    messages = record.get("messages") if isinstance(record, dict) else record
    if not isinstance(messages, list) or not messages:
        raise InputError(
            f"{str(path)!r} must hold a list of messages, "
            '[{"role": "user", "content": "..."}, ...], or that list as "messages".'
        )
    return messages


def _message(record: object) -> dict[str, str]:
    if not isinstance(record, dict) or not {"role", "content"} <= record.keys():
        raise InputError(f"A message has a role and a content; got {shorten(record)}.")
    role, content = record["role"], record["content"]
    if not isinstance(content, str) or not content.strip() or not isinstance(role, str):
        raise InputError(f"A message's role and content are texts; got {shorten(record)}.")
    return {"role": role, "content": content}


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
            f"--document {place!r}: there is no such file, and no file matches it as a pattern."
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
