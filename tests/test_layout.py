"""The import law: stages stand on each other, imports point down, heavy libraries stay at home."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx
import pytest

import attnflow

PACKAGE = Path(attnflow.__file__).parent
SOURCES = PACKAGE.parent

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
    "corpus": 8,
    "api": 10,
    "cli": 13,
    "__main__": 14,
    "__init__": 14,
    # Packages of their own, which do not know each other: attnflow finds them by entry point.
    "attnflow_connect": 15,
    "attnflow_experiments": 15,
}
# A result is loaded, drawn and shown by name: upward, inside a function, and nowhere else.
LAZY_DOORS = {("attribution", "methods"), ("attribution", "show")}

RUN_MODELS = {
    *("kernels", "hosts", "explainers", "evaluation", "corpus", "models", "testing"),
    "attnflow_experiments",
}
CONNECT = {"attnflow_connect"}
HEAVY = {
    "torch": RUN_MODELS,
    "transformers": RUN_MODELS,
    "captum": {"evaluation"},
    **dict.fromkeys(("fastapi", "uvicorn", "pydantic", "starlette", "httpx"), CONNECT),
    "matplotlib": {"show"},
    "ray": {"corpus", *CONNECT},
    **dict.fromkeys(("langchain_core", "llama_index", "haystack"), CONNECT),
    **dict.fromkeys(("mlflow", "ragas", "datasets", "anywidget"), CONNECT),
}
MODULE_NAME = re.compile(r"(attnflow(?:_connect\b|_experiments\b|\.\w+)(?:\.\w+)*)\.?(?::\w+)?")
MOST_PARAMETERS = 10
# A parameter of a command is an option; compiled code has its state in arrays, each an argument.
MANY_PARAMETERS = (  # options of commands, and compiled code
    "attnflow/cli/",
    "attnflow_experiments/language.py",
    "attnflow_experiments/bench/command.py",
    "attnflow/maxflow/",
    "attnflow/kernels/triton_code.py",
)
MOST_TOP_LEVEL_MODULES = 12  # beside __init__ and __main__


@dataclass(frozen=True)
class Import:
    """One import statement: what it names, and where in its file it stands."""

    module: str
    inside_function: bool
    for_types_only: bool


_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)

parsed = cache(ast.parse)  # a file's source is read by several tests


@cache
def files() -> list[Path]:
    return sorted(SOURCES.glob("attnflow*/**/*.py"))


def home_of(path: Path) -> str:
    package, room, *_ = path.relative_to(SOURCES).parts
    return room.removesuffix(".py") if package == "attnflow" else package


def home_of_module(name: str) -> str | None:
    """Return the home of a dotted name; None for other packages and for attnflow alone."""
    package, *rooms = name.split(".")
    if package != "attnflow":
        return package if package in RANK else None
    if not rooms:
        return None
    return "__init__" if rooms[0] in attnflow.__all__ else rooms[0]


@cache
def imports(path: Path) -> list[Import]:
    return list(_imports(parsed(path.read_text(encoding="utf-8")), False, False))


def _imports(node: ast.AST, inside: bool, types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, inside, types) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (Import(name, inside, types) for name in names)
    inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    types = types or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BLOCKS):  # no expression holds an import
            yield from _imports(child, inside, types)


def test_imports_point_down() -> None:
    offences = [offence for path in files() for offence in upward_imports(path)]
    assert not offences, "\n".join(offences)


def upward_imports(path: Path) -> Iterator[str]:
    """Yield a sentence for each import of a file that the law forbids."""
    home, name = home_of(path), path.relative_to(SOURCES)
    if home not in RANK:
        yield f"{name} has no place in the table of tests/test_layout.py"
        return
    for imported in imports(path):
        other = home_of_module(imported.module)
        if other is None or other == home:
            continue
        if (home, other) in LAZY_DOORS:
            if not (imported.inside_function or imported.for_types_only):
                yield f"{name} opens the door to attnflow.{other} outside a function"
        elif home != "__init__" and other not in RANK:
            yield f"{name} imports attnflow.{other}, which has no rank"
        elif RANK.get(other, 0) >= RANK[home]:
            yield f"{name} imports attnflow.{other}, above it"


def named_modules(source: str) -> Iterator[str]:
    """Yield every string that is a dotted name of ours: what import_module could be given.

    Docstrings and messages hold spaces, so they are none; the beginning of an f-string counts.
    """
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = MODULE_NAME.fullmatch(node.value)
            if match is not None:
                yield match[1]


def test_no_string_names_a_module_of_a_higher_floor() -> None:
    """What is reached from below registers itself from above: a name in a string is an import."""
    offences = []
    for path in files():
        home, place = home_of(path), path.relative_to(SOURCES).as_posix()
        for name in named_modules(path.read_text(encoding="utf-8")):
            other = home_of_module(name)
            if other not in RANK or other == home or (home, other) in LAZY_DOORS:
                continue
            if RANK[other] >= RANK[home]:
                offences.append(f"{place} names {name!r}, above it")
    assert not offences, "\n".join(offences)


def test_the_law_reads_strings() -> None:
    source = (
        'load("attnflow.cli.app")\n'
        'load(f"attnflow.corpus.{name}")\n'
        'register("attnflow_experiments.commands:app")\n'
        'load("attnflow_connect.server.app")\n'
        "say('See attnflow.show for more.')\n"
        "say('attnflow.show: see there')\n"
    )
    assert [*named_modules(source)] == [
        "attnflow.cli.app",
        "attnflow_experiments.commands",
        "attnflow_connect.server.app",
        "attnflow.corpus",
    ]


def test_heavy_libraries_stay_where_they_belong() -> None:
    offences = [
        f"{path.relative_to(SOURCES)} imports {library}"
        for path in files()
        for library in {i.module.split(".")[0] for i in imports(path) if not i.for_types_only}
        if home_of(path) not in HEAVY.get(library, {home_of(path)})
    ]
    assert not offences, "\n".join(offences)


def test_the_top_level_stays_small() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= MOST_TOP_LEVEL_MODULES, sorted(modules)


def test_no_public_function_hides_behind_a_module_of_its_name() -> None:
    submodules = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    assert not submodules & set(attnflow.__all__)


def test_a_function_has_at_most_ten_parameters() -> None:
    offences = [
        f"{path.relative_to(SOURCES)}: {name} has {count}"
        for path in files()
        if not path.relative_to(SOURCES).as_posix().startswith(MANY_PARAMETERS)
        for name, count in parameter_counts(path.read_text(encoding="utf-8"))
        if count > MOST_PARAMETERS
    ]
    assert not offences, "\n".join(offences)


def parameter_counts(source: str) -> Iterator[tuple[str, int]]:
    """Yield each function with its parameters, `self`, *args and **kwargs aside."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield node.name, len([each for each in arguments if each.arg not in ("self", "cls")])


def test_the_count_sees_every_kind_of_parameter() -> None:
    source = "class A:\n    async def f(self, a, /, b, *c, d=0, **e): ...\n"
    assert list(parameter_counts(source)) == [("f", 3)]


def test_one_circle_of_imports_at_most() -> None:
    """The nouns import in a circle through their lazy doors; no other files do, even for types."""
    names = {".".join(path.relative_to(SOURCES).with_suffix("").parts): path for path in files()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for name, path in names.items():
        for each in imports(path):
            module = each.module if each.module in names else each.module.rpartition(".")[0]
            if module in names:
                graph.add_edge(name, module)
    circles = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert len(circles) == 1, circles
    assert {name.split(".")[1] for name in circles[0]} <= {"attribution", "methods", "show"}


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


def test_a_worker_is_given_whole_files(request: pytest.FixtureRequest) -> None:
    """Nothing else would show it: each worker would make the fixtures of every file again, and
    what measures time would not wait for the others."""
    in_groups = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@test_layout.py") == in_groups
