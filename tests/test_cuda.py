"""The default, its check and the careful method on a GPU, in the precisions people use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.methods import Careful, LeaveOneOut
from test_gradient_attention import TEXT, model_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")

START = 11
PROMPT = {"input_ids": TEXT[:, :START]}
ANSWER = TEXT[0, START:15].tolist()
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.3}


def on_gpu(family: str, dtype: torch.dtype) -> Any:
    return model_of(family).to("cuda", dtype)


def shares(values: Any) -> Any:
    return values / np.abs(values).sum()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_default_is_that_of_the_processor(family: str, dtype: torch.dtype) -> None:
    expected = attnflow.generate(model_of(family), PROMPT, completion=ANSWER, targets="answer")
    model = on_gpu(family, dtype)
    result = attnflow.generate(model, PROMPT, completion=ANSWER, targets=["answer", slice(1, 3)])
    near = np.abs(shares(result.values[-1, 0]) - shares(expected.values[-1, 0])).max()
    assert near < TOLERANCE[dtype]
    (verdict,) = result.verdicts
    assert verdict is not None
    assert np.isfinite(verdict.without)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_methods_that_run_the_model_again(dtype: torch.dtype) -> None:
    model, method = on_gpu("llama", dtype), Careful(level="token")
    result = attnflow.generate(model, PROMPT, method, completion=ANSWER, targets="answer")
    expected = attnflow.generate(
        model_of("llama"), PROMPT, method, completion=ANSWER, targets="answer"
    )
    assert np.corrcoef(result.values[0, 0], expected.values[0, 0])[0, 1] > 0.9
    loss = attnflow.generate(
        model, PROMPT, LeaveOneOut(level="token", joint=True), completion=ANSWER
    )
    assert np.isfinite(loss.values).all()


def test_text_is_written_and_explained_on_the_gpu() -> None:
    model = on_gpu("llama", torch.float32)
    result = attnflow.generate(model, PROMPT, max_new_tokens=4, contrast=None)
    assert result.values.shape[1:] == (4, START)
    careful = attnflow.generate(model, PROMPT, max_new_tokens=4, targets="answer", method="careful")
    assert np.isfinite(careful.values).all()
    rollout = attnflow.generate(model, PROMPT, completion=ANSWER, method="gradient-rollout")
    assert np.isfinite(rollout.values).all()
