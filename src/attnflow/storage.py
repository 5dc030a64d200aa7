"""Reading and writing values: one header and some named arrays, as .safetensors or .json.

Both formats give back every bit. JSON holds numbers as the shortest decimals that read back to
the same float, safetensors holds the bytes. Neither can run code when it is opened. A file appears
whole or not at all: it is written beside its place and then takes it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attnflow._version import __version__
from attnflow.errors import FileError, InputError, shorten

__all__ = [
    "FORMAT",
    "check_dtypes",
    "lock",
    "provenance_stamp",
    "read",
    "unpacking",
    "write",
    "write_safely",
    "write_text",
]

FORMAT = 1  # raised when a reader of the old layout could misread the new one
_FAR = 1 << 40  # a byte no file reaches: what Windows locks cannot be read by others
_SUFFIXES = (".safetensors", ".json")
_DTYPES = ("float32", "float64", "bool")  # all that our values are made of
Arrays = dict[str, NDArray[Any]]
PathLike = str | os.PathLike[str]

# What reading a file that someone changed can raise: numbers beyond any dtype, nesting beyond the
# parser, sizes beyond the memory, and values of the wrong type wherever they stand.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, IndexError),
    *(OverflowError, RecursionError, MemoryError, SafetensorError),
)
_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "your quota of the disk is used up; free some space or write elsewhere",
    errno.EACCES: "you may not write in that folder; choose another or change its permissions",
    errno.EPERM: "you may not write in that folder; choose another or change its permissions",
    errno.EROFS: "that disk can only be read; choose another folder",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.ENOENT: "there is no such folder; make it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "that is a folder; give the name of a file in it",
}


def provenance_stamp() -> dict[str, str]:
    """Return what every result says about the code that made it.

    >>> sorted(provenance_stamp())
    ['attnflow', 'numpy']
    """
    return {"attnflow": __version__, "numpy": np.__version__}


def write(path: PathLike, kind: str, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write in the format of the suffix; the file appears whole or not at all.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write(f"{folder.name}/a.json", "Example", {"note": "b"}, {"x": np.zeros(2)})
    >>> read(f"{folder.name}/a.json", "Example")
    ({'note': 'b'}, {'x': array([0., 0.])})
    >>> folder.cleanup()
    """
    target = _checked_suffix(path)
    head = {"attnflow": {"format": FORMAT, "kind": kind}, **header}
    if target.suffix == ".json":
        body = {name: _array_to_json(array) for name, array in arrays.items()}
        content = _json_text(target, {**head, "arrays": body}).encode()
    else:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        content = save(contiguous, metadata={"attnflow": _json_text(target, head)})
    write_safely(target, lambda beside: beside.write_bytes(content))


