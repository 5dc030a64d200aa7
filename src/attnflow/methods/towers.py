"""Two towers in one trace: how what falls on image tokens is carried on to the patches.

A trace of a vision-language model holds the layers of the vision tower, one layer for the
connector, and the layers of the language model, over all positions of both. At the connector an
image token hands all it has to the patches that feed it: there is no residual, because the token
is made of nothing else. Products of layers (rollout, flow, gradient rollout) need to know only
that. A method that reads single layers of the language model would leave its mass on the image
tokens; it is carried on here.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.methods.mixing import distributions
from attnflow.trace import AttentionTrace

VISION: Final = "vision"
CONNECTOR: Final = "connector"
LANGUAGE: Final = "language"
TowerRule = Literal["connector", "rollout", "gradients"]
_RESIDUAL = 0.5

Matrix = NDArray[np.float64]


def connector_index(trace: AttentionTrace) -> int | None:
    """Return the index of the connector among the layers; None for a trace of one tower."""
    if trace.stages is None or CONNECTOR not in trace.stages:
        return None
    return trace.stages.index(CONNECTOR)


def language_layers(trace: AttentionTrace) -> list[int]:
    """Return the indices of the language model's layers; all of a trace of one tower."""
    if connector_index(trace) is None or trace.stages is None:
        return list(range(len(trace.layers)))
    return [k for k, stage in enumerate(trace.stages) if stage == LANGUAGE]


def image_sources(trace: AttentionTrace) -> list[int] | None:
    """Return the positions that can be sources, patches and words; None for one tower: all."""
    index = connector_index(trace)
    if index is None:
        return None
    own = trace.weights[index].mean(axis=0).diagonal()
    return [k for k in range(trace.length) if own[k] > 0]


def carried(
    values: Matrix, trace: AttentionTrace, rule: TowerRule, contributions: Matrix | None = None
) -> Matrix:
    """Hand what falls on image tokens of the language model on to vision positions, `(..., n)`.

    rule: "connector" stops at the output of the vision tower, so that each token stands for the
    patches at its place; "rollout" goes on through the tower's rollout; "gradients" through the
    rollout of `contributions`, gradient-weighted attention of every layer, rows scaled to 1. Sums
    stay what they are.
    """
    index = connector_index(trace)
    if index is None:
        return values
    vectors = values @ _mixed(trace, index)
    if rule == "connector":
        return vectors
    for layer in range(index - 1, -1, -1):
        if rule == "rollout" or contributions is None:
            matrix = _mixed(trace, layer)
        else:
            matrix = distributions(contributions[layer], np.arange(trace.length))
        vectors = _RESIDUAL * vectors + (1 - _RESIDUAL) * (vectors @ matrix)
    return vectors


def _mixed(trace: AttentionTrace, index: int) -> Matrix:
    return trace.weights[index].mean(axis=0, dtype=np.float64)
