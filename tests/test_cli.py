"""The command line: answers, files, and one clear sentence for everything that goes wrong."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import attnflow
from attnflow import Attribution, __version__
from attnflow.cli.app import GROUP, _run, add_plugins, app
from attnflow.errors import AttributionWarning, MissingDependencyError
from attnflow.errors.progress import Progress, tell
from attnflow.methods import METHODS, Rollout
from attnflow.show.progress import progress_bars, tell_lines
from attnflow.testing import tiny_encoder
from hostile_surface import try_command_lines
from test_server import tiny_writer

ROOT = Path(__file__).parent.parent
TEXT = "the author talked to sara about [MASK] book"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    loaded = tiny_encoder()
    loaded.module.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def test_explain_shows_prediction_target_and_layers(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["explain", "--model", folder, TEXT, "--method", "flow", "--table"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"The model says \S+ \(\d+\.\d %\)\.", shown)
    assert re.search(r"^“\S+” draws on “\S+” \(flow \d\.\d\d\)", shown, re.MULTILINE)
    assert "Attention flow, layer 3, read at [MASK], position 7" in shown
    assert re.search(r"layer +1 +2 +3", shown)
    assert len(re.findall(r"^ *author +\S+ +\S+ +\S+$", shown, re.MULTILINE)) == 1
    assert "\x1b" not in shown
    table = [line for line in shown.splitlines() if re.search(r"^ *\S+ +(\.\d\d|1\.0)", line)]
    assert all(len(line) <= 80 for line in table)
    assert _run(["explain", "--model", folder, TEXT]) == 0
    assert not re.search(r"layer +1 +2 +3", capsys.readouterr().out)  # on request only


def test_json_is_the_whole_result(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--targets", "sara", "--layers", "2", "--method", "rollout:residual=0.4", "--json"]
    assert _run(["explain", "--model", folder, TEXT, *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert np.array(record["values"]).shape == (1, 1, 10)
    assert record["targets"]["texts"] == ["sara"]
    assert record["method"]["name"] == "rollout"
    assert record["method"]["options"]["residual"] == 0.4


STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".gif": b"GIF89a"}


@pytest.fixture
def coarse_films(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn at their full size, where tests/test_plots.py looks at them, films take seconds."""
    monkeypatch.setattr("attnflow.show.plots.animation._DOTS_PER_INCH", 20)


FIGURES = [
    ("pairs.svg", ["--figure", "pairs"]),
    ("all.png", ["--targets", "all"]),
    ("bars.pdf", ["--figure", "bars", "--targets", "sara", "--layers", "2", "--level", "word"]),
    ("graph.png", ["--figure", "graph", "--layers", "2"]),
    ("cut.png", ["--method", "flow", "--cut", "book"]),
    ("built.gif", ["--method", "flow"]),
    ("words.gif", ["--level", "word"]),
    ("relative.gif", ["--method", "alti"]),
]


