"""Each decision is taken in one place: the table of CONTRIBUTING.md, held against the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import attnflow

PACKAGE = Path(attnflow.__file__).parent
SOURCES = PACKAGE.parent
ROOT = Path(__file__).parent.parent
READERS = {"csv.reader", "csv.DictReader", "pq.read_table", "pq.ParquetFile"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return every definition, call and attribute in src, with the path of its file."""
    found: list[tuple[str, ast.AST]] = []
    for path in sorted(SOURCES.glob("attnflow*/**/*.py")):
        place = path.relative_to(SOURCES).as_posix().removeprefix("attnflow/")
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        kinds = (ast.Attribute, ast.Call, ast.ClassDef, ast.FunctionDef)
        found += [(place, node) for node in tree if isinstance(node, kinds)]
    return found


def places(is_decided: Callable[[ast.AST], bool]) -> list[str]:
    """List the file of each node that takes the decision, a file as often as it does."""
    return [place for place, node in nodes() if is_decided(node)]


@cache
def called_name(node: ast.Call) -> str:
    return ast.unparse(node.func)


def defines(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def calls(node: ast.AST, *patterns: str) -> bool:
    """Whether the node calls something whose dotted name matches one of the patterns."""
    if not isinstance(node, ast.Call):
        return False
    return any(re.fullmatch(pattern, called_name(node)) for pattern in patterns)


def labels_method(node: ast.AST) -> bool:
    """Whether the node makes one text of one method, for people: `Method.label`, or a function."""
    if isinstance(node, ast.ClassDef) and node.name.endswith("Method"):
        return any(defines(each, "label") for each in node.body)
    if not isinstance(node, ast.FunctionDef) or "label" not in node.name or node.returns is None:
        return False
    kinds = [ast.unparse(each.annotation) for each in node.args.args if each.annotation]
    return ast.unparse(node.returns) == "str" and any("Method" in kind for kind in kinds[:1])


def opens_parquet(node: ast.AST) -> bool:
    """Whether the node loads the reader of .parquet files by name."""
    return calls(node, "optional_import") and "'pyarrow.parquet'" in ast.unparse(node)


# What takes each decision, and the files that may: one file, or the files of one room.
DECISIONS: dict[str, tuple[Callable[[ast.AST], bool], str]] = {
    "default method": (lambda node: defines(node, "default_method"), r"explainers/defaults\.py"),
    "model": (lambda node: defines(node, "as_model"), r"hosts/(load|model)\.py"),
    "label": (labels_method, r"methods/\w+\.py"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_one_function_decides(name: str) -> None:
    is_decided, home = DECISIONS[name]
    (place,) = places(is_decided)
    assert re.fullmatch(home, place)


# What may be done in one room only, however often.
ROOMS: dict[str, tuple[Callable[[ast.AST], bool], str]] = {
    "weights": (
        lambda node: calls(
            node, r".*\bAutoModel\w*\.from_pretrained", r"getattr\(.*from_pretrained"
        ),
        # what ships is loaded beside its card; inputs loads processors; a peer has no attnflow
        r"hosts/(load|inputs)\.py|models/\w+\.py|attnflow_experiments/bench/peers/worker\.py",
    ),
    "default model": (
        # a name that is written out where it is chosen would be a second default
        lambda node: calls(node, "as_model") and "default='" in ast.unparse(node),
        r"nowhere",
    ),
    "answer row": (
        lambda node: isinstance(node, ast.Attribute) and node.attr == "pooled",
        # what reads an answer says so, a gradient starts there, and a sentence tells it
        r"explainers/answer_rows\.py|hosts/scores\.py|trace/extras\.py|methods/gradients\.py"
        r"|show/sentences\.py",
    ),
    "table reader": (
        lambda node: calls(node, *map(re.escape, READERS)) or opens_parquet(node),
        r"data/\w+\.py|corpus/(dataset|output_folder|folder)\.py",  # a corpus reads what it wrote
    ),
    "attention interface": (
        lambda node: calls(node, r"Attention(Mask)?Interface\.register"),
        r"hosts/transformers/attention\.py",
    ),
    "evaluation run": (
        lambda node: calls(node, "Journal"),
        r"evaluation/run\.py|attnflow_experiments/scenes/experiment\.py",
    ),
    "ablation": (
        lambda node: calls(node, "Intervention"),
        r"explainers/blanks\.py|hosts/.*|testing\.py",
    ),
}


@pytest.mark.parametrize("name", ROOMS)
def test_one_room_does_it(name: str) -> None:
    is_decided, home = ROOMS[name]
    found = places(is_decided)
    assert found or home == "nowhere", f"nothing in src does it any more: {name}"
    assert not [place for place in found if not re.fullmatch(home, place)]


def test_the_table_of_decisions_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| decision |")[2].partition("\n\n")[0]
    files = re.findall(r"^\|[^|]+\| `([\w/.]+)`", table, flags=re.MULTILINE)
    assert len(files) == 8
    missing = [file for file in files if not (PACKAGE / file).exists()]
    assert not missing


def test_the_scan_sees_what_it_forbids() -> None:
    source = (
        "def label_method(method: Method | None) -> str: ...\n"
        "csv.reader(lines)\n"
        "optional_import('pyarrow.parquet', extra='corpus', purpose='Reading')\n"
        "transformers.AutoModelForCausalLM.from_pretrained('x')\n"
        "as_model(model, default='smollm2')\n"
        "trace.prediction.pooled\n"
    )
    label, *statements = ast.parse(source).body
    assert labels_method(label)
    nodes = [statement.value for statement in statements]  # type: ignore[attr-defined]
    assert [ROOMS["table reader"][0](node) for node in nodes[:3]] == [True, True, False]
    assert ROOMS["weights"][0](nodes[2])
    assert ROOMS["default model"][0](nodes[3])
    assert ROOMS["answer row"][0](nodes[4])
