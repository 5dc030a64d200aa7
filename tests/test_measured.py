"""Blocks taken apart and layers replayed: norms, residual shares, ALTI, value zeroing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import attnflow
from attnflow import Rollout
from attnflow.errors import CaptureError, MethodError, UnsupportedModelError
from attnflow.hosts import blocks
from attnflow.hosts import blocks as zeroing
from attnflow.hosts.blocks import BlockState
from attnflow.hosts.capture import capture
from attnflow.hosts.check import model_state
from attnflow.hosts.load import load
from attnflow.testing import check_method, random_trace, tiny_encoder
from attnflow.trace.extras import MEASURES
from families import FAMILIES, Family, words

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
POST_NORM = ("BERT", "RoBERTa", "ELECTRA", "DistilBERT")
PRE_NORM = ("GPT-2", "Llama", "Mistral", "Qwen2", "Qwen3", "ViT")
EVERYWHERE = ("norms", "norms-residual", "residual-share", "alti", "value-zeroing")
EMBEDDED = "the verb-number model"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def built(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Model, inputs, and what else capture needs."""
    if name == EMBEDDED:
        model, vocabulary = load()
        return model, "the key to the cabinets", {"tokenizer": vocabulary}
    model = family(name).build()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains that do something
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)
    return model, family(name).inputs(), {}


def run(model: Any, inputs: Any, options: dict[str, Any]) -> None:
    if options:
        inputs = {"input_ids": torch.tensor([options["tokenizer"].encode(inputs)[0]])}
    with torch.no_grad():
        model(**inputs)


# -- the parts of a block, found for the reference without attnflow's table ----------------------


class Layer:
    """One block of one family: where its value, projection and norms are."""

    def __init__(self, name: str, block: Any) -> None:
        self.block = block
        attention: Any
        if name in ("BERT", "RoBERTa", "ELECTRA"):
            attention = block.attention.self
            self.heads = attention.num_attention_heads
            self.value, self.projection = attention.value, block.attention.output.dense
            self.norms = (block.attention.output.LayerNorm, block.output.LayerNorm)
            self.next = block.attention.output.LayerNorm
        elif name == "DistilBERT":
            attention = block.attention
            self.heads = attention.n_heads
            self.value, self.projection = attention.v_lin, attention.out_lin
            self.norms = (block.sa_layer_norm, block.output_layer_norm)
            self.next = block.sa_layer_norm
        elif name in ("GPT-2", EMBEDDED):
            attention = block.attn if name == "GPT-2" else block.attention
            self.heads = attention.num_heads if name == "GPT-2" else attention.heads
            self.value = attention.c_attn if name == "GPT-2" else attention.query_key_value
            self.projection = attention.c_proj if name == "GPT-2" else attention.projection
            self.norms, self.next = (), block.ln_2 if name == "GPT-2" else block.mlp_norm
        else:
            attention = block.attention if name == "ViT" else block.self_attn
            self.heads = attention.config.num_attention_heads
            self.value, self.projection = attention.v_proj, attention.o_proj
            self.norms = ()
            self.next = block.layernorm_after if name == "ViT" else block.post_attention_layernorm
        self.fused = name in ("GPT-2", EMBEDDED)  # queries, keys and values in one projection


def layers_of(name: str, model: Any) -> list[Layer]:
    if name == EMBEDDED:
        return [Layer(name, block) for block in model.blocks]
    base = model.base_model
    for path in ("encoder.layer", "transformer.layer", "h", "layers"):
        found: Any = base
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return [Layer(name, block) for block in found]
    raise AssertionError(name)


def recorded(
    layers: list[Layer], what: Callable[[Layer], nn.Module], go: Callable[[], None]
) -> list[tuple[Tensor, Tensor]]:
    """Input and output of one module of every layer during a plain forward pass."""
    seen: list[tuple[Tensor, Tensor]] = []

    def hook(module: Any, given: Any, options: Any, output: Any) -> None:
        first = given[0] if given else options["hidden_states"]
        seen.append((first, output[0] if isinstance(output, tuple) else output))

    handles = [what(layer).register_forward_hook(hook, with_kwargs=True) for layer in layers]
    go()
    for handle in handles:
        handle.remove()
    return seen


