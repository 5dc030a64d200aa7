"""Capture from Hugging Face encoders: the right weights, and a model given back as it was."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnflow
from attnflow.errors import CaptureError, ModelError, TokensError, UnsupportedModelError
from attnflow.hosts import load as loading
from attnflow.hosts.load import load
from attnflow.hosts.model import Model
from attnflow.testing import tiny_decoder, tiny_encoder

TEXT = "the author talked to sara about [MASK] book"
FAMILIES = ["bert", "distilbert", "roberta"]


def eager_weights(loaded: Model, **inputs: Any) -> np.ndarray:
    """The host's own answer: eager attention with output_attentions."""
    model = type(loaded.module)._from_config(loaded.module.config, attn_implementation="eager")
    model.load_state_dict(loaded.module.state_dict())
    with torch.no_grad():
        layers = model.eval()(**inputs, output_attentions=True).attentions
    return np.stack([layer.numpy() for layer in layers], axis=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["", "MaskedLM", "SequenceClassification"])
def test_weights_equal_the_hosts_eager_attention(family: str, head: str) -> None:
    loaded = tiny_encoder(family, head=head)
    assert loaded.module.config._attn_implementation == "sdpa"
    trace = attnflow.capture(loaded, TEXT)
    inputs = loaded.tokenizer(TEXT, return_tensors="pt")
    assert np.allclose(trace.weights, eager_weights(loaded, **inputs)[0], rtol=0, atol=1e-6)
    assert trace.weights.std() > 0.01, "attention is too uniform for this test to tell anything"
    assert trace.tokens.texts == ("[CLS]", *TEXT.split(), "[SEP]")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_is_given_back_as_it_was(implementation: str) -> None:
    loaded = tiny_encoder()
    model = loaded.module
    model.set_attn_implementation(implementation)
    model.train()
    model.bert.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    attnflow.capture((model, loaded.tokenizer), TEXT)
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks for module in model.modules())


def test_the_model_is_given_back_when_the_forward_pass_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = tiny_encoder()
    loaded.module.train()

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loaded.module.bert.encoder.layer[2], "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnflow.capture(loaded, TEXT)
    assert loaded.module.config._attn_implementation == "sdpa"
    assert loaded.module.training
    monkeypatch.undo()
    assert attnflow.capture(loaded, TEXT).layers == (1, 2, 3)


def test_capture_does_not_change_the_logits() -> None:
    loaded = tiny_encoder(head="SequenceClassification")
    inputs = loaded.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        probability = loaded.module(**inputs).logits.softmax(-1).max().item()
    trace = attnflow.capture(loaded, TEXT)
    assert trace.prediction is not None
    assert trace.prediction.probability == pytest.approx(probability, abs=1e-6)
    assert trace.prediction.label.startswith("LABEL_")


def test_the_word_under_the_mask_is_predicted() -> None:
    loaded = tiny_encoder()
    trace = attnflow.capture(loaded, TEXT)
    assert trace.prediction is not None
    assert trace.tokens[trace.prediction.position] == "[MASK]"
    assert len(trace.prediction.alternatives) == 5
    plain = attnflow.capture(loaded, "the key")
    assert plain.prediction is None


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_either_side_changes_nothing(family: str, side: str) -> None:
    loaded = tiny_encoder(family)
    padded = loaded.tokenizer(
        ["the key", TEXT],
        return_tensors="pt",
        padding="max_length",
        max_length=20,
        padding_side=side,
    )
    traces = attnflow.capture(loaded, [padded])
    for text, trace in zip(["the key", TEXT], traces, strict=True):
        alone = attnflow.capture(loaded, text)
        assert trace.tokens.texts == alone.tokens.texts
        assert np.allclose(trace.weights, alone.weights, rtol=0, atol=1e-6)
        assert (trace.prediction is None) == (alone.prediction is None)


def test_a_batch_gives_each_text_its_own_result() -> None:
    loaded = tiny_encoder()
    texts = ["the key", TEXT, "the author talked"]
    together = attnflow.capture(loaded, texts)
    for text, trace in zip(texts, together, strict=True):
        alone = attnflow.capture(loaded, text)
        assert trace.tokens == alone.tokens
        assert np.allclose(trace.weights, alone.weights, rtol=0, atol=1e-6)


def test_heads_can_be_mixed_as_they_are_seen() -> None:
    loaded = tiny_encoder()
    every = attnflow.capture(loaded, TEXT)
    mixed = attnflow.capture(loaded, TEXT, heads="max")
    assert mixed.heads == 1
    method = attnflow.Rollout(heads="max")
    assert np.allclose(method(every).values, method(mixed).values, rtol=0, atol=1e-6)


def test_half_precision_is_captured() -> None:
    loaded = tiny_encoder()
    loaded.module.to(torch.bfloat16)
    trace = attnflow.capture(loaded, TEXT)
    assert trace.weights.dtype == np.float32
    assert trace.provenance["dtype"] == "bfloat16"


