"""Products without the matrix: every way against plain loops, and plain loops against eager."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import plain_loops as loops
from attnflow.errors import InputError
from attnflow.kernels import blocks
from attnflow.kernels.blocks import Band, Factors
from attnflow.kernels.layer import WAYS, FactoredLayer, products_of, way_for
from attnflow.trace.factored_trace import LayerMix

PRODUCTS = ("rows_down", "spans_up", "gradient_rows_down")


def factors(
    heads: int = 4, key_heads: int = 2, length: int = 37, width: int = 8, **options: Any
) -> Factors:
    noise = torch.Generator().manual_seed(0)
    query, gradient = torch.randn(2, heads, length, width, generator=noise) * 2
    key, value = torch.randn(2, key_heads, length, width, generator=noise)
    options.setdefault("band", Band.causal())
    return Factors(query, key, width**-0.5, value=value, gradient=gradient, **options)


def padding(length: int = 37) -> Tensor:
    hidden = torch.zeros(length, dtype=torch.bool)
    hidden[:5] = hidden[20] = True
    return hidden


CASES = {
    "grouped": factors(),
    "one key head for each": factors(key_heads=4),
    "three heads a group": factors(heads=6),
    "window": factors(band=Band.causal(5)),
    "bidirectional": factors(band=Band()),
    "local": factors(band=Band(3, 3)),
    "soft cap": factors(softcap=3.0),
    "sink": factors(sink=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "padding": factors(hidden=padding()),
    "padding and window": factors(hidden=padding(), band=Band.causal(4)),
    "several tiles": factors(heads=2, key_heads=1, length=130, width=16),
    "window over tiles": factors(2, 1, 100, 16, band=Band.causal(70)),
    "uneven band": factors(2, 1, 100, 16, band=Band(40, 20)),
}

# Triton's interpreter takes seconds for a case, so it is asked for several things at once.
INTERPRETED = {
    "window, soft cap and sink": factors(
        band=Band.causal(5), softcap=3.0, sink=torch.tensor([0.5, -1.0, 2.0, 0.0])
    ),
    "one key head for each, both ways, padding": factors(
        key_heads=4, band=Band(), hidden=padding()
    ),
    "three heads a group, local": factors(heads=6, band=Band(3, 3)),
    # Three tiles of 32 positions, the last one begun: some are seen whole, some in part, some not.
    "several tiles": factors(heads=2, key_heads=1, length=70, width=16),
    "uneven band": factors(2, 1, 70, 16, band=Band(20, 10)),
}


def vectors_for(product: str, layer: Factors) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(1)
    shape = (layer.length, 5) if product == "spans_up" else (3, layer.length)
    shares = torch.rand(layer.heads, generator=noise)
    shares[-1] = 0.0  # a head that does not count
    return torch.rand(shape, generator=noise), shares / shares.sum()


def expected(product: str, layer: Factors, vectors: Tensor, shares: Tensor) -> Any:
    return getattr(loops, product)(layer, vectors.double().numpy(), shares.double().numpy())


def eager_scores(
    layer: Factors, query: Tensor, key: Tensor, secant: bool = False
) -> tuple[Tensor, Tensor]:
    """A score matrix that is written down here again, with a sink's column, and who sees whom."""
    keys = key.repeat_interleave(layer.groups, dim=0)
    scores = query @ keys.transpose(1, 2) * layer.scale
    if layer.softcap:
        x = scores / layer.softcap
        bent = x * (torch.tanh(x) / x).detach() if secant else torch.tanh(x)
        scores = layer.softcap * bent
    i, j = torch.meshgrid(*[torch.arange(layer.length)] * 2, indexing="ij")
    allowed = torch.ones_like(i, dtype=torch.bool)
    if layer.band.after is not None:
        allowed &= j <= i + layer.band.after
    if layer.band.before is not None:
        allowed &= j >= i - layer.band.before
    if layer.hidden is not None:
        allowed &= ~layer.hidden[None]
    scores = scores.masked_fill(~allowed, -1e300)
    if layer.sink is not None:
        column = layer.sink.double()[:, None, None].expand(-1, layer.length, 1)
        scores = torch.cat([scores, column], dim=-1)
    return scores, allowed


