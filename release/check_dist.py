"""Install what was built into clean environments, and use it as a newcomer would.

python release/check_dist.py dist [--python PATH ...] [--bare]

For every Python from 3.11 on that can be found: an empty environment, the wheel without extras, a
smoke test; then the wheel with everything, a larger one. The source distribution is installed
once. The table at the end says what was tried; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# Where version managers keep interpreters that are not on the PATH.
MANAGERS = (
    Path.home() / ".pyenv" / "versions",
    Path.home() / ".local" / "share" / "uv" / "python",
)

# Files without which the package is installed and useless.
NEEDED = (
    *("attnflow/py.typed", "attnflow/models/verb_number.safetensors"),
    *("attnflow/show/viewer/viewer.js", "attnflow/show/templates/page.html.j2"),
    *("attnflow_connect/py.typed", "attnflow_connect/server/page/index.html.j2"),
    *("attnflow_connect/server/page/page.js", "attnflow_connect/widget.js"),
    "attnflow_experiments/commands.py",
    "attnflow_experiments/documents/ordinary.json",
)

BARE = """
import sys
import numpy as np
import attnflow
trace = attnflow.AttentionTrace.from_arrays(np.full((2, 3, 3), 1 / 3), ["a", "b", "c"])
assert attnflow.Rollout()(trace).values.shape == (2, 3, 3)
result = attnflow.Flow()(trace, targets=[0])
result.save("result.json")
assert attnflow.Attribution.load("result.json").top(1)
try:
    attnflow.explain(None, "the key to the cabinets")
except attnflow.AttnflowError as error:
    assert "attnflow[models]" in str(error), error
else:
    raise AssertionError("explain ran without torch")
assert "torch" not in sys.modules
"""
EVERYTHING = """
import attnflow
result = attnflow.explain(None, "the key to the cabinets")
assert result.prediction.label == "singular", result.prediction
result.plot()
result.to_pandas()
attnflow.explain(None, "the key to the cabinets", method="flow").save("flow.safetensors")
attnflow.capture
from attnflow_connect.server.app import create_app
"""
COMMANDS = (
    ["explain", "the key to the cabinets", "--output", "result.png"],
    ["report", "the key to the cabinets", "--output", "report.html"],
    ["check", "verb-number"],
    ["experiment", "verb-number", "--samples", "4"],
)


def interpreters() -> dict[str, str]:
    """A Python of each version that can be found, by version."""
    paths: dict[str, str] = {}
    for candidate in _candidates():
        version = _version_of(candidate)
        if version in VERSIONS:
            paths.setdefault(version, candidate)
    return dict(sorted(paths.items()))


def _candidates() -> Iterator[str]:
    yield sys.executable
    for version in VERSIONS:
        path = shutil.which(f"python{version}")
        if path:
            yield path
    for folder in MANAGERS:
        yield from map(str, sorted(folder.glob("*/bin/python3")))


def _version_of(python: str) -> str | None:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def run(arguments: list[str], folder: Path) -> None:
    """Run a command away from the checkout, so that only what is installed can be imported."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["MPLBACKEND"] = "agg"
    process = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode:
        output = (process.stdout + process.stderr)[-3000:]
        raise SystemExit(f"{' '.join(arguments)[:200]} failed in {folder}:\n{output}")


def check_contents(wheel: Path, sdist: Path) -> None:
    """That the archives hold what the package needs, and nothing that is not theirs."""
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in NEEDED if name not in names]
    packages = ("attnflow/", "attnflow_connect/", "attnflow_experiments/", "attnflow-")
    strangers = [n for n in names if not n.startswith(packages)]
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    missing += [n for n in ("pyproject.toml", "LICENSE", "NOTICE.md") if n not in sources]
    if missing or strangers:
        raise SystemExit(f"missing from the archives: {missing}; not ours: {strangers}")


def environment(python: str, folder: Path) -> str:
    """An empty environment; gives the path of its Python."""
    run([python, "-m", "venv", "--clear", str(folder)], folder.parent)
    inside = str(folder / "bin" / "python")
    run([inside, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"], folder.parent)
    return inside


def install(python: str, what: str, folder: Path) -> None:
    """Install with the versions that development is held to."""
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    run([python, "-m", "pip", "install", "--quiet", *constraints, what], folder)


def smoke(python: str, code: str, commands: tuple[list[str], ...], folder: Path) -> None:
    """Run code and commands in a folder of their own."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        run([python, "-W", "error::DeprecationWarning:attnflow", "-c", code], place)
        for command in (["--version"], ["doctor"], ["methods"], *commands):
            run([python, "-m", "attnflow", *command], place)


def main() -> None:
    """Check the archives in a folder with every Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--python", action="append", help="Only these interpreters.")
    parser.add_argument("--bare", action="store_true", help="Without extras only: no torch.")
    options = parser.parse_args()
    wheel, sdist = (next(options.dist.resolve().glob(p)) for p in ("*.whl", "*.tar.gz"))
    check_contents(wheel, sdist)
    scratch = ROOT / "out" / "dist"
    scratch.mkdir(parents=True, exist_ok=True)
    pythons = {_version_of(p) or p: p for p in options.python or []} or interpreters()
    for number, (version, path) in enumerate(pythons.items()):
        python = environment(path, scratch / version)
        if number == 0:
            install(python, str(sdist), scratch)
            smoke(python, BARE, (), scratch)
            print(f"Python {version}: sdist ok", flush=True)
            python = environment(path, scratch / version)
        install(python, str(wheel), scratch)
        smoke(python, BARE, (), scratch)
        print(f"Python {version}: wheel without extras ok", flush=True)
        if not options.bare:
            install(python, f"{wheel}[all]", scratch)
            smoke(python, EVERYTHING, COMMANDS, scratch)
            print(f"Python {version}: wheel with [all] ok", flush=True)
        shutil.rmtree(scratch / version)
    absent = [version for version in VERSIONS if version not in pythons]
    print(f"not to be had here: {', '.join(absent) or 'none'}")


if __name__ == "__main__":
    main()
