"""Which files data are (paths, folders, patterns, stored datasets, images), with all their rows.

Of their columns the one that is named plays a part, or the first with a usual name for it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from attnflow.data.files import FORMATS, DataFile, Row, file_errors
from attnflow.errors import AttnflowError, FileError, InputError, did_you_mean, shorten
from attnflow.tokens.patches import PICTURE_ENDINGS

_GLOB = "*?["
_IN_FOLDERS = tuple(ending for ending in FORMATS if ending != ".json")  # those are mostly settings

Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Subject = Literal["text", "prompt", "image"]
USUAL_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text", "sentence"),
    "image": ("path", "image"),
}


def rows(data: Data) -> Iterator[Row]:
    """Yield the rows of files, folders and patterns, in order.

    An image, or a folder of images, has a row for each, with its path in the column `image`. The
    problem of a row that cannot be used is raised; `DataFile.rows` yields it with the row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.tsv"
    >>> _ = path.write_text('text\\tlabel\\na "good film\\t1\\n', encoding="utf-8")
    >>> [dict(row.values) for row in rows(path)]
    [{'text': 'a "good film', 'label': '1'}]
    """
    for file in find_files(data):
        for row in file.rows():
            if row.problem is not None:
                raise row.problem
            yield row


def find_files(data: Data) -> list[DataFile]:
    """Return the files that are named, in a fixed order: as given, then by name.

    A folder that `datasets.Dataset.save_to_disk` wrote is read in its own order. A folder that
    holds images and no table stands for its images.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("b.txt", "a.txt", "notes.md"):
    ...     _ = (folder / name).write_text("one text", encoding="utf-8")
    >>> [file.path.name for file in find_files(folder)]
    ['a.txt', 'b.txt']
    """
    places = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    if not places:
        raise InputError("There is no data: name a file, a folder or a pattern.")
    paths = [path for place in places for path in _find_paths(Path(place).expanduser())]
    twice = [str(path) for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise InputError(f"The data name the file {twice[0]!r} twice; name each once.")
    return [DataFile(path) for path in paths]


def list_photos(folder: Path) -> list[Path]:
    """Return the images of a folder, by name; folders in it are left alone.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "cat.JPG").write_bytes(b""), (folder / "notes.txt").write_text("")
    >>> [path.name for path in list_photos(folder)]
    ['cat.JPG']
    """
    with file_errors(folder):
        files = sorted(path for path in folder.iterdir() if path.is_file())
    photos = [path for path in files if path.suffix.lower() in PICTURE_ENDINGS]
    if not photos:
        raise InputError(
            f"There is no image in {str(folder)!r}: names end in .png, .jpg and the like."
        )
    return photos


def _find_paths(place: Path) -> list[Path]:
    try:
        is_file, is_folder = place.is_file(), place.is_dir()
    except (OSError, ValueError):  # a name that no file system takes
        is_file = is_folder = False
    if is_file:
        return [_check_format(place)]
    if is_folder:
        return _list_stored_dataset(place) or _list_folder(place)
    if any(sign in str(place) for sign in _GLOB):
        root = Path(place.anchor) if place.is_absolute() else Path()
        matches = sorted(root.glob(str(place.relative_to(place.anchor))))
        paths = [path for match in matches for path in _find_paths(match)]
        if paths:
            return paths
        raise FileError(f"No file matches the pattern {shorten(str(place))}.")
    raise FileError(f"There is no file or folder {shorten(str(place))} to read.")


def _check_format(path: Path) -> Path:
    ending = path.suffix.lower()
    if ending not in FORMATS and ending not in PICTURE_ENDINGS:
        raise InputError(
            f"{shorten(str(path))} ends in {ending or 'nothing'!r}; data are read from "
            f"{', '.join(FORMATS)}. The ending decides how a file is read: rename it if it is one."
        )
    return path


def _list_folder(folder: Path) -> list[Path]:
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in _IN_FOLDERS
        and path.is_file()
        and not any(name.startswith((".", "_")) for name in path.relative_to(folder).parts)
    ]
    if paths:
        return paths
    try:
        return list_photos(folder)
    except InputError:
        raise FileError(
            f"The folder {shorten(str(folder))} holds no file that ends in "
            f"{', '.join(_IN_FOLDERS)}, and no image."
        ) from None


def _list_stored_dataset(folder: Path) -> list[Path]:
    """Return the files of a dataset on disk in its own order; none where it is no such folder."""
    splits = _read_object(folder / "dataset_dict.json").get("splits")
    if splits:
        raise InputError(
            f"{shorten(str(folder))} holds the splits {', '.join(map(repr, splits))}; name one of "
            f"them: {str(folder / str(splits[0]))!r}."
        )
    state = _read_object(folder / "state.json")
    if state.get("_indices_files"):
        raise InputError(
            f"{shorten(str(folder))} is a choice out of a larger dataset, kept as a list of row "
            "numbers. Save it with dataset.flatten_indices().save_to_disk(...) first."
        )
    return [folder / str(each["filename"]) for each in state.get("_data_files") or ()]


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{shorten(str(path))} cannot be read: {error}.") from error
    return content if isinstance(content, dict) else {}


# -- columns ---------------------------------------------------------------------------------------


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


def read_value(values: Mapping[str, Any], role: str) -> Any:
    """Return what a row holds for a role; None where it holds nothing.

    >>> read_value({"Label": " 1"}, "label"), read_value({"Label": ""}, "label")
    (' 1', None)
    """
    column = find_column(list(values), role)
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
