"""Visibility and the careful method on completions, against the passes they are made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow.errors import MethodError
from attnflow.evaluation.ablation import Careful, LeaveOneOut, Visibility
from attnflow.hosts.transformers.visibility import visibility
from test_gradient_attention import TEXT, model_of

PROMPT = {"input_ids": TEXT[:, :11]}
ANSWER = TEXT[0, 11:14].tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_visibility_of_a_completion(family: str) -> None:
    model = model_of(family)
    result = Visibility(level="token", steps=3)(model, PROMPT, ANSWER)
    fading = torch.zeros(13, dtype=torch.bool)
    fading[1:11] = True  # the first token is no source
    for token in range(3):
        values = visibility(model, TEXT[0, :14], 11, fading, steps=3, explained=[token])
        np.testing.assert_allclose(result.values[0, token], values[1:11].numpy(), rtol=1e-5)
    joint = Visibility(level="token", steps=3, joint=True)(model, PROMPT, ANSWER)
    together = visibility(model, TEXT[0, :14], 11, fading, steps=3)
    np.testing.assert_allclose(joint.values[0, 0], together[1:11].numpy(), rtol=1e-5)
    assert result.provenance["passes"] == 9


def test_the_checked_sources_are_half_measured() -> None:
    """Checking every source, half of each value is what leaving it out costs."""
    model = model_of("llama")
    careful = Careful(level="token", joint=True, verify=10)(model, PROMPT, ANSWER)
    options = {"level": "token", "joint": True, "score": "log-odds"}
    lost = LeaveOneOut(**options)(model, PROMPT, ANSWER).values[0, 0]  # type: ignore[arg-type]
    predicted = 2 * careful.values[0, 0] - lost
    assert (predicted >= -1e-6).all() or abs(predicted).max() > 0
    few = Careful(level="token", joint=True, verify=2)(model, PROMPT, ANSWER)
    best = np.argsort(-predicted)[:2]
    rest = [k for k in range(10) if k not in best]
    ratio = few.values[0, 0][rest] / predicted[rest]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)  # the others keep their shares
    assert few.provenance["passes"] == 1 + 4 + 2


def test_options_are_checked() -> None:
    for method, option in ((Visibility, "steps"), (Careful, "steps"), (Careful, "verify")):
        with pytest.raises(MethodError, match=f"{option} is a number from 1 to 10,000; got 0"):
            method(**{option: 0})  # type: ignore[arg-type]
