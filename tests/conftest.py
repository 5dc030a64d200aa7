"""No test may reach a network: the hub is switched off before transformers is imported."""

from __future__ import annotations

import atexit
import fcntl
import gc
import logging
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from browser import Browser, Page

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker a core; tiny models gain nothing by more
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("ATTNFLOW_CACHE", str(Path(sys.prefix) / "cache"))

# A process assembles its command line once; here one process gives hundreds of commands.
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)

gc.disable()  # while modules are imported: see pytest_collection_finish

# A machine that is busy elsewhere is slow at drawing examples, too: no failure of ours.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Begun first, so that no worker is left alone with one of them at the end.
LONGEST = (
    *("docs", "evaluation", "browser", "corpus", "holding", "kernels", "doors", "maxflow", "cli"),
    *("plots", "served_page", "doors_http", "pretrained", "embedded", "importance", "server"),
    *("bench", "pronouns", "torture", "entrance", "layout"),
)

# In the worker of another file, which imports or makes the same: clients of the doors, all sources.
TOGETHER = {"test_left_running.py": "test_doors_http.py", "test_names.py": "test_layout.py"}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each worker whole files, whose fixtures it then makes once; what measures time or sends
    signals is one group, and comes last."""
    rank = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}

    def is_timing(item: pytest.Item) -> bool:
        return item.get_closest_marker("timing") is not None

    items.sort(key=lambda item: (is_timing(item), rank.get(item.path.name, len(rank))))
    for item in items:
        group = TOGETHER.get(item.path.name, item.path.name)
        group = "timing" if is_timing(item) else group
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: torch, transformers, all tests.

    The garbage collector need not look through it, over and over, for the tests' own garbage.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        compile_once()
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries of C++ report as a leak what is not collected at last


def pytest_runtest_teardown() -> None:
    """A server that a test starts in this process logs to a stream that goes with the test."""
    logging.root.handlers.clear()


def compile_once() -> None:
    """One worker compiles the solver of flows, half a minute in a new checkout; the others wait
    for what it leaves in numba's cache."""
    import attnflow
    from attnflow.testing import random_attention

    weights = random_attention(4, 1, 20, seed=0).mean(axis=1)
    trace = attnflow.AttentionTrace.from_arrays(weights, [str(k) for k in range(20)])
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        attnflow.Flow()(trace)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser; what needs one is skipped where there is none."""
    from browser import installed_browser, running_browser

    program = installed_browser()
    if program is None:
        pytest.skip("no Chromium or Chrome found; install one, or name it in ATTNFLOW_BROWSER")
    with running_browser(program, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def tab(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page as wide as a laptop's, on which no script may fail."""
    opened = browser.new_page(tmp_path)
    opened.size(1280, 900)
    yield opened
    opened.close()
    assert opened.errors == []
