"""The documentation site: nothing public is left out of it, and what its tutorials say runs.

`make docs` builds it and fails on every warning; that takes too long for a test. Here tutorials run
with tiny language models.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import attnflow
from attnflow.errors import InputError
from public_surface import PUBLIC_MODULES
from stand_ins import PAGES as EVERY_PAGE
from test_docs import page_files, small_models

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import docstrings  # noqa: E402
import reference_pages  # noqa: E402

__all__ = ["page_files", "small_models"]  # fixtures

PAGES = [path for path in EVERY_PAGE if path.is_relative_to(DOCS)]
LINKED = [*EVERY_PAGE, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "NOTICE.md"))]
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFERENCE = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`")


def page_name(path: Path) -> str:
    return str(path.relative_to(DOCS))


# ---- nothing is left out


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return reference_pages.pages()


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_on_its_page(module: str, generated: dict[str, str]) -> None:
    text = generated[f"api/{module}.rst"]
    for name, _ in reference_pages.members(module):
        assert re.search(rf"(?:{re.escape(module)}\.|`){name}\b", text), f"{module}.{name}"


def undescribed(value: Any) -> Iterator[str]:
    """A class or function without a docstring, and the public methods of a class without one."""
    if not inspect.getdoc(value):
        yield value.__qualname__
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return
    for name, member in vars(value).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if not name.startswith("_") and inspect.isfunction(function):
            yield from () if inspect.getdoc(function) else (f"{value.__qualname__}.{name}",)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_described(module: str) -> None:
    values = [value for _, value in reference_pages.members(module)]
    classes = [v for v in values if inspect.isclass(v) or inspect.isfunction(v)]
    assert not [name for value in classes for name in undescribed(value)]


@pytest.mark.parametrize(
    ("path", "command"), list(reference_pages.commands()), ids=lambda part: str(part)[:40]
)
def test_every_option_is_described(
    path: tuple[str, ...], command: click.Command, generated: dict[str, str]
) -> None:
    text = generated[f"cli/{'-'.join(path)}.rst"]
    assert command.help or path == ("attnflow",)
    for parameter in command.params:
        help_text = getattr(parameter, "help", None)
        if getattr(parameter, "hidden", False):
            continue
        assert help_text, f"{' '.join(path)} {parameter.opts} has no help"
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[-1] if is_option else parameter.metavar or parameter.name
        assert str(name) in text, f"{' '.join(path)} {name}"


# ---- pages hang together


def test_every_page_is_in_the_tree_and_every_reference_leads_somewhere() -> None:
    entries = {DOCS / "index"}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for body in TOCTREE.findall(text):
            lines = [line for line in body.splitlines() if line and not line.startswith(":")]
            names = [re.sub(r".*<(.+)>", r"\1", line) for line in lines]  # `Title <page>`
            entries |= {(page.parent / name).resolve() for name in names}
        for target in REFERENCE.findall(text):
            file = (page.parent / f"{target}.md").resolve()
            assert file.exists(), f"{page_name(page)}: {{doc}}`{target}`"
    missing = [page_name(page) for page in PAGES if page.with_suffix("") not in entries]
    assert not missing, f"in no toctree: {missing}"
    generated = {f"reference/{part}/index" for part in ("api", "cli", "project")}
    for entry in entries:
        name = str(entry.relative_to(DOCS))
        assert name in generated or entry.with_suffix(".md").exists(), name


LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r"^```\{image\} (\S+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S)
    for link in (*LINK.findall(prose), *PICTURE.findall(text)):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_picture_is_shown() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in LINKED)
    shown = {Path(name).name for name in re.findall(r"[\w/-]+\.(?:png|gif)", text)}
    pictures = [*DOCS.rglob("*.png"), *DOCS.rglob("*.gif")]
    assert [page_name(path) for path in pictures if path.name not in shown] == []


def test_the_docs_stay_short() -> None:
    """A site to read in an evening."""
    assert len(PAGES) <= 28
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= 25_000


def documented() -> None:
    if not LINKED:
        raise InputError("never")


def test_docstrings_become_the_fields_of_numpys_form() -> None:
    lines = [
        "Do it.",
        "",
        "name: what it is, and",
        "    more of it.",
        "first, second: both.",
    ]
    lines += ["", "    a drawing", "", ">>> f(1)", "2"]
    error = str(InputError.__doc__).splitlines()[0]
    assert docstrings.marked_up(lines, documented) == [
        *("Do it.", ""),
        ":param name: what it is, and more of it.",
        *(":param first: both.", ":param second: both.", ""),
        *(".. code-block:: none", "", "       a drawing", ""),
        *(f":raises InputError: {error}", ""),
        *(".. rubric:: Examples", "", ">>> f(1)", "2", ""),
    ]


# ---- what tutorials say runs; tests/test_docs.py runs all else that a page says


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("page", NOTEBOOKS, ids=page_name)
def test_tutorials_run(page: Path, small_models: Path) -> None:
    """Every cell, in order; the last value of a cell is shown as a notebook shows it."""
    from matplotlib import pyplot

    known: dict[str, Any] = {}
    for cell in CELL.findall(page.read_text(encoding="utf-8")):
        lines = [line for line in cell.splitlines() if not line.startswith(":tags:")]
        tree = ast.parse("\n".join(lines))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, page.name, "exec"), known)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), page.name, "eval"), known)
            if isinstance(value, attnflow.Attribution):
                assert value._repr_html_()
    pyplot.close("all")


# ---- pages are readable


def headings_of(page: Path) -> list[str]:
    """The headings of the first level, code left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"^# .+$", text, re.MULTILINE)


def test_every_page_has_one_title() -> None:
    """A second one would put the page into the sidebar twice."""
    assert len(PAGES) > 20
    assert {
        page_name(page): headings_of(page) for page in PAGES if len(headings_of(page)) != 1
    } == {}


COMMANDS = [path for path, _ in reference_pages.commands()]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_line_of_a_list_of_commands_is_cut_off(path: tuple[str, ...]) -> None:
    """In a terminal of 80 columns, where click ends what is too long with three dots."""
    command = dict(reference_pages.commands())[path]
    context = click.Context(command, info_name=" ".join(path), terminal_width=80)
    assert "..." not in command.get_help(context).partition("\nCommands:\n")[2]


ITEM = re.compile(r"^\s*(?:[+*]|\d+[.)])\s")


def test_no_line_of_a_sentence_begins_a_list() -> None:
    """A line that begins with `+` or `12.` by accident of wrapping becomes an item of a list."""
    accidents = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        lines = text.splitlines()
        for before, line in itertools.pairwise(lines):
            if ITEM.match(line) and before.strip() and not before.startswith((" ", "|")):
                accidents += [] if ITEM.match(before) else [(page_name(page), line)]
    assert not accidents
