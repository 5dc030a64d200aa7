"""Some types of `sweep.py`: families whose attention is special, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.errors import UnsupportedModelError
from sweep import CAUSAL, IDS, build, examine

INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
AGREE = {
    "afmoe": "its mask comes by name",
    "bert-generation": "its class is named after its decoder",
    "doge": "its masks say what a key is worth",
    "gemma3": "a model of images and texts that is given a text",
    "gemma3n_text": "its layers are of different widths",
    "gemma4_text": "its norms divide by a negative power",
    "granite_swa": "its sink scales the output",
    "granitemoe_swa": "so does this one's",
    "modernbert-decoder": "what it calls its decoder is a head",
    "roberta": "its positions begin after that of padding",
}
# Of other tasks.
OTHERS = {
    ("albert", "masked"): "its layers share their parameters",
    ("esm", "masked"): "a head beside it has features and no weight",
    ("ibert", "masked"): "its embedding returns a scale beside",
    ("mvp", "both"): "it returns its weights and does not look its attention up",
    ("nllb-moe", "both"): "its cross attention has a name of its own",
    ("seamless_m4t", "both"): "so has its decoder",
    ("bloom", "texts"): "no module says that it is causal",
    ("eurobert", "texts"): "it answers at every position, and takes the mean",
    ("biogpt", "texts"): "it finds its row among all scores",
    ("mbart", "texts"): "its decoder begins with the text's last token",
    ("siglip", "images"): "it has no class token",
    ("dinov2", "images"): "it reads more than its class token",
    ("sew", "audio"): "it reads all moments",
    ("whisper", "audio"): "it is an encoder without its decoder",
}
REFUSED = {
    "big_bird": "sparse attention in blocks",
    "deepseek_v32": "the kinds of its layers are not known here: indexed_attention",
    "deepseek_v4": "the kinds of its layers are not known here: heavily_compressed_attention",
    "diffllama": "attends more than once",
    "mamba": "without attention weights",
    "musicgen": "rows of tokens at once",
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", AGREE)
def test_special_families_agree_with_autograd(kind: str) -> None:
    line = examine(kind)
    assert line.outcome == "agrees", line.detail
    assert "weights 0e+00" in line.detail
    assert "gradients" in line.detail


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "task"), OTHERS)
def test_models_of_other_tasks_agree(kind: str, task: str) -> None:
    line = examine(kind, task)
    assert line.outcome == "agrees", line.detail
    assert "gradients" in line.detail


@pytest.mark.filterwarnings("ignore")
def test_both_sides_in_one_softmax_are_refused() -> None:
    line = examine("t5gemma2", "both")
    assert line.outcome == "refused", line.detail
    assert "attends to 14 keys where its decoder has 4" in line.detail


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_families_are_refused_with_the_reason(kind: str) -> None:
    line = examine(kind)
    assert line.outcome == "refused", line.detail
    assert REFUSED[kind] in line.detail


def test_a_sink_that_scales_the_output_takes_its_share() -> None:
    trace = attnflow.capture(build("granite_swa"), INPUTS)
    assert trace.sinks is not None
    assert trace.sinks.max() > 0.1
    assert np.allclose(trace.weights.sum(axis=-1) + trace.sinks, 1, atol=1e-5)


def test_a_layer_that_attends_twice_has_no_rows_of_its_own() -> None:
    with pytest.raises(UnsupportedModelError, match="attends more than once in a pass"):
        attnflow.generate(build("diffllama"), INPUTS, max_new_tokens=2)


def test_every_type_that_is_named_exists() -> None:
    assert {*AGREE, *REFUSED} <= set(CAUSAL)
