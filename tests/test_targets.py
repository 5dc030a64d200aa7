"""Phrases, whole answers and contrasts of a completion, against the gradient of the full graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import attnflow
from attnflow import Attribution, GradientAttention
from attnflow.errors import InputError, MethodError, TargetError
from attnflow.explainers.request import resolve_targets
from attnflow.testing import tiny_decoder
from attnflow.tokens import Tokens
from test_gradient_attention import TEXT, model_of

START = 11
PROMPT = {"input_ids": TEXT[:, :START]}
ANSWER = TEXT[0, START:16].tolist()


def full_graph(
    model: Any, inputs: dict[str, Any], pairs: Sequence[tuple[int, int]], other: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Eager weights of every layer and their gradients of the sum of log-probabilities."""
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True, use_cache=False)
    shares = outputs.logits[0].float().log_softmax(-1)
    score = torch.stack([shares[row, token] for row, token in pairs]).sum()
    if other is not None:
        score = score - shares[pairs[0][0], other]
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    weights = [layer for name in names for layer in getattr(outputs, name, None) or ()]
    gradients = torch.autograd.grad(score, weights, allow_unused=True)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return [(w[0].detach(), g[0]) for w, g in zip(weights, gradients, strict=True)]


def explained(model: Any, **options: Any) -> Attribution:
    return attnflow.generate(model, PROMPT, completion=ANSWER, **options)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_a_phrase_is_the_sum_of_its_tokens(family: str) -> None:
    model = model_of(family)
    method = GradientAttention(drop_sink=False)
    tokens = explained(model, method=method)
    result = explained(model, method=method, targets=[slice(1, 3), -1, "answer"])
    assert result.targets.positions == (START + 1, START + 4, START)
    assert result.elsewhere is not None
    assert tokens.elsewhere is not None
    for row, members in enumerate(([1, 2], [4], [0, 1, 2, 3, 4])):
        expected = tokens.values[:, members].sum(axis=1)
        np.testing.assert_allclose(result.values[:, row], expected, rtol=1e-12)
        elsewhere = tokens.elsewhere[:, members].sum(axis=1)
        np.testing.assert_allclose(result.elsewhere[:, row], elsewhere, rtol=1e-12)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_gradient_rollout_of_a_phrase_is_that_of_the_full_graph(family: str) -> None:
    model = model_of(family)
    result = explained(model, method="gradient-rollout", targets=slice(1, 4))
    rows = [START + k for k in range(3)]  # they predict the tokens 1, 2 and 3
    ids = TEXT[:, : START + 4]
    pairs = [(row, int(TEXT[0, row + 1])) for row in rows]
    relevance = torch.eye(START + 4, dtype=torch.float64)
    for weights, gradient in full_graph(model, {"input_ids": ids}, pairs):
        relevance = relevance + (weights * gradient).relu().mean(0).double() @ relevance
    expected = (relevance - torch.eye(START + 4))[rows].sum(0)
    largest = float(expected.max())
    np.testing.assert_allclose(
        result.values[-1, 0], expected[:START], rtol=1e-4, atol=1e-5 * largest
    )
    assert result.elsewhere is not None
    np.testing.assert_allclose(result.elsewhere[-1, 0], float(expected[START:].sum()), rtol=1e-4)
    assert result.steps == ("less itself",)


@pytest.mark.parametrize("score", ["log-prob", "log-odds", "logit"])
@pytest.mark.parametrize("method", ["gradient-attention", "gradient-rollout"])
def test_every_token_has_a_gradient_of_its_own(method: str, score: Any) -> None:
    """Without targets a method of the full graph takes one pass for each token."""
    model = model_of("llama")
    applied = attnflow.methods.make_method(method, {"score": score})
    result = explained(model, method=applied)
    alone = explained(model, method=applied, targets=2)
    np.testing.assert_allclose(result.values[:, 2:3], alone.values, rtol=1e-5, atol=1e-9)


def contrast_tokenizer(model: Any) -> Any:
    """Token ids as words: what a contrast is named by."""

    class Words:
        all_special_ids = ()
        pad_token_id = eos_token_id = None

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [int(word) for word in text.split()]}

        def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
            return [f"▁{k}" for k in ids]

        def decode(self, ids: Sequence[int]) -> str:
            return " ".join(map(str, ids))

    return Words()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_contrast_is_the_difference_of_two_scores(family: str) -> None:
    model = model_of(family)
    tokenizer = contrast_tokenizer(model)
    first, other = ANSWER[0], (ANSWER[1] + 5) % 90 + 3
    text = f"{first} {other} 44"
    result = explained(
        (model, tokenizer),
        method=GradientAttention(drop_sink=False),
        contrast=text,
    )
    spelled = " ".join(map(str, ANSWER))
    assert list(result.targets) == [f"{spelled} rather than {text}"]
    assert result.targets.positions == (START + 1,)  # the first tokens are the same
    parts = full_graph(
        model, {"input_ids": TEXT[:, : START + 1]}, [(START, ANSWER[1])], other=other
    )
    rows = torch.stack([(w[:, -1] * g[:, -1]).relu().mean(0) for w, g in parts])
    expected = rows.cumsum(0)[:, :START]
    largest = float(expected.max())
    np.testing.assert_allclose(result.values[:, 0], expected, rtol=1e-4, atol=1e-5 * largest)
    with pytest.raises(InputError, match="begin alike"):
        explained((model, tokenizer), contrast=str(first))
    with pytest.raises(InputError, match="about one target; got 2"):
        explained((model, tokenizer), contrast="7", targets=[0, 1])
    for nothing in ("", "  "):  # a tokenizer makes a token of the space before it
        with pytest.raises(InputError, match="names no answer"):
            explained((model, tokenizer), contrast=nothing)
    with pytest.raises(MethodError, match="'rollout' takes none"):
        explained((model, tokenizer), contrast="7", method="rollout")


