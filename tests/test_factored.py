"""Traces in factors agree with traces of weights, and say where they stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow import Flow, GradientAttention, GradientRollout, Raw, Rollout, capture
from attnflow.errors import (
    MatrixError,
    MethodError,
    OutOfMemoryError,
    TokensError,
    UnsupportedModelError,
)
from attnflow.explainers import gradient_rows as completion_gradients
from attnflow.hosts import factored
from attnflow.hosts.spans import roll_out_spans
from attnflow.testing import random_factors, tiny_decoder
from attnflow.trace import AttentionTrace, FactoredTrace
from families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}
STACKS = [
    *("BERT", "ModernBERT", "GPT-2", "OPT", "Llama", "Mistral", "Qwen3", "Gemma 2", "Gemma 3"),
    *("Phi-3", "gpt-oss", "LFM2"),
]
METHODS = [
    Raw(),
    Rollout(),
    Rollout(heads="max"),
    Rollout(heads=1, residual="one-step", drop=(0,)),
    Rollout(heads=(1, 2, 3, 4), start_layer=2),
    Rollout(discard=0.3),
    Rollout(top_head=1),
]


def both(model: Any, inputs: Any, **options: Any) -> tuple[FactoredTrace, AttentionTrace]:
    factors = capture(model, inputs, form="factors", **options)
    assert isinstance(factors, FactoredTrace)
    return factors, capture(model, inputs, form="weights", **options)


@pytest.mark.parametrize("name", STACKS)
def test_every_family_agrees_with_its_weights(name: str) -> None:
    family = BY_NAME[name]
    factors, weights = both(family.build(), family.inputs())
    assert (factors.layers, factors.kind, str(factors.prediction)) == (
        weights.layers,
        weights.kind,
        str(weights.prediction),
    )
    for method in METHODS:
        ours, theirs = method(factors), method(weights)
        assert ours.layers == theirs.layers
        np.testing.assert_allclose(ours.values, theirs.values, atol=2e-6)
    few = Rollout()(factors, targets=[3, 7], layers=-1, sources=[0, 2])
    expected = Rollout()(weights, targets=[3, 7], layers=-1, sources=[0, 2])
    np.testing.assert_allclose(few.values, expected.values, atol=2e-6)
    assert factors.provenance["attention"] == "factors, blocks of torch"


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral", "Gemma 2", "gpt-oss", "OPT"])
@pytest.mark.parametrize("heads", ["mean", "max", 1])
def test_gradient_rollout_agrees(name: str, heads: Any) -> None:
    """OPT's blocks drop out by their own flag: blocks that are computed again must not."""
    family, method = BY_NAME[name], GradientRollout(heads=heads)
    model = family.build()
    factors, weights = both(model, family.inputs(), methods=[method])
    theirs = method(weights).values
    np.testing.assert_allclose(method(factors).values, theirs, atol=1e-5 * theirs.max())
    assert factors.provenance["gradients_of"] == weights.provenance["gradients_of"]
    assert "forward" not in {key for module in model.modules() for key in vars(module)}
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral", "Gemma 2", "Gemma 3", "gpt-oss"])
def test_gradient_attention_agrees(name: str) -> None:
    family, method = BY_NAME[name], GradientAttention(drop_sink=False)
    factors, weights = both(family.build(), family.inputs(), methods=[method])
    theirs = method(weights).values
    np.testing.assert_allclose(method(factors).values, theirs, atol=1e-5 * theirs.max())


@pytest.mark.parametrize(
    "name", ["BERT", "GPT-2", "Llama", "Mistral", "Gemma 2", "gpt-oss", "LFM2"]
)
@pytest.mark.parametrize("spans", [{"a": (0, 3), "b": (2, 5)}, {"a": (0, 4), "b": (4, 8)}])
def test_spans_that_go_up_are_the_rollouts(name: str, spans: Any) -> None:
    family = BY_NAME[name]
    model, inputs = family.build(), family.inputs()
    trace = capture(model, inputs, form="weights")
    for rollout in (Rollout(), Rollout(heads=1, residual="one-step", drop=(0,))):
        ours = roll_out_spans(model, inputs, spans, rollout=rollout)
        theirs = rollout(trace, layers=-1).spans(spans)
        np.testing.assert_allclose(ours.values, theirs.values, atol=2e-6)
        np.testing.assert_allclose(ours.elsewhere, theirs.elsewhere, atol=2e-6)
        assert (ours.layers, ours.steps) == (theirs.layers, theirs.steps)
        assert ours.targets == theirs.targets


def test_spans_refuse_what_is_not_linear() -> None:
    model, tokenizer = tiny_decoder()
    with pytest.raises(MethodError, match="not linear in the weights"):
        roll_out_spans((model, tokenizer), "the keys", {"a": (0, 1)}, rollout=Rollout(heads="max"))


