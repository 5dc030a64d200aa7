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
    "doge": "its masks say what a key is worth",
    "gemma4_text": "its norms divide by a negative power",
    "granite_swa": "its sink scales the output",
    "granitemoe_swa": "so does this one's",
    "modernbert-decoder": "what it calls its decoder is a head",
    "roberta": "its positions begin after that of padding",
}
REFUSED = {
    "big_bird": "sparse attention in blocks",
    "deepseek_v4": "the kinds of its layers are not known here: heavily_compressed_attention",
    "diffllama": "attends more than once",
    "mamba": "without attention weights",
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
