"""A small version of what `make torture` runs in full; the other kinds run in their own files."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
    assert len(torture.KINDS) == 13