@pytest.mark.usefixtures("coarse_films")
@pytest.mark.parametrize(("name", "options"), FIGURES)
def test_figures_go_to_a_file(
    folder: str,
    tmp_path: Path,
    name: str,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    text = "sara [MASK]" if name.endswith("gif") else TEXT  # a film has a frame for each layer
    assert _run(["explain", "--model", folder, text, *options, "--output", str(file)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err.endswith(f"\nwrote {file}\n")) == ("", True)
    assert file.read_bytes().startswith(STARTS[file.suffix])


@pytest.mark.parametrize("name", ["result.json", "result.safetensors", "result.png"])
def test_output_goes_to_a_file(
    folder: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["explain", "--model", folder, TEXT, "--output", str(tmp_path / name)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote {tmp_path / name}" in captured.err
    if name.endswith(".png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    else:
        assert Attribution.load(tmp_path / name).values.shape == (3, 1, 10)


@pytest.mark.parametrize(
    "method",
    [
        *("gradient-rollout", "gradient-flow", "measured-residual"),
        *("norm-rollout", "alti", "value-zeroing", "shapley-flow"),
    ],
)
def test_every_relative_by_its_name(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "the key to the cabinets", "--method", method, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["method"]["name"] == method
    assert np.array(record["values"]).shape == (6, 1, 7)
    assert np.array(record["values"]).max() > 0


def test_what_gradients_are_of_can_be_chosen(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for answer in ("0", "plural"):
        arguments = ["explain", "the key", "--method", "gradient-rollout", "--json"]
        assert _run([*arguments, "--answer", answer]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [record["provenance"]["gradients_of"] for record in found] == ["singular", "plural"]
    assert found[0]["values"] != found[1]["values"]
    assert _run(["explain", "the key", "--answer", "1", "--method", "rollout"]) == 2
    assert "answer=1 chooses what gradients are taken of" in capsys.readouterr().err
    encoder = ["explain", "--model", folder, TEXT, "--method", "rollout:matrices=norms-encoder"]
    assert _run(encoder) == 0
    assert "Norm rollout, matrices norms-encoder, layer" in capsys.readouterr().out
    assert _run(["explain", "the key", "--method", "norm-rollout:matrices=norms-encoder"]) == 1
    assert "VerbNumberModel normalises before attention" in capsys.readouterr().err


def test_methods_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["methods"]) == 0
    shown = capsys.readouterr().out
    options = ("heads", "residual", "start_layer", "top_head", "matrices", "capacities")
    for word in (*METHODS, *options):
        assert word in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"attnflow {__version__}"


def test_check_gives_a_verdict(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["check", folder]) == 0
    shown = capsys.readouterr().out
    assert shown.count("ok  ") == 5
    assert "verdict: attention of this model is captured faithfully" in shown


def test_check_says_when_not_to_trust(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnflow.hosts.check.distance", lambda *_: 0.5)
    assert _run(["check", folder]) == 1
    assert "NO  the output is the same without capture" in capsys.readouterr().out


def test_the_cut_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = "the key to the cabinets"
    assert _run(["explain", text, "--method", "flow", "--cut", "key", "--layers", "2"]) == 0
    shown = capsys.readouterr().out
    assert "flow from '[CLS]' at layer 2 to 'key': 0." in shown
    assert re.search(r"held back (between|at the)", shown)
    assert re.search(r"layer +from +to +capacity", shown)


def test_saturation_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "the key to the cabinets", "--method", "flow"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+ % of these flows are saturated at layer 6", shown)
    assert _run(["explain", "the key to the cabinets", "--method", "flow", "--layers", "1"]) == 0
    assert "saturated" not in capsys.readouterr().out


def test_all_targets_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.safetensors"
    arguments = [
        "explain",
        "the key",
        "--method",
        "flow",
        "--targets",
        "all",
        "--output",
        str(file),
    ]
    assert _run(arguments) == 0
    result = Attribution.load(file)
    assert result.values.shape == (6, 4, 4)
    assert result.saturated is not None
    assert sum(result.provenance["decided"].values()) == 6 * 4 * 4


BAD_USAGE = [
    ([""], "There is nothing to explain: the text is ''"),
    ([TEXT, "--method", "flo"], "Unknown method 'flo'. Did you mean 'flow'?"),
    ([TEXT, "--method", "rollout:residual"], "NAME:key=value,key=value"),
    ([TEXT, "--method", "rollout:residul=1"], "no option 'residul'. Did you mean 'residual'?"),
    ([TEXT, "--method", "rollout:residual=2"], "a number from 0 to 1"),
    ([TEXT, "--targets", "book "], "No token 'book '"),
    ([TEXT, "--targets", "99"], "No position 99 here; choose from 0 '[CLS]'"),
    (["the key to the cabinets", "--targets", "the"], "occurs 2 times, at positions 1, 4"),
    ([TEXT, "--layers", "9"], "choose from 1, 2, 3"),
    ([TEXT, "--output", "x.txt"], "must be .json, .safetensors, .html, .png, .svg, .pdf or .gif"),
    ([TEXT, "--output", "no/such/folder/x.json"], "there is no folder 'no/such/folder'"),
    ([TEXT, "--json", "--output", "x.json"], "choose one"),
    ([TEXT, "--cut", "book"], "--cut explains a flow; add --method flow"),
    ([TEXT, "--method", "flow", "--cut", "boook"], "No token 'boook' here. Did you mean 'book'?"),
    ([TEXT, "--method", "flow", "--cut", "book", "--json"], "leave out --json"),
    ([TEXT, "--level", "wrod"], "--level='wrod': Did you mean 'word'? Allowed: 'token', 'word'"),
    (
        [TEXT, "--figure", "pair", "--output", "x.png"],
        "Unknown figure 'pair'. Did you mean 'pairs'?",
    ),
    ([TEXT, "--figure", "graph"], "--figure graph needs a file: --output graph.png"),
    ([TEXT, "--figure", "graph", "--output", "x.json"], "A figure is written as .png, .svg, .pdf"),
    ([TEXT, "--figure", "graph", "--output", "x.gif"], "A figure is written as .png, .svg, .pdf"),
    ([TEXT, "--targets", "all", "--figure", "bars", "--output", "x.png"], "shows one target"),
    ([TEXT, "--targets", "all", "--output", "x.gif"], "shows one target"),
    ([TEXT, "--layers", "2", "--output", "x.gif"], "leave out --layers"),
    ([TEXT, "--level", "word", "--figure", "graph", "--output", "x.png"], "without --level"),
    ([TEXT, "--layers", "9", "--figure", "graph", "--output", "x.png"], "choose from 1, 2, 3"),
    (
        [TEXT, "--method", "flow", "--cut", "book", "--figure", "graph", "--output", "x.png"],
        "--cut draws a figure of its own",
    ),
    (
        [TEXT, "--method", "gradient-attention", "--figure", "graph", "--output", "x.png"],
        "use it with --method raw, rollout or flow (now 'gradient-attention')",
    ),
    ([TEXT, "--method", "flow:threads=2"], "'flow' has no option 'threads'"),
    ([TEXT, "--method", "flow:tolerance=7"], "tolerance is a number from 1e-9 to 1"),
    ([TEXT, "--model", "x" * 5000], "of up to 1,000 characters; got 5,000"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD_USAGE)
def test_bad_usage_is_one_sentence_and_status_2(
    folder: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["explain", "--model", folder, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("attnflow: ")
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert len([line for line in captured.err.splitlines() if " reads about " not in line]) == 1


@pytest.mark.parametrize("arguments", [["explain"], ["nonsense"], ["explain", "x", "--nonsense"]])
def test_the_parsers_own_errors_have_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_has_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "--model", "./no-such-folder", "text"]) == 1
    assert "There is no folder './no-such-folder'" in capsys.readouterr().err


def test_what_should_not_happen_is_not_a_bare_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("attnflow.hosts.load.load", broken)
    assert _run(["explain", "text"]) == 1
    assert "RuntimeError: boom" in capsys.readouterr().err
    monkeypatch.setenv("ATTNFLOW_DEBUG", "1")
    with pytest.raises(RuntimeError, match="boom"):
        _run(["explain", "text"])


def test_an_interruption_has_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnflow.hosts.load.load", interrupted)
    assert _run(["explain", "text"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "attnflow: interrupted; nothing was written."


# -- as in Python ----------------------------------------------------------------------------------

SHOWN = {"words", "model", "as_json", "output", "table"}  # where it comes from, how it is shown
AS_IN_PYTHON = {
    "explain": (attnflow.explain, {"cut", "figure"}),
    "generate": (
        attnflow.generate,
        {"message", "chat", "seed", "temperature", "layer", "top", "hide_common", "common"},
    ),
    "ask": (attnflow.ask, {"files", "seed", "selects"}),
}


@pytest.mark.parametrize("name", AS_IN_PYTHON)
def test_options_are_called_like_the_arguments_in_python(name: str) -> None:
    function, others = AS_IN_PYTHON[name]
    arguments = set(inspect.signature(function).parameters) - {"generate_kwargs"}
    command: Any = typer.main.get_command(app)
    options = {parameter.name for parameter in command.commands[name].params} - {"help"}
    elsewhere = {"answer"}  # `attnflow cite` takes one that exists
    assert arguments <= {*options, "text", "prompt", "question", *elsewhere}
    assert options - arguments - SHOWN == others


def help_of(command: Any, option: str) -> str:
    return str(next(each.help for each in command.params if each.name == option))


def test_help_names_what_the_code_names() -> None:
    from attnflow.cli import corpus, evaluate, explain

    group: Any = typer.main.get_command(app)
    commands = group.commands
    assert ", ".join(explain.FIGURES) in help_of(commands["explain"], "figure")
    assert f"{evaluate._NAME}.jsonl" in help_of(commands["evaluate"], "journal")
    assert corpus._PAGE in help_of(commands["corpus"].commands["summary"], "output")


def test_a_model_without_an_answer_has_a_sentence_for_each_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = tiny_encoder(head="")
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    assert _run(["explain", "--model", str(tmp_path), TEXT]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No single answer is read here: every target is explained by itself.")
    assert shown.count("” draws on “") == 8
    assert "… and 2 more; --json prints all." in shown
    assert "--targets chooses one." in shown


def test_several_targets_and_layers_go_into_one_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = ["--targets", "key", "--targets", "0", "--layers", "1", "--layers", "6", "--json"]
    assert _run(["explain", "the key to the cabinets", *several]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"] == [1, 6]
    assert record["targets"]["texts"] == ["key", "[CLS]"]


def test_every_command_has_a_file_of_its_own() -> None:
    import attnflow.cli

    folder = Path(attnflow.cli.__file__).parent
    names = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    names |= {group.typer_instance.info.name for group in app.registered_groups}  # type: ignore[union-attr]
    files = {path.stem for path in folder.glob("*.py")}
    files -= {"__init__", "app", "inputs", "mistakes", "options", "pace", "writing"}
    files -= {"photos"}  # of `explain`
    assert files == names - {"bench", "experiment", "serve"}  # the commands of a plug-in


# -- plug-ins --------------------------------------------------------------------------------------


def with_plugins(*points: tuple[str, str]) -> typer.Typer:
    small = typer.Typer()
    small.command(name="methods")(lambda: None)
    add_plugins(small, [EntryPoint(name, value, GROUP) for name, value in points])
    return small


SERVE_PLUGIN = ("serve", "attnflow_connect.command:app")
EXPERIMENTS_PLUGIN = ("experiment", "attnflow_experiments.commands:app")
BENCH_PLUGIN = ("bench", "attnflow_experiments.bench.command:app")


def test_the_declared_entry_points_are_the_commands_of_the_other_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [*project["entry-points"][GROUP].items()] == [
        SERVE_PLUGIN,
        EXPERIMENTS_PLUGIN,
        BENCH_PLUGIN,
    ]
    shown = CliRunner().invoke(with_plugins(EXPERIMENTS_PLUGIN), ["experiment"])
    assert shown.exit_code == 0
    assert "verb-number  Tables 1 and 2" in shown.stdout


def test_a_plug_in_of_one_command_is_that_command_in_its_place() -> None:
    small = with_plugins(SERVE_PLUGIN)
    shown = CliRunner().invoke(small, ["serve", "--help"])
    assert "Usage: root serve [OPTIONS]" in " ".join(shown.stdout.split())
    commands = list(typer.main.get_group(app).commands)
    assert commands[5:8] == ["report", "serve", "evaluate"]
    assert commands[-3:] == ["corpus", "bench", "experiment"]


def test_without_the_package_the_command_says_how_to_install_it() -> None:
    for arguments in (["experiment"], ["experiment", "sst2", "--data", "x"]):
        error = CliRunner().invoke(with_plugins(), arguments).exception
        assert isinstance(error, MissingDependencyError)
        assert 'pip install "attnflow[experiments]"' in str(error)


def test_a_broken_plug_in_is_told_in_a_sentence_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_plugin.py").write_text("import typer\n1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        *(("broken", "broken_plugin:app"), ("number", "math:pi"), ("methods", "math:tau")),
        EXPERIMENTS_PLUGIN,
    ]
    small = with_plugins(*points)
    assert "'math:tau' is left out: methods is taken." in capsys.readouterr().err
    for name, reason in (("broken", "ZeroDivisionError"), ("number", "a float")):
        error = CliRunner().invoke(small, [name, "--anything"]).exception
        assert isinstance(error, MissingDependencyError)
        assert reason in str(error)
    assert CliRunner().invoke(small, ["experiment"]).exit_code == 0


# -- what goes wrong outside -----------------------------------------------------------------------


def in_shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell of its own; $attnflow is the command."""
    environment = {**os.environ, "attnflow": f"{sys.executable} -m attnflow", **variables}
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        encoding=variables.get("PYTHONIOENCODING", "utf-8"),
        env=environment,
        check=False,
    )


def standard_output(
    monkeypatch: pytest.MonkeyPatch, file: int | str, encoding: str = "utf-8"
) -> TextIO:
    """What a command of this process writes to: a file or one end of a pipe."""
    stream = open(file, "w", encoding=encoding)  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_what_a_terminal_cannot_encode_is_escaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once in a process of its own, as people start it."""
    with standard_output(monkeypatch, str(tmp_path / "shown"), encoding="cp1252"):
        assert _run(["explain", "the key → ∞", "--table"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1  # how long it will take
    assert "\\u2192" in (tmp_path / "shown").read_text(encoding="cp1252")
    run = in_shell('$attnflow explain "the key → ∞" --json', PYTHONIOENCODING="ascii")
    assert (run.returncode, len(run.stderr.splitlines())) == (0, 1)
    assert "→" in json.loads(run.stdout)["sources"]["texts"]


LONG_ANSWER = ["explain", "the key", "--json", "--targets", "all"]
NOT_ON_DISK = "the answer could not be written to standard output: No space left on device.\n"


def test_a_reader_that_leaves_ends_the_command_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = in_shell("set -o pipefail; $attnflow methods | head -c 1")
    assert (run.returncode, run.stderr) == (0, "")
    reader, writer = os.pipe()
    os.close(reader)
    with standard_output(monkeypatch, writer):
        assert _run(LONG_ANSWER) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "reads about" not in line] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_standard_output_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = in_shell("$attnflow methods > /dev/full")
    assert (run.returncode, run.stderr) == (1, f"attnflow: {NOT_ON_DISK}")
    with standard_output(monkeypatch, "/dev/full"):
        assert _run(LONG_ANSWER) == 1
    assert capsys.readouterr().err.endswith(NOT_ON_DISK)


@pytest.mark.parametrize(
    ("reader", "status", "told"),
    [("gone", 0, ""), ("/dev/full", 1, f"attnflow: {NOT_ON_DISK}")],
)
def test_what_a_command_left_in_the_buffer_is_written_before_it_ends(
    reader: str,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands of other packages may print without flushing, which then fails at the very end."""
    if reader == "/dev/full" and not Path(reader).exists():
        pytest.skip("this system has no /dev/full")
    other = typer.Typer()
    other.command()(lambda: sys.stdout.write("an answer"))
    monkeypatch.setattr("attnflow.cli.app.app", other)
    ends = os.pipe()
    os.close(ends[0])
    with standard_output(monkeypatch, ends[1] if reader == "gone" else reader):
        assert _run([]) == status
    assert capsys.readouterr().err == told


@pytest.mark.usefixtures("coarse_films")
@pytest.mark.parametrize("name", ["x.png", "x.svg", "x.pdf", "x.gif", "x.html", "x.json"])
def test_a_full_disk_leaves_the_old_file_whole(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written beside the old one; here that one cannot take its place."""
    file = tmp_path / name
    file.write_bytes(b"the old one")

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    assert _run(["explain", "the key", "--output", str(file)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"attnflow: Cannot write {str(file)!r}: ")
    assert re.search("no space|full", message, re.IGNORECASE)
    assert file.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_image_on_the_command_line_is_told_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    picture = tmp_path / "photo.png"
    picture.write_bytes(b"\x89PNG")
    assert _run(["explain", str(picture)]) == 2
    assert "is an image, and the models that come with attnflow read text. Name a vision model" in (
        capsys.readouterr().err
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=16, image_size=16, patch_size=8)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    assert _run(["explain", "--model", str(tmp_path / "vit"), "no-such-file.png"]) == 1
    assert "There is no image 'no-such-file.png'" in capsys.readouterr().err
    assert _run(["explain", "--model", str(tmp_path / "vit"), "a text, not a path"]) == 2
    assert "reads no text: it has no tokenizer. A vision model takes the path of an image" in (
        capsys.readouterr().err
    )


def test_what_a_method_warns_of_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    original = Rollout._compute

    def compute(self: Rollout, *arguments: Any) -> Attribution:
        warnings.warn("Every row is the same.", AttributionWarning, stacklevel=2)
        return original(self, *arguments)

    monkeypatch.setattr(Rollout, "_compute", compute)
    assert _run(["explain", "the key", "--method", "rollout"]) == 0
    assert capsys.readouterr().err.endswith(".\nattnflow: Every row is the same.\n")
    file = tmp_path / "report.html"
    assert _run(["report", "the key", "--methods", "rollout", "--output", str(file)]) == 0
    assert capsys.readouterr().err.endswith(f".\nattnflow: Every row is the same.\nwrote {file}\n")


def test_saturation_is_not_said_to_be_mended_by_rollout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(["explain", "the key to the cabinets", "--method", "flow"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "saturated" in shown
    assert "--method rollout" not in shown
    assert "`attnflow evaluate` say which method to trust" in shown


def test_progress_is_shown_on_a_terminal_for_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bars("loading the model", console=console):
        tell("flow", 3, 10)
        tell("reading", 2, 4)
        tell("texts", 1, 5)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("loading the model", "flow", "3/10", "reading", "2/4", "texts", "1/5"):
        assert word in drawn


def test_a_log_has_a_line_where_the_work_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 0.0, 3.0, 30.0, 31.0, 300.0])
    show = tell_lines(Console(stderr=True), lambda: next(seconds))
    for done in (0, 5, 30, 31, 60):
        show(Progress("flow", done, 100))
    assert capsys.readouterr().err == (
        "attnflow: flow, 30 of 100, about 70 seconds left.\n"
        "attnflow: flow, 60 of 100, about 3 minutes left.\n"
    )


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("writer")
    loaded = tiny_writer()
    loaded.module.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return str(path)


@pytest.mark.filterwarnings("ignore")  # what host libraries say of odd input is theirs
def test_odd_command_lines_end_in_a_sentence(folder: str, writer: str, tmp_path: Path) -> None:
    assert try_command_lines(40, seed=1, encoder=folder, writer=writer, folder=tmp_path) == []
