"""Gradients of the score: captured, carried, and what rollout and flow make of them."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import attnflow
from attnflow import AttentionTrace, Flow, GradientRollout
from attnflow.errors import CaptureError, InputError, MethodError, ModelError, WeightsError
from attnflow.hosts.adapter import Batch, Scores
from attnflow.hosts.capture import capture
from attnflow.hosts.hooked import TorchAdapter
from attnflow.hosts.load import load
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.transformers import attention as recording
from attnflow.testing import check_method, random_attention, random_trace, tiny_encoder
from families import FAMILIES, Family, words

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ALSO = ("gradients",)
TEXT = "the author talked to sara about [MASK] book"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()


def named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def with_head(name: str) -> tuple[Any, dict[str, Tensor]]:
    """A tiny model that answers something for prepared inputs, without a tokenizer."""
    classifiers = {"BERT": "Bert", "RoBERTa": "Roberta", "DeBERTa-v2/v3": "DebertaV2"}
    family = named(name)
    if name in classifiers:
        head = f"{classifiers[name]}ForSequenceClassification"
        family = Family(name, family.kind, head, family.config, {**family.options, "num_labels": 3})
    return family.build(), family.inputs()


def eager_twin(model: Any) -> Any:
    twin = type(model)._from_config(model.config, attn_implementation="eager")
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def score(logits: Tensor) -> Tensor:
    """The answer's log-probability: of a class, or of the next word at the last position."""
    row = logits[0] if logits.ndim == 2 else logits[0, -1]
    return row.log_softmax(dim=-1)[row.argmax()]


# -- capture ------------------------------------------------------------------------------------

HEADS = ["BERT", "RoBERTa", "DistilBERT", "DeBERTa-v2/v3", "GPT-2", "Llama", "Mistral", "Qwen3"]


@pytest.mark.parametrize("name", [*HEADS, "gpt-oss", "ViT"])
def test_gradients_equal_autograd_on_the_hosts_eager_attention(name: str) -> None:
    model, inputs = with_head(name)
    trace = capture(model, inputs, record=ALSO)
    outputs = eager_twin(model)(**inputs, output_attentions=True)
    expected = torch.autograd.grad(score(outputs.logits), outputs.attentions)
    stacked = np.stack([layer[0].numpy() for layer in expected])
    assert trace.gradients is not None
    assert trace.gradients.shape == trace.weights.shape
    assert abs(stacked).max() > 1e-4, "too flat for this test to tell anything"
    assert np.allclose(trace.gradients, stacked, rtol=1e-4, atol=1e-5 * abs(stacked).max())


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_gradients_of_the_three_attentions_of_an_encoder_decoder(name: str) -> None:
    model, inputs = with_head(name)
    trace = capture(model, inputs, record=ALSO)
    outputs = eager_twin(model)(**inputs, output_attentions=True)
    n = trace.encoder_length
    assert n is not None
    for stage, attentions, rows, columns in (
        ("encoder", outputs.encoder_attentions, slice(None), slice(None)),
        ("decoder", outputs.decoder_attentions, slice(None), slice(None)),
        ("cross", outputs.cross_attentions, slice(n, None), slice(0, n)),
    ):
        expected = torch.autograd.grad(score(outputs.logits), attentions, retain_graph=True)
        found = trace.stage(stage).gradients
        assert found is not None
        stacked = np.stack([layer[0].numpy() for layer in expected])
        scale = abs(stacked).max()
        assert np.allclose(found[:, :, rows, columns], stacked, rtol=1e-4, atol=1e-5 * scale)
    cross = trace.stage("cross").gradients
    assert cross is not None
    assert (cross[:, :, :n] == 0).all()
    assert (cross[:, :, :, n:] == 0).all()


