"""Preparing SmolLM2: two processes at once, and folders that are in the way; with a stub model."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from attnflow.errors import ModelError
from attnflow.models import smollm2

# Both have unpacked before either moves: one of them then meets the folder of the other.
PREPARE = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from attnflow.models import smollm2

    folder, name, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

    def unpack(source, target):
        target.mkdir()
        (target / "config.json").write_text(name)
        (folder.parent / name).touch()
        while not (folder.parent / other).exists():
            time.sleep(0.01)

    smollm2._package_folder = lambda: Path(".")
    smollm2._unpack = unpack
    smollm2._prepare(folder)
    """
)


@pytest.mark.timing
def test_two_processes_prepare_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    processes = [
        subprocess.Popen([sys.executable, "-c", PREPARE, str(folder), *names])
        for names in (("one", "two"), ("two", "one"))
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert [path.name for path in folder.iterdir()] == ["config.json"]  # nothing nested inside
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "one", "two"]


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
