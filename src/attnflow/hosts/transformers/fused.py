"""Attention by the fused kernels that torch would take, and what is made with it.

A fused kernel sums every row's exponentials anyway, and hands the sums on for its backward pass.
Taking them costs nothing, while computing them again costs half an attention (`attend`).

The gradient of each row's own answer needs the keys and values of *other* positions held constant,
but not a query's own. Its own come back as terms that are zero in value and right in gradient
(`own_terms`), so that the rest is left to whatever computes attention: a fused kernel over a whole
text (`constant_others`) or over the latest rows of one, or a model file's own eager function
(`row_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnflow.kernels.blocks import Band, Factors
from attnflow.kernels.layer import Products, products_of, way_for

_FLASH, _CUDNN = 1, 3  # numbers of torch's own choice among its fused kernels


Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Attended:
    """The output of one attention, (heads, n, value width), and the way back through it.

    sums: (heads, n) in float32, each row's log-sum-exp. back: the gradients of queries, keys and
    values, each of its own shape, from factors with values and the gradient of the output.
    """

    output: Tensor
    sums: Tensor
    back: Callable[[Factors, Tensor], Gradients]


class _Attention(torch.autograd.Function):
    """Attention that a block which is computed again on the way back need not compute again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attended: Attended,
        build: Callable[..., Factors],
        report: Report | None,
    ) -> Tensor:
        output = attended.output.to(query.device, non_blocking=True)
        # the output too: a block that is computed again finds it where it was put
        ctx.save_for_backward(query, key, value, output)
        ctx.back, ctx.sums, ctx.build, ctx.report = attended.back, attended.sums, build, report
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output = (part.detach() for part in ctx.saved_tensors)
        layer = ctx.build(query, key, value=value, gradient=gradients[0])
        if ctx.report is not None:
            ctx.report(layer, ctx.sums)
        return *ctx.back(layer, output), None, None, None


Report = Callable[[Factors, Tensor], None]
"""`report(layer, sums)`: told of a layer, its values and its output's gradient on the way back."""


def attend(
    layer: Factors,
    value: Tensor,
    *,
    attended: Attended | None = None,
    secant: bool = False,
    report: Report | None = None,
) -> tuple[Tensor, Attended]:
    """Return `(heads, n, value width)`, through which gradients run, and what it was made of.

    layer: queries and keys of one example. attended: what the same layer gave before, which is not
    computed again. secant: the slope of a soft cap is that of balanced gradients.
    """
    if attended is None:
        with torch.no_grad():
            attended = _run(layer, value, secant)
    options: dict[str, Any] = {"scale": layer.scale, "band": layer.band, "softcap": layer.softcap}
    build = partial(Factors, **options, sink=layer.sink)
    output: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        layer.query, layer.key, value, attended, build, report
    )
    return output, attended


def _run(layer: Factors, value: Tensor, secant: bool) -> Attended:
    """Attend by the fused kernel that torch would take; by blocks of ours where it has none."""
    query, key, values = layer.query[None], layer.key[None], value[None]
    causal, device = layer.band.after == 0, query.device.type
    choice = None
    if layer.softcap is None and layer.sink is None and layer.band in (Band.causal(), Band()):
        choose: Any = torch._fused_sdp_choice
        options: dict[str, Any] = {"scale": layer.scale, "enable_gqa": layer.groups > 1}
        choice = int(choose(query, key, values, None, 0.0, causal, **options))
    rest: Any
    if device == "cpu" and choice == _FLASH:
        key, values = (_spread(x, layer) for x in (key, values))
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, values, 0.0, causal, scale=layer.scale
        )
        back = partial(_back_on_cpu, sums)
    elif device == "cuda" and choice == _FLASH:
        output, sums, *rest, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, values, 0.0, causal, False, scale=layer.scale
        )
        back = partial(_back_by_flash, sums, rest)
    elif device == "cuda" and choice == _CUDNN:
        output, sums, *rest, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, values, None, True, 0.0, causal, False, scale=layer.scale
        )
        back = partial(_back_by_cudnn, sums, rest)
    else:
        exact = query.dtype == torch.float64  # for which there are no kernels
        products = products_of("blocks" if exact else way_for(query.device))
        output, sums = products.attend(layer, value)
        return Attended(output, sums, partial(_back_by_blocks, products, sums, secant))
    return Attended(output[0], sums.float().reshape(layer.heads, -1)[:, : layer.length], back)


