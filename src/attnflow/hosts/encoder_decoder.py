"""An encoder–decoder as one layered graph.

Three attentions alternate: the encoder over its inputs, the decoder over its own tokens, and the
decoder over the encoder's output. Put both sides' positions into one row, encoder first, and each
sub-layer becomes an ordinary square layer over all of them: the positions it works on attend as
recorded, all others only to themselves. The residual `(1 - r) W + r I` then does the right thing
at every sub-layer: an idle position stays the identity, and a decoder position that looks at the
encoder keeps the share r of itself. Rollout and flow need to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import CaptureError
from attnflow.tokens import Tokens

__all__ = ["Composed", "compose", "join_tokens"]

Weights = NDArray[np.floating[Any]]


class Composed(NamedTuple):
    """Square layers over encoder and decoder positions, and which attention each one is."""

    weights: Weights
    stages: tuple[str, ...]


def compose(
    layers: Sequence[tuple[str, Weights]], encoder: int, decoder: int, *, idle: float = 1.0
) -> Composed:
    """Layers as (stage, (heads, queries, keys)) in the order they ran, to one square stack.

    `idle` is what a position that a sub-layer does not touch gives to itself: all of its attention,
    but 0 where the arrays are gradients, since nothing there can change the score.
    """
    heads = {weights.shape[0] for _, weights in layers}
    if len(heads) != 1:
        raise CaptureError(
            f"Encoder and decoder have different numbers of heads ({sorted(heads)}), so they "
            "cannot be kept apart in one graph; capture with heads='mean'."
        )
    places = {
        "encoder": (slice(0, encoder), slice(0, encoder)),
        "decoder": (slice(encoder, None), slice(encoder, None)),
        "cross": (slice(encoder, None), slice(0, encoder)),
    }
    identity = idle * np.eye(encoder + decoder, dtype=layers[0][1].dtype)
    stack = np.broadcast_to(identity, (len(layers), heads.pop(), *identity.shape)).copy()
    for square, (stage, weights) in zip(stack, layers, strict=True):
        rows, columns = places[stage]
        square[:, rows] = 0
        square[:, rows, columns] = weights
    return Composed(stack, tuple(stage for stage, _ in layers))


def join_tokens(encoder: Tokens, decoder: Tokens) -> Tokens:
    """Both sides in one row; words keep apart."""
    words = None
    if encoder.words is not None and decoder.words is not None:
        shift = max((w for w in encoder.words if w is not None), default=-1) + 1
        words = (*encoder.words, *(None if w is None else w + shift for w in decoder.words))
    return Tokens((*encoder.texts, *decoder.texts), words=words)
