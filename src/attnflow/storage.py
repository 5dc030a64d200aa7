"""Reading and writing values: one header and some named arrays, as .safetensors or .json.

Both formats give back every bit. JSON holds numbers as the shortest decimals that read back to
the same float, safetensors holds the bytes. Neither can run code when it is opened.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attnflow._version import __version__
from attnflow.errors import FileError

__all__ = [
    "FORMAT",
    "provenance_stamp",
    "read",
    "unpacking",
    "write",
    "write_safely",
    "write_text",
]

FORMAT = 1  # raised when a reader of the old layout could misread the new one
_SUFFIXES = (".safetensors", ".json")
Arrays = dict[str, NDArray[Any]]


def provenance_stamp() -> dict[str, str]:
    """What every result says about the code that made it."""
    return {"attnflow": __version__, "numpy": np.__version__}


def write(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], arrays: Arrays
) -> None:
    """Write in the format of the suffix; the file appears whole or not at all."""
    target = _checked_suffix(path)
    head = {"attnflow": {"format": FORMAT, "kind": kind}, **header}
    if target.suffix == ".json":
        body = {name: _array_to_json(array) for name, array in arrays.items()}
        content = json.dumps({**head, "arrays": body}, ensure_ascii=False).encode()
    else:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        content = save(contiguous, metadata={"attnflow": json.dumps(head, ensure_ascii=False)})
    _replace(target, content)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file written by `write`, or a FileError that says what is wrong."""
    source = _checked_suffix(path)
    if not source.is_file():
        raise FileError(f"There is no file {str(source)!r}.")
    head, arrays = _read_json(source) if source.suffix == ".json" else _read_safetensors(source)
    stamp = head.pop("attnflow", None)
    if not isinstance(stamp, dict) or "kind" not in stamp or "format" not in stamp:
        raise _not_ours(source, "it carries no attnflow header")
    if stamp["format"] != FORMAT:
        raise FileError(
            f"{str(source)!r} is in format {stamp['format']}; this attnflow {__version__} reads "
            f"format {FORMAT}. Use the version that wrote it, or a newer one."
        )
    if stamp["kind"] != kind:
        raise FileError(f"{str(source)!r} holds a {stamp['kind']}, not a {kind}.")
    return head, arrays


@contextmanager
def unpacking(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file with our header that lacks what its kind must hold is damaged: say so, by name."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(
            f"{str(path)!r} is damaged: it has an attnflow header, but what follows cannot be read "
            f"({type(error).__name__}: {error}). Save it again from the original."
        ) from error


def _checked_suffix(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix not in _SUFFIXES:
        raise FileError(
            f"The file name {target.name!r} ends in {target.suffix or 'nothing'!r}; the format is "
            f"decided by the ending, which must be one of {', '.join(_SUFFIXES)}."
        )
    return target


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text such as a page, whole or not at all."""
    _replace(Path(path), text.encode("utf-8"))


def write_safely(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside the target, then put it in the target's place.

    Whatever goes wrong on the way, a full disk or an interruption, leaves the old file whole.
    The name beside is short, because the target's may be as long as the file system allows, and
    has the target's ending, because figures take their format from it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "note.txt"
    ...     write_safely(file, lambda part: print(part.write_bytes(b"whole"), "bytes"))
    ...     file.read_text(), len(os.listdir(folder))
    5 bytes
    ('whole', 1)
    """
    target = Path(path)
    beside = target.with_name(f".attnflow-{secrets.token_hex(6)}{target.suffix}")
    try:
        write(beside)
        beside.replace(target)
    except OSError as error:
        raise FileError(f"Cannot write {str(target)!r}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _replace(target: Path, content: bytes) -> None:
    def write(part: Path) -> None:
        part.write_bytes(content)

    write_safely(target, write)


def _array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}


def _read_json(source: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        head = json.loads(source.read_bytes())
        body = head.pop("arrays")
        arrays = {
            name: np.array(entry["data"], dtype=entry["dtype"]).reshape(entry["shape"])
            for name, entry in body.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _not_ours(source, f"reading it as JSON failed ({error})") from error
    return head, arrays


def _read_safetensors(source: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = json.loads(metadata.get("attnflow", "{}"))
    except (OSError, ValueError, SafetensorError) as error:
        raise _not_ours(source, f"reading it as safetensors failed ({error})") from error
    return head, arrays


def _not_ours(source: Path, why: str) -> FileError:
    return FileError(
        f"{str(source)!r} was not written by attnflow: {why}. "
        "Files of ours come from .save() or `attnflow explain --output`."
    )
