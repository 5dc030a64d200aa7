"""`attnflow evaluate` on a file of prompts: language models and encoder–decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

import attnflow
from attnflow.cli.app import app
from attnflow.errors import InputError
from attnflow.evaluation import CompletionPrompt, Prompts
from attnflow.evaluation.subjects.examples import read_prompts
from test_ablation import TEXT, language_model, tokenizer

RUN = CliRunner()
METHODS = ("default", "gradient-rollout", "leave-one-out")


def saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def bart() -> Any:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        vocab_size=len(tokenizer()), decoder_start_token_id=2, eos_token_id=2, pad_token_id=0,
        bos_token_id=1, init_std=0.3, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config).eval()


def prompts_file(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    records = [
        {"prompt": TEXT, "completion": " key", "answer": [35, 38]},
        {"prompt": "the key is of sara . the author is", "completion": " no", "answer": "sara"},
        {"prompt": "is the book of the author ? no . the", "completion": " book"},
    ]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["decoder", "bart"])
def test_prompts_go_to_ablations(kind: str, tmp_path: Path) -> None:
    model = saved(language_model() if kind == "decoder" else bart(), tmp_path / kind)
    data = prompts_file(tmp_path)
    command = ["evaluate", "--data", str(data), "--model", model, "--output", str(tmp_path / "out")]
    command += [part for name in METHODS for part in ("--methods", name)]
    first = RUN.invoke(app, [*command, "--samples", "2"])
    assert first.exit_code == 0, first.output
    assert "LDS" in first.output
    assert "→ " in first.output  # the verdict
    journal = tmp_path / "out" / "evaluation.jsonl"
    assert journal.read_text().count("\n") == 3  # settings and two prompts
    again = RUN.invoke(app, [*command, "--json"])
    assert again.exit_code == 0, again.output
    record = json.loads(again.output.splitlines()[-1])
    assert set(record["table"]) == {*METHODS, "random"}
    assert record["prompts"] == 3
    assert journal.read_text().count("\n") == 4
    assert (tmp_path / "out" / "evaluation.csv").is_file()


def test_every_method_runs_on_an_encoder_decoder() -> None:
    """Sources are what the encoder reads."""
    prompts = [CompletionPrompt(TEXT, " key is"), CompletionPrompt(TEXT)]
    subject = Prompts(ablations=12, max_new_tokens=2)
    evaluation = attnflow.evaluate((bart(), tokenizer()), prompts, subject=subject)
    assert not evaluation.refused
    for row in evaluation.rows:
        assert np.isfinite(evaluation.values(row, "lds")).all()


def test_sources_and_documents_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    record = {
        "prompt": "One is here. Two is there. Where is one?",
        "documents": ["One is here.", [13, 26]],
        "sources": ["One is here. Two is there."],
        "answer": [7, 11],
    }
    path.write_text(json.dumps(record), encoding="utf-8")
    (prompt,) = read_prompts(path)
    assert prompt.documents == ((0, 12), (13, 26))
    assert prompt.inside == ((0, 26),)
    assert prompt.answer == (7, 11)
    for field, value, message in (
        ("documents", "One", "a list of texts or of spans; got 'One'"),
        ("sources", [[1, 2, 3]], "a span is two characters' numbers"),
        ("sources", ["is"], "occurs 3 times in the prompt; give \\[start, end\\]"),
    ):
        path.write_text(json.dumps({**record, field: value}), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_prompts(path)


def test_options_of_prompts_are_refused_for_texts(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the key to the cabinets\n", encoding="utf-8")
    for option in (["--chat"], ["--level", "sentence"]):
        result = RUN.invoke(app, ["evaluate", "--data", str(texts), *option])
        assert result.exit_code != 0
    wrong = RUN.invoke(app, ["evaluate", "--data", str(prompts_file(tmp_path)), "--by", "unk"])
    assert wrong.exit_code != 0
