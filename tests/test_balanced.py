"""A backward pass that hands on fair shares: each rule alone, and whole models."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

import attnflow
from attnflow import BalancedGradient, GradientAttention, capture
from attnflow.errors import MatrixError, MethodError, UnsupportedModelError
from attnflow.hosts.balanced import BalancedRules, balanced
from attnflow.hosts.restore import undone
from attnflow.hosts.scores import InputLeaves
from attnflow.testing import tiny_decoder, tiny_encoder, tiny_vision_model

SHAPE = (3, 4)


def leaves(count: int, shape: tuple[int, ...] = SHAPE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    numbers = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return [x.clone().requires_grad_() for x in numbers]


def shares(
    function: Callable[..., Tensor], *inputs: Tensor, upper: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The output under the rules, and input × gradient of each input."""
    with BalancedRules() as rules:
        output = function(*inputs)
    assert not rules.uncovered
    upper = torch.ones_like(output) if upper is None else upper
    gradients = torch.autograd.grad(output, inputs, upper, allow_unused=True)
    return output.detach(), [
        torch.zeros_like(x) if g is None else (x * g).detach()
        for x, g in zip(inputs, gradients, strict=True)
    ]


def shapley(function: Callable[..., Tensor], first: Tensor, second: Tensor) -> list[Tensor]:
    """What each of two inputs adds to the output, over both orders, against zeros."""
    zero = torch.zeros_like
    with torch.no_grad():
        both, none = function(first, second), function(zero(first), zero(second))
        left, right = function(first, zero(second)), function(zero(first), second)
    return [(both - right + left - none) / 2, (both - left + right - none) / 2]


UNARY = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu of tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "relu in place": lambda x: functional.relu(x * 1, inplace=True),
    "leaky relu": functional.leaky_relu,
    "elu": functional.elu,
    "mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "exp": torch.exp,
    "square": lambda x: x**2,
    "cube": lambda x: x.pow(3),
    "itself times itself": lambda x: x * x,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "module": nn.Hardswish(),
    "method": lambda x: x.tanh(),
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_number_hands_all_of_its_rise_to_its_input(name: str) -> None:
    function, (x,) = UNARY[name], leaves(1)
    output, (share,) = shares(function, x)
    with torch.no_grad():
        rise = function(x) - function(torch.zeros_like(x))
    torch.testing.assert_close(output, function(x.detach()), rtol=0, atol=0)
    torch.testing.assert_close(share, rise)


