"""Visibility and the careful method on completions, against the passes they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.errors import MethodError
from attnflow.hosts.transformers.visibility import visibility
from attnflow.methods import Careful, LeaveOneOut, Visibility
from test_gradient_attention import TEXT, model_of

PROMPT = {"input_ids": TEXT[:, :11]}
ANSWER = TEXT[0, 11:14].tolist()
OPTIONS: dict[str, Any] = {"level": "token", "joint": True}


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_visibility_of_a_completion(family: str) -> None:
    model = model_of(family)
    result = attnflow.generate(
        model, PROMPT, Visibility(level="token", steps=3, alone=0), completion=ANSWER
    )
    fading = torch.zeros(13, dtype=torch.bool)
    fading[1:11] = True  # the first token is no source
    for token in range(3):
        values = visibility(model, TEXT[0, :14], 11, fading, steps=3, explained=[token])
        np.testing.assert_allclose(result.values[0, token], values[1:11].numpy(), rtol=1e-5)
    joint = attnflow.generate(
        model, PROMPT, Visibility(level="token", steps=3, alone=0, joint=True), completion=ANSWER
    )
    together = visibility(model, TEXT[0, :14], 11, fading, steps=3)
    np.testing.assert_allclose(joint.values[0, 0], together[1:11].numpy(), rtol=1e-5)
    assert result.provenance["passes"] == 9


def lost_alone(model: Any) -> Any:
    """What leaving out each token costs, measured by itself."""
    return attnflow.generate(
        model, PROMPT, LeaveOneOut(**OPTIONS, score="log-odds"), completion=ANSWER
    ).values[0, 0]


def test_two_thirds_of_a_checked_source_are_measured() -> None:
    """Checking every source, the rest is the prediction, whose shares are a third of gradient
    attention's and two thirds of visibility's.
    """
    model = model_of("llama")
    careful = attnflow.generate(model, PROMPT, Careful(**OPTIONS, verify=10), completion=ANSWER)
    predicted = 3 * careful.values[0, 0] - 2 * lost_alone(model)
    faded = attnflow.generate(
        model, PROMPT, Visibility(**OPTIONS, steps=4, alone=0), completion=ANSWER
    ).values[0, 0]
    gradient = (
        attnflow.generate(model, PROMPT, "gradient-attention", completion=ANSWER)
        .values[-1, :, 1:11]
        .sum(axis=0)
    )
    shares = gradient / abs(gradient).sum() + 2 * faded / abs(faded).sum()
    np.testing.assert_allclose(
        predicted / abs(predicted).sum(), shares / abs(shares).sum(), atol=1e-4
    )
    few = attnflow.generate(model, PROMPT, Careful(**OPTIONS, verify=2), completion=ANSWER)
    best = np.argsort(-predicted)[:2]
    rest = [k for k in range(10) if k not in best]
    ratio = few.values[0, 0][rest] / predicted[rest]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)  # the others keep their shares
    assert few.provenance["passes"] == 1 + 4 + 2


def test_the_strongest_fade_alone() -> None:
    """Fading alone counts two thirds, the path one; with none there is only the path."""
    model = model_of("llama")
    path = attnflow.generate(
        model, PROMPT, Visibility(**OPTIONS, alone=0), completion=ANSWER
    ).values[0, 0]
    result = attnflow.generate(model, PROMPT, Visibility(**OPTIONS, alone=10), completion=ANSWER)
    lost = lost_alone(model)
    unit = max(0.0, float(lost @ path / (path @ path)))
    np.testing.assert_allclose(result.values[0, 0], (unit * path + 2 * lost) / 3, atol=1e-5)
    assert (
        attnflow.generate(model, PROMPT, Visibility(**OPTIONS), completion=ANSWER).provenance[
            "passes"
        ]
        == 16
    )


def test_options_are_checked() -> None:
    for method, option in ((Visibility, "steps"), (Careful, "steps"), (Careful, "verify")):
        with pytest.raises(MethodError, match=f"{option} is a number from 1 to 10,000; got 0"):
            method(**{option: 0})  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="alone is a number from 0 to 10,000; got -1"):
        Visibility(alone=-1)