def _spread(shared: Tensor, layer: Factors) -> Tensor:
    """Keys or values for each query head."""
    return shared.repeat_interleave(layer.groups, dim=1)


def _back_by_blocks(
    products: Products, sums: Tensor, secant: bool, layer: Factors, output: Tensor
) -> Gradients:
    gradients = products.attend_back(layer, sums, output, secant=secant)
    parts = zip(gradients, (layer.query, layer.key, layer.gradient_factors()[0]), strict=True)
    query, key, value = (gradient.to(part.dtype) for gradient, part in parts)
    return query, key, value


def _operands(layer: Factors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value, gradient = layer.gradient_factors()
    return gradient[None], layer.query[None], layer.key[None], value[None]


def _back_on_cpu(sums: Tensor, layer: Factors, output: Tensor) -> Gradients:
    gradient, query, key, value = _operands(layer)
    key, value = (_spread(x, layer) for x in (key, value))
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output[None], sums, 0.0, layer.band.after == 0,
        scale=layer.scale,
    )  # fmt: skip
    of_query, *shared = (part[0] for part in gradients)
    shape = (len(layer.key), layer.groups, layer.length, -1)
    of_key, of_value = (part.reshape(shape).sum(dim=1) for part in shared)
    return of_query, of_key, of_value


def _back_by_flash(sums: Tensor, rest: Any, layer: Factors, output: Tensor) -> Gradients:
    *lengths, seed, offset = rest
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *_operands(layer), output[None], sums, *lengths, 0.0, layer.band.after == 0, seed, offset,
        scale=layer.scale,
    )  # fmt: skip
    return gradients[0][0], gradients[1][0], gradients[2][0]


def _back_by_cudnn(sums: Tensor, rest: Any, layer: Factors, output: Tensor) -> Gradients:
    *lengths, seed, offset = rest
    gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *_operands(layer), output[None], sums, seed, offset, None, *lengths, 0.0,
        layer.band.after == 0, scale=layer.scale,
    )  # fmt: skip
    return gradients[0][0], gradients[1][0], gradients[2][0]


def visible_keys(band: Band, queries: Tensor, keys: Tensor) -> Tensor:
    """Return True (queries, keys) where a query at one place sees a key at another."""
    distance = keys[None] - queries[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if band.before is not None:
        visible &= distance >= -band.before
    if band.after is not None:
        visible &= distance <= band.after
    return visible


def own_terms(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    output: Tensor,
    weight: Tensor,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Return what lets the gradient run through each query's own key and value; its value is zero.

    A change δ of the score on the diagonal moves the output by `P_ii (v_i - o_i) δ`, and a change
    of the own value moves it by `P_ii (v_i - v̄_i)`; a bar means detached. A soft cap c·tanh(s/c)
    passes the share 1 - tanh²(s/c) of δ on. A learned sink is in P already.

    query, key, value, output: (..., heads, rows, width), key and value those of the queries' own
    positions. weight: (..., heads, rows), the diagonal of P. The result is in float32.
    """
    change = (query.detach() * (key - key.detach())).sum(dim=-1).float() * scaling
    if softcap is not None:
        score = (query.detach().float() * key.detach().float()).sum(dim=-1) * scaling
        change = change * (1 - torch.tanh(score / softcap) ** 2)
    shift = (value.detach() - output.detach()).float() * change[..., None]
    return weight[..., None] * (shift + (value - value.detach()).float())


def constant_others(
    layer: Factors, value: Tensor, *, attended: Attended | None, report: Report | None
) -> tuple[Tensor, Attended]:
    """Attend over a whole text with other positions as constants; `attend` says what it returns."""
    constant = replace(layer, key=layer.key.detach())
    output, attended = attend(constant, value.detach(), attended=attended, report=report)
    plain = replace(constant, query=layer.query.detach())
    keys, values = (x.repeat_interleave(layer.groups, dim=0) for x in (layer.key, value))
    scores = (plain.query.float() * keys.detach().float()).sum(dim=-1) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    terms = own_terms(
        layer.query,
        keys,
        values,
        output=output,
        weight=(scores - attended.sums).exp(),
        scaling=layer.scale,
        softcap=layer.softcap,
    )
    return output + terms.to(output.dtype), attended
