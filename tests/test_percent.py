"""One spelling of percentages wherever people read them: `79.6 %`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnflow.errors import percent

ROOT = Path(__file__).parent.parent
PYTHON_FORMAT = re.compile(r":[\w.+,]*%\}")  # f"{share:.0%}", which leaves no space
WITHOUT_SPACE = re.compile(r"\d%")
SCRIPTS = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "benchmarks").glob("*.py"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]


def test_percent() -> None:
    assert percent(0.796, 1) == "79.6 %"
    assert percent(0.004) == "0 %"
    assert percent(1) == "100 %"


@pytest.mark.parametrize("paths", [SCRIPTS, PAGES], ids=["code", "pages"])
def test_no_percentage_has_another_spelling(paths: list[Path]) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    lines = [(path, line) for path, text in texts.items() for line in text.splitlines()]
    python = [(path, line) for path, line in lines if PYTHON_FORMAT.search(line)]
    bare = [(path, line) for path, line in lines if WITHOUT_SPACE.search(line)]
    # what remains is CSS and the remainder of a division
    styles = ("width", "height", "margin", "left:", "top:", "color", "-> ", "hsl")
    assert not python
    assert not [(path, line) for path, line in bare if not any(word in line for word in styles)]
