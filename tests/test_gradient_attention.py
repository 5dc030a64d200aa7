"""Gradient attention: all rows at once against the full graph of one pass for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.transformers import row_gradients
from attnflow.hosts.transformers.row_gradients import PredictingRows, gradient_rows

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = {**SIZES, "sliding_window": 6, "head_dim": 8}
LAYERS = ["sliding_attention", "full_attention"] * 2


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=48, n_layer=4, n_head=6, vocab_size=97, initializer_range=0.3, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "gpt2": gpt2,
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**WINDOW)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **WINDOW,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=6.0,
            layer_types=LAYERS,
        )
    ),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**WINDOW, layer_types=LAYERS)
    ),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **WINDOW, num_local_experts=2, num_experts_per_tok=1, layer_types=LAYERS
        )
    ),
}
TEXT = torch.randint(3, 97, (1, 19), generator=torch.Generator().manual_seed(3))


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def predicting(ids: Tensor, start: int) -> PredictingRows:
    """What explains the tokens from `start` on."""
    before = ids[:, :-1]
    return PredictingRows(before, torch.ones_like(before), start - 1, ids[:, start:])


def one_pass(model: Any, ids: Tensor) -> Tensor:
    """`(layers, keys)`: the last row of the full graph of log p of the last token, eagerly."""
    model.set_attn_implementation("eager")
    outputs = model(ids[:, :-1], output_attentions=True, use_cache=False)
    score = outputs.logits[0, -1].float().log_softmax(-1)[ids[0, -1]]
    gradients = torch.autograd.grad(score, outputs.attentions)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return torch.stack(
        [
            (weights[0, :, -1] * gradient[0, :, -1]).relu().mean(0)
            for weights, gradient in zip(outputs.attentions, gradients, strict=True)
        ]
    ).detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [1, 12])
def test_all_rows_equal_single_passes(family: str, start: int) -> None:
    model = model_of(family)
    rows = gradient_rows(model, predicting(TEXT, start))
    largest = float(rows.max())
    assert rows.shape == (4, 1, 19 - start, 18)
    for token in range(start, 19):
        expected = one_pass(model, TEXT[:, : token + 1])
        row = rows[:, 0, token - start]
        assert float(expected.max()) > 0
        torch.testing.assert_close(row[:, :token], expected, rtol=1e-4, atol=1e-5 * largest)
        assert not row[:, token:].any()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_rows_in_parts_and_beside_a_cache_are_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(family)
    rows = gradient_rows(model, predicting(TEXT, 5))
    monkeypatch.setattr(row_gradients, "_WEIGHTS_AT_ONCE", 4 * 6 * 18 * 4)  # four rows a part
    torch.testing.assert_close(gradient_rows(model, predicting(TEXT, 5)), rows)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(TEXT[:, :12], past_key_values=cache)
    beside = replace(predicting(TEXT, 5), cache=row_gradients.cropped(cache, 4))
    torch.testing.assert_close(gradient_rows(model, beside), rows)
    assert row_gradients.cropped(cache, 13) is None


def test_padded_texts_equal_each_alone() -> None:
    model = model_of("llama")
    short = TEXT[:, 6:15]
    alone, other = (
        gradient_rows(model, predicting(short, 4)),
        gradient_rows(model, predicting(TEXT, 14)),
    )
    padding = torch.zeros(1, 10, dtype=torch.long)
    ids = torch.cat([torch.cat([padding, short], dim=1), TEXT])
    mask = torch.ones_like(ids)
    mask[0, :10] = 0
    both = gradient_rows(model, PredictingRows(ids[:, :-1], mask[:, :-1], 13, ids[:, 14:]))
    torch.testing.assert_close(both[:, 0, :, 10:], alone[:, 0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(both[:, 1], other[:, 0], rtol=1e-4, atol=1e-6)


def test_the_model_is_given_back() -> None:
    model = model_of("llama")
    gradient_rows(model, predicting(TEXT, 14))
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.get_input_embeddings()._forward_hooks


def test_scores_of_another_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that is not the model's would give wrong gradients on the diagonal in silence."""
    monkeypatch.setattr(row_gradients, "_scale", lambda *_: 0.1)
    with pytest.raises(UnsupportedModelError, match="computes its scores in a way"):
        gradient_rows(model_of("llama"), predicting(TEXT, 14))
