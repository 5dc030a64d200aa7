"""Gradient attention: all rows at once against the full graph of one pass for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import attnflow
from attnflow import AttentionTrace, GradientAttention, GradientRollout
from attnflow.errors import MethodError, UnsupportedModelError
from attnflow.hosts.transformers import row_gradients
from attnflow.hosts.transformers.attention import AttentionCall
from attnflow.hosts.transformers.generate import cache_of, cached_keys
from attnflow.hosts.transformers.row_gradients import PredictingRows, gradient_rows
from attnflow.testing import tiny_decoder, tiny_encoder

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
    rows = gradient_rows(model, predicting(TEXT, start)).values
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
    rows = gradient_rows(model, predicting(TEXT, 5)).values
    monkeypatch.setattr(row_gradients, "_WEIGHTS_AT_ONCE", 4 * 6 * 18 * 4)  # four rows a part
    torch.testing.assert_close(gradient_rows(model, predicting(TEXT, 5)).values, rows)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(TEXT[:, :12], past_key_values=cache)
    beside = replace(predicting(TEXT, 5), cache=cache_of(cached_keys(cache), 4))
    torch.testing.assert_close(gradient_rows(model, beside).values, rows)
    assert cached_keys(transformers.StaticCache(config=model.config, max_cache_len=9)) == ()


def test_padded_texts_equal_each_alone() -> None:
    model = model_of("llama")
    short = TEXT[:, 6:15]
    alone, other = (
        gradient_rows(model, predicting(short, 4)).values,
        gradient_rows(model, predicting(TEXT, 14)).values,
    )
    padding = torch.zeros(1, 10, dtype=torch.long)
    ids = torch.cat([torch.cat([padding, short], dim=1), TEXT])
    mask = torch.ones_like(ids)
    mask[0, :10] = 0
    both = gradient_rows(model, PredictingRows(ids[:, :-1], mask[:, :-1], 13, ids[:, 14:])).values
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
    monkeypatch.setattr(AttentionCall, "scaling", 0.1)
    with pytest.raises(UnsupportedModelError, match="computes its scores in a way"):
        gradient_rows(model_of("llama"), predicting(TEXT, 14))


# -- through the public functions -----------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma3"])
def test_generate_explains_every_token(family: str) -> None:
    model = model_of(family)
    prompt = {"input_ids": TEXT[:, :11]}
    result = attnflow.generate(model, prompt, "gradient-attention", max_new_tokens=5)
    assert isinstance(result, attnflow.Attribution)
    assert result.method == GradientAttention()
    written = [int(text) for text in result.targets.texts]
    whole = torch.cat([TEXT[:, :11], torch.tensor([written])], dim=1)
    for k in range(5):
        expected = one_pass(model, whole[:, : 11 + k + 1]).cumsum(dim=0).numpy()
        np.testing.assert_allclose(result.values[:, k], expected[:, :11], rtol=1e-4, atol=1e-6)
        assert result.elsewhere is not None
        rest = expected[:, 11:].sum(axis=-1)
        np.testing.assert_allclose(result.elsewhere[:, k], rest, rtol=1e-4, atol=1e-6)
    after = attnflow.generate(model, prompt, "gradient-attention", completion=written)
    np.testing.assert_allclose(after.values, result.values, rtol=1e-4, atol=1e-6)


def test_a_batch_and_sampling_are_explained_like_each_text_alone() -> None:
    model = model_of("llama")
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.long), TEXT[:, :7]], dim=1)
    both = {"input_ids": torch.cat([ids, TEXT[:, :11]]), "attention_mask": torch.ones(2, 11).long()}
    both["attention_mask"][0, :4] = 0
    results = attnflow.generate(model, both, max_new_tokens=4, seed=1)
    assert isinstance(results, list)
    for result, prompt in zip(results, (TEXT[:, :7], TEXT[:, :11]), strict=True):
        written = [int(text) for text in result.targets.texts]
        alone = attnflow.generate(model, {"input_ids": prompt}, completion=written)
        np.testing.assert_allclose(result.values, alone.values, rtol=1e-3, atol=1e-5)


def test_explain_takes_the_predicting_position_of_a_causal_model() -> None:
    model = model_of("llama")
    result = attnflow.explain(model, {"input_ids": TEXT[:, :9]}, "gradient-attention")
    assert result.targets.positions == (8,)
    assert result.top(3)
    assert result.prediction is not None
    token = torch.tensor([[int(result.prediction.label)]])
    expected = one_pass(model, torch.cat([TEXT[:, :9], token], dim=1)).cumsum(dim=0).numpy()
    np.testing.assert_allclose(result.values[:, 0], expected, rtol=1e-4, atol=1e-6)


def test_every_position_of_a_text_is_explained_by_the_token_that_follows() -> None:
    model = model_of("qwen2")
    trace = attnflow.capture(model, {"input_ids": TEXT[:, :9]}, methods=[GradientAttention()])
    assert trace.mixed_heads == "mean"
    result = GradientAttention(drop_sink=False)(trace)
    for position in range(8):
        expected = one_pass(model, TEXT[:, : position + 2]).cumsum(dim=0).numpy()
        row = result.values[:, position, : position + 1]
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)


def test_another_answer_than_the_predicted_one() -> None:
    model = model_of("llama")
    result = attnflow.explain(model, {"input_ids": TEXT[:, :9]}, "gradient-attention", answer=33)
    expected = one_pass(model, torch.cat([TEXT[:, :9], torch.tensor([[33]])], dim=1))
    np.testing.assert_allclose(result.values[-1, 0], expected.sum(0).numpy(), rtol=1e-4, atol=1e-6)


def test_an_encoder_is_explained_from_its_full_gradients() -> None:
    loaded = tiny_encoder(head="SequenceClassification")
    both = [GradientAttention(), GradientRollout()]
    trace = attnflow.capture(loaded, "the key", methods=both)
    result = GradientAttention()(trace, targets=0)
    assert trace.gradients is not None
    products = np.maximum(trace.weights * trace.gradients, 0).mean(axis=1)
    np.testing.assert_allclose(result.values[-1, 0], products[:, 0].sum(axis=0), rtol=1e-5)
    default = attnflow.explain(loaded, "the key")
    assert default.method.name == "balanced"


def test_the_sink_is_found_and_left_out() -> None:
    weights = np.full((3, 2, 4, 4), 0.0)
    for row in range(4):
        weights[:, :, row, : row + 1] = 0.2 / (row + 1)
        weights[:, :, row, 0] += 0.8
    recorded = np.tril(np.ones((3, 4, 4)))
    trace = AttentionTrace.from_arrays(
        weights, ["a", "b", "c", "d"], measured={"gradient-attention": recorded}
    )
    result = GradientAttention()(trace, targets=3)
    assert result.values[-1, 0].tolist() == [0, 3, 3, 3]
    assert result.elsewhere is not None
    assert result.elsewhere[-1].tolist() == [3]
    assert result.provenance["sink"] == 0
    everything = GradientAttention(drop_sink=False)(trace, targets=3)
    assert everything.values[-1, 0].tolist() == [3, 3, 3, 3]


def test_a_short_prompt_has_no_sink_by_its_length_alone() -> None:
    """The only token of a prompt took all the weight there is, and its values went elsewhere."""
    model, _ = tiny_decoder()
    for ids in ([3], [3, 4]):
        result = attnflow.generate(model, {"input_ids": torch.tensor([ids])}, completion=[7, 8])
        assert result.provenance["sink"] is None
        assert (result.values[-1] > 0).all()
    causal = np.tril(np.ones((1, 1, 3, 3)))
    causal /= causal.sum(-1, keepdims=True)  # uniform: a third on each is no sink
    trace = AttentionTrace.from_arrays(
        causal, ["a", "b", "c"], measured={"gradient-attention": np.tril(np.ones((1, 3, 3)))}
    )
    assert GradientAttention()(trace, targets=2).provenance["sink"] is None
    assert GradientAttention()(trace).provenance["sink"] is None
    values, elsewhere = np.ones((1, 2, 1)), np.zeros((1, 2))
    assert GradientAttention().without_sink(values, elsewhere, 0) == (values, elsewhere)


def test_scores_are_named_and_do_not_mix() -> None:
    with pytest.raises(MethodError, match="score='odds': Did you mean 'log-od"):
        GradientRollout(score="odds")  # type: ignore[arg-type]
    loaded = tiny_encoder(head="SequenceClassification")
    with pytest.raises(MethodError, match="different scores"):
        attnflow.capture(
            loaded, "the key",
            methods=[GradientRollout(), GradientRollout(score="logit")],
        )  # fmt: skip


def test_an_encoder_decoder_is_explained_by_balanced_gradients() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64,
        decoder_start_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    result = attnflow.generate(model, {"input_ids": TEXT[:, :9] % 60}, max_new_tokens=3)
    assert isinstance(result, attnflow.Attribution)
    assert result.method.name == "balanced"


def test_options_of_another_kind_are_named() -> None:
    with pytest.raises(MethodError, match="drop_sink is true or false; got 'maybe'"):
        GradientAttention(drop_sink="maybe")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="start_layer"):
        GradientAttention(start_layer=True)