# -- the decomposition ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "GPT-2", "Llama", "Qwen3", "ViT", EMBEDDED])
def test_the_vectors_sum_to_what_the_block_computes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Σ_j of the vectors, and the bias, is what the module after attention is really given."""
    model, inputs, options = built(name)
    parts: list[BlockState] = []
    measure_block = blocks.measure_block

    def kept(inside: BlockState, names: Any) -> Any:
        parts.append(inside)
        return measure_block(inside, names)

    monkeypatch.setattr(blocks, "measure_block", kept)
    capture(load(model, **options), inputs, record=("alti",))
    layers = layers_of(name, model)
    after = recorded(layers, lambda layer: layer.next, lambda: run(model, inputs, options))
    assert len(parts) == len(after) == len(layers)
    for inside, (given, output), layer in zip(parts, after, layers, strict=True):
        rows = torch.arange(len(inside.inputs))
        vectors = inside.add_residual(inside.attended(rows), rows)
        scale = float(given.abs().max())
        assert torch.allclose(vectors.sum(1) + inside.bias, given[0], atol=2e-5 * scale)
        if layer.norms:
            first = inside.norms[0]
            whole = first(torch.cat([vectors, inside.bias.expand(len(rows), 1, -1)], 1), rows)
            said = whole.sum(1) + layer.norms[0].bias
            assert torch.allclose(said, output[0], atol=1e-4)
        else:
            assert inside.norms == ()


def by_loops(
    x: Any, values: Any, weights: Any, projection: Any, bias: Any, norms: list[Any]
) -> dict[str, Any]:
    """Every measurement with one vector at a time. norms: (gamma, eps, input, output) each."""
    heads, n, width = values.shape
    found: dict[str, Any] = {
        name: np.zeros((n, n)) for name in MEASURES if name != "value-zeroing"
    } | {"residual-share": np.zeros(n)}
    for i in range(n):
        vectors = []
        for j in range(n):
            moved = np.zeros(x.shape[1])
            for h in range(heads):
                rows = projection[h * width : (h + 1) * width]
                moved = moved + weights[h, i, j] * (values[h, j] @ rows)
            found["norms"][i, j] = np.sqrt((moved**2).sum())
            vectors.append(moved + x[i] if i == j else moved)
            found["norms-residual"][i, j] = np.sqrt((vectors[j] ** 2).sum())
        output = sum(vectors) + bias
        for (gamma, eps, given, gave), kind in zip(norms, ("layernorm", "encoder"), strict=False):
            spread = np.sqrt(given[i].var() + eps)
            vectors = [(v - v.mean()) / spread * gamma for v in vectors]
            if kind == "layernorm":
                output = gave[i]
                found["alti"][i] = nearer(output, vectors)
            for j in range(n):
                found[f"norms-{kind}"][i, j] = np.sqrt((vectors[j] ** 2).sum())
        if not norms:
            found["alti"][i] = nearer(output, vectors)
        others = sum((v for j, v in enumerate(vectors) if j != i), np.zeros_like(x[i]))
        own = np.linalg.norm(vectors[i])
        found["residual-share"][i] = own / (own + np.linalg.norm(others))
    return found


def nearer(output: Any, vectors: list[Any]) -> list[float]:
    return [max(0.0, abs(output).sum() - abs(output - v).sum()) for v in vectors]


@pytest.mark.parametrize("name", [*POST_NORM, *PRE_NORM, EMBEDDED])
def test_every_measurement_by_plain_loops(name: str) -> None:
    model, inputs, options = built(name)
    names = tuple(n for n in MEASURES if n != "value-zeroing")
    if name not in POST_NORM:
        names = tuple(n for n in names if n in EVERYWHERE)
    trace = capture(load(model, **options), inputs, record=names)
    layers = layers_of(name, model)

    def go() -> None:
        run(model, inputs, options)

    whole = recorded(layers, lambda layer: layer.block, go)
    projected = recorded(layers, lambda layer: layer.value, go)
    normed: list[list[tuple[Tensor, Tensor]]] = []
    if name in POST_NORM:
        normed.append(recorded(layers, lambda layer: layer.norms[0], go))
        normed.append(recorded(layers, lambda layer: layer.norms[1], go))
    for k, layer in enumerate(layers):
        x = whole[k][0][0].double().numpy()
        row = projected[k][1][0].double().numpy()
        values = row[:, -x.shape[1] :] if layer.fused else row
        width = x.shape[1] // layer.heads
        own = values.reshape(len(x), -1, width).transpose(1, 0, 2)
        shared = np.stack([own[h * len(own) // layer.heads] for h in range(layer.heads)])
        matrix = layer.projection.weight.detach().double().numpy()
        bias = layer.projection.bias
        norms = [
            (
                norm.weight.detach().double().numpy(),
                norm.eps,
                *(t[0].double().numpy() for t in seen[k]),
            )
            for norm, seen in zip(layer.norms, normed, strict=True)
        ]
        expected = by_loops(
            x,
            shared,
            trace.weights[k],
            matrix if name == "GPT-2" else matrix.T,
            0 if bias is None else bias.detach().double().numpy(),
            norms,
        )
        for measure in names:
            scale = expected[measure].max()
            assert scale > 0
            found = trace.measured[measure][k]
            assert np.allclose(found, expected[measure], rtol=0, atol=1e-4 * scale), measure


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "Mistral", "ViT", EMBEDDED])
def test_value_zeroing_by_zeroing_a_value_in_the_whole_model(name: str) -> None:
    """A hook zeroes one row of the value projection; the layer's input has not changed yet."""
    model, inputs, options = built(name)
    trace = capture(load(model, **options), inputs, record=("value-zeroing",))
    layers = layers_of(name, model)

    def go() -> None:
        run(model, inputs, options)

    plain = [out[0].double() for _, out in recorded(layers, lambda layer: layer.block, go)]
    expected = np.zeros((len(layers), trace.length, trace.length))
    for k, layer in enumerate(layers):
        for j in range(trace.length):

            def zero(
                module: Any, given: Any, output: Tensor, at: int = j, fused: bool = layer.fused
            ) -> Tensor:
                changed = output.clone()
                changed[:, at, output.shape[-1] * 2 // 3 * fused :] = 0
                return changed

            handle = layer.value.register_forward_hook(zero)
            turned = recorded([layer], lambda layer: layer.block, go)[0][1][0].double()
            handle.remove()
            for i in range(trace.length):
                a, b = turned[i].numpy(), plain[k][i].numpy()
                expected[k, i, j] = 1 - a @ b / np.sqrt((a @ a) * (b @ b))
    assert expected.max() > 0.005, "too little happens for this test to tell anything"
    found = trace.measured["value-zeroing"]
    assert np.allclose(found, expected, rtol=0, atol=1e-4 * expected.max())


@pytest.mark.parametrize("name", ["ALBERT", "ModernBERT", "Gemma 2", "gpt-oss", "Qwen3-Next"])
def test_value_zeroing_needs_no_declaration(name: str) -> None:
    """Shared layers, local layers, sinks, and layers that do not attend at all."""
    model = family(name).build()
    trace = capture(model, family(name).inputs(), record=("value-zeroing",))
    distances = trace.measured["value-zeroing"]
    assert distances.shape == (len(trace.layers), trace.length, trace.length)
    unseen = trace.weights.max(axis=1) == 0
    assert distances[unseen].max(initial=0) < 1e-9
    assert (distances[~unseen] > 1e-9).mean() > 0.9


@pytest.mark.parametrize("name", ["bert", "distilbert", EMBEDDED])
def test_padding_changes_no_measurement(name: str) -> None:
    texts = ["the key", "the author talked to sara about his book", "the cabinets of sara"]
    names = EVERYWHERE
    if name == EMBEDDED:
        model, tokenizer = load()
    else:
        model, tokenizer = tiny_encoder(name)
        names = tuple(MEASURES)
    together = capture((model, tokenizer), texts, record=names, heads="mean")
    for text, trace in zip(texts, together, strict=True):
        alone = capture((model, tokenizer), text, record=names)
        assert set(trace.measured) == set(names)
        for measure in names:
            expected = alone.measured[measure]
            found = trace.measured[measure]
            assert found.shape == expected.shape
            assert np.allclose(found, expected, rtol=0, atol=1e-4 * expected.max()), measure


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral"])
def test_a_batch_of_decoders_equals_each_example_alone(name: str) -> None:
    model = family(name).build()
    ids = torch.tensor([[1, 5, 6, 7, 8, 9], [1, 11, 12, 13, 0, 0], [1, 9, 8, 7, 6, 0]])
    mask = (ids > 0).long()
    also = (*EVERYWHERE, "gradients")
    together = capture(model, [{"input_ids": ids, "attention_mask": mask}], record=also)
    for row, trace in zip(ids, together, strict=True):
        alone = capture(model, {"input_ids": row[row > 0][None]}, record=also)
        pairs = [(trace.measured[m], alone.measured[m]) for m in EVERYWHERE]
        for found, expected in [*pairs, (trace.gradients, alone.gradients)]:
            assert found is not None
            assert expected is not None
            assert np.allclose(found, expected, rtol=0, atol=1e-4 * abs(expected).max())


def test_how_much_is_done_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_encoder("bert")
    whole = capture((model, tokenizer), "the key of the cabinets", record=tuple(MEASURES))
    monkeypatch.setattr(blocks, "_NUMBERS_AT_ONCE", 3 * 32 * whole.length)
    monkeypatch.setattr(zeroing, "_WEIGHTS_AT_ONCE", 2 * whole.length**2)
    parts = capture((model, tokenizer), "the key of the cabinets", record=tuple(MEASURES))
    for name, expected in whole.measured.items():
        assert np.allclose(parts.measured[name], expected, rtol=0, atol=1e-5 * expected.max())


# -- what cannot be measured ---------------------------------------------------------------------

REFUSED: list[tuple[str, str, str]] = [
    ("Gemma 2", "alti", "Gemma2ForCausalLM (model type 'gemma2') cannot be taken apart"),
    ("Gemma 2", "residual-share", "Declared are bert, roberta, electra, distilbert, gpt2"),
    ("Gemma 2", "norms", "value zeroing (record=('value-zeroing',)) need no declaration"),
    ("GPT-2", "norms-layernorm", "GPT2LMHeadModel normalises before attention, not after it"),
    ("Llama", "norms-encoder", "Use 'norms-residual' (Rollout(matrices='norms')) or 'alti'"),
    ("T5", "value-zeroing", "T5ForConditionalGeneration is an encoder–decoder"),
    ("DeBERTa-v2/v3", "value-zeroing", "outside transformers' attention interface"),
    ("DeBERTa-v2/v3", "alti", "Gradients can be captured"),
]


@pytest.mark.parametrize(("name", "measure", "said"), REFUSED)
def test_what_cannot_be_measured_is_refused_by_name(name: str, measure: str, said: str) -> None:
    model = family(name).build()
    before = model_state(model)
    with pytest.raises((UnsupportedModelError, CaptureError), match=re.escape(said)):
        capture(model, family(name).inputs(), record=(measure,))
    assert model_state(model) == before


def test_other_hosts_say_what_they_do_not_measure() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    with pytest.raises(UnsupportedModelError, match=r"which does not measure 'alti'\. Rollout and"):
        capture(model, {"src": torch.randn(1, 3, 8)}, record=("alti",))


def test_a_layer_that_cannot_be_replayed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = family("BERT").build()
    layer = model.base_model.encoder.layer[0]
    original, calls = layer.forward, []

    def forgetful(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*args, **options) + len(calls)

    monkeypatch.setattr(layer, "forward", forgetful)
    with pytest.raises(CaptureError, match="BertLayer that runs again on the same input gives ano"):
        capture(model, words(), record=("value-zeroing",))


def test_the_model_is_given_back_as_it_was() -> None:
    for name in ("BERT", "GPT-2", EMBEDDED):
        model, inputs, options = built(name)
        before = model_state(model)
        plain = capture(load(model, **options), inputs)
        measured = capture(load(model, **options), inputs, record=(*EVERYWHERE, "alti"))
        assert model_state(model) == before
        assert np.array_equal(plain.weights, measured.weights)
        assert plain.measured == {}


# -- methods -------------------------------------------------------------------------------------


def rolled(matrices: Any) -> list[Any]:
    below, found = np.eye(matrices.shape[-1]), []
    for matrix in matrices:
        below = np.array(
            [
                [
                    sum(matrix[i, k] * below[k, j] for k in range(len(below)))
                    for j in range(len(below))
                ]
                for i in range(len(below))
            ]
        )
        found.append(below)
    return found


@pytest.mark.parametrize(
    ("method", "measure"),
    [
        (Rollout(matrices="norms"), "norms-residual"),
        (Rollout(matrices="norms-layernorm"), "norms-layernorm"),
        (Rollout(matrices="norms-encoder"), "norms-encoder"),
        (Rollout(matrices="alti"), "alti"),
        (Rollout(matrices="value-zeroing"), "value-zeroing"),
    ],
)
def test_rollout_of_a_measurement(method: attnflow.Method, measure: str) -> None:
    check_method(method)
    assert method.requires.record == (measure,)
    trace = random_trace(3, 2, 5, seed=4, record=(measure,))
    rows = trace.measured[measure] / trace.measured[measure].sum(axis=-1, keepdims=True)
    values = method(trace).values
    assert np.allclose(values, rolled(rows), rtol=0, atol=1e-12)
    assert np.allclose(values.sum(axis=-1), 1)
    later = type(method)(**{**method.to_dict()["options"], "start_layer": 2})(trace)
    assert np.allclose(later.values, rolled(rows[1:]), rtol=0, atol=1e-12)
    with pytest.raises(MethodError) as caught:
        method(random_trace())
    call = f"attnflow.capture(model, text, record=('{measure}',))"
    assert call in str(caught.value)


def test_a_position_that_nothing_reaches_stays_with_itself() -> None:
    trace = random_trace(1, 1, 3)
    measured = {"alti": np.array([[[0, 0, 0], [1, 3, 0], [0, 0, 2]]], dtype=float)}
    trace = attnflow.AttentionTrace.from_arrays(trace.weights, trace.tokens, measured=measured)
    expected = [[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]]
    assert np.array_equal(Rollout(matrices="alti")(trace).values[0], expected)


def test_rollout_with_the_measured_residual() -> None:
    trace = random_trace(3, 2, 5, seed=4, record=("residual-share",))
    share, mean = trace.measured["residual-share"], trace.weights.mean(axis=1)
    published, others = mean.copy(), mean.copy()
    for k in range(3):
        for i in range(5):
            for j in range(5):
                r = share[k, i]
                published[k, i, j] = (1 - r) * mean[k, i, j] + r * (i == j)
                rest = mean[k, i].sum() - mean[k, i, i]
                others[k, i, j] = r if i == j else (1 - r) * mean[k, i, j] / rest
    assert np.allclose(Rollout(matrices="measured-residual")(trace).values, rolled(published))
    assert np.allclose(Rollout(matrices="measured-residual-others")(trace).values, rolled(others))
    half = {"residual-share": np.full((3, 5), 0.5)}
    even = attnflow.AttentionTrace.from_arrays(trace.weights, trace.tokens, measured=half)
    assert np.allclose(Rollout(matrices="measured-residual")(even).values, Rollout()(even).values)
    for method in (
        Rollout(matrices="measured-residual"),
        Rollout(matrices="measured-residual-others", heads=1, start_layer=2),
    ):
        check_method(method)
    assert Rollout(matrices="measured-residual", heads=1).requires.heads == 1


def test_bad_options_are_named() -> None:
    with pytest.raises(MethodError, match=r"matrices=.*Did you mean 'norms-layernorm'"):
        Rollout(matrices="norms-layer-norm")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="heads='average'"):
        Rollout(matrices="measured-residual", heads="average")
    with pytest.raises(MethodError, match="'alti' has no option 'residual'"):
        attnflow.explain(None, "the key", "alti:residual=0.5")


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("method", ["measured-residual", "norm-rollout", "alti", "value-zeroing"])
def test_explain_captures_what_a_method_needs(method: str) -> None:
    result = attnflow.explain(None, "the key to the cabinets", method, targets="[CLS]")
    assert np.allclose(result.values.sum(axis=-1), 1, atol=1e-6)
    assert result.values.shape == (6, 1, 7)