def test_gradients_of_the_embedded_model_equal_finite_differences() -> None:
    """Nudge one weight after the softmax and see how far the score moves."""
    model, vocabulary = load()
    text = "the key to the cabinets"
    trace = capture((model, vocabulary), text, methods=[GradientRollout(score="logit")])
    assert trace.gradients is not None
    double: Any = copy.deepcopy(model).double()
    ids = torch.tensor([vocabulary.encode(text)[0]])
    nudge = 1e-5
    for layer, head, query, key in ((0, 3, 0, 2), (1, 7, 5, 5), (4, 0, 0, 6), (5, 2, 0, 1)):

        def moved(
            module: nn.Module, given: tuple[Tensor], output: Tensor, at: Any = (head, query, key)
        ) -> Tensor:
            changed = output.clone()
            changed[0, *at] += nudge
            return changed

        with torch.no_grad():
            before = double(ids).logits[0]
            handle = double.blocks[layer].attention.dropout.register_forward_hook(moved)
            after = double(ids).logits[0]
            handle.remove()
        slope = float((after - before)[before.argmax()]) / nudge
        assert trace.gradients[layer, head, query, key] == pytest.approx(slope, rel=1e-2, abs=1e-5)


def test_gradients_do_not_depend_on_how_many_queries_are_taken_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = with_head("Llama")
    whole = capture(model, inputs, record=ALSO).gradients
    monkeypatch.setattr(recording, "_ROWS_OF_WEIGHTS", 3 * 8 * 4)
    parts = capture(model, inputs, record=ALSO).gradients
    assert whole is not None
    assert parts is not None
    assert np.allclose(parts, whole, rtol=0, atol=1e-5 * abs(whole).max())


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_padding_changes_no_gradient(family: str) -> None:
    model, tokenizer = tiny_encoder(family, head="SequenceClassification")
    texts = ["the key", "the author talked to sara about his book", "unlocked cabinets are"]
    together = capture((model, tokenizer), texts, record=ALSO)
    for text, trace in zip(texts, together, strict=True):
        alone = capture((model, tokenizer), text, record=ALSO)
        assert trace.gradients is not None
        assert alone.gradients is not None
        assert trace.gradients.shape == alone.gradients.shape
        scale = abs(alone.gradients).max()
        assert np.allclose(trace.gradients, alone.gradients, rtol=0, atol=1e-4 * scale)


def test_the_model_is_given_back_as_it_was() -> None:
    model, tokenizer = tiny_encoder("bert")
    parameters = list(model.parameters())
    for parameter in parameters[::2]:
        parameter.requires_grad_(False)
    flags = [parameter.requires_grad for parameter in parameters]
    frozen = capture((model, tokenizer), TEXT, record=ALSO)
    assert [parameter.requires_grad for parameter in parameters] == flags
    assert all(parameter.grad is None for parameter in parameters)
    with torch.no_grad():  # also where somebody switched gradients off
        again = capture((model.requires_grad_(False), tokenizer), TEXT, record=ALSO)
    assert np.array_equal(frozen.gradients, again.gradients)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="needs its tokenizer and a mask in the text"):
        capture((model, tokenizer), "the key", record=ALSO)
    assert not any(parameter.requires_grad for parameter in parameters)


def test_gradients_of_another_choice() -> None:
    model, inputs = with_head("BERT")
    answer = capture(model, inputs, record=ALSO)
    found = {k: capture(model, inputs, record=ALSO, answer=k) for k in range(3)}
    said = [found[k].provenance["gradients_of"] for k in range(3)]
    assert said == ["LABEL_0", "LABEL_1", "LABEL_2"]
    best = said.index(answer.provenance["gradients_of"])
    assert answer.prediction is not None
    assert answer.prediction.label == said[best]
    assert np.array_equal(answer.gradients, found[best].gradients)  # type: ignore[arg-type]
    assert not np.allclose(found[0].gradients, found[1].gradients)  # type: ignore[arg-type]
    both = {name: torch.cat([value, value]) for name, value in inputs.items()}
    each = capture(model, [both], record=ALSO, answer=[1, 2])
    for trace, k in zip(each, (1, 2), strict=True):
        expected = found[k].gradients
        assert expected is not None
        assert np.allclose(trace.gradients, expected, atol=1e-4 * abs(expected).max())  # type: ignore[arg-type]
    by_explain = attnflow.explain(model, inputs, "gradient-rollout", targets="all", answer=2)
    assert np.allclose(by_explain.values, GradientRollout()(found[2]).values)


