"""Interventions: values zeroed, keys hidden, attention uniform; each against a plain reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnflow
from attnflow.errors import InputError, UnsupportedModelError
from attnflow.hosts.load import load
from attnflow.hosts.model import adapter_for
from attnflow.hosts.recorder import UNIFORM, Intervention, Recorder
from attnflow.hosts.transformers.attention import watch_attention
from families import FAMILIES, words, words_both_sides


def build(name: str) -> Any:
    return next(family for family in FAMILIES if family.name == name).build()


def copies(inputs: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value.repeat(count, 1) for name, value in inputs.items()}


def logits(model: Any, inputs: dict[str, Tensor], change: Intervention) -> Tensor:
    with torch.no_grad():
        return adapter_for(model).run_with(model, inputs, change).logits


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral", "gpt-oss", "BERT"])
def test_a_hidden_key_is_one_that_the_mask_leaves_out(name: str) -> None:
    model, length = build(name), 8
    rows: list[list[int]] = [[], [1], [2, 5], [0, 3]]
    inputs = copies(words(), len(rows))
    inputs["position_ids"] = torch.arange(length)[None].repeat(len(rows), 1)  # places are kept
    hidden = logits(model, inputs, Intervention(hide_keys=rows))
    mask = torch.ones(len(rows), length, dtype=torch.long)
    for line, row in zip(mask, rows, strict=True):
        line[row] = 0
    with torch.no_grad():
        masked = model(**{**inputs, "attention_mask": mask}).logits
    visible = mask.bool()
    assert torch.allclose(hidden[visible], masked[visible], atol=1e-5)
    assert not torch.allclose(hidden[2, -1], hidden[0, -1], atol=1e-3)


def test_hidden_keys_get_no_weight_and_rows_stay_whole() -> None:
    model = build("Llama")
    recorder = Recorder(None)
    change = Intervention(hide_keys=[[0, 4]])
    with torch.no_grad(), watch_attention(model, observer=recorder, intervention=change):
        model(**words())
    for layer in recorder.layers:
        assert layer.weights[:, :, 1:4, 0].max() == 0
        assert layer.weights[:, :, 5:, 4].max() == 0
        assert abs(layer.weights.sum(axis=-1) - 1).max() < 1e-5
        assert layer.weights[0, 0, 0].tolist() == [1.0, *[0.0] * 7]  # it sees nothing but itself


def test_rows_some_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, change = build("Llama"), Intervention(hide_keys=[[0, 1, 4]])

    def weights() -> list[Any]:
        recorder = Recorder(None)
        with torch.no_grad(), watch_attention(model, observer=recorder, intervention=change):
            model(**words())
        return [layer.weights for layer in recorder.layers]

    at_once = weights()
    monkeypatch.setattr("attnflow.hosts.transformers.attention._ROWS_OF_WEIGHTS", 3 * 8 * 4)
    for one, other in zip(at_once, weights(), strict=True):
        assert abs(one - other).max() < 1e-6


def test_a_batch_of_ablations_is_each_one_alone() -> None:
    model = build("GPT-2")
    rows: list[list[int]] = [[1], [2, 3], []]
    together = logits(model, copies(words(), 3), Intervention(zero_values=rows, hide_keys=rows))
    for k, row in enumerate(rows):
        alone = logits(model, words(), Intervention(zero_values=[row], hide_keys=[row]))
        assert torch.allclose(together[k], alone[0], atol=1e-5)


def test_the_sides_of_an_encoder_decoder_are_named_apart() -> None:
    model, inputs = build("BART"), words_both_sides()
    plain = logits(model, inputs, Intervention())
    source = logits(model, inputs, Intervention(hide_keys=[[2]]))
    target = logits(model, inputs, Intervention(decoder_hide_keys=[[2]]))
    assert not torch.allclose(plain, source, atol=1e-3)
    assert torch.allclose(plain[:, :2], target[:, :2], atol=1e-5)  # causal: before it, nothing
    assert not torch.allclose(plain[:, 3], target[:, 3], atol=1e-3)
    mask = torch.ones(1, 8, dtype=torch.long)
    mask[0, 2] = 0
    with torch.no_grad():
        masked = model(**{**inputs, "attention_mask": mask}).logits
    assert torch.allclose(source, masked, atol=1e-5)


def test_the_embedded_model_zeroes_values_and_refuses_the_rest() -> None:
    model, tokenizer = load()
    adapter = adapter_for(model)
    batch = adapter.encode(model, tokenizer, ["the keys to the cabinet"])
    with torch.no_grad():
        plain = adapter.forward(model, batch.inputs).logits
        same = adapter.run_with(model, batch.inputs, Intervention(zero_values=[[]])).logits
        silent = adapter.run_with(model, batch.inputs, Intervention(zero_values=[[2]])).logits
    assert torch.equal(plain, same)
    assert not torch.allclose(plain, silent, atol=1e-3)
    for change, kind in ((Intervention(hide_keys=[[1]]), "hide_keys"), (UNIFORM, "uniform")):
        with pytest.raises(UnsupportedModelError, match=kind):
            adapter.run_with(model, batch.inputs, change)


def test_other_hosts_refuse_by_name() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    adapter = adapter_for(model)
    with pytest.raises(UnsupportedModelError, match=r"MultiheadAttention.*zero_values"):
        adapter.run_with(model, {"src": torch.randn(1, 3, 8)}, Intervention(zero_values=[[0]]))
    assert adapter.run_with(model, {"src": torch.randn(1, 3, 8)}, UNIFORM).shape == (1, 3, 8)


def test_wrong_positions_are_refused() -> None:
    model = build("GPT-2")
    with pytest.raises(InputError, match="count from 0"):
        Intervention(hide_keys=[[-1]])
    with pytest.raises(InputError, match=r"\[1, 2\] examples"):
        Intervention(hide_keys=[[1]], zero_values=[[1], [2]])
    with pytest.raises(InputError, match="position 99; there are 8 keys"):
        logits(model, words(), Intervention(hide_keys=[[99]]))
    with pytest.raises(InputError, match="2 examples and the batch has 1"):
        logits(model, words(), Intervention(zero_values=[[1], [2]]))
    assert attnflow.capture(model, words()).layers == (1, 2)
