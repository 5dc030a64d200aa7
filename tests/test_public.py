"""The public names, and what importing costs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnflow
from public_surface import NAMES, PUBLIC_MODULES, surface

ROOT = Path(__file__).parent.parent


def test_the_public_names() -> None:
    assert set(attnflow.__all__) == {
        "AttentionTrace",
        "LayeredGraph",
        "Attribution",
        "Raw",
        "Rollout",
        "Flow",
        "ShapleyFlow",
        "BalancedGradient",
        "GradientAttention",
        "GradientRollout",
        "LeaveOneOut",
        "AblationRegression",
        "Careful",
        "Method",
        "ask",
        "Answer",
        "grounded",
        "explain",
        "explain_transcript",
        "commanded_by",
        "Action",
        "generate",
        "neutral_prompt",
        "select_passages",
        "evaluate",
        "capture",
        "load",
        "Model",
        "Verdict",
        "Tokens",
        "Prediction",
        "AttnflowError",
        "__version__",
    }
    for name in attnflow.__all__:
        assert getattr(attnflow, name) is not None
    assert set(attnflow.__all__) < set(dir(attnflow))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attnflow.nothing  # noqa: B018


def test_what_is_public_is_declared() -> None:
    """After a change that is meant: python tests/public_surface.py."""
    assert surface() == NAMES.read_text(encoding="utf-8")
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        assert all(hasattr(module, exported) for exported in module.__all__)


def test_the_command_line_waits_for_no_model() -> None:
    """`attnflow --version` took seconds, since tables of experiments came with torch."""
    code = (
        "import sys, attnflow.cli.app\n"
        "print({'torch', 'transformers', 'scipy', 'fastapi', 'pydantic'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


@pytest.mark.timing
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


def test_the_embedded_model_waits_for_no_model_of_transformers() -> None:
    """They take two seconds to import, twice what torch does."""
    code = (
        "import sys, attnflow, attnflow.corpus.worker\n"
        "attnflow.explain(None, 'the key')\n"
        "print({'transformers.modeling_utils', 'torch._dynamo', 'scipy'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


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


def test_submodules_are_reached_by_attribute() -> None:
    code = (
        "import attnflow\n"
        "attnflow.plots.layers_map, attnflow.testing.check_method, attnflow.methods.METHODS\n"
        "for name in dir(attnflow): getattr(attnflow, name)\n"
        f"{'; '.join(PUBLIC_MODULES)}\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize(
    "statement",
    [
        *("from attnflow import *", "attnflow.capture"),
        *("attnflow.evaluate", "attnflow.evaluation"),
        "from attnflow import evaluate",
    ],
)
def test_without_torch_the_extra_is_named(statement: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import attnflow\n"
        f"try: exec({statement!r})\n"
        "except attnflow.AttnflowError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'attnflow[models]'" in run.stdout


def test_all_reads_the_model_that_generate_defaults_to_and_compiles_nothing() -> None:
    """`[all]` lacked SmolLM2's reader, and `[demo]` pulled a runtime that must be compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = re.findall(r"\w+", extras["all"][0].partition("[")[2])
    assert set(named) >= {"models", "plots", "pandas", "graphs", "evaluate", "web", "demo"}
    assert any(line.startswith("gguf") for line in extras["demo"])
    everything = [line for lines in extras.values() for line in lines]
    assert not [line for line in everything if line.startswith(("llm-", "llama-cpp"))]