def eager_weights(layer: Factors, query: Tensor, key: Tensor, secant: bool = False) -> Tensor:
    scores, allowed = eager_scores(layer, query, key, secant)
    return scores.softmax(dim=-1)[..., : layer.length] * allowed


def sums_of(layer: Factors) -> Tensor:
    """The log-sum-exp of each row; 0 for one that sees nothing."""
    sums = eager_scores(layer, layer.query.double(), layer.key.double())[0].logsumexp(dim=-1)
    return sums.masked_fill(sums < -1e200, 0.0).float()


def attention_by_autograd(layer: Factors, secant: bool) -> list[Tensor]:
    """The output of attention and the gradients of queries, keys and values, in float64."""
    leaves = [part.double().requires_grad_() for part in (layer.query, layer.key, layer.value)]
    value = leaves[2].repeat_interleave(layer.groups, dim=0)
    output = eager_weights(layer, *leaves[:2], secant) @ value
    return [output.detach(), *torch.autograd.grad(output, leaves, layer.gradient.double())]


def attention_of(products: Any, layer: Factors, secant: bool, **options: Any) -> list[Tensor]:
    output, sums = products.attend(layer, layer.value, **options)
    np.testing.assert_allclose(sums, sums_of(layer), atol=1e-5)
    return [output, *products.attend_back(layer, sums, output, secant=secant, **options)]


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest, as a share of the largest value of each."""
    pairs = zip(found, expected, strict=True)
    return max(float((ours - true).abs().max() / true.abs().max()) for ours, true in pairs)


@pytest.mark.parametrize("name", CASES)
def test_plain_loops_are_eager_attention(name: str) -> None:
    layer = CASES[name]
    weights = eager_weights(layer, layer.query.double(), layer.key.double())
    np.testing.assert_allclose(loops.weights_of(layer), weights.numpy(), atol=1e-7)


@pytest.mark.parametrize("secant", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_attention_in_blocks_goes_back_as_autograd(
    name: str, secant: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(blocks, "_ROWS", 16)
    monkeypatch.setattr(blocks, "_NUMBERS", 2000)
    expected = attention_by_autograd(CASES[name], secant)
    assert difference(attention_of(blocks, CASES[name], secant), expected) < 3e-6


FAULTS = {
    "the output's part is left": (".sub_(through[:, rows, None])", ""),
    "values take the gradient twice": ("value_gradient[:, columns] +=", "value_gradient +="),
    "queries without a scale": ("return query_gradient.mul_(layer.scale)", "return query_gradient"),
    "keys without a scale": ("key_gradient.mul_(layer.scale)", "key_gradient"),
    "a cap without its slope": ("scores.mul_(_slopes(", "scores.add_(0 * _slopes("),
    "a secant for a derivative": ("    if secant:\n", "    if not secant:\n"),
    "a sink that is not summed": ("if layer.sink is not None:  # it", "if False:  # it"),
    "a sum that is not carried": ("output[:, rows] *=", "output[:, rows] *= 0 *"),
    "heads of a group mixed up": ("turned @ rows.reshape", "turned @ rows.flip(0).reshape"),
    "a window too wide": ("distance < -band.before", "distance < -band.before - 1"),
    "a look ahead": ("distance > band.after", "distance > band.after + 1"),
    "the gradient of other rows": ("upper = gradient[", "upper = gradient.roll(1, 1)["),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_way_back_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above would fail: it can tell each of these from what is right."""
    source = Path(blocks.__file__).read_text(encoding="utf-8")
    before, after = FAULTS[fault]
    assert source.count(before) >= 1
    broken = types.ModuleType("broken")
    monkeypatch.setitem(sys.modules, "broken", broken)  # its dataclasses look themselves up there
    exec(compile(source.replace(before, after), "broken", "exec"), broken.__dict__)
    broken._ROWS, broken._NUMBERS = 16, 2000  # type: ignore[attr-defined]
    worst = 0.0
    for name in ("grouped", "window", "soft cap", "sink", "several tiles"):
        expected = attention_by_autograd(CASES[name], secant=False)
        try:
            worst = max(worst, difference(attention_of(broken, CASES[name], False), expected))
        except (AssertionError, RuntimeError):
            worst = 1.0
    assert worst > 1e-3


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", CASES)
def test_blocks_equal_plain_loops(name: str, product: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(blocks, "_ROWS", 16)
    monkeypatch.setattr(blocks, "_NUMBERS", 2000)
    layer = CASES[name]
    vectors, shares = vectors_for(product, layer)
    ours = getattr(blocks, product)(layer, sums_of(layer), vectors, shares)
    np.testing.assert_allclose(ours, expected(product, layer, vectors, shares), atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_single_rows_and_columns_equal_plain_loops(name: str) -> None:
    layer = CASES[name]
    weights = loops.weights_of(layer)
    rows = torch.tensor([0, 7, layer.length - 1])
    ours = blocks.weight_rows(layer, sums_of(layer)[:, rows], rows)
    np.testing.assert_allclose(ours, weights[:, rows], atol=1e-6)
    shares = torch.full((layer.heads,), 1 / layer.heads)
    columns = blocks.weight_columns(layer, sums_of(layer), rows, shares)
    np.testing.assert_allclose(columns, weights.mean(axis=0)[:, rows], atol=1e-6)


@pytest.mark.parametrize("drop", [(), (0,), (0, 9, 36)])
@pytest.mark.parametrize("name", ["grouped", "window", "sink", "padding", "bidirectional"])
def test_a_layers_matrix_with_residual_and_dropped_columns(name: str, drop: Any) -> None:
    """Against the matrix as `Mixing` forms it, from the weights of the plain loops."""
    layer, heads = CASES[name], (0.4, 0.3, 0.2, 0.1)
    mixed = np.einsum("h,hij->ij", heads, loops.weights_of(layer))
    matrix = mixed.copy()
    matrix[:, list(drop)] = 0.0
    for position in drop:
        matrix[position, position] = mixed[position, position]
    for i, (row, mass) in enumerate(zip(matrix, mixed.sum(axis=1), strict=True)):
        if row.sum() > 0:
            row *= mass / row.sum()
        elif mass > 0:
            row[i] = mass
    matrix = 0.75 * matrix + 0.25 * np.eye(layer.length)
    ours = FactoredLayer(layer)
    mix = LayerMix(heads, residual=0.25, drop=drop)
    down = ours.array(ours.times(ours.unit_rows(range(layer.length)), mix))
    np.testing.assert_allclose(down, matrix, atol=1e-5)
    np.testing.assert_allclose(ours.spans(torch.eye(layer.length), mix), matrix, atol=1e-5)


def test_what_is_left_beside_a_sink_keeps_its_digits() -> None:
    """The first position takes all but a millionth: subtraction from 1 would lose the rest."""
    layer = factors(heads=1, key_heads=1, length=12)
    key, query = layer.key.clone(), layer.query.clone()
    query[..., 0], key[..., 0], key[:, 0, 0] = 1.0, 0.0, 45.0
    layer = Factors(query, key, layer.scale)
    weights = loops.weights_of(layer)[0]
    assert weights[1:, 0].min() > 1 - 1e-4
    rest = weights.copy()
    rest[1:, 0] = 0.0
    rest /= rest.sum(axis=1, keepdims=True)
    ours = FactoredLayer(layer)
    down = ours.array(ours.times(ours.unit_rows(range(12)), LayerMix((1.0,), drop=(0,))))
    np.testing.assert_allclose(down, rest, atol=1e-4)


def test_the_dispatch_says_what_it_chose() -> None:
    assert way_for(torch.device("cpu")) == "blocks"
    assert FactoredLayer(factors()).way == WAYS["blocks"]
    with pytest.raises(InputError, match="'triton', 'blocks'"):
        products_of("cuda")  # type: ignore[arg-type]


def test_factors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="a multiple of key heads; got"):
        Factors(torch.zeros(3, 4, 8), torch.zeros(2, 4, 8), 1.0)
    with pytest.raises(InputError, match="also need the values"):
        Factors(torch.zeros(2, 4, 8), torch.zeros(2, 4, 8), 1.0).gradient_factors()


def test_triton_kernels_equal_plain_loops_in_the_interpreter() -> None:
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("triton_cases.py")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert run.stdout.count("equal") == len(INTERPRETED) * (1 + 2 * len(PRODUCTS))
