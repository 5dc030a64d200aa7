"""Which files the data of a corpus are: paths, folders, patterns, and stored datasets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnflow.corpus.files import FORMATS, DataFile
from attnflow.errors import FileError, InputError, shorten

__all__ = ["find_files"]

_GLOB = "*?["


def find_files(data: str | Path | Sequence[str | Path]) -> list[DataFile]:
    """The files that paths, folders and patterns name, in a fixed order: as given, then by name.

    A folder that `datasets.Dataset.save_to_disk` wrote is read in its own order.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("b.txt", "a.txt", "notes.md"):
    ...     _ = (folder / name).write_text("one text", encoding="utf-8")
    >>> [file.path.name for file in find_files(folder)]
    ['a.txt', 'b.txt']
    """
    places = [data] if isinstance(data, (str, Path)) else list(data)
    if not places:
        raise InputError("There is no data: name a file, a folder or a pattern.")
    paths = [path for place in places for path in _paths_of(Path(place).expanduser())]
    twice = [str(path) for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise InputError(f"The data name the file {twice[0]!r} twice; name each once.")
    return [DataFile(path) for path in paths]


def _paths_of(place: Path) -> list[Path]:
    if place.is_file():
        return [_checked_format(place)]
    if place.is_dir():
        return _stored_dataset(place) or _in_folder(place)
    if any(sign in str(place) for sign in _GLOB):
        root = Path(place.anchor) if place.is_absolute() else Path()
        matches = sorted(root.glob(str(place.relative_to(place.anchor))))
        paths = [path for match in matches for path in _paths_of(match)]
        if paths:
            return paths
        raise FileError(f"No file matches the pattern {shorten(str(place))}.")
    raise FileError(f"There is no file or folder {shorten(str(place))} to read texts from.")


def _checked_format(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{shorten(str(path))} ends in {path.suffix or 'nothing'!r}; a corpus is read from "
            f"{', '.join(FORMATS)}. The ending decides how a file is read: rename it if it is one."
        )
    return path


def _in_folder(folder: Path) -> list[Path]:
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in FORMATS
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise FileError(
            f"The folder {shorten(str(folder))} holds no file that ends in {', '.join(FORMATS)}."
        )
    return paths


def _stored_dataset(folder: Path) -> list[Path]:
    """The files of a dataset on disk in its own order; none where the folder is no such dataset."""
    splits = _json_file(folder / "dataset_dict.json").get("splits")
    if splits:
        raise InputError(
            f"{shorten(str(folder))} holds the splits {', '.join(map(repr, splits))}; name one of "
            f"them: {str(folder / str(splits[0]))!r}."
        )
    state = _json_file(folder / "state.json")
    if state.get("_indices_files"):
        raise InputError(
            f"{shorten(str(folder))} is a choice out of a larger dataset, kept as a list of row "
            "numbers. Save it with dataset.flatten_indices().save_to_disk(...) first."
        )
    return [folder / str(each["filename"]) for each in state.get("_data_files") or ()]


def _json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{shorten(str(path))} cannot be read: {error}.") from error
    return content if isinstance(content, dict) else {}