def read(path: PathLike, kind: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file written by `write`, or a FileError that says what is wrong.

    Arrays are read-only.

    >>> read("nowhere.json", "Attribution")
    Traceback (most recent call last):
    attnflow.errors.FileError: There is no file 'nowhere.json'.
    """
    source = _checked_suffix(path)
    _check_readable(source)
    try:
        is_json = source.suffix == ".json"
        head, arrays = _read_json(source) if is_json else _read_safetensors(source)
    except _UNREADABLE as error:
        why = f"reading it as {source.suffix.lstrip('.')} failed ({_brief(error)})"
        raise _not_ours(source, why.replace("as json", "as JSON")) from error
    stamp = head.pop("attnflow", None)
    if not isinstance(stamp, dict) or "kind" not in stamp or "format" not in stamp:
        raise _not_ours(source, "it carries no attnflow header")
    if stamp["format"] != FORMAT or isinstance(stamp["format"], bool):
        raise FileError(
            f"{shorten(str(source))} is in format {shorten(stamp['format'])}; this attnflow "
            f"{__version__} reads format {FORMAT}. Use the version that wrote it, or a newer one."
        )
    if stamp["kind"] != kind:
        content = str(stamp["kind"])[:100]
        raise FileError(f"{shorten(str(source))} holds a {content}, not a {kind}.")
    for array in arrays.values():
        array.flags.writeable = False
    return head, arrays


@contextmanager
def unpacking(path: PathLike) -> Iterator[None]:
    """A file with our header that lacks what its kind must hold is damaged: say so, by name.

    >>> with unpacking("result.json"):
    ...     {}["values"]
    Traceback (most recent call last):
    attnflow.errors.FileError: 'result.json' is damaged: it has an attnflow header, but what \
follows cannot be read (KeyError: 'values'). Save it again from the original.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise FileError(
            f"{shorten(str(path))} is damaged: it has an attnflow header, but what follows cannot "
            f"be read ({type(error).__name__}: {_brief(error)}). Save it again from the original."
        ) from error


def check_dtypes(arrays: Mapping[str, NDArray[Any]], **allowed: tuple[str, ...]) -> None:
    """Check that arrays of a file have the dtypes that `save` writes; floats where none is named.

    >>> check_dtypes({"values": np.zeros(2)}, saturated=("bool",))
    """
    for name, array in arrays.items():
        expected = allowed.get(name, ("float32", "float64"))
        if str(array.dtype) not in expected:
            raise InputError(
                f"the array {shorten(name)} is of type {array.dtype}, expected "
                f"{' or '.join(expected)}"
            )


def write_safely(path: PathLike, writer: Callable[[Path], object]) -> None:
    """Let `writer` write a file beside its place, then put it there: whole or not at all.

    `writer` gets a path in the same folder with the same ending. If it fails, or the disk is full,
    what stood at `path` before is still there, and nothing is left beside it.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_safely(f"{folder.name}/a.txt", lambda beside: beside.write_text("all of it"))
    >>> os.listdir(folder.name)
    ['a.txt']
    >>> folder.cleanup()
    """
    target = Path(path)
    _check_place(target)
    # A short name of its own: one made from the target's could be too long where that is not.
    beside = target.parent / f".attnflow-{os.getpid()}-{secrets.token_hex(4)}{target.suffix[-20:]}"
    try:
        writer(beside)
        beside.replace(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        with suppress(OSError):  # it must not hide what happened
            beside.unlink(missing_ok=True)


def lock(file: IO[Any], path: PathLike) -> None:
    """Lock an open file until it is closed, or the process ends in whatever way.

    `path` is what the error names, which a second run is told while the first goes on.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     lock(file, "run.jsonl")
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FileError(
            f"{shorten(str(path))} is being written by another run ({error.strerror or error}). "
            "Wait until it is done, or name another place to keep this run in."
        ) from error


def write_text(path: PathLike, text: str) -> None:
    """Write a text such as a page, whole or not at all; lone surrogates become question marks.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_text(f"{folder.name}/page.html", "<p>all of it</p>")
    >>> folder.cleanup()
    """
    content = text.encode("utf-8", "replace")
    write_safely(path, lambda beside: beside.write_bytes(content))


def _check_place(target: Path) -> None:
    """Check that the target is a file or nothing: a folder or device must not be replaced."""
    if "\0" in str(target):
        raise FileError(f"Cannot write {shorten(str(target))}: a name cannot hold a zero byte.")
    try:
        exists, is_file = target.exists(), target.is_file()
        is_folder = target.is_dir()
    except (OSError, ValueError) as error:
        raise _cannot_write(target, error) from error
    if is_folder:
        raise _cannot_write(target, IsADirectoryError(errno.EISDIR, ""))
    if exists and not is_file:
        raise FileError(f"Cannot write {shorten(str(target))}: it is a device, not a file.")


def _cannot_write(target: Path, error: Exception) -> FileError:
    number = getattr(error, "errno", None)
    reason = _REASONS.get(number or 0) or getattr(error, "strerror", None) or _brief(error)
    return FileError(f"Cannot write {shorten(str(target))}: {reason}.")


def _check_readable(source: Path) -> None:
    try:
        there = source.is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"Cannot read {shorten(str(source))}: {reason}.") from error
    if not there:
        raise FileError(f"There is no file {shorten(str(source))}.")
    if not os.access(source, os.R_OK):
        raise FileError(f"Cannot read {shorten(str(source))}: you have no permission to.")


def _checked_suffix(path: PathLike) -> Path:
    try:
        target = Path(path)
    except TypeError:
        raise FileError(
            f"A file is named by a text or a path; got {shorten(path)} ({type(path).__name__})."
        ) from None
    if target.suffix not in _SUFFIXES:
        raise FileError(
            f"The file name {shorten(target.name)} ends in {shorten(target.suffix or 'nothing')}; "
            f"the format is decided by the ending, which must be one of {', '.join(_SUFFIXES)}."
        )
    return target


def _json_text(target: Path, value: Mapping[str, Any]) -> str:
    """As JSON that UTF-8 can hold: lone surrogates, which it cannot, make all signs escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"Cannot write {shorten(str(target))}: a part of it is not a plain value ("
            f"{_brief(error)}). The provenance and the options of a method may hold "
            "texts, numbers, lists and dicts."
        ) from error
    return text


def _array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}


def _array_from_json(entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if dtype not in _DTYPES:
        raise ValueError(f"an array is of type {shorten(dtype)}")
    data = np.asarray(entry["data"])  # without a dtype: a text or a list must not pass as a number
    if any(type(size) is not int or size < 0 for size in shape) or data.ndim != 1:
        raise ValueError(f"an array has the shape {shorten(shape)}")
    if data.size != math.prod(shape):
        raise ValueError(f"an array of shape {shorten(shape)} has {data.size} numbers")
    if data.size and data.dtype.kind not in ("b" if dtype == "bool" else "fiu"):
        raise ValueError(f"an array of {dtype} holds values of type {data.dtype}")
    with np.errstate(over="ignore"):  # a number too large for the dtype is infinite: found later
        return data.astype(dtype).reshape(shape)


def _read_json(source: Path) -> tuple[dict[str, Any], Arrays]:
    head = json.loads(source.read_bytes())
    body = head.pop("arrays")
    return head, {name: _array_from_json(entry) for name, entry in body.items()}


def _read_safetensors(source: Path) -> tuple[dict[str, Any], Arrays]:
    with safe_open(source, framework="numpy") as file:
        metadata = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    head = json.loads(metadata.get("attnflow", "{}"))
    if not isinstance(head, dict):
        raise TypeError(f"its header is a {type(head).__name__}")
    return head, arrays


def _brief(error: BaseException) -> str:
    """Return what an error of another library says, cut to a length that people read."""
    text = str(error)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _not_ours(source: Path, why: str) -> FileError:
    return FileError(
        f"{shorten(str(source))} was not written by attnflow: {why}. "
        "Files of ours come from .save() or `attnflow explain --output`."
    )
