"""A small version of what `make torture` runs in full; the other kinds run in their own files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import torture
from full_disk import full_disks
from wrong_types import wrong_type_calls


@pytest.mark.filterwarnings("ignore")
def test_wrong_types_get_a_sentence(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        tried, wrong = wrong_type_calls(tmp_path, 600)
    assert tried == 600
    assert wrong == []


def test_a_full_disk_destroys_nothing(tmp_path: Path) -> None:
    assert full_disks(tmp_path, ["result.json", "command.pdf"]) == (2, [])


def test_every_kind_is_counted() -> None:
    assert len(torture.KINDS) == 21


def test_the_status_says_whether_anything_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kind(tried: int, *wrong: str) -> tuple[Any, int]:
        return lambda *_: torture.Count(tried, list(wrong)), 3

    kinds = {"right": kind(3), "bad": kind(3, "a case"), "not run": kind(0)}
    monkeypatch.setattr(torture, "KINDS", kinds)
    assert [torture.main(name) for name in kinds] == [0, 1, 1]
    assert torture.main() == 1
    assert "bad: 3 tried, 1 wrong (0 s)\n    a case\n" in capsys.readouterr().out