def test_what_cannot_be_asked_for_is_said() -> None:
    model, inputs = with_head("BERT")
    for options, said in (
        (
            {"record": ("gradient",)},
            "nothing called 'gradient' to capture. Did you mean 'gradients'",
        ),
        ({"record": ALSO, "heads": "mean"}, "belongs to one head, so heads='mean' cannot be mixed"),
        ({"answer": 1}, "answer=1 chooses what gradients are taken of; ask for them with record="),
        ({"record": ALSO, "answer": 3}, "answer=3: the answer is one of 3 choices, 0 to 2"),
        ({"record": ALSO, "answer": -1}, "answer=-1: the answer is one of 3 choices"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            capture(model, inputs, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"answer=\[0, 1\] names 2 choices for 1 examples"):
        capture(model, [inputs], record=ALSO, answer=[0, 1])
    headless = named("RoBERTa").build()
    with pytest.raises(ModelError, match=r"RobertaModel gives none for this input\. Load the"):
        capture(headless, words(), record=ALSO)


# -- other hosts --------------------------------------------------------------------------------


class Classifier(nn.Module):
    """Two layers of torch's own encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x)[:, 0])
        return logits


class ClassifierAdapter(TorchAdapter):
    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        return [Scores(row, 0, lambda ids: [f"class {k}" for k in ids]) for row in outputs]


def test_gradients_of_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same model with its attention written out by hand."""
    torch.manual_seed(0)
    model = Classifier().eval()
    x = torch.randn(1, 5, 16)
    with pytest.raises(ModelError, match="Classifier gives none for this input"):
        capture(model, {"x": x}, record=ALSO)
    monkeypatch.setattr("attnflow.hosts.model.adapter_for", lambda _: ClassifierAdapter())
    trace = capture(model, {"x": x}, methods=[GradientRollout(score="logit")])
    used: list[Tensor] = []
    state = x
    for layer in model.encoder.layers:
        attention: Any = layer.self_attn
        query, key, value = nn.functional.linear(
            state, attention.in_proj_weight, attention.in_proj_bias
        ).chunk(3, dim=-1)
        split = [part.view(1, 5, 2, 8).transpose(1, 2) for part in (query, key, value)]
        weights = (split[0] @ split[1].transpose(-1, -2) / 8**0.5).softmax(-1)
        used.append(weights)
        mixed = attention.out_proj((weights @ split[2]).transpose(1, 2).reshape(1, 5, 16))
        encoder: Any = layer
        state = encoder.norm1(state + mixed)
        state = encoder.norm2(state + encoder.linear2(encoder.linear1(state).relu()))
    expected = torch.autograd.grad(model.head(state[:, 0])[0].max(), used)
    stacked = np.stack([layer[0].numpy() for layer in expected])
    assert np.allclose(trace.gradients, stacked, rtol=0, atol=1e-5)  # type: ignore[arg-type]


class CopyingAdapter(ClassifierAdapter):
    def run(self, model: nn.Module, inputs: Any, recorder: Recorder) -> Any:
        outputs = super().run(model, inputs, recorder)
        shown = [torch.from_numpy(layer.weights.copy()) for layer in recorder.layers]
        recorder.layers.clear()
        for weights in shown:
            recorder.add(weights.requires_grad_())
        return outputs


def test_weights_outside_the_graph_have_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnflow.hosts.model.adapter_for", lambda _: CopyingAdapter())
    with pytest.raises(CaptureError, match="weights that Classifier shows are not part of the gra"):
        capture(Classifier().eval(), {"x": torch.randn(1, 5, 16)}, record=ALSO)


# -- rollout ------------------------------------------------------------------------------------


def loops(matrix: Any) -> list[list[float]]:
    return [[float(x) for x in row] for row in matrix]


def product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [
        [sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
        for i in range(len(a))
    ]


def plus(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[x + y for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]


def weighted(weights: Any, gradients: Any) -> list[list[float]]:
    """Mean over heads of the positive part of weight times gradient, number by number."""
    heads, rows, columns = weights.shape
    return [
        [
            sum(max(float(weights[h, i, j]) * float(gradients[h, i, j]), 0) for h in range(heads))
            / heads
            for j in range(columns)
        ]
        for i in range(rows)
    ]


def identity(n: int) -> list[list[float]]:
    return [[float(i == j) for j in range(n)] for i in range(n)]


def normalized(relevance: list[list[float]]) -> list[list[float]]:
    result = []
    for i, row in enumerate(relevance):
        gained = [x - (i == j) for j, x in enumerate(row)]
        total = sum(gained)
        result.append([(g / total if total > 0 else 0) + (i == j) for j, g in enumerate(gained)])
    return result


def test_the_self_rule_by_plain_loops() -> None:
    trace = random_trace(3, 2, 5, seed=5, record=ALSO)
    assert trace.gradients is not None
    relevance = identity(5)
    found = GradientRollout()(trace)
    for k in range(3):
        gained = product(weighted(trace.weights[k], trace.gradients[k]), relevance)
        relevance = plus(relevance, gained)
        assert np.allclose(found.values[k], relevance, rtol=0, atol=1e-12)
    upper = GradientRollout(start_layer=3)(trace)
    top = weighted(trace.weights[2], trace.gradients[2])
    assert np.allclose(upper.values[0], plus(identity(5), top), rtol=0, atol=1e-12)
    one = GradientRollout(heads=1)(trace, layers=1)
    alone = weighted(trace.weights[0, 1:], trace.gradients[0, 1:])
    assert np.allclose(one.values[0], plus(identity(5), alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_the_cross_rule_by_plain_loops(name: str) -> None:
    model, inputs = with_head(name)
    trace = capture(model, inputs, record=ALSO)
    n = trace.encoder_length
    assert n is not None
    stages = {stage: trace.stage(stage) for stage in ("encoder", "decoder", "cross")}
    bars = {
        stage: [
            weighted(w, g)
            for w, g in zip(part.weights, part.gradients, strict=True)  # type: ignore[arg-type]
        ]
        for stage, part in stages.items()
    }
    m = trace.length - n
    encoder, decoder = identity(n), identity(m)
    crossing = [[0.0] * n for _ in range(m)]
    for bar in bars["encoder"]:
        encoder = plus(encoder, product(bar, encoder))
    for own, cross in zip(bars["decoder"], bars["cross"], strict=True):
        decoder = plus(decoder, product(own, decoder))
        crossing = plus(crossing, product(own, crossing))
        seen = [row[:n] for row in cross[n:]]
        turned = [list(column) for column in zip(*normalized(decoder), strict=True)]
        crossing = plus(crossing, product(product(turned, seen), normalized(encoder)))
    values = GradientRollout()(trace, layers=-1).values[0]
    assert np.allclose(values[:n, :n], encoder, rtol=1e-6, atol=1e-9)
    assert np.allclose(values[n:, n:], decoder, rtol=1e-6, atol=1e-9)
    assert np.allclose(values[n:, :n], crossing, rtol=1e-6, atol=1e-9)
    assert np.array(crossing).max() > 0
    assert (values[:n, n:] == 0).all()


@pytest.mark.parametrize(
    "method",
    [
        GradientRollout(),
        GradientRollout(heads="max", start_layer=2),
        Flow(capacities="gradients", residual=None),
        Flow(capacities="gradients", residual=0.1, start_layer=2, discard=0.3, normalized=True),
    ],
)
def test_the_promises_of_a_method(method: attnflow.Method) -> None:
    check_method(method)
    assert method.requires.heads is None


# -- flow ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("size", [1.0, 1e-9, 3e12])
def test_gradient_flow_equals_networkx_whatever_the_size_of_the_gradients(size: float) -> None:
    plain = random_trace(4, 2, 6, seed=8, record=ALSO)
    assert plain.gradients is not None
    trace = AttentionTrace.from_arrays(
        plain.weights, plain.tokens, gradients=plain.gradients * size
    )
    graph = Flow(capacities="gradients", residual=None).graph(trace)
    assert np.allclose(
        graph.capacities[1],
        weighted(plain.weights[1], plain.gradients[1] * size),
        rtol=1e-12,
        atol=0,
    )
    host = graph.to_networkx()
    flow = Flow(capacities="gradients", residual=None)(trace)
    assert flow.lower is not None
    assert flow.upper is not None
    scale = graph.capacities.sum(axis=2).max()
    assert (flow.lower <= flow.upper).all()
    assert (flow.upper - flow.lower).max() <= 1e-6 * scale
    for layer in (1, 2, 3, 4):
        for target, source in ((0, 5), (3, 3), (5, 1)):
            expected = nx.maximum_flow_value(host, graph.node(layer, target), source)
            found = flow.values[layer - 1, target, source]
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-9 * scale)
    cut = Flow(capacities="gradients", residual=None).minimum_cut(trace, target=0, source=5)
    assert cut.value == pytest.approx(flow.values[-1, 0, 5], rel=1e-6)
    rough = Flow(capacities="gradients", residual=None, tolerance=0.01)(trace)
    assert rough.lower is not None
    assert rough.upper is not None
    assert (rough.upper - rough.lower).max() <= 0.01 * scale
    assert Flow(capacities="gradients", residual=None).estimate(trace) > 0


def test_gradient_flow_is_saturated_only_where_the_source_holds_it_back() -> None:
    trace = random_trace(6, 2, 6, seed=1, record=ALSO)
    graph = Flow(capacities="gradients", residual=None).graph(trace)
    flow = Flow(capacities="gradients", residual=None)(trace)
    received = graph.capacities[0].sum(axis=0)
    full = flow.values >= received * (1 - 1e-9)
    assert flow.saturated is not None
    assert np.array_equal(flow.saturated, full)
    assert flow.saturated.any()
    sent = graph.capacities.sum(axis=2)
    assert ((flow.values >= sent[:, :, None] * (1 - 1e-9)) & ~full).any()


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
def test_no_gradient_no_flow() -> None:
    weights = random_attention(2, 1, 3, seed=0)
    trace = AttentionTrace.from_arrays(weights, list("abc"), gradients=-np.ones_like(weights))
    assert (Flow(capacities="gradients", residual=None)(trace).values == 0).all()
    assert np.array_equal(GradientRollout()(trace).values, [np.eye(3)] * 2)


# -- the trace that carries them ----------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_trace_with_gradients_is_saved_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    trace = random_trace(2, 3, 4, seed=2, record=("gradients", "alti", "residual-share"))
    trace.save(tmp_path / f"trace{suffix}")
    again = AttentionTrace.load(tmp_path / f"trace{suffix}")
    assert np.array_equal(again.gradients, trace.gradients)  # type: ignore[arg-type]
    assert set(again.measured) == {"alti", "residual-share"}
    for name, array in trace.measured.items():
        assert np.array_equal(again.measured[name], array)
        assert again.measured[name].dtype == array.dtype
    result = GradientRollout(heads=2)(again)
    result.save(tmp_path / f"result{suffix}")
    loaded = attnflow.Attribution.load(tmp_path / f"result{suffix}")
    assert loaded.method == GradientRollout(heads=2)
    assert np.array_equal(loaded.values, result.values)


def test_gradients_and_measurements_are_checked() -> None:
    weights = random_attention(2, 3, 4, seed=0)
    for options, said in (
        ({"gradients": np.ones((2, 4, 4))}, "one for each weight: shape (2, 3, 4, 4)"),
        ({"gradients": np.full((2, 3, 4, 4), np.nan)}, "gradients must be finite"),
        ({"measured": {"alti": np.ones((2, 3, 4))}}, "measured['alti'] must be finite, not neg"),
        ({"measured": {"own": -np.ones((2, 4))}}, "of shape (2, 4, 4) (layers, n, n) or (2, 4)"),
    ):
        with pytest.raises(WeightsError, match=re.escape(said)):
            AttentionTrace.from_arrays(weights, list("abcd"), **options)  # type: ignore[arg-type]
    trace = random_trace(2, 3, 4, record=("gradients", "alti"))
    for array in (trace.gradients, trace.measured["alti"]):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError):
        trace.measured["alti"] = trace.weights  # type: ignore[index]


def test_a_trace_without_gradients_says_how_to_capture_them() -> None:
    for method in (GradientRollout(), Flow(capacities="gradients", residual=None)):
        with pytest.raises(MethodError) as caught:
            method(random_trace())
        assert "needs 'gradients', and this trace carries nothing beside its" in str(caught.value)
        call = "attnflow.capture(model, text, record=('gradients',))"
        assert call in str(caught.value)
    with pytest.raises(MethodError, match="carries alti beside its weights"):
        GradientRollout()(random_trace(record=("alti",)))
