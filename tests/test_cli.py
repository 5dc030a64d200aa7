"""The command line: answers, files, and one clear sentence for everything that goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnflow import Attribution, __version__
from attnflow.cli.app import _run
from attnflow.methods import METHODS
from attnflow.testing import tiny_encoder

TEXT = "the author talked to sara about [MASK] book"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    loaded = tiny_encoder()
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def test_explain_shows_prediction_target_and_layers(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["explain", "--model", folder, TEXT, "--method", "flow"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"prediction: \S+ \(\d+\.\d%\)", shown)
    assert "target: 7 '[MASK]'" in shown
    assert "Flow(heads='mean', residual=0.5" in shown
    assert re.search(r"layer +1 +2 +3", shown)
    assert len(re.findall(r"^ *author +\S+ +\S+ +\S+$", shown, re.MULTILINE)) == 1
    assert "\x1b" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if "Flow(" not in line)


def test_json_is_the_whole_result(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--targets", "sara", "--layers", "2", "--method", "rollout:residual=0.4", "--json"]
    assert _run(["explain", "--model", folder, TEXT, *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert np.array(record["values"]).shape == (1, 1, 10)
    assert record["targets"]["texts"] == ["sara"]
    assert record["method"] == {
        "name": "rollout",
        "options": {
            "heads": "mean",
            "residual": 0.4,
            "discard": 0.0,
            "drop": [],
            "receptive_field": None,
            "start_layer": 1,
            "top_head": None,
        },
    }


STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".gif": b"GIF89a"}

FIGURES = [
    ("pairs.svg", ["--figure", "pairs"]),
    ("all.png", ["--all-targets"]),
    ("bars.pdf", ["--figure", "bars", "--target", "sara", "--layer", "2", "--words"]),
    ("graph.png", ["--figure", "graph", "--layer", "2"]),
    ("cut.png", ["--method", "flow", "--cut", "book"]),
    ("built.gif", ["--method", "flow"]),
    ("words.gif", ["--words"]),
    ("relative.gif", ["--method", "alti"]),
]


@pytest.mark.parametrize(("name", "options"), FIGURES)
def test_figures_go_to_a_file(
    folder: str,
    tmp_path: Path,
    name: str,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    assert _run(["explain", "--model", folder, TEXT, *options, "--output", str(file)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"wrote {file}\n")
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
        *("norm-rollout", "alti", "value-zeroing"),
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
    for of in ("0", "1"):
        arguments = ["explain", "the key", "--method", "gradient-rollout", "--of", of, "--json"]
        assert _run(arguments) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [record["provenance"]["gradients_of"] for record in found] == ["singular", "plural"]
    assert found[0]["values"] != found[1]["values"]
    assert _run(["explain", "the key", "--of", "1"]) == 2
    assert "answer=1 chooses what gradients are taken of" in capsys.readouterr().err
    encoder = ["explain", "--model", folder, TEXT, "--method", "norm-rollout:kind=encoder"]
    assert _run(encoder) == 0
    assert "NormRollout(start_layer=1, kind='encoder')" in capsys.readouterr().out
    assert _run(["explain", "the key", "--method", "norm-rollout:kind=encoder"]) == 1
    assert "VerbNumberModel normalises before attention" in capsys.readouterr().err


def test_methods_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["methods"]) == 0
    shown = capsys.readouterr().out
    options = ("heads", "residual", "start_layer", "top_head", "kind", "others_only")
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
    monkeypatch.setattr("attnflow.hosts.check._distance", lambda *_: 0.5)
    assert _run(["check", folder]) == 1
    assert "NO  the output is the same without capture" in capsys.readouterr().out


def test_the_cut_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = "the key to the cabinets"
    assert _run(["explain", text, "--method", "flow", "--cut", "key", "--layer", "2"]) == 0
    shown = capsys.readouterr().out
    assert "flow from '[CLS]' at layer 2 to 'key': 0." in shown
    assert re.search(r"held back (between|at the)", shown)
    assert re.search(r"layer +from +to +capacity", shown)


def test_saturation_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "the key to the cabinets", "--method", "flow"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"At layer 6, \d+% of these flows are saturated", shown)
    assert _run(["explain", "the key to the cabinets", "--method", "flow", "--layer", "1"]) == 0
    assert "saturated" not in capsys.readouterr().out


def test_all_targets_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.safetensors"
    arguments = ["explain", "the key", "--method", "flow", "--all-targets", "--output", str(file)]
    assert _run(arguments) == 0
    result = Attribution.load(file)
    assert result.values.shape == (6, 4, 4)
    assert result.saturated is not None
    assert sum(result.provenance["decided"].values()) == 6 * 4 * 4


BAD_USAGE = [
    ([""], "There is nothing to explain: the text is ''"),
    ([TEXT, "--method", "flo"], "Unknown method 'flo'. Did you mean 'flow'?"),
    ([TEXT, "--option", "residual"], "must read KEY=VALUE"),
    ([TEXT, "--method", "rollout:residual"], "NAME:key=value,key=value"),
    ([TEXT, "--method", "rollout:residul=1"], "no option 'residul'. Did you mean 'residual'?"),
    ([TEXT, "--method", "rollout:residual=2"], "a number from 0 to 1"),
    ([TEXT, "--target", "book "], "No token 'book '"),
    ([TEXT, "--target", "99"], "No position 99 here; choose from 0 '[CLS]'"),
    (["the key to the cabinets", "--target", "the"], "occurs 2 times, at positions 1, 4"),
    ([TEXT, "--layer", "9"], "choose from 1, 2, 3"),
    ([TEXT, "--output", "x.txt"], "must be .json, .safetensors, .html, .png, .svg, .pdf or .gif"),
    ([TEXT, "--output", "no/such/folder/x.json"], "there is no folder 'no/such/folder'"),
    ([TEXT, "--json", "--output", "x.json"], "choose one"),
    ([TEXT, "--cut", "book"], "--cut explains a flow; add --method flow"),
    ([TEXT, "--method", "flow", "--cut", "boook"], "No token 'boook' here. Did you mean 'book'?"),
    ([TEXT, "--method", "flow", "--cut", "book", "--json"], "leave out --json"),
    ([TEXT, "--all-targets"], "goes with --json or --output"),
    (
        [TEXT, "--figure", "pair", "--output", "x.png"],
        "Unknown figure 'pair'. Did you mean 'pairs'?",
    ),
    ([TEXT, "--figure", "graph"], "--figure graph needs a file: --output graph.png"),
    ([TEXT, "--figure", "graph", "--output", "x.json"], "A figure is written as .png, .svg, .pdf"),
    ([TEXT, "--figure", "graph", "--output", "x.gif"], "A figure is written as .png, .svg, .pdf"),
    ([TEXT, "--all-targets", "--figure", "bars", "--output", "x.png"], "leave out --all-targets"),
    ([TEXT, "--all-targets", "--output", "x.gif"], "leave out --all-targets"),
    ([TEXT, "--layer", "2", "--output", "x.gif"], "leave out --layer"),
    ([TEXT, "--words", "--figure", "graph", "--output", "x.png"], "without --words"),
    ([TEXT, "--layer", "9", "--figure", "graph", "--output", "x.png"], "choose from 1, 2, 3"),
    (
        [TEXT, "--method", "flow", "--cut", "book", "--figure", "graph", "--output", "x.png"],
        "--cut draws a figure of its own",
    ),
    (
        [TEXT, "--method", "alti", "--figure", "graph", "--output", "x.png"],
        "use it with --method raw, rollout or flow (now 'alti')",
    ),
    ([TEXT, "--method", "flow:threads=2"], "'flow' has no option 'threads'"),
    ([TEXT, "--method", "flow:tolerance=7"], "tolerance is a number from 1e-9 to 1"),
    ([TEXT, "--targets", "sara", "--targets", "book"], "for several add --json or --output"),
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
    assert captured.err.count("\n") == 1


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

    monkeypatch.setattr("attnflow.hosts.load.load_model", broken)
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

    monkeypatch.setattr("attnflow.hosts.load.load_model", interrupted)
    assert _run(["explain", "text"]) == 130
    assert capsys.readouterr().err.strip() == "attnflow: interrupted; nothing was written."


def test_the_installed_command_runs_in_a_process_of_its_own(folder: str) -> None:
    command = [sys.executable, "-m", "attnflow", "explain", "--model", folder, TEXT, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["layers"] == [1, 2, 3]