def test_word_pieces_are_merged_on_request() -> None:
    loaded = tiny_encoder()
    result = attnflow.explain(loaded, "the author unlocked books", level="word")
    assert result.sources.texts == ("[CLS]", "the", "author", "unlocked", "books", "[SEP]")
    assert np.allclose(result.values.sum(axis=-1), 1, atol=1e-6)


def test_two_threads_on_two_models_do_not_mix() -> None:
    models = [tiny_encoder(seed=1), tiny_encoder(seed=2)]
    expected = [attnflow.capture(m, TEXT).weights for m in models]
    differing: list[float] = []

    def work(k: int) -> None:
        for _ in range(20):
            trace = attnflow.capture(models[k], TEXT)
            differing.append(float(np.abs(trace.weights - expected[k]).max()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(differing) == 40
    assert max(differing) < 1e-6


def test_explain_from_a_folder(tmp_path: Path) -> None:
    loaded = tiny_encoder()
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    result = attnflow.explain(tmp_path, TEXT, method="flow", targets="[MASK]", layers=3)
    assert result.values.shape == (1, 1, 10)
    assert result.prediction is not None
    assert result.provenance["class"] == "BertForMaskedLM"
    assert result.provenance["model"] == str(tmp_path)


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_is_refused(text: str) -> None:
    loaded = tiny_encoder()
    with pytest.raises(TokensError, match="nothing to explain: the text is"):
        attnflow.capture(loaded, text)


def test_a_text_that_is_too_long_is_refused_with_both_numbers() -> None:
    loaded = tiny_encoder()
    with pytest.raises(TokensError, match="has 82 tokens and BertForMaskedLM takes at most 64"):
        attnflow.capture(loaded, "key " * 80)


def test_a_model_without_its_tokenizer() -> None:
    loaded = tiny_encoder()
    with pytest.raises(TokensError, match="A text needs the model's tokenizer"):
        attnflow.explain(loaded.module, TEXT)
    ids = loaded.tokenizer(TEXT, return_tensors="pt")
    trace = attnflow.capture(loaded.module, ids)
    assert trace.tokens[0] == "2"


def test_prepared_inputs_that_do_not_fit() -> None:
    loaded = tiny_encoder()
    with pytest.raises(TokensError, match=r"need one of 'input_ids'.*got 'pixels'"):
        attnflow.capture(loaded.module, {"pixels": torch.zeros(1)})
    with pytest.raises(TokensError, match=r"shape \(batch, length\); got \(3,\)"):
        attnflow.capture(loaded.module, {"input_ids": torch.tensor([2, 5, 3])})
    with pytest.raises(TokensError, match="a batch of 2"):
        attnflow.capture(loaded.module, {"input_ids": torch.tensor([[2, 3], [2, 3]])})
    nothing = {"input_ids": torch.tensor([[0]]), "attention_mask": torch.tensor([[0]])}
    with pytest.raises(TokensError, match="padding only"):
        attnflow.capture(loaded.module, nothing)


def test_a_model_no_adapter_knows() -> None:
    with pytest.raises(UnsupportedModelError, match=r"No adapter recognises torch\..*Linear"):
        attnflow.capture(nn.Linear(2, 2), "text")


def test_missing_layers_are_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_encoder()
    loaded.module.config.num_hidden_layers = 4
    with pytest.raises(CaptureError, match="has 4 layers with attention and 3 were seen"):
        attnflow.capture(loaded, TEXT)


@pytest.mark.parametrize(
    ("free", "dtype"), [(float("inf"), torch.float32), (1024.0, torch.bfloat16)]
)
def test_half_precision_becomes_single_where_there_is_room(
    free: float, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is loaded by name runs on the CPU, where bfloat16 may take a hundred times."""
    model, tokenizer = tiny_decoder()
    model.to(torch.bfloat16).save_pretrained(tmp_path)  # type: ignore[operator]
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "free_memory", lambda: free)
    assert {weight.dtype for weight in load(tmp_path).module.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-org/no-such-model", "no-such-model' (is not on this machine|could not be)"),
        ("", "The model's name is empty"),
    ],
)
def test_a_model_that_cannot_be_loaded(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load(name)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(f"There is no folder {str(tmp_path / 'x')!r}")):
        load(tmp_path / "x")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model that transformers can load"):
        load(tmp_path)


def test_things_that_are_no_text_and_no_model() -> None:
    loaded = tiny_encoder()
    with pytest.raises(
        attnflow.errors.InputError, match="is a text, a mapping, a Picture, a list of texts"
    ):
        attnflow.capture(loaded.module, 5)  # type: ignore[arg-type]
    with pytest.raises(attnflow.AttnflowError, match=r"model is .*; got 3 \(int\)"):
        attnflow.explain(3, TEXT)  # type: ignore[arg-type]
    with pytest.raises(attnflow.AttnflowError, match="called on an AttentionTrace; got str"):
        attnflow.Rollout()("trace")  # type: ignore[arg-type]
    with pytest.raises(TokensError, match="has no decoder to give text to"):
        attnflow.capture(None, TEXT, decoder_text="x")
