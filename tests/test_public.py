"""The public names, the import law, and what importing costs."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnflow

PACKAGE = Path(attnflow.__file__).parent

# Each module may import only modules of a lower rank, or of its own package.
RANK = {
    "_version": 0,
    "errors": 1,
    "patches": 1,
    "tokens": 2,
    "files": 2,
    "measurements": 3,
    "composition": 4,
    "common_tokens": 3,
    "rescaling": 3,
    "markup": 3,
    "cut": 3,
    "trace": 4,
    "graph": 4,
    "mixing": 5,
    "attribution": 5,
    "maxflow": 6,
    "pictures": 2,
    "viewing": 6,
    "pages": 7,
    "methods": 7,
    "plots": 8,
    "terminal": 8,
    "models": 2,
    "metrics": 2,
    "reading": 2,
    "adapters": 8,
    "capturing": 9,
    "loading": 9,
    "prompts": 9,
    "streaming": 9,
    "checking": 10,
    "completions": 10,
    "generation": 11,
    "explanation": 10,
    "importance": 10,
    "faithfulness": 11,
    "evaluation": 12,
    "testing": 11,
    "comparison": 12,
    "experiments": 14,
    "demo": 12,
    "commands": 13,
    "web": 14,
    "cli": 15,
    "__main__": 16,
    "__init__": 17,
}
# A result is loaded, drawn and shown by name: upward, inside a function, and nowhere else.
LAZY_DOORS = {
    ("attribution", "methods"),
    ("attribution", "plots"),
    ("attribution", "viewing"),
    ("attribution", "pages"),
}

HEAVY = {
    "torch": {
        *("adapters", "capturing", "checking", "loading", "models", "testing", "explanation"),
        *("importance", "faithfulness", "evaluation", "experiments"),  # they run models
        *("prompts", "streaming", "completions", "generation"),
    },
    "transformers": {"adapters", "testing", "commands", "models"},
    "captum": {"importance"},
    "fastapi": {"web"},
    "uvicorn": {"web"},
    "matplotlib": {"plots", "attribution"},  # the latter for type checkers only
}


def modules() -> list[tuple[str, Path]]:
    return [(_home(path), path) for path in sorted(PACKAGE.rglob("*.py"))]


def _home(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_public_names() -> None:
    assert set(attnflow.__all__) == {
        "AttentionTrace",
        "LayeredGraph",
        "Attribution",
        "Raw",
        "Rollout",
        "Flow",
        "GradientRollout",
        "GradientFlow",
        "MeasuredResidualRollout",
        "NormRollout",
        "Alti",
        "ValueZeroingRollout",
        "Method",
        "explain",
        "generate",
        "explain_completion",
        "evaluate_methods",
        "capture",
        "capture_batch",
        "Tokens",
        "Prediction",
        "AttnflowError",
        "__version__",
    }
    for name in attnflow.__all__:
        assert getattr(attnflow, name) is not None
    assert dir(attnflow) == sorted(attnflow.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attnflow.nothing  # noqa: B018


def test_no_public_function_hides_behind_a_module_of_its_name() -> None:
    submodules = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    assert not submodules & set(attnflow.__all__)


def test_every_module_says_what_it_exports() -> None:
    for name in ("trace", "graph", "attribution", "methods", "tokens", "files", "errors"):
        module = importlib.import_module(f"attnflow.{name}")
        for exported in module.__all__:
            assert hasattr(module, exported)


@pytest.mark.parametrize(("home", "path"), modules(), ids=lambda value: str(value))
def test_imports_run_one_way(home: str, path: Path) -> None:
    for name in imports(path):
        if not name.startswith("attnflow."):
            continue
        other = name.split(".")[1]
        if other == home or other not in RANK:
            continue
        allowed = RANK[other] < RANK[home] or (home, other) in LAZY_DOORS
        assert allowed, f"{path.name} imports attnflow.{other}, which stands above it"


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_heavy_libraries_stay_where_they_belong(library: str) -> None:
    for home, path in modules():
        used = any(name.split(".")[0] == library for name in imports(path))
        assert not used or home in HEAVY[library], f"{path.name} imports {library}"


def test_import_is_fast_and_loads_nothing_heavy() -> None:
    """Timed in fresh interpreters, best of five: a slow machine is not a slow import."""
    code = (
        "import time; start = time.perf_counter(); import attnflow; "
        "print(time.perf_counter() - start); import sys; "
        "print([m for m in ('torch', 'matplotlib', 'transformers', 'numba', 'pandas', 'scipy') "
        "if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    seconds = min(float(run.stdout.splitlines()[0]) for run in runs)
    assert runs[0].stdout.splitlines()[1] == "[]"
    assert seconds < 0.2


def test_arrays_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import numpy as np, attnflow\n"
        "trace = attnflow.AttentionTrace.from_arrays(np.full((2, 3, 3), 1 / 3), list('abc'))\n"
        "print(attnflow.Rollout()(trace).values.shape, attnflow.Flow()(trace).values.shape)\n"
        "try: attnflow.explain(None, 'the key')\n"
        "except attnflow.AttnflowError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "(2, 3, 3) (2, 3, 3)" in run.stdout
    assert "pip install 'attnflow[models]'" in run.stdout