def test_a_batch_is_each_example_alone() -> None:
    model, tokenizer = tiny_decoder()
    texts = ["the keys to", "the cabinets are to the keys"]
    traces = capture((model, tokenizer), texts, form="factors")
    for text, trace in zip(texts, traces, strict=True):
        alone = capture((model, tokenizer), text, form="weights")
        assert trace.tokens == alone.tokens
        np.testing.assert_allclose(Rollout()(trace).values, Rollout()(alone).values, atol=2e-6)


def test_the_form_is_chosen_by_the_memory_that_weights_would_take(monkeypatch: Any) -> None:
    model, tokenizer = tiny_decoder()
    options: dict[str, Any] = {"methods": [Rollout()]}
    assert not isinstance(capture((model, tokenizer), "the keys to", **options), FactoredTrace)
    monkeypatch.setattr(factored, "free_memory", lambda: 100.0)
    assert isinstance(capture((model, tokenizer), "the keys to", **options), FactoredTrace)
    flow = capture((model, tokenizer), "the keys to", methods=[Flow()])
    assert not isinstance(flow, FactoredTrace)
    weights = capture((model, tokenizer), "the keys to", form="weights", **options)
    assert not isinstance(weights, FactoredTrace)


def test_methods_that_need_the_matrix_say_what_it_would_take() -> None:
    trace = random_factors(layers=30, heads=9, length=2048)
    with pytest.raises(MatrixError, match=r"30 layers × 9 heads × 2048 × 2048 .* take 4\.5 GB"):
        Flow()(trace, targets=-1, layers=-1)
    with pytest.raises(MatrixError, match="not written to files"):
        trace.save("trace.safetensors")
    with pytest.raises(MethodError, match="hold queries and keys only"):
        GradientRollout()(random_factors())
    with pytest.raises(TokensError, match="2 tokens for factors over"):
        FactoredTrace(random_factors(length=3).factors, ["a", "b"])


def test_what_cannot_be_factored_is_refused() -> None:
    for name in ("T5", "ViT", "ALBERT"):
        family = BY_NAME[name]
        with pytest.raises(UnsupportedModelError, match="form='weights'"):
            capture(family.build(), family.inputs(), form="factors")
    model, tokenizer = tiny_decoder()
    with pytest.raises(MatrixError, match="needs all weights at once"):
        capture((model, tokenizer), "the keys", methods=[Flow()], form="factors")


def test_a_layer_that_computes_otherwise_is_refused(monkeypatch: Any) -> None:
    """A model that scales its scores in secret: the factors do not give its output."""
    import attnflow.hosts.transformers.factors as recorded

    model, tokenizer = tiny_decoder()
    honest = recorded.attend
    monkeypatch.setattr(
        recorded, "attend", lambda layer, value, **known: honest(layer, 1.5 * value, **known)
    )
    with pytest.raises(UnsupportedModelError, match="in a way that is not known here"):
        capture((model, tokenizer), "the keys to", form="factors")


def test_out_of_memory_is_a_sentence(monkeypatch: Any) -> None:
    model, tokenizer = tiny_decoder()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * 10**9, 150 * 10**9))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 75 * 10**9)
    reserved = [140 * 10**9, 3 * 10**9]
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved.pop(0))

    def full(*arguments: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("attnflow.hosts.transformers.factors.attend", full)
    with pytest.raises(OutOfMemoryError, match=r"the device's 150 GB: 75 GB .* shorten the text"):
        capture((model, tokenizer), "the keys to", form="factors")
    with pytest.raises(OutOfMemoryError, match="Other processes hold 145 GB: run fewer"):
        capture((model, tokenizer), "the keys to", form="factors")


def test_the_models_own_pass_is_unchanged() -> None:
    family = BY_NAME["Llama"]
    model, inputs = family.build(), family.inputs()
    before = model(**inputs).logits.detach()
    trace = capture(model, inputs, form="factors")
    torch.testing.assert_close(model(**inputs).logits.detach(), before)
    share = float(before[0, -1].softmax(dim=-1).max())
    assert trace.prediction is not None
    assert trace.prediction.probability == pytest.approx(share, abs=1e-5)


def test_a_long_completion_keeps_the_sum_over_layers(monkeypatch: Any) -> None:
    model, tokenizer = tiny_decoder()
    options: dict[str, Any] = {"max_new_tokens": 4}
    every = attnflow.generate((model, tokenizer), "the keys to", **options)
    monkeypatch.setattr(completion_gradients, "_MOST_NUMBERS", 1)
    top = attnflow.generate((model, tokenizer), "the keys to", **options)
    assert top.layers == every.layers[-1:]
    np.testing.assert_allclose(top.values, every.values[-1:], atol=1e-6)


def test_prefill_in_chunks_gives_the_same_rows() -> None:
    model, tokenizer = tiny_decoder()
    for method in ("gradient-attention", "rollout"):
        options: dict[str, Any] = {"max_new_tokens": 3, "method": method}
        plain = attnflow.generate((model, tokenizer), "the keys to", **options)
        chunked = attnflow.generate(
            (model, tokenizer), "the keys to", **options, prefill_chunk_size=2
        )
        np.testing.assert_allclose(chunked.values, plain.values, atol=1e-5)