def test_at_zero_the_slope_is_that_of_the_function() -> None:
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    with BalancedRules():
        output = torch.sigmoid(x) + functional.silu(x)
    (slope,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(slope, torch.full_like(x, 0.75), rtol=1e-6, atol=1e-6)


PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mul": lambda a, b: a * b,
    "torch.mul": torch.mul,
    "mul in place": lambda a, b: (a * 1).mul_(b),
    "gate": lambda a, b: functional.silu(a) * b,
    "addcmul": lambda a, b: torch.addcmul(torch.ones_like(a), a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_gives_each_factor_its_shapley_value(name: str) -> None:
    function, (a, b) = PRODUCTS[name], leaves(2)
    output, got = shares(function, a, b)
    torch.testing.assert_close(output, function(a.detach(), b.detach()), rtol=0, atol=0)
    for share, expected in zip(got, shapley(function, a, b), strict=True):
        torch.testing.assert_close(share, expected)


MATRICES: dict[str, Callable[..., Tensor]] = {
    "matmul": lambda a, b: a @ b.T,
    "linear": functional.linear,
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "bmm": lambda a, b: torch.bmm(a[None], b.T[None]),
    "addmm": lambda a, b: torch.addmm(torch.ones(3, 3, dtype=a.dtype), a, b.T),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_product_of_matrices_is_halved(name: str) -> None:
    function, (a, b) = MATRICES[name], leaves(2)
    got = shares(function, a, b)[1]
    for share, expected in zip(got, shapley(function, a, b), strict=True):
        torch.testing.assert_close(share.sum(), expected.sum())


def test_what_a_rule_gave_may_be_changed_in_place() -> None:
    a, b = leaves(2)
    output, got = shares(lambda x, y: functional.silu(x).add_(functional.layer_norm(y, (4,))), a, b)
    torch.testing.assert_close(got[0], functional.silu(a.detach()))
    torch.testing.assert_close(output - got[0], functional.layer_norm(b.detach(), (4,)))


def test_three_factors_have_a_third_each() -> None:
    a, b, c = leaves(3)
    output, got = shares(lambda *x: torch.einsum("ij,ij,ij->ij", *x), a, b, c)
    for share in got:
        torch.testing.assert_close(share, output / 3)


def test_sums_and_linear_maps_keep_their_gradient() -> None:
    a, b = leaves(2)
    weight = nn.Parameter(torch.randn(5, 4, dtype=torch.float64))
    got = shares(lambda x, y: torch.cat([x, y]) @ weight.T + 2 * weight[:, 0], a, b)[1]
    expected = torch.stack([a @ weight.T, b @ weight.T]).sum()
    torch.testing.assert_close(got[0].sum() + got[1].sum(), expected.detach())
    assert weight.grad is None
    assert weight.requires_grad


def test_a_parameter_that_was_computed_with_is_still_a_constant() -> None:
    """As in Gemma: x · (1 + w) is no product of two computed tensors."""
    (x,) = leaves(1)
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    output, (share,) = shares(lambda t: t * (1.0 + weight), x)
    torch.testing.assert_close(share, output)


def test_the_statistics_of_normalisers_are_constants() -> None:
    (x,) = leaves(1)
    weight = torch.randn(4, dtype=torch.float64)

    def by_hand(t: Tensor) -> Tensor:
        return weight * (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6))

    def fused(t: Tensor) -> Tensor:
        return functional.rms_norm(t, (4,), weight, 1e-6)

    outputs, all_shares = zip(*(shares(f, x) for f in (by_hand, fused)), strict=True)
    for output, (share,) in zip(outputs, all_shares, strict=True):
        torch.testing.assert_close(share, output)

    def centred(t: Tensor) -> Tensor:
        variance = (t - t.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True)
        return (t - t.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-5)

    upper = torch.randn(SHAPE, dtype=torch.float64)
    layer = shares(lambda t: functional.layer_norm(t, (4,), None, None, 1e-5), x, upper=upper)
    for function in (centred, lambda t: functional.group_norm(t, 1)):
        other = shares(function, x, upper=upper)
        torch.testing.assert_close(other[0], layer[0])
        torch.testing.assert_close(other[1], layer[1])


def test_fused_attention_is_that_of_its_steps() -> None:
    query, key, value = leaves(3, (1, 2, 5, 4))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()

    def steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) * 0.5).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def by_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)

    expected = shares(steps, query, key, value)[1]
    for function in (fused, by_name):
        for share, right in zip(shares(function, query, key, value)[1], expected, strict=True):
            torch.testing.assert_close(share, right)
    torch.testing.assert_close(expected[2].sum(), steps(query, key, value).sum() / 2)


def test_the_steps_of_a_composite_function_are_seen() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64).eval()
    (x,) = leaves(1, (1, 3, 4))
    with BalancedRules():
        output = attention(x, x, x, need_weights=False)[0]
    (gradient,) = torch.autograd.grad(output.sum(), x)
    weight, bias = attention.in_proj_weight.detach(), attention.in_proj_bias.detach()

    def by_hand(t: Tensor) -> Tensor:
        parts = functional.linear(t, weight, bias).chunk(3, dim=-1)
        q, k, v = (part.view(1, 3, 2, 2).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 3, 4)
        return functional.linear(mixed, attention.out_proj.weight, attention.out_proj.bias)

    torch.testing.assert_close((x * gradient).detach(), shares(by_hand, x)[1][0])


