"""Inputs of commands: texts, documents and messages from files and standard input, photos by path,
and the model, which must take what is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnflow.data.documents import ENDINGS, STANDARD_INPUT, read_document
from attnflow.errors import InputError, shorten
from attnflow.show.progress import progress_bars
from attnflow.tokens.patches import PICTURE_ENDINGS, names_picture

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

ROLES = ("system", "user", "assistant")
TRANSCRIPTS = (".json", ".jsonl")


def read_text(text: str | None, words: str | None, purpose: str = "explain") -> str:
    """Read a text: of a file that is there, or of standard input (-), else the words themselves.

    words: those of --text, which are never a file.
    """
    if (text is None) == (words is None):
        raise InputError(
            f"Give one text to {purpose}: its words, a file that holds it, or - for standard "
            'input. --text "..." takes the words as they are, whatever files there are.'
        )
    if words is not None:
        return check_text(words, purpose)
    if not names_place(str(text)) or names_picture(str(text)):
        return check_text(str(text), purpose)
    content = read_document(str(text)).text.strip()
    if text != STANDARD_INPUT:
        typer.echo(f"attnflow: reading the file {text!r}.", err=True)
    return content


def names_place(text: str) -> bool:
    """Tell whether a text names a file or a folder: one that is there, or one by its ending."""
    endings = (*ENDINGS, *TRANSCRIPTS)
    if text == STANDARD_INPUT or (text.lower().endswith(endings) and not text.split()[1:]):
        return True
    with suppress(OSError, ValueError):  # a name that no file can have
        return bool(text.strip()) and Path(text).exists()
    return False


def read_messages(turns: Sequence[str]) -> list[dict[str, str]]:
    """Read the messages of --message: ROLE=TEXT each, or one file of JSON with all of them."""
    if len(turns) == 1 and turns[0].endswith(".json"):
        return [_message(turn) for turn in _listed_messages(turns[0])]
    messages = []
    for turn in turns:
        role, equals, content = turn.partition("=")
        if not equals or role.strip() not in ROLES:
            raise InputError(
                f"--message {turn[:60]!r} must read ROLE=TEXT, where the role is one of "
                f"{', '.join(ROLES)}; or name one .json file with a list of messages."
            )
        messages.append(_message({"role": role.strip(), "content": content}))
    return messages


def _listed_messages(file: str) -> list[object]:
    try:
        record = json.loads(read_document(file).text)
    except ValueError as error:
        raise InputError(f"{file!r} is not JSON ({error}).") from error
    messages = record.get("messages") if isinstance(record, dict) else record
    if not isinstance(messages, list) or not messages:
        raise InputError(
            f"{file!r} must hold a list of messages, "
            '[{"role": "user", "content": "..."}, ...], or that list as "messages".'
        )
    return messages


def names_transcript(text: str) -> bool:
    """Tell whether TEXT is the name of a file of messages, by its ending."""
    return text.lower().endswith(TRANSCRIPTS) and names_place(text)


def check_images(images: Sequence[Path] | None) -> None:
    """Refuse images that are not there, before a model is loaded."""
    for image in images or ():
        if not image.is_file():
            raise InputError(f"--images {str(image)!r}: there is no such file.")


def read_transcripts(file: str) -> list[object]:
    """Read the transcripts of a .json file, one, or of a .jsonl file, one on each line.

    Lines that are messages are one transcript together.
    """
    text = read_document(file).text
    lines = text.splitlines() if file.endswith(".jsonl") else [text]
    records: list[object] = []
    for number, line in enumerate(lines, 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise InputError(
                f"{file!r}, line {number}, is not JSON ({error}). A transcript is a .json file "
                'with the messages: [{"role": "user", "content": "..."}, ...].'
            ) from error
    are_messages = all(isinstance(each, dict) and "role" in each for each in records)
    return [records] if are_messages else records


def _message(record: object) -> dict[str, str]:
    if not isinstance(record, dict) or not {"role", "content"} <= record.keys():
        raise InputError(f"A message has a role and a content; got {shorten(record)}.")
    role, content = record["role"], record["content"]
    if not isinstance(content, str) or not content.strip() or not isinstance(role, str):
        raise InputError(f"A message's role and content are texts; got {shorten(record)}.")
    return {"role": role, "content": content}


def check_text(text: str, purpose: str = "explain") -> str:
    """Return a text that is there, in valid Unicode, and no image's name."""
    if not text.strip():
        raise InputError(f"There is nothing to {purpose}: the text is {text!r}.")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise InputError(
            "The text is not valid Unicode: it holds bytes that the terminal could not decode. "
            "Save it as UTF-8 and try again."
        )
    if names_picture(text):
        raise InputError(
            f"{text!r} is an image, and this command takes text. Photos: attnflow explain, report "
            "and evaluate, with --model FOLDER of a vision model."
        )
    return text


def check_question(question: str) -> None:
    """Refuse a question that is none: nothing, or the name of a document, which stands behind."""
    check_text(question, "answer")
    if names_place(question):
        raise InputError(
            f"The question comes first, then the documents, and {question!r} is a file: "
            f'attnflow ask "How long is the notice?" {question}.'
        )


def names_photos(text: str, model: str | None) -> bool:
    """Tell whether TEXT is an image's path, also a missing one's; with a model, or a folder's."""
    if names_picture(text) or (text.lower().endswith(PICTURE_ENDINGS) and not text.split()[1:]):
        return True  # a file that is not there is told
    if model is None:
        return False
    with suppress(OSError, ValueError):
        files = Path(text).iterdir() if Path(text).is_dir() else ()
        return any(file.suffix.lower() in PICTURE_ENDINGS for file in files)
    return False


def load_for_text(model: str | None) -> Model:
    """Load a model that reads text."""
    from attnflow.hosts.load import load

    with progress_bars("loading the model"):
        loaded = load(model)
    if loaded.tokenizer is None:
        raise InputError(
            f"--model {model!r} reads no text: it has no tokenizer. A vision model takes the path "
            "of an image: attnflow explain --model FOLDER photo.jpg --output overlay.png."
        )
    return loaded


def load_for_photo(model: str | None, photo: str) -> Model:
    """Load a model that takes a photo without a text."""
    if model is None:
        raise InputError(
            f"{photo!r} is an image, and the models that come with attnflow read text. Name a "
            "vision model: --model FOLDER, with its weights and preprocessor_config.json."
        )
    from attnflow.hosts.load import as_model
    from attnflow.hosts.vision_language.towers import towers_of

    with progress_bars("loading the model"):
        loaded = as_model(model, needs_tokenizer=False)
    name = type(loaded.module).__name__
    if towers_of(loaded.module) is not None:
        raise InputError(
            f"--model {model!r} ({name}) answers questions about images: "
            f'attnflow generate --model {model} --images {photo} "what is in the image?".'
        )
    if not loaded.adapter.reads_images(loaded.module):
        raise InputError(
            f"{photo!r} is an image, and --model {model!r} ({name}) reads text. Give a text, or a "
            "vision model."
        )
    return loaded


def tell_preparation(model: str | None) -> None:
    """Say so when the first use of SmolLM2 takes longer."""
    if model is not None and model.lower() != "smollm2":
        return
    from attnflow.models.smollm2 import prepared_folder

    if not prepared_folder().is_dir():
        typer.echo("attnflow: preparing SmolLM2 for its first use, about 30 seconds.", err=True)
