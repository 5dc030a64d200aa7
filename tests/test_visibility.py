"""Visibility: the extra key column against a bias on eager scores, and against hiding keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnflow.hosts.transformers.visibility import fading_biases, visibility
from test_gradient_attention import FAMILIES, TEXT, model_of

START = 14
FADING = torch.zeros(18, dtype=torch.bool)
FADING[1:13] = True


def by_mask(model: Any, steps: int) -> torch.Tensor:
    """The same sum with the bias added to a 4-D mask of the model's own eager attention."""
    model.set_attn_implementation("eager")
    total = torch.zeros(18)
    position = torch.arange(18)
    for bias in fading_biases(steps):
        keys = (bias * FADING.float()).requires_grad_()
        lowest = torch.finfo(torch.float32).min
        distance = position[:, None] - position
        full = torch.zeros(18, 18).masked_fill(distance < 0, lowest)[None, None] + keys
        near = torch.zeros(18, 18).masked_fill((distance < 0) | (distance >= 6), lowest)
        masks: Any = full
        kinds = getattr(model.config, "layer_types", None)
        if kinds and "sliding_attention" in kinds:
            masks = {"full_attention": full, "sliding_attention": near[None, None] + keys}
        elif getattr(model.config, "sliding_window", None):
            masks = near[None, None] + keys
        logits = model(TEXT[:, :-1], attention_mask=masks, use_cache=False).logits[0, START - 1 :]
        score = logits.log_softmax(-1).gather(-1, TEXT[0, START:, None]).sum()
        (gradient,) = torch.autograd.grad(score, keys)
        total += gradient / -torch.expm1(score.detach()).clamp(max=-1e-6)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return total * FADING * torch.tensor(256.0).log() / steps


@pytest.mark.parametrize("family", FAMILIES)
def test_the_key_column_equals_a_bias_on_the_scores(family: str) -> None:
    model = model_of(family)
    values = visibility(model, TEXT[0], START, FADING, steps=3)
    expected = by_mask(model, 3)
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert not values[~FADING].any()


def test_many_steps_sum_to_the_change_when_a_key_fades() -> None:
    """With one key fading alone the sum along a fine path is the change in log odds."""
    model = model_of("llama")
    for key in (3, 9):
        alone = torch.zeros(18, dtype=torch.bool)
        alone[key] = True
        values = visibility(model, TEXT[0], 18, alone, steps=256)
        odds = []
        for bias in (0.0, -torch.tensor(256.0).log()):
            mask = torch.full((18, 18), torch.finfo(torch.float32).min).triu(1)
            mask[:, key] += bias
            with torch.no_grad():
                logits = model(TEXT[:, :-1], attention_mask=mask[None, None]).logits[0, -1]
            odds.append(torch.logit(logits.softmax(-1)[int(TEXT[0, -1])]))
        assert float(values[key]) == pytest.approx(float(odds[0] - odds[1]), rel=0.01)


def test_some_tokens_of_an_answer_are_explained_together() -> None:
    model = model_of("qwen2")
    last = visibility(model, TEXT[0], START, FADING, steps=2, explained=[4])
    ends = visibility(model, TEXT[0], 18, FADING, steps=2)
    torch.testing.assert_close(last, ends, rtol=1e-4, atol=1e-5)
