"""Preparing SmolLM2: two at once, and folders that are in the way; with a stub model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from attnflow.errors import ModelError
from attnflow.models import smollm2


def test_two_at_once_prepare_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have unpacked before either moves: one of them then meets the folder of the other."""
    folder, unpacked = tmp_path / "model", Barrier(2, timeout=60)

    def unpack(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").touch()
        unpacked.wait()

    monkeypatch.setattr(smollm2, "_package_folder", lambda: tmp_path)
    monkeypatch.setattr(smollm2, "_unpack", unpack)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(smollm2._prepare, [folder, folder])) == [None, None]
    assert [path.name for path in folder.iterdir()] == ["config.json"]  # nothing nested inside
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").touch()

    monkeypatch.setattr(smollm2, "_package_folder", lambda: tmp_path)
    monkeypatch.setattr(smollm2, "_unpack", unpack)
    folder = tmp_path / "model"
    folder.mkdir()
    assert not smollm2._is_prepared(folder)
    smollm2._prepare(folder)  # an empty one is replaced
    assert smollm2._is_prepared(folder)
    (folder / "config.json").rename(folder / "other.txt")
    with pytest.raises(ModelError, match=r"could not be prepared in .*model'"):
        smollm2._prepare(folder)
