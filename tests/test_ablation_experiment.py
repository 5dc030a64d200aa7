"""The ablation experiment: its data, its split, and the command on a tiny random model."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnflow.cli.app import _run
from attnflow.errors import FileError, InputError
from attnflow_experiments.ablation.data import (
    PARTS,
    Part,
    clean_wiki_text,
    facts,
    part_of,
    passages,
    questions,
)
from attnflow_experiments.ablation.experiment import AblationExperiment, bootstrap_ratio, prompts_of

# --- data ----------------------------------------------------------------------------------------


def test_an_item_stays_in_its_part() -> None:
    """These are what the default was chosen by: the split must never change."""
    names = ["Circumcision", "In what country is Normandy located?", "one", "two", "three", "four"]
    expected = ["development", "held-out", "held-out", "held-out", "held-out", "development"]
    assert [part_of(name) for name in names] == expected
    first = {part: sorted(prompt.prompt for prompt in facts(part)[:96]) for part in PARTS}
    digests = {p: hashlib.sha256("\n".join(first[p]).encode()).hexdigest() for p in PARTS}
    assert digests["development"].startswith("f315d6ea0d12a3ed")
    assert digests["held-out"].startswith("1b088e64eef68bd1")


@pytest.mark.parametrize("part", PARTS)
def test_facts_know_where_their_answer_stands(part: Part) -> None:
    prompts = facts(part)
    assert len({prompt.prompt for prompt in prompts}) == len(prompts) > 500
    for prompt in prompts:
        assert prompt.answer is not None
        assert prompt.stated is not None
        assert prompt.prompt[slice(*prompt.answer)] == prompt.expected
        assert prompt.answer[1] < prompt.stated[1] < len(prompt.prompt)
        assert prompt.prompt[prompt.stated[1] :].lstrip().startswith(("Q: ", "So "))


def test_wiki_markup_becomes_text() -> None:
    markup = (
        "&lt;!-- gone --&gt;'''Bold''' [[a|b]] and [[c]] [http://x.org shown] {{t {{inner}} }}"
        "[[Image:x.png|thumb|a [[nested]] picture]]&lt;ref name=x /&gt;[[de:Rom]]"
    )
    assert clean_wiki_text(markup).split() == ["Bold", "b", "and", "c", "shown"]


def paragraph(number: int, words: int = 130) -> str:
    drawn = np.random.default_rng(number).choice(["the", "river", "runs", "north", "again"], words)
    return f"Text {number} says " + " ".join(drawn)


def write_text(folder: Path, pages: int = 12) -> Path:
    path = folder / "text.txt"
    path.write_text("\n".join(paragraph(k) for k in range(pages)), encoding="utf-8")
    return path


def test_passages_are_the_last_words_of_pages_of_one_part(tmp_path: Path) -> None:
    path = write_text(tmp_path, 40)
    parts = {part: {prompt.prompt for prompt in passages(path, part)} for part in PARTS}
    assert all(parts.values())
    assert not parts["development"] & parts["held-out"]
    assert {len(text.split()) for texts in parts.values() for text in texts} == {70}
    dump = "".join(
        f"<title>Page {k}</title><text xml:space='preserve'>{paragraph(k)}\n* list</text>"
        for k in range(40)
    )
    (tmp_path / "enwik8").write_text(dump, encoding="utf-8")
    assert len(passages(tmp_path / "enwik8", "development")) > 5
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    with pytest.raises(InputError, match="115 to 220"):
        passages(tmp_path / "short.txt", "development")


def write_questions(folder: Path, count: int = 12) -> Path:
    path = folder / "questions.jsonl"
    rows = []
    for k in range(count):
        context = f"The tower number {k} is old. It was built by Mason{k} in a long year. " + (
            "Many people came to see it and they liked it very much. " * 2
        )
        question = f"Who built tower {k}?"
        row = {"article": "a", "paragraph": k, "context": context.strip(), "question": question}
        rows.append({**row, "answer": f"Mason{k}", "start": context.index("Mason")})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_questions_stand_behind_five_documents(tmp_path: Path) -> None:
    path = write_questions(tmp_path)
    prompts = [prompt for part in PARTS for prompt in questions(path, part)]
    assert len(prompts) == len({prompt.prompt for prompt in prompts})
    for prompt in prompts:
        assert prompt.answer is not None
        assert prompt.documents is not None
        assert len(prompt.documents) == 5
        holding = [a for a, b in prompt.documents if a <= prompt.answer[0] < b]
        assert len(holding) == 1
        assert prompt.prompt[slice(*prompt.answer)] == prompt.expected
        assert prompt.prompt.endswith("\nAnswer:")
    path.write_text('{"article": 1}', encoding="utf-8")
    with pytest.raises(InputError, match=r"Line 1 of .* is not a question"):
        questions(path, "development")
    with pytest.raises(FileError, match="no file"):
        questions(tmp_path / "none", "development")


def test_data_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert prompts_of("text", "development", None) is None
    first, later = facts("held-out"), prompts_of("facts", "held-out", None, skip=96)
    assert later == first[96:]
    with pytest.raises(InputError, match="prompts of facts; 5000 cannot be skipped"):
        prompts_of("facts", "held-out", None, skip=5000)
    assert prompts_of("documents", "development", tmp_path) is None
    with pytest.raises(FileError, match="no folder"):
        prompts_of("text", "development", tmp_path / "none")


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over bytes: it reads any text, and its words have many tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {sign: k for k, sign in enumerate(["<|endoftext|>", *alphabet])}
    raw = Tokenizer(models.BPE(table, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    config = transformers.LlamaConfig(
        vocab_size=len(table), hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.5,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("model") / "bytes"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def run(model: Path, data: Path, output: Path, *more: str) -> int:
    arguments = ["--model", str(model), "--data", str(data), "--output", str(output)]
    methods = ["--method", "rollout", "--method", "leave-one-out"]
    counts = ["--samples", "2", "--ablations", "6"]
    return _run(["experiment", "ablation", *arguments, *methods, *counts, *more])


@pytest.mark.timeout(300)
def test_the_command_writes_the_tables_and_goes_on(
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def always(expected: str, written: str, *, cut_off: bool) -> bool:
        return True

    monkeypatch.setattr("attnflow.evaluation.subjects.rankings.is_answered", always)
    write_text(tmp_path)
    write_questions(tmp_path)
    output = tmp_path / "out"
    assert run(model_folder, tmp_path, output) == 0
    text = capsys.readouterr().out
    assert "Attribution against ablations: bytes, development" in text
    for heading in ("true word first", "right sentence", "right document", "LDS"):
        assert heading in text
    assert "2 of 2 prompts that were run count." in text
    with (output / "ablation.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    tables = {row["table"] for row in rows}
    assert tables >= {"facts", "text", "documents", "facts-differences"}
    shares = [
        float(row["value"])
        for row in rows
        if row["column"].startswith("share") and row["row"] == "leave-one-out"
    ]
    assert shares == [1, 1]
    assert "| leave-one-out |" in (output / "ablation.md").read_text(encoding="utf-8")
    journal = output / "ablation-text-development.jsonl"
    before = journal.read_bytes()
    assert run(model_folder, tmp_path, output) == 0
    assert journal.read_bytes() == before
    assert run(model_folder, tmp_path, output, "--ablations", "7") == 2
    assert "holds another run: ablations was 6 and is 7" in capsys.readouterr().err


def test_a_model_that_answers_nothing_says_so(
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnflow_experiments.ablation.data._FACTS", 96)
    assert run(model_folder, tmp_path, tmp_path / "out", "--kind", "facts") == 1
    assert "None of 96 prompts could be used: The model wrote" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--part", "test"], "--part is development or held-out; got 'test'"),
        (["--kind", "fact"], "Did you mean 'facts'"),
        (["--method", "rolout"], "Did you mean 'rollout'"),
        (["--device", "nowhere"], "--device 'nowhere' cannot be used"),
        # Without CUDA torch asserts that it has it, which is no RuntimeError.
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "'cuda' cannot be used")]),
        (["--ablations", "1"], "at least 2"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert run(model_folder, tmp_path, tmp_path / "out", *more) == 2
    assert message in capsys.readouterr().err


def test_an_experiment_is_a_value() -> None:
    options: Any = {"part": "held-out", "methods": ("raw",)}
    assert AblationExperiment(**options) == AblationExperiment(**options)
    assert AblationExperiment(**options).journal_name("text") == "ablation-text-held-out.jsonl"


def test_a_ratio_of_means_has_an_interval() -> None:
    rng = np.random.default_rng(0)
    below = rng.uniform(1, 2, 50)
    ratio, low, high = bootstrap_ratio(below * 0.5 + rng.normal(0, 0.1, 50), below)
    assert low < ratio < high
    assert abs(ratio - 0.5) < 0.05
    assert np.isnan(bootstrap_ratio([np.nan], [1.0])[0])


@pytest.mark.parametrize(("asked", "taken"), [(None, 96), (5, 5), (660, 660)])
def test_as_many_prompts_count_as_are_asked_for(
    asked: int | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):  # noqa: N818 - no error: it ends the run where this is known
        pass

    def evaluate(*_: Any, samples: int, **__: Any) -> None:
        raise Asked(samples)

    monkeypatch.setattr("attnflow_experiments.ablation.experiment.evaluate", evaluate)
    with pytest.raises(Asked, match=f"^{taken}$"):
        AblationExperiment(kinds=("facts",), samples=asked)(None, data=None, journals=None)
