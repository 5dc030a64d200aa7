"""The three products as plain loops over numbers: slow, obvious, and what the others must equal."""

from __future__ import annotations

from math import exp, tanh

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnflow.kernels.blocks import Factors

Array = NDArray[np.float64]


def weights_of(layer: Factors) -> Array:
    """`(heads, n, n)`: the weights themselves, one number after the other."""
    query, key = _array(layer.query), _array(layer.key)
    weights = np.zeros((layer.heads, layer.length, layer.length))
    for head in range(layer.heads):
        for i in range(layer.length):
            total = 0.0 if layer.sink is None else exp(float(layer.sink[head]))
            for j in range(layer.length):
                if _visible(layer, i, j):
                    score = layer.scale * float(query[head, i] @ key[head // layer.groups, j])
                    if layer.softcap is not None:
                        score = layer.softcap * tanh(score / layer.softcap)
                    weights[head, i, j] = exp(score)
                    total += weights[head, i, j]
            weights[head, i] /= total or 1.0
    return weights


def rows_down(layer: Factors, vectors: Array, shares: Array) -> Array:
    """`(targets, n)`: vectors times the weighted mean of the heads' attention."""
    weights = weights_of(layer)
    product = np.zeros_like(vectors)
    for head, share in enumerate(shares):
        for i in range(layer.length):
            for j in range(layer.length):
                product[:, j] += vectors[:, i] * share * weights[head, i, j]
    return product


def spans_up(layer: Factors, spans: Array, shares: Array) -> Array:
    """`(n, spans)`: the weighted mean of the heads' attention times the spans."""
    weights = weights_of(layer)
    product = np.zeros_like(spans)
    for head, share in enumerate(shares):
        for i in range(layer.length):
            for j in range(layer.length):
                product[i] += share * weights[head, i, j] * spans[j]
    return product


def gradient_rows_down(layer: Factors, vectors: Array, shares: Array) -> Array:
    """`(targets, n)`: vectors times what each weight adds to the score, where it raises it."""
    weights = weights_of(layer)
    value, gradient = (_array(part) for part in layer.gradient_factors())
    product = np.zeros_like(vectors)
    for head, share in enumerate(shares):
        for i in range(layer.length):
            for j in range(layer.length):
                change = float(gradient[head, i] @ value[head // layer.groups, j])
                raised = max(weights[head, i, j] * change, 0.0)
                product[:, j] += vectors[:, i] * share * raised
    return product


def _visible(layer: Factors, i: int, j: int) -> bool:
    if layer.hidden is not None and bool(layer.hidden[j]):
        return False
    if layer.band.before is not None and j < i - layer.band.before:
        return False
    return layer.band.after is None or j <= i + layer.band.after


def _array(tensor: Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()
