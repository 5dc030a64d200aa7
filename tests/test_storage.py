"""Files: what was changed is refused with a sentence, and a file is written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mutations
from attnflow import AttentionTrace, Attribution, Flow, LayeredGraph, Rollout
from attnflow.errors import FileError
from attnflow.storage import read, write, write_safely, write_text
from attnflow.testing import random_attention, random_trace

TRACE = random_trace(layers=2, heads=1, length=3, seed=4)
FLOW = Flow()(TRACE)


def test_changed_files_are_refused_or_still_hold() -> None:
    tally = mutations.mutate_files(400, seed=2)
    assert tally.tried == 400
    assert not tally.wrong
    assert tally.refused > 200


def saved(folder: Path, value: Any, **changes: Any) -> Path:
    """A JSON file of a value with entries changed: `weights__data=[...]`, `kind="x"`."""
    path = folder / "value.json"
    value.save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    for key, entry in changes.items():
        array, _, part = key.partition("__")
        if part:
            document["arrays"][array][part] = entry
        else:
            document[key] = entry
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


CHANGED: list[tuple[Any, dict[str, Any], str]] = [
    (TRACE, {"weights__data": [0.25] * 18}, "rows must sum to 1"),
    (TRACE, {"weights__data": [float("nan")] * 18}, "finite"),
    (TRACE, {"weights__data": [-1.0, 1.0, 1.0] * 6}, "negative"),
    (TRACE, {"weights__dtype": "bool"}, "holds values of type float64"),
    (TRACE, {"weights__dtype": "S2000000000"}, "an array is of type"),
    (TRACE, {"weights__shape": [2, 3, 3]}, "not four axes"),
    (TRACE, {"kind": "causal"}, "gives .* of its attention to later ones"),
    (TRACE, {"kind": "zzz"}, "kind='zzz'"),
    (TRACE, {"layers": [2, 1]}, "increasing numbers"),
    (TRACE, {"layers": [1, 10**400]}, "layers|too large|digits"),
    (FLOW, {"values__data": [9.0] * 18}, "outside their bounds"),
    (FLOW, {"values__data": [float("inf")] * 18}, "finite"),
    (FLOW, {"saturated__dtype": "float64"}, "holds values of type bool"),
    (FLOW, {"layers": [1, "x"]}, "layers are whole numbers"),
    (FLOW, {"method": {"name": "flow", "options": {"tolerance": "x"}}}, "tolerance is a number"),
    (Flow().graph(TRACE), {"capacities__data": [-1.0] * 18}, "not negative"),
    (Flow().graph(TRACE), {"capacities__shape": [2, 9]}, "shape"),
]


@pytest.mark.parametrize(("value", "changes", "said"), CHANGED)
def test_loading_checks_what_making_checks(
    tmp_path: Path, value: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(FileError, match=said):
        type(value).load(saved(tmp_path, value, **changes))


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_what_was_loaded_cannot_be_changed(tmp_path: Path, suffix: str) -> None:
    for value in mutations.values():
        value.save(tmp_path / f"value{suffix}")
        back = type(value).load(tmp_path / f"value{suffix}")
        if isinstance(back, AttentionTrace):
            arrays = [back.weights, back.sinks, back.gradients, *back.measured.values()]
        elif isinstance(back, LayeredGraph):
            arrays = [back.capacities]
        else:
            arrays = list(back.arrays().values())
        assert not any(array.flags.writeable for array in arrays if array is not None)


def test_rows_are_checked_by_the_tolerance_they_were_made_with(tmp_path: Path) -> None:
    loose = AttentionTrace.from_arrays(
        random_attention(1, 1, 3, seed=0) * 1.05, list("abc"), row_tolerance=0.1
    )
    loose.save(tmp_path / "trace.json")
    assert AttentionTrace.load(tmp_path / "trace.json").row_tolerance == 0.1


def test_deep_nesting_and_odd_metadata_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(FileError, match="reading it as JSON failed"):
        Attribution.load(tmp_path / "deep.json")
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1)}, tmp_path / "odd.safetensors", metadata={"attnflow": "[1, 2]"})
    with pytest.raises(FileError, match="its header is a list"):
        Attribution.load(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_lone_surrogates_come_back(tmp_path: Path, suffix: str) -> None:
    trace = AttentionTrace.from_arrays(random_attention(1, 1, 2, seed=0), ["\ud800", "b"])
    trace.save(tmp_path / f"trace{suffix}")
    assert AttentionTrace.load(tmp_path / f"trace{suffix}").tokens.texts == ("\ud800", "b")
    write_text(tmp_path / "page.html", "\ud800")


def test_provenance_that_is_no_plain_value_is_named(tmp_path: Path) -> None:
    trace = AttentionTrace.from_arrays(TRACE.weights, TRACE.tokens, provenance={"model": object()})
    with pytest.raises(FileError, match="not a plain value"):
        trace.save(tmp_path / "trace.json")


def test_a_method_that_is_not_known_here_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, Rollout()(TRACE), method={"name": "my-method", "options": {}})
    with pytest.raises(FileError, match=r"made by the method 'my-method'.*METHODS\.register"):
        Attribution.load(path)


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder.json").mkdir()
    for place, said in (
        (tmp_path / "no" / "x.json", "there is no such folder"),
        (tmp_path / "file" / "x.json", "is a file, not a folder"),
        (tmp_path / ("x" * 300 + ".json"), "the name is too long"),
        (tmp_path / "folder.json", "that is a folder"),
        ("\0.json", "Cannot write"),
    ):
        with pytest.raises(FileError, match=said):
            FLOW.save(place)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder.json"}


def test_a_name_near_the_longest_can_be_written(tmp_path: Path) -> None:
    FLOW.save(tmp_path / ("x" * 245 + ".json"))
    assert [len(p.name) for p in tmp_path.iterdir()] == [250]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_closed_folder_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    FLOW.save(closed / "x.json")
    closed.chmod(0o000)
    try:
        with pytest.raises(FileError, match=r"you may not write in that folder|Permission denied"):
            FLOW.save(closed / "y.json")
        with pytest.raises(FileError, match="Cannot read"):
            Attribution.load(closed / "x.json")
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "you may not write in that folder"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, number: int, said: str) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")

    def fails(beside: Path) -> None:
        assert beside.suffix == ".png"
        beside.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    with pytest.raises(FileError, match=said):
        write_safely(target, fails)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["figure.png"]


def test_an_error_of_the_writer_passes_and_leaves_nothing(tmp_path: Path) -> None:
    def fails(beside: Path) -> None:
        beside.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safely(tmp_path / "figure.png", fails)
    assert not list(tmp_path.iterdir())


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(FileError, match="a device, not a file"):
        write_safely("/dev/null", lambda beside: beside.write_bytes(b""))
    assert Path("/dev/null").is_char_device()


def test_messages_do_not_repeat_long_names(tmp_path: Path) -> None:
    for name in ("y" * 100_000, "y" * 100_000 + ".json"):
        with pytest.raises(FileError) as caught:
            read(tmp_path / name, "Attribution")
        assert len(str(caught.value)) < 700
    with pytest.raises(FileError, match=re.escape("A file is named by a text or a path; got 5")):
        write(5, "Attribution", {}, {})  # type: ignore[arg-type]
