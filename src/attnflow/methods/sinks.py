"""Where a model parks attention that it does not need.

A head that finds nothing to do must put its weight somewhere, because a softmax sums to 1. Decoders
learn to put it on the start of the text, whatever stands there. Such a sink is no source: hiding it
breaks the model, and its words say nothing. It is found by measuring, never assumed to be the first
position: a text may begin with a start token, with padding, or with the word that matters.

There are two measures because two things are at hand. Gradient attention has the rows it explains
and no others, often one: a share of their weight decides (`find_sink`). A whole trace, also an
encoder's or an encoder–decoder's, has all rows; early positions are seen by more of them, so what a
position gets is held against what uniform attention would give it (`attention_sink`). One row
cannot be judged by the second, and in a text of three words the first would call a word a sink.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.trace import AttentionTrace

__all__ = ["attention_sink", "find_sink"]

_SHARE_OF_A_SINK = 0.3  # of all weight, over layers and heads; what a text says never draws so much
_FACTOR = 2.0  # a sink gets more than this many times what uniform attention would give it


def find_sink(weights: NDArray[np.floating[Any]]) -> int | None:
    """The position that takes most of the weight, if it takes so much that it must be a sink.

    weights: `(rows, n)`, the mean weight over all layers and heads of each row that is explained.

    So much is measured beyond what uniform attention gives it, since that is a lot in a short text:
    all of it where a row sees one position, which is then its only source and no sink.

    >>> find_sink(np.array([[0.7, 0.1, 0.2], [0.6, 0.2, 0.2]]))
    0
    >>> find_sink(np.array([[0.2, 0.3, 0.2, 0.3]])) is None
    True
    >>> find_sink(np.array([[0.4, 0.6]])) is None
    True
    """
    rows = np.asarray(weights, dtype=np.float64)
    mean = rows.mean(axis=0)
    position = int(mean.argmax())
    visible = rows > 0
    uniform = float((visible[:, position] / np.maximum(visible.sum(axis=1), 1)).mean())
    enough = uniform + (1 - uniform) * _SHARE_OF_A_SINK
    return position if mean[position] > enough else None


def attention_sink(trace: AttentionTrace) -> int | None:
    """The source that gets most attention from the other positions, over all layers and heads.

    It must get more than twice what it would if every position attended alike to all that it sees.
    Of an encoder–decoder only the encoder's positions are sources.

    >>> from attnflow import AttentionTrace
    >>> weights = [[[1.0, 0.0, 0.0], [0.1, 0.2, 0.7], [0.1, 0.0, 0.9]]]
    >>> attention_sink(AttentionTrace.from_arrays(weights, ["a", "b", "</s>"]))
    2
    """
    weights = trace.weights.mean(axis=1, dtype=np.float64)
    visible = weights > 0
    uniform = visible / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    others = ~np.eye(trace.length, dtype=bool)
    received, expected = ((x * others).sum(axis=(0, 1)) for x in (weights, uniform))
    sink = int(received[: trace.encoder_length].argmax())
    return sink if received[sink] > _FACTOR * expected[sink] else None
