"""explain(): the one friendly function in front of the nouns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.errors import optional_import
from attnflow.methods import Method, make_method
from attnflow.tokens import Target

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["explain"]


def explain(
    model: nn.Module | str | os.PathLike[str] | None,
    text: str | Mapping[str, Tensor],
    method: str | Method = "rollout",
    *,
    target: Sequence[Target] | Target | None = None,
    layer: Sequence[int] | int | None = None,
    words: bool = False,
    tokenizer: Any = None,
    decoder_text: str | None = None,
    of: int | None = None,
    **options: Any,
) -> Attribution:
    """Which input tokens did these targets draw on?

    model: a Hugging Face name, a local path, a loaded model (then pass its `tokenizer` too), or
        None for the model that ships with attnflow.
    method: a name such as "raw", "rollout", "flow" with `options`, or a method such as
        `Flow(residual=0.4)`; what it needs beside the weights is captured too.
    target, layer: only these (default: all); a target is a position or a token that occurs once.
    words: merge word pieces to words.
    decoder_text: what the decoder of an encoder–decoder has written so far.
    of: for gradient methods, the class or token id to explain; default: the model's answer.
    """
    chosen = make_method(method, options)
    optional_import("torch", extra="models", purpose="Running a model")
    from attnflow.capturing import capture
    from attnflow.loading import load_model

    if model is None or isinstance(model, (str, os.PathLike)):
        model, found = load_model(model)
        tokenizer = tokenizer or found
    trace = capture(
        model,
        text,
        tokenizer=tokenizer,
        decoder_text=decoder_text,
        heads=chosen.heads_to_capture,
        also=chosen.needs,
        of=of,
    )
    result = chosen(trace, targets=target, layers=layer)
    return result.merge_words() if words else result
