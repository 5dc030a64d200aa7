"""The journal of an experiment, a line of JSON for each case, so that a run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_journal(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return what was kept of an earlier run, by name; a line that was torn is left out."""
    if path is None or not path.is_file():
        return {}
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            record = json.loads(line)
            records[record["name"]] = record
    return records


def append_record(path: Path | None, record: Mapping[str, Any]) -> None:
    """Keep one case of a run, on a line of its own though the last one was torn."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        torn = file.read() not in (b"", b"\n")
        file.write((("\n" if torn else "") + json.dumps(record) + "\n").encode())