def test_gated_units_share_between_value_and_gate() -> None:
    (x,) = leaves(1)
    output, (share,) = shares(functional.glu, x)
    straight, gate = x.detach().chunk(2, dim=-1)
    torch.testing.assert_close(output, functional.glu(x.detach()), rtol=0, atol=0)
    expected = output / 2
    of_gate = straight * (torch.sigmoid(gate) - 0.5) / 2
    torch.testing.assert_close(share, torch.cat([expected, of_gate], dim=-1))


@pytest.mark.parametrize("name", ["gelu_new", "quick_gelu", "gelu_fast", "silu", "relu2"])
def test_an_activation_that_is_written_out_is_one_function(name: str) -> None:
    activation, (x,) = ACT2FN[name], leaves(1)
    with undone() as changes, balanced(activation, changes):
        output = activation(x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(output.detach(), activation(x.detach()), rtol=0, atol=0)
    torch.testing.assert_close((x * gradient).detach(), output.detach())


def test_an_operation_without_a_rule_is_named_and_keeps_its_gradient() -> None:
    a, b = leaves(2)
    with BalancedRules() as rules:
        output = torch.atan2(a, b)
    assert rules.uncovered == {"torch.atan2"}
    got, expected = (
        torch.autograd.grad(one.sum(), a, retain_graph=True)[0]
        for one in (output, torch.atan2(a, b))
    )
    torch.testing.assert_close(got, expected)


def test_nothing_is_left_behind() -> None:
    (x,) = leaves(1)
    with pytest.raises(RuntimeError), BalancedRules():
        raise RuntimeError
    (plain,) = torch.autograd.grad((x * x).sum(), x)
    torch.testing.assert_close(plain, 2 * x.detach())


SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaConfig": {"num_key_value_heads": 2},
    "Gemma2Config": {"num_key_value_heads": 2, "head_dim": 8},
    "Gemma3TextConfig": {"num_key_value_heads": 2, "head_dim": 8},
    "Qwen3Config": {"num_key_value_heads": 2, "head_dim": 8},
    "GPT2Config": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "GPTNeoXConfig": {},
    "OPTConfig": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "BloomConfig": {"n_layer": 2, "n_head": 4},
    "PhiConfig": {},
    "FalconConfig": {},
    "MixtralConfig": {"num_key_value_heads": 2, "num_local_experts": 4},
    "GptOssConfig": {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4},
    "CohereConfig": {"num_key_value_heads": 2},
    "MambaConfig": {"state_size": 8},
    "BertConfig": {},
    "RobertaConfig": {"pad_token_id": 1},
    "DistilBertConfig": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "ElectraConfig": {"embedding_size": 16},
    "AlbertConfig": {"embedding_size": 16},
    "DebertaV2Config": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBertConfig": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "cls_token_id": 1,
                         "sep_token_id": 1},
}  # fmt: skip


