"""Notebooks run in the process that builds the site: torch is imported once, not once for each.

Every notebook has a shell, a namespace and a folder of its own. What a cell prints, shows and draws
becomes its output, as a kernel would have sent it; an error ends the build.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import CapturedIO, capture_output
from jupyter_cache.executors.utils import ExecutionResult
from matplotlib import pyplot
from traitlets import Type
from traitlets.config import Config


class Shown(DisplayHook):
    """The last value of a cell is shown as `display` shows it."""

    def __call__(self, result: object = None) -> None:  # noqa: D102
        if result is not None and not self.quiet():
            display(result)


class Shell(InteractiveShell):
    """IPython without a terminal, windows and a history: figures are drawn into the page."""

    displayhook_class = Type(Shown)

    def enable_gui(self, gui: str | None = None) -> None:
        """Open no window."""


def run(notebook: nbformat.NotebookNode, cwd: str, **_: Any) -> ExecutionResult:
    """Run the cells of a notebook one after the other in a folder, and give each its outputs."""
    began = time.perf_counter()
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    with contextlib.chdir(cwd), _shell() as shell:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                with capture_output() as captured:
                    result = shell.run_cell(cell.source, store_history=True)
                if not result.success:
                    print(captured.stdout, captured.stderr)
                    result.raise_error()
                cell.outputs = list(_outputs(captured))
    return ExecutionResult(notebook, cwd, time.perf_counter() - began)


@contextlib.contextmanager
def _shell() -> Iterator[Shell]:
    shell = Shell.instance(
        user_ns={"__name__": "__main__"}, config=Config(HistoryManager={"enabled": False})
    )
    shell.enable_matplotlib("inline")
    try:
        yield shell
    finally:
        pyplot.close("all")
        Shell.clear_instance()


def _outputs(captured: CapturedIO) -> Iterator[nbformat.NotebookNode]:
    for name, text in (("stdout", captured.stdout), ("stderr", captured.stderr)):
        if text:
            yield nbformat.v4.new_output("stream", name=name, text=text)
    for shown in captured.outputs:
        yield nbformat.v4.new_output("display_data", data=shown.data, metadata=shown.metadata or {})
