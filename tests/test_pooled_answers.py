"""Classifiers that read the mean of all positions: no single row is their explanation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow
import attnflow.testing
from attnflow import Attribution, Rollout
from attnflow.explainers.answer_rows import ALL_POSITIONS
from attnflow.hosts.model import adapter_for
from attnflow.hosts.scores import Scores
from attnflow.show.sentences import remarks
from attnflow.show.view import view

IDS = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(1))


def classifier(pooling: str) -> Any:
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2, classifier_pooling=pooling, num_labels=3, initializer_range=0.3,
        reference_compile=False,
    )  # fmt: skip
    return transformers.ModernBertForSequenceClassification(config).eval()


def test_the_config_says_where_the_answer_is_read() -> None:
    for pooling, answer in (("mean", "mean"), ("cls", "first")):
        model = classifier(pooling)
        assert adapter_for(model).facts(model).answer == answer


def test_rows_of_all_positions_are_averaged(tmp_path: Path) -> None:
    model = classifier("mean")
    result = attnflow.explain(model, {"input_ids": IDS}, "rollout")
    assert list(result.targets) == [ALL_POSITIONS]
    assert result.prediction is not None
    assert result.prediction.pooled
    every = Rollout()(attnflow.capture(model, {"input_ids": IDS}))
    np.testing.assert_allclose(result.values[:, 0], every.values.mean(axis=1), rtol=1e-6)
    assert "mean of all positions" in view(result)["results"][0]["remarks"][0]
    result.save(tmp_path / "result.json")
    assert Attribution.load(tmp_path / "result.json").prediction == result.prediction
    one = attnflow.explain(classifier("cls"), {"input_ids": IDS}, "rollout")
    assert one.targets.positions == (0,)
    assert one.prediction is not None
    assert not one.prediction.pooled


def test_gradient_attention_counts_every_row() -> None:
    """All rows lead to the answer, so the gradient of each counts: columns of the full graph."""
    model = classifier("mean")
    result = attnflow.explain(model, {"input_ids": IDS}, "gradient-attention")
    model.set_attn_implementation("eager")
    outputs = model(IDS, output_attentions=True)
    score = outputs.logits[0].log_softmax(-1).max()
    gradients = torch.autograd.grad(score, outputs.attentions)
    parts = [
        (weights.detach() * gradient)[0].relu().mean(0).sum(0)
        for weights, gradient in zip(outputs.attentions, gradients, strict=True)
    ]
    expected = torch.stack(parts).sum(0)
    np.testing.assert_allclose(
        result.values[-1, 0], expected, rtol=1e-4, atol=1e-5 * float(expected.max())
    )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_methods_are_judged_by_the_row_that_answers(pooling: str) -> None:
    from attnflow.explainers.answer_rows import answer_rows

    trace = attnflow.capture(classifier(pooling), {"input_ids": IDS})
    row = answer_rows(Rollout(), trace, layers=-1)
    assert len(row.targets) == 1
    assert (row.targets[0] == ALL_POSITIONS) is (pooling == "mean")


def test_the_default_follows_the_kind_of_model() -> None:
    """Answers about text go by balanced gradients, images by plain ones of the logit."""
    from attnflow.explainers.defaults import default_method
    from attnflow.hosts.model import Model

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24,
    }  # fmt: skip
    bert = transformers.BertConfig(vocab_size=40, **sizes)
    number = transformers.BertConfig(vocab_size=40, num_labels=1, **sizes)
    deberta = transformers.DebertaV2Config(vocab_size=40, **sizes)
    t5 = transformers.T5Config(vocab_size=40, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=8)
    vit = transformers.ViTConfig(image_size=8, patch_size=4, **sizes)
    expected = {
        transformers.BertForSequenceClassification(bert): "balanced",
        transformers.BertForMaskedLM(bert): "balanced",
        transformers.BertModel(bert): "rollout",  # no answer to explain
        transformers.ViTForImageClassification(vit): "gradient-attention",  # docs/evidence.md
        transformers.ViTModel(vit): "rollout",  # no classes
        classifier("mean"): "balanced",
        transformers.BertForSequenceClassification(number): "rollout",  # one number, no choice
        transformers.DebertaV2ForSequenceClassification(deberta): "balanced",
        transformers.T5ForConditionalGeneration(t5): "balanced",
    }
    for model, name in expected.items():
        assert default_method(Model(model.eval())).name == name, type(model).__name__
    assert attnflow.explain(None, "the keys to the cabinet").method.name == "balanced"


def test_a_sure_answer_has_gradients_of_its_log_odds() -> None:
    """In single precision log p is flat where p is 1; the log odds are not."""
    logits = torch.tensor([40.0, 1.0, 2.0], requires_grad=True)
    scores = Scores(logits, 0, lambda ids: [str(k) for k in ids])
    (flat,) = torch.autograd.grad(scores.score(0, "log-prob"), logits)
    (steep,) = torch.autograd.grad(scores.score(0, "log-odds"), logits)
    assert flat.abs().max() < 1e-6
    others = torch.tensor([1.0, 2.0]).softmax(dim=0)
    assert torch.allclose(steep, torch.cat([torch.ones(1), -others]))
    p = logits.detach().double().softmax(dim=0)[1]
    assert scores.score(1, "log-odds").item() == pytest.approx(float((p / (1 - p)).log()))


def test_a_masked_model_without_a_mask_is_explained_without_an_answer() -> None:
    loaded = attnflow.testing.tiny_encoder()
    assert attnflow.explain(loaded, "the [MASK] is").method.name == "balanced"
    assert attnflow.explain(loaded, "the key is").method.name == "rollout"


def test_a_token_classifier_says_which_token_it_explains() -> None:
    result = attnflow.explain(
        attnflow.testing.tiny_encoder(head="TokenClassification"), "the key to the cabinets"
    )
    labels = ["O"] * len(result.sources)
    labels[result.targets.positions[0]] = labels[0] = "NAME"
    named = replace(result, provenance={**result.provenance, "predictions": labels})
    (remark,) = remarks(named)
    assert f"explains “{result.targets.text[0]}” alone" in remark
    assert remark.endswith(f"own answer: “{result.sources.text[0]}” (NAME)")