def build(name: str, **sizes: Any) -> nn.Module:
    config = getattr(transformers, name)(**{**SIZES, **FAMILIES[name], **sizes})
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM
    if type(config) not in auto._model_mapping or "Bert" in name or "berta" in name:
        auto = transformers.AutoModelForSequenceClassification
    if name in ("ElectraConfig", "AlbertConfig"):
        auto = transformers.AutoModelForSequenceClassification
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.15)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_the_forward_pass_of_a_model_is_the_same_to_the_last_bit(name: str) -> None:
    model = build(name)
    ids = torch.randint(2, 61, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    kept: list[Tensor] = []

    def cut(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1].clone()

    with undone() as changes:
        changes.hook(model.get_input_embeddings().register_forward_hook, cut)
        with balanced(model, changes) as rules:
            logits = model(input_ids=ids).logits
    assert torch.equal(logits, expected)
    assert not rules.uncovered
    (gradient,) = torch.autograd.grad(logits.flatten()[-1], kept[0])
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


# -- the method ----------------------------------------------------------------------------------

TEXT = "the keys to the cabinets are"


def by_autograd(model: nn.Module, ids: Tensor, choice: int) -> tuple[Tensor, Tensor, Tensor]:
    """R of every token and, for each layer, the mean over heads of relu(A ⊙ ∂y/∂A), of relu(∂y/∂S).

    The weights are those the model itself returns, and the gradients are autograd's, through the
    softmax too.
    """
    leaves = InputLeaves()
    with undone() as changes:
        changes.hook(model.get_input_embeddings().register_forward_hook, leaves)
        with balanced(model, changes):
            outputs = model(input_ids=ids, output_attentions=True)
    logits = outputs.logits[0, -1] if outputs.logits.ndim == 3 else outputs.logits[0]
    score = logits.log_softmax(-1)[choice]
    weights = outputs.attentions
    gradients = torch.autograd.grad(score, [*leaves.leaves, *weights])
    pairs = list(zip(weights, gradients[1:], strict=True))
    raised = [(a * g).relu().mean(dim=1)[0] for a, g in pairs]
    scores = [gradient_of_scores(a.detach(), g).relu().mean(dim=1)[0] for a, g in pairs]
    inputs = leaves.relevance(gradients[:1])[0][0].detach()
    return inputs, torch.stack(raised).detach(), torch.stack(scores)


def gradient_of_scores(weights: Tensor, gradient: Tensor) -> Tensor:
    """The softmax of the weights' logarithms are the weights."""
    scores = weights.log().requires_grad_()
    return torch.autograd.grad(scores.softmax(dim=-1), scores, gradient)[0].nan_to_num()


def shares_of(values: Tensor) -> Tensor:
    return values / values.abs().sum()


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("form", ["weights", "factors"])
def test_its_readings_are_those_of_autograd(kind: str, form: str) -> None:
    model = tiny_decoder() if kind == "decoder" else tiny_encoder(head="SequenceClassification")
    model.module.set_attn_implementation("eager")
    method = BalancedGradient(drop_sink=False)
    trace = capture(model, TEXT, methods=[method], form=form)
    row = trace.prediction.position
    found = method(trace, targets=row, layers=-1).values[0, 0]
    ids = model.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model.module(input_ids=ids).logits
    choice = int((logits[0, -1] if logits.ndim == 3 else logits[0]).argmax())
    inputs, raised, scores = by_autograd(model.module, ids, choice)
    expected = {
        "rows": shares_of(scores.sum(0)[row]),
        "keys": shares_of(raised.sum((0, 1))),
        "inputs": shares_of(inputs),
    }
    half = (expected["rows"] + expected["inputs"]) / 2
    torch.testing.assert_close(torch.tensor(found).float(), half, rtol=1e-4, atol=1e-6)
    for name, values in expected.items():
        only = BalancedGradient(readings=name, drop_sink=False)(trace, targets=row, layers=-1)
        found = torch.tensor(only.values[0, 0]).float()
        torch.testing.assert_close(found, values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["weights", "factors"])
def test_inputs_are_read_again_behind_the_first_tenth_of_the_blocks(form: str) -> None:
    model, ids = build("LlamaConfig", num_hidden_layers=6), torch.arange(3, 15)[None]
    method = BalancedGradient(readings="inputs", drop_sink=False)
    trace = capture(model, {"input_ids": ids}, methods=[method], form=form)
    found = torch.tensor(method(trace, targets=-1, layers=-1).values[0, 0]).float()
    streams: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        streams.append(output.detach().requires_grad_() if not streams else output)
        return streams[-1].clone()

    with undone() as changes:
        changes.hook(model.get_input_embeddings().register_forward_hook, keep)
        changes.hook(model.model.layers[0].register_forward_hook, keep)
        with balanced(model, changes):
            logits = model(input_ids=ids).logits[0, -1]
    gradients = torch.autograd.grad(logits.log_softmax(-1).max(), streams)
    parts = [(x * g).sum(-1)[0].detach() for x, g in zip(streams, gradients, strict=True)]
    expected = shares_of(sum(shares_of(part) for part in parts))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert (found - shares_of(parts[0])).abs().max() > 1e-3  # the second stream counts


def compute_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a text that is too long, and in another thread, as a device goes back."""
    grad = torch.autograd.grad

    def elsewhere(*args: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(grad, *args).result()

    monkeypatch.setattr("attnflow.hosts.factored._exceeds", lambda *_: True)
    monkeypatch.setattr(torch.autograd, "grad", elsewhere)


@pytest.mark.parametrize("method", [BalancedGradient(), attnflow.GradientRollout()])
@pytest.mark.parametrize("name", ["LlamaConfig", "GPT2Config"])
def test_blocks_that_are_computed_again_give_the_same(
    name: str, method: attnflow.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = build(name), torch.arange(3, 15)[None]

    def read() -> Any:
        trace = capture(model, {"input_ids": ids}, methods=[method], form="factors")
        return method(trace, targets=-1).values

    kept = read()
    compute_blocks_again(monkeypatch)
    assert read() == pytest.approx(kept, abs=1e-7)


WINDOW: dict[str, Any] = {"num_hidden_layers": 3, "sliding_window": 5}
CAPPED = {**WINDOW, "attn_logit_softcapping": 1.0}  # scores of up to 2 are bent


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(("LlamaConfig", {}), ("GPT2Config", {}), ("Gemma2Config", CAPPED)),
        *(("Gemma3TextConfig", WINDOW), ("GptOssConfig", WINDOW)),
    ],
)
def test_a_long_text_reads_what_all_weights_give(
    name: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without factors, without weights: soft caps, windows and sinks against eager attention."""
    model, ids = build(name, **sizes), {"input_ids": torch.arange(3, 20)[None]}
    method = BalancedGradient(readings="rows+keys+inputs", drop_sink=False)
    weights = capture(model, ids, methods=[method], form="weights")
    short = capture(model, ids, methods=[method], form="factors")
    compute_blocks_again(monkeypatch)
    trace = capture(model, ids, methods=[method])
    for readings in ("rows", "keys", "inputs"):
        only = BalancedGradient(readings=readings, drop_sink=False)
        expected = only(weights, targets=-1).values
        assert np.abs(expected).max() > 0.05
        for found in (only(trace, targets=-1), only(short, targets=-1)):
            assert found.values == pytest.approx(expected, abs=1e-5)
    with pytest.raises(MatrixError, match="without rows of other positions than"):
        method(trace, targets=3)
    with pytest.raises(MatrixError, match="without its queries and keys"):
        attnflow.Rollout()(trace, targets=-1)
    only = capture(model, ids, methods=[BalancedGradient()])
    with pytest.raises(MatrixError, match="without the sums over all rows"):
        method(only, targets=-1)


def test_what_blocks_keep_may_wait_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build("LlamaConfig"), {"input_ids": torch.arange(3, 20)[None]}
    moved: list[Tensor] = []

    def wait(numbers: Tensor) -> Tensor:
        moved.append(numbers)
        return numbers.clone()

    method = BalancedGradient(readings="rows+keys+inputs")
    expected = method(capture(model, ids, methods=[method]), targets=-1).values
    options = {"computes_again": True, "rows": (), "keys": True, "on_host": True}
    monkeypatch.setattr("attnflow.hosts.factored._long_text", lambda *_: options)
    monkeypatch.setattr("attnflow.hosts.transformers.factors.aside", wait)
    found = method(capture(model, ids, methods=[method]), targets=-1).values
    assert found == pytest.approx(expected, abs=1e-6)
    assert len(moved) == 2  # what the attention of each block gave


def test_statements_of_an_answer_share_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = tiny_decoder(), []
    options: dict[str, Any] = {"completion": "old and the keys are", "check": False}
    model.module.register_forward_hook(lambda *_: passes.append(1))
    alone = [
        attnflow.generate(model, TEXT, "balanced", targets=[slice(k, k + 2)], **options).values[
            :, 0
        ]
        for k in (0, 3)
    ]
    for _ in range(2):
        passes.clear()
        both = attnflow.generate(
            model, TEXT, "balanced", targets=[slice(0, 2), slice(3, 5)], **options
        )
        assert len(passes) == 1
        assert both.values.transpose(1, 0, 2) == pytest.approx(np.stack(alone), abs=1e-6)
        compute_blocks_again(monkeypatch)


def test_rows_of_every_token_at_once_are_those_of_single_passes() -> None:
    model = tiny_decoder()
    rows = attnflow.explain(model, TEXT, GradientAttention(balanced=True), targets="all")
    words = TEXT.split()
    for length in range(3, len(words)):
        part = attnflow.capture(
            model,
            " ".join(words[:length]),
            methods=[BalancedGradient()],
            answer=words[length],
            form="weights",
        )
        expected = part.measured["balanced"][:, -1].sum(axis=0)
        expected = expected / expected.sum()
        found = rows.values[-1, length - 1, :length] + 0
        found[0] += rows.elsewhere[-1, length - 1] if rows.elsewhere is not None else 0
        assert found / found.sum() == pytest.approx(expected, abs=1e-5)


def test_other_rows_stand_beside_the_answers() -> None:
    model = tiny_decoder()
    one = attnflow.explain(model, TEXT, "balanced")
    every = attnflow.explain(model, TEXT, "balanced", targets="all")
    assert one.values.shape[1:] == (1, 6)
    assert every.values.shape[1:] == (6, 6)
    assert every.values[:, -1] == pytest.approx(one.values[:, 0], abs=1e-7)
    assert every.method == one.method


def test_several_tokens_are_explained_by_one_pass() -> None:
    model = tiny_decoder()
    result = attnflow.generate(model, TEXT, "balanced", completion="old and", targets="answer")
    assert result.values.shape[1:] == (1, 6)
    total = abs(result.values[-1]).sum() + abs(result.elsewhere[-1]).sum()
    assert 0.3 < total <= 1 + 1e-6


def test_texts_together_are_texts_alone() -> None:
    model = tiny_encoder(head="SequenceClassification")
    texts = [TEXT, "the author is old", "keys"]
    method = BalancedGradient(readings="keys+inputs")
    for trace, text in zip(capture(model, texts, methods=[method]), texts, strict=True):
        alone = attnflow.explain(model, text, method)
        row = trace.prediction.position
        together = method(trace, targets=row).values
        assert together == pytest.approx(alone.values, abs=1e-5)


def test_an_encoder_decoder_is_explained() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = torch.randint(2, 61, (1, 7))
    inputs = {"input_ids": ids, "decoder_input_ids": torch.tensor([[0, 5, 9]])}
    result = attnflow.explain(model, inputs, "balanced")
    assert result.values.shape[1:] == (1, 10)
    assert abs(result.values[-1, 0, :7]).sum() > 0.1


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(MethodError, match="'sideways'"):
        BalancedGradient(readings="sideways")
    module, processor = tiny_vision_model()
    model = attnflow.load(module, processor=processor)
    image = torch.rand(3, 32, 32).numpy().transpose(1, 2, 0)
    with pytest.raises(UnsupportedModelError, match="ViTForImageClassification"):
        attnflow.explain(model, image, "balanced")


def test_plain_and_balanced_gradients_of_one_capture_are_those_of_two() -> None:
    model = tiny_encoder(head="SequenceClassification")
    plain, fair = GradientAttention(), BalancedGradient()
    both = capture(model, TEXT, methods=[plain, fair])
    for method in (plain, fair):
        row = both.prediction.position
        alone = attnflow.explain(model, TEXT, method)
        assert method(both, targets=row).values == pytest.approx(alone.values, abs=1e-6)
