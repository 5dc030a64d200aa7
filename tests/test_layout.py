"""The import law: stages stand on each other, imports point down, heavy libraries stay at home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import attnflow

PACKAGE = Path(attnflow.__file__).parent

# Each home may import only homes of a lower rank, and itself. Every file of src has a home here.
RANK = {
    "_version": 0,
    "errors": 0,
    "storage": 1,
    "tokens": 1,
    "models": 1,
    "graph": 2,
    "trace": 2,
    "attribution": 3,
    "maxflow": 4,
    "kernels": 4,
    "methods": 5,
    "hosts": 6,
    "show": 6,
    "testing": 7,
    "data": 7,
    "explainers": 7,
    "evaluation": 8,
    "experiments": 9,
    "corpus": 9,
    "api": 10,
    "web": 12,
    "cli": 13,
    "__main__": 14,
    "__init__": 14,
}
# A result is loaded, drawn and shown by name: upward, inside a function, and nowhere else.
LAZY_DOORS = {("attribution", "methods"), ("attribution", "show")}

RUN_MODELS = {
    *("kernels", "hosts", "explainers", "evaluation", "experiments", "corpus", "models", "testing")
}
HEAVY = {
    "torch": RUN_MODELS,
    "transformers": RUN_MODELS,
    "captum": {"evaluation"},
    "fastapi": {"web"},
    "uvicorn": {"web"},
    "pydantic": {"web"},
    "starlette": {"web"},
    "matplotlib": {"show"},
    "ray": {"corpus"},
}
MOST_TOP_LEVEL_MODULES = 12  # beside __init__ and __main__


@dataclass(frozen=True)
class Import:
    """One import statement: what it names, and where in its file it stands."""

    module: str
    inside_function: bool
    for_types_only: bool


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def home_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[Import]:
    return list(_imports(ast.parse(path.read_text(encoding="utf-8")), False, False))


def _imports(node: ast.AST, inside: bool, types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, inside, types) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (Import(name, inside, types) for name in names)
    inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    types = types or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, inside, types)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    home = home_of(path)
    assert home in RANK, f"{path.name} has no place in the table of tests/test_layout.py"
    for imported in imports(path):
        if not imported.module.startswith("attnflow."):
            continue
        other = imported.module.split(".")[1]
        if other == home:
            continue
        if (home, other) in LAZY_DOORS:
            assert imported.inside_function or imported.for_types_only, (
                f"{path.name} opens the door to attnflow.{other} outside a function"
            )
            continue
        if home != "__init__":
            assert other in RANK, f"{path.name} imports attnflow.{other}, which has no rank"
        assert RANK.get(other, 0) < RANK[home], f"{path.name} imports attnflow.{other}, above it"


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_heavy_libraries_stay_where_they_belong(library: str) -> None:
    for path in files():
        loaded = {i.module.split(".")[0] for i in imports(path) if not i.for_types_only}
        assert library not in loaded or home_of(path) in HEAVY[library], (
            f"{path.name} imports {library}"
        )


def test_the_top_level_stays_small() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= MOST_TOP_LEVEL_MODULES, sorted(modules)


def test_no_public_function_hides_behind_a_module_of_its_name() -> None:
    submodules = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    assert not submodules & set(attnflow.__all__)


def test_the_law_sees_what_it_forbids(tmp_path: Path) -> None:
    """A door at the top of a file is told from one inside a function, and from one for types."""
    file = tmp_path / "result.py"
    file.write_text(
        "import attnflow.show\n"
        "def draw():\n    import attnflow.methods\n"
        "if TYPE_CHECKING:\n    from matplotlib.axes import Axes\n",
        encoding="utf-8",
    )
    assert imports(file) == [
        Import("attnflow.show", False, False),
        Import("attnflow.methods", True, False),
        Import("matplotlib.axes.Axes", False, True),
    ]
