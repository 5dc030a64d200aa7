"""The experiments end to end on small data, their reports, and every way the data can be wrong."""

from __future__ import annotations

import csv
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from attnflow import Flow, Raw, Rollout, capture
from attnflow.cli.app import _run
from attnflow.errors import FileError, InputError, MethodError, ModelError
from attnflow.evaluation.table import Cell, Table, decimals
from attnflow.models.verb_number import load_verb_number
from attnflow_experiments import EXPERIMENTS
from attnflow_experiments.report import Report
from attnflow_experiments.verb_number.data import (
    NATURAL_DISTINCT,
    Example,
    distinct,
    held_out,
    read_agreement,
    split,
    template_examples,
)
from attnflow_experiments.verb_number.experiment import VerbNumber
from attnflow_experiments.verb_number.observe import PAPER

ROOT = Path(__file__).resolve().parents[1]
LINES = (
    "VBZ\tthe key to the cabinets\n"
    "VBP\tthe keys to the old cabinet\n"
    "VBP\tsome people in the city\n"
    "VBZ\tit\n"
)
HEADER = "sentence\tsubj_idx\tverb_idx\tverb_pos\tverb\tinflected_verb\n"
TABLE = HEADER + (
    "the key to the cabinets is old\t1\t5\tVBZ\tis\tare\n"
    "the keys to the old cabinet are here\t1\t6\tVBP\tare\tis\n"
    "in practice people of the city are old\t2\t6\tVBP\tare\tis\n"
)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "numpred.small"
    path.write_text(LINES, encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "small.tsv"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def numbers(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {(r["table"], r["row"], r["column"]): r for r in csv.DictReader(file)}


# -- the command --------------------------------------------------------------------------------


def test_the_command_shows_and_writes_the_tables_beside_the_papers(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    status = _run(
        [
            "experiment",
            "verb-number",
            "--data",
            str(lines),
            "--samples",
            "4",
            "--output",
            str(output),
        ]
    )
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "4 sentences from numpred.small" in captured.out
    assert re.search(r"paper +\.69±\.27 +\.10±\.43 +-\.11±\.49", captured.out)
    assert "ours − paper" in captured.out
    assert "…\n" not in captured.out  # nothing is cut off
    assert "saturated share of flow" in captured.out
    assert "subject" not in captured.out.split("Which is higher")[0]
    found = numbers(output / "verb-number.csv")
    assert found["table-1", "raw", "L1"]["paper"] == "0.69"
    assert found["table-1", "raw", "L1"]["undefined"] == "1"  # a single word has no correlation
    one = found["table-1", "rollout", "L6"]
    assert float(one["difference"]) == pytest.approx(float(one["value"]) - 0.71, abs=1e-5)
    assert (output / "verb-number.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "verb-number.md").read_text(encoding="utf-8")
    assert "`attnflow experiment verb-number --data numpred.small --samples 4" in page
    assert str(tmp_path) not in page


@pytest.mark.filterwarnings("ignore::attnflow.errors.SaturationWarning")
def test_the_numbers_are_those_of_plain_loops(lines: Path, tmp_path: Path) -> None:
    """Blank-out, attention and correlation once more, one pass at a time, with scipy's Spearman."""
    assert _run(["experiment", "verb-number", "--data", str(lines), "--output", str(tmp_path)]) == 0
    found = numbers(tmp_path / "verb-number.csv")
    model, vocabulary = load_verb_number()
    methods = {"raw": Raw(), "rollout": Rollout(), "flow": Flow()}
    for name, method in methods.items():
        correlations = []
        for line in LINES.splitlines()[:3]:
            label, text = line.split("\t")
            choice = ("VBZ", "VBP").index(label)
            ids, _ = vocabulary.encode(text)
            drops = []
            for i in range(len(ids)):
                pair = torch.tensor([ids, [*ids[:i], vocabulary.unk_id, *ids[i + 1 :]]])
                with torch.no_grad():
                    shares = model(pair).logits.double().softmax(-1)[:, choice]
                drops.append(abs(float(shares[1] - shares[0])))
            row = method(capture((model, vocabulary), text)).values[:, 0]
            correlations.append(
                [stats.spearmanr(values[1:-1], drops[1:-1]).statistic for values in row]
            )
        for layer, mean in enumerate(np.mean(correlations, axis=0), start=1):
            ours = float(found["table-1", name, f"L{layer}"]["value"])
            assert ours == pytest.approx(mean, abs=1e-4)


def test_the_papers_protocol(lines: Path, tmp_path: Path) -> None:
    """All positions, the end token 0, dense ranks: by hand for one sentence."""
    lines.write_text("VBZ\tthe key to the cabinets\n", encoding="utf-8")
    options = ["--protocol", "paper", "--output", str(tmp_path)]
    assert _run(["experiment", "verb-number", "--data", str(lines), *options]) == 0
    found = numbers(tmp_path / "verb-number.csv")
    model, vocabulary = load_verb_number()
    ids, _ = vocabulary.encode("the key to the cabinets")
    rows = [ids] + [[*ids[:i], vocabulary.unk_id, *ids[i + 1 :]] for i in range(6)]
    with torch.no_grad():
        shares = model(torch.tensor(rows)).logits.softmax(-1)[:, 0]
    drops = [*(shares[1:] - shares[0]).abs().tolist(), 0.0]
    row = Raw()(capture((model, vocabulary), "the key to the cabinets")).values[3, 0]
    apart = stats.rankdata(row, "dense") - stats.rankdata(drops, "dense")
    expected = 1 - 6 * np.sum(apart**2) / (7 * 48)
    assert float(found["table-1", "raw", "L4"]["value"]) == pytest.approx(expected, abs=1e-6)
    page = (tmp_path / "verb-number.md").read_text(encoding="utf-8")
    assert "dense ranks, as the authors' code computes it" in page


def test_a_table_with_subjects_says_how_often_the_subject_is_on_top(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path)]
    assert _run(["experiment", "verb-number", "--data", str(table), *output]) == 0
    assert "How often the subject is the top word" in capsys.readouterr().out
    found = numbers(tmp_path / "verb-number.csv")
    model, vocabulary = load_verb_number()
    tops = []
    for text, subject in (
        ("the key to the cabinets", 2),
        ("the keys to the old cabinet", 2),
        ("in practice people of the city", 3),
    ):
        row = Rollout()(capture((model, vocabulary), text)).values[5, 0]
        tops.append(int(np.argmax(row[1:-1])) + 1 == subject)
    assert float(found["subjects", "rollout", "L6"]["value"]) == pytest.approx(
        np.mean(tops), abs=1e-5
    )
    chance = np.mean([1 / 5, 1 / 6, 1 / 6])
    assert float(found["subjects", "chance", "L1"]["value"]) == pytest.approx(chance, abs=1e-5)


def test_without_data_templates_are_used_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["experiment", "verb-number", "--samples", "6"]) == 0
    shown = capsys.readouterr().out
    assert "6 sentences from templates (not natural text)" in shown
    assert "How often the subject is the top word" in shown


def test_the_commands_of_the_docs_run_on_little_data(
    lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those on the data that cannot be shipped, on four sentences of their kind."""
    text = (ROOT / "docs" / "paper-experiments.md").read_text(encoding="utf-8")
    commands = {
        c.strip() for c in re.findall(r"attnflow experiment verb-number --data[^`\n#]*", text)
    }
    assert len(commands) == 2
    for command in sorted(commands):
        words = [word for word in command.split()[1:] if word != "--held-out"]
        words[words.index("numpred.val")] = str(lines)
        assert _run([*words, "--samples", "4"]) == 0, command
        assert "ours − paper" in capsys.readouterr().out


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["experiment"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("\nVBZ\tthe key\n", "begins with an empty line"),
        ("VBX\tthe key\n", "Line 1 of .* reads 'VBX.*VBZ singular, VBP plural"),
        ("VBZ\tthe key\nVBP\n", "Line 2 of"),
        ("sentence\tsubj_idx\n", "lacks the columns verb_idx, verb_pos, verb"),
        (HEADER, "has a header and no rows"),
        (HEADER + "the key is\t5\t2\tVBZ\tis\tare\n", "subj_idx 5 is not before the verb"),
        (HEADER + "the key is\t-1\t2\tVBZ\tis\tare\n", "subj_idx -1 is not before the verb"),
        (HEADER + "the key is\t1\t2\tVB\tis\tare\n", "Line 2 .* verb_pos is VBZ or VBP"),
        (HEADER + "the key is\tx\t2\tVBZ\tis\tare\n", "Line 2 .* 'x'"),
        (
            HEADER + "the key is\t1\t0\tVBZ\tis\tare\n",
            "the verb 'is' is not word 0 of 'the key is'",
        ),
    ],
)
def test_bad_data_is_refused_with_its_line(
    tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(content, encoding="utf-8")
    assert _run(["experiment", "verb-number", "--data", str(path)]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--samples", "0"], 2, "samples is a number of at least 1; got 0"),
        (["--protocol", "papers"], 2, "Did you mean 'paper'"),
        (["--data", "nowhere.tsv"], 1, "no file 'nowhere.tsv'.*Linzen"),
        (["--held-out"], 2, "say where that is with --data"),
        (["--samples", "1", "--weights", "nowhere"], 1, "holds no verb-number model"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["experiment", "verb-number", *options]) == status
    assert re.search(says, capsys.readouterr().err)


# -- data ---------------------------------------------------------------------------------------


def test_both_formats_give_the_same_sentences(lines: Path, table: Path) -> None:
    first, second = read_agreement(lines)[:2], read_agreement(table)[:2]
    assert [(e.words, e.label) for e in first] == [(e.words, e.label) for e in second]
    assert [e.subject for e in second] == [1, 1]


def test_positions_may_count_from_one(tmp_path: Path, table: Path) -> None:
    rows = [line.split("\t") for line in TABLE.splitlines()]
    moved = [rows[0], *([r[0], str(int(r[1]) + 1), str(int(r[2]) + 1), *r[3:]] for r in rows[1:])]
    path = tmp_path / "from-one.tsv"
    path.write_text("\n".join("\t".join(row) for row in moved) + "\n", encoding="utf-8")
    assert read_agreement(path) == read_agreement(table)


def test_held_out_is_the_test_part_of_the_training_split() -> None:
    examples = [Example((f"w{k}",), k % 2) for k in range(NATURAL_DISTINCT)]
    found = held_out([*examples, *examples[:50]])
    assert found == split(distinct(examples), dev=1000, test=3000, seed=0).test
    assert len(set(found)) == 3000
    with pytest.raises(InputError, match="13,912 distinct prefixes; these data have 2"):
        held_out(examples[:2])


def test_templates_are_known_words_with_the_subject_where_they_say() -> None:
    _, vocabulary = load_verb_number()
    examples = template_examples(300, seed=1)
    assert len({e.words for e in examples}) == 300
    assert examples == template_examples(300, seed=1)
    assert examples != template_examples(300, seed=2)
    for example in examples:
        assert example.subject is not None
        assert all(word in vocabulary.ids for word in example.words)
        assert example.words[example.subject].endswith("s") == bool(example.label)
    with pytest.raises(InputError, match="At least one"):
        template_examples(0)


def test_samples_are_drawn_by_seed_and_long_sentences_left_out() -> None:
    model, vocabulary = load_verb_number()
    examples = [*template_examples(5), Example(("the",) * 70, 0)]
    report = VerbNumber(samples=10)(examples, model, vocabulary, source="here")
    assert "1 longer than the model's positions left out" in report.protocol[0]
    assert "There are no more; 10 were asked for." in report.protocol[0]

    def short(example: Example) -> bool:
        return len(example.words) < 60

    draw = VerbNumber(samples=2, seed=1).sample(examples, short, "sentence")[0]
    assert len(draw) == 2
    assert draw == VerbNumber(samples=2, seed=1).sample(examples, short, "sentence")[0]
    with pytest.raises(InputError, match="No sentence is short enough"):
        VerbNumber()([Example(("the",) * 70, 0)], model, vocabulary, source="here")
    with pytest.raises(MethodError, match="protocol='p'"):
        VerbNumber(protocol="p")  # type: ignore[arg-type]


def test_the_papers_tables_are_written_down_right() -> None:
    """Sums over each row, added up from the printed tables by hand."""
    sums = {key: round(sum(mean for mean, _ in cells), 2) for key, cells in PAPER.items()}
    assert sums == {
        ("blank-out", "raw"): 1.08,
        ("blank-out", "rollout"): 3.24,
        ("blank-out", "flow"): 3.57,
        ("gradient", "raw"): 1.33,
        ("gradient", "rollout"): 2.42,
        ("gradient", "flow"): 2.89,
    }


# -- reports ------------------------------------------------------------------------------------


def test_a_report_shows_what_is_undefined(tmp_path: Path) -> None:
    cells = (Cell(0.123456, 0.2, 0.1, 0.15, n=3, undefined=2, paper=0.2, paper_std=0.1),)
    table = Table("t", "A table", ("L1",), {"raw": cells}, "a note", in_figure=True)
    report = Report("r", "Title", ("one sentence.",), (table,), ("it follows.",))
    console = Console(record=True, width=40, file=(tmp_path / "out").open("w"))
    report.show(console)
    shown = console.export_text()
    for part in (".12±.20", ".10….15", "−.08", "undefined", "a note", "it follows."):
        assert part in shown
    console.file.close()
    assert report.table("t") is table
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FileError, match="cannot be made"):
        report.write(blocked)


def test_a_full_disk_leaves_the_tables_that_were_there(tmp_path: Path) -> None:
    table = Table("t", "A table", ("L1",), {"raw": (Cell(0.5),)})
    report = Report("r", "Title", ("a long sentence " * 500,), (table,))
    for name in ("r.csv", "r.md"):
        (tmp_path / name).write_text("of an earlier run")
    with no_file_beyond(40), pytest.raises(FileError, match=r"Cannot write .*r\.csv"):
        report.write(tmp_path)
    with no_file_beyond(1_000), pytest.raises(FileError, match=r"Cannot write .*r\.md"):
        report.write(tmp_path)
    assert (tmp_path / "r.md").read_text() == "of an earlier run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.csv", "r.md"]


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Writing more than so many bytes to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, ".50"),
        (-0.004, ".00"),
        (-0.5, "-.50"),
        (1.0, "1.00"),
        (10.04, "10.04"),
        (float("nan"), "undefined"),
    ],
)
def test_numbers_are_printed_as_in_the_paper(value: float, shown: str) -> None:
    assert decimals(value) == shown


def test_another_models_folder_is_loaded(tmp_path: Path) -> None:
    model, vocabulary = load_verb_number()
    source = ROOT / "src" / "attnflow" / "models"
    for name in ("verb_number.safetensors", "verb_number.vocab.txt"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    other, words = load_verb_number(tmp_path)
    assert words.tokens == vocabulary.tokens
    assert torch.equal(other.classifier.weight, model.classifier.weight)
    with pytest.raises(ModelError, match=r"training/verb_number\.py --output"):
        load_verb_number(tmp_path / "none")