@pytest.mark.parametrize("method", ["gradient-attention", "gradient-rollout"])
def test_explain_takes_a_contrast(method: str) -> None:
    model = model_of("llama")
    inputs = {"input_ids": TEXT}
    result = attnflow.explain(model, inputs, method, answer=7, contrast=9, targets=-1)
    parts = full_graph(model, inputs, [(18, 7)], other=9)
    relevance = torch.eye(19, dtype=torch.float64)
    for weights, gradient in parts:
        change = (weights * gradient).relu().mean(0).double()
        relevance = relevance + (change @ relevance if "rollout" in method else change)
    expected = relevance[-1] - (0 if "rollout" in method else torch.eye(19)[-1])
    sink = result.provenance.get("sink")
    columns = [k for k in range(19) if k != sink]
    largest = float(expected[columns].max())
    np.testing.assert_allclose(
        result.values[-1, 0, columns], expected[columns], rtol=1e-4, atol=1e-5 * largest
    )
    assert result.provenance["gradients_of"] == "7 rather than 9"
    with pytest.raises(InputError, match="is the answer itself"):
        attnflow.explain(model, inputs, method, answer=7, contrast=7)


def test_a_classifier_is_asked_why_this_and_not_that() -> None:
    """log p(a) - log p(b) is the difference of two logits: the sign turns with the question."""
    result = attnflow.explain(
        None, "the keys to", "gradient-attention", answer="plural", contrast="singular"
    )
    assert result.provenance["gradients_of"] == "plural rather than singular"
    logit = attnflow.explain(
        None,
        "the keys to",
        GradientAttention(score="logit"),
        answer="plural",
        contrast="singular",
    )
    np.testing.assert_allclose(result.values, logit.values, rtol=1e-4, atol=1e-9)


def encoder_decoder(name: str) -> Any:
    torch.manual_seed(0)
    if name == "t5":
        config = transformers.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=97,
            decoder_start_token_id=0, eos_token_id=None, pad_token_id=0, initializer_factor=3.0,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config).eval()
    bart = transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=97,
        decoder_start_token_id=2, eos_token_id=None, pad_token_id=1, init_std=0.3,
        forced_eos_token_id=None, bos_token_id=0,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(bart).eval()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_gradient_attention_of_an_encoder_decoder(name: str) -> None:
    """Its cross attention, read where the decoder predicts; the decoder's own is elsewhere."""
    model = encoder_decoder(name)
    result = attnflow.generate(
        model, PROMPT, completion=ANSWER, method="gradient-attention", targets=[2, "answer"]
    )
    start = int(model.config.decoder_start_token_id)
    inputs = {
        "input_ids": TEXT[:, :START],
        "decoder_input_ids": torch.tensor([[start, *ANSWER[:-1]]]),
    }
    for row, members in enumerate(([2], [0, 1, 2, 3, 4])):
        parts = full_graph(model, inputs, [(k, ANSWER[k]) for k in members])
        cross = [(w * g).relu().mean(0)[members].sum(0) for w, g in parts[-2:]]
        expected = torch.stack(cross).sum(0)
        largest = float(expected.max())
        np.testing.assert_allclose(result.values[-1, row], expected, rtol=1e-4, atol=1e-5 * largest)


def test_what_a_target_may_be() -> None:
    written = Tokens(("Ġwithin", "Ġ45", "Ġdays", "Ġof", "Ġthe", "Ġday", "Ġof", "."))
    targets = resolve_targets(written, ["45 days", "days", -1, range(3, 5), "answer"])
    assert [target.tokens for target in targets] == [(1, 2), (2,), (7,), (3, 4), tuple(range(8))]
    assert [target.text for target in targets][:4] == ["45 days", "Ġdays", ".", "of the"]
    for wrong, message in (
        ("of", "occurs 2 times, at positions 3, 6"),
        ("weeks", "occurs 0 times"),
        (9, "No token 9 in the completion; choose from 0 'within'"),
        (slice(5, 5), "holds no token of the completion, which has 8"),
        (slice(0, 4, 2), "token by token"),
        ([], "No target given"),
    ):
        with pytest.raises(TargetError, match=message):
            resolve_targets(written, wrong)  # type: ignore[arg-type]


def test_generate_takes_targets_too() -> None:
    model, tokenizer = tiny_decoder()
    whole = attnflow.generate((model, tokenizer), "the keys to", max_new_tokens=4)
    text = attnflow.generate((model, tokenizer), "the keys to", max_new_tokens=4, targets="answer")
    np.testing.assert_allclose(text.values[:, 0], whole.values.sum(axis=1), rtol=1e-9)
    rollout: dict[str, Any] = {"max_new_tokens": 4, "method": "rollout"}
    each = attnflow.generate((model, tokenizer), "the keys to", **rollout)
    mean = attnflow.generate((model, tokenizer), "the keys to", **rollout, targets="answer")
    np.testing.assert_allclose(mean.values[:, 0], each.values.mean(axis=1), rtol=1e-9)


def test_streamed_rollouts_say_how_far_rows_depend_on_their_targets(tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    options: dict[str, Any] = {"max_new_tokens": 4, "method": "rollout"}
    result = attnflow.generate((model, tokenizer), "the keys to", **options)
    assert result.provenance["streamed"] is True
    assert result.dependence is not None
    assert result.dependence.shape == (2, 4)
    assert (result.dependence > 0).all()
    assert (result.dependence < 1).all()
    result.save(tmp_path / "result.json")
    loaded = Attribution.load(tmp_path / "result.json")
    np.testing.assert_array_equal(loaded.dependence, result.dependence)
