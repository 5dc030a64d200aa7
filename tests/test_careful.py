"""The careful method against what it is made of: a balanced row, and sources masked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.errors import MethodError
from attnflow.methods import Careful
from test_gradient_attention import TEXT, model_of

PROMPT = {"input_ids": TEXT[:, :11]}
ANSWER = TEXT[0, 11:14].tolist()
OPTIONS: dict[str, Any] = {"level": "token", "joint": True}


def careful(model: Any, targets: Any = None, **options: Any) -> attnflow.Attribution:
    return attnflow.generate(model, PROMPT, Careful(**options), completion=ANSWER, targets=targets)


def balanced_row(model: Any, targets: Any = "answer") -> Any:
    """What one balanced pass says of the prompt's tokens but the first, which is no source."""
    result = attnflow.generate(model, PROMPT, "balanced", completion=ANSWER, targets=targets)
    return result.values[-1, 0, 1:]


def lost(model: Any, tokens: slice = slice(None), odds: bool = True) -> Any:
    """What hiding each token of the prompt costs the answer, by a mask of our own."""
    scores = []
    for hidden in (None, *range(1, 11)):
        mask = torch.ones(1, 13, dtype=torch.long)
        if hidden is not None:
            mask[0, hidden] = 0
        positions = torch.arange(13)[None]
        with torch.no_grad():
            logits = model(TEXT[:, :13], attention_mask=mask, position_ids=positions).logits
        rows = logits[0, 10:].double().log_softmax(-1)[range(3), ANSWER]
        score = rows[tokens].sum()
        scores.append(float(torch.logit(score.exp()) if odds else score))
    return scores[0] - np.array(scores[1:])


def joined(predicted: Any, losses: Any, count: int) -> Any:
    """Half measured and half predicted, each as large as the other on what was left out."""
    best = sorted(range(10), key=lambda k: -predicted[k])[:count]
    values = predicted * sum(abs(losses[k]) for k in best) / sum(abs(predicted[k]) for k in best)
    for k in best:
        values[k] = (values[k] + losses[k]) / 2
    return values


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("verify", [3, 10])
def test_a_balanced_row_and_what_leaving_out_costs(family: str, verify: int) -> None:
    model = model_of(family)
    predicted = balanced_row(model)
    assert predicted.min() < 0 < predicted.max()  # signs are kept
    result = careful(model, **OPTIONS, verify=verify)
    expected = joined(predicted, lost(model), verify)
    np.testing.assert_allclose(result.values[0, 0], expected, atol=2e-4 * abs(expected).max())
    assert result.provenance["passes"] == 2 + verify


def test_values_are_nats_of_log_probability_where_asked() -> None:
    model = model_of("llama")
    result = careful(model, **OPTIONS, score="log-prob")
    expected = joined(balanced_row(model), lost(model, odds=False), 8)
    np.testing.assert_allclose(result.values[0, 0], expected, atol=2e-4 * abs(expected).max())


def test_targets_share_what_was_left_out_and_keep_their_rows() -> None:
    model = model_of("llama")
    both = careful(model, [0, slice(1, 3)], level="token", verify=4)
    for row, tokens in enumerate((slice(0, 1), slice(1, 3))):
        expected = joined(balanced_row(model, tokens), lost(model, tokens), 4)
        np.testing.assert_allclose(both.values[0, row], expected, atol=2e-4 * abs(expected).max())
    assert both.provenance["passes"] <= 2 + 1 + 8
    assert careful(model, "answer", level="token").provenance["passes"] <= 10


def test_sources_of_one_length_are_left_out_in_one_batch() -> None:
    model = model_of("llama")
    sizes: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    careful(model, **OPTIONS)
    assert [size for size in sizes if size > 1] == [8]


def test_options_are_checked() -> None:
    for count in (0, 10_001):
        with pytest.raises(MethodError, match=f"whole number from 1 to 10,000; got {count}"):
            Careful(verify=count)
