"""A small version of what `make torture` runs in full; the other kinds run in their own files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import torture


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "count"), [("wrong types", 300), ("full disks", 0)])
def test_nothing_hostile_goes_wrong(kind: str, count: int, tmp_path: Path) -> None:
    run, _ = torture.KINDS[kind]
    with contextlib.chdir(tmp_path):
        outcome = run(count, tmp_path)
    assert outcome.tried > 0
    assert outcome.wrong == []
