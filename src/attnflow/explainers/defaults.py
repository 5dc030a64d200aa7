"""The method that explains when none is asked for: one function, one table, for every door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnflow.hosts.capture import capture
from attnflow.hosts.model import Model
from attnflow.methods import (
    BalancedGradient,
    GradientAttention,
    GradientRollout,
    Method,
    Rollout,
    make_method,
)
from attnflow.methods.gradients import attention_sink
from attnflow.methods.mixing import ONE_STEP

DEFAULTS: dict[str, Method] = {
    # On drawn scenes it keeps twice the mass on the true object (docs/images.md).
    "question about images": GradientRollout(),
    # Hidden patches of photos: nearer to the truth than rollout and Grad-CAM (docs/images.md).
    "image classifier": GradientAttention(),
    # Leaving words out of facts and running text: LDS .75 and .58 for one answer, .65 and .55 for
    # every token at once, .63 and .52 by plain gradients; the right one of five documents in .97,
    # wherever it stands, where plain gradient attention has .53 (docs/evidence.md).
    "answer of a causal language model": BalancedGradient(),
    "tokens of a causal language model": GradientAttention(balanced=True),
    # Where gradients of every row cannot be had in one pass. `drop_sink` finds what is dropped.
    "language model without row gradients": Rollout(residual=ONE_STEP, drop=(0,)),
    # Blanking words of held-out sentences: .46 against rollout's .35 (docs/evidence.md).
    "encoder whose blocks are known": make_method("alti"),
    "other": Rollout(),
}


def kind_of(model: Model, *, about_images: bool = False, every_token: bool = False) -> str:
    """Return the line of the table that a model belongs to.

    about_images: whether its input is a text with images. every_token: whether each token that it
    wrote is explained, and not one answer.
    """
    if about_images:
        return "question about images"
    module, adapter, facts = model.module, model.adapter, model.facts
    if adapter.reads_images(module) and facts.answer is not None:
        return "image classifier"
    if adapter.supports_row_gradients(module):
        return f"{'tokens' if every_token else 'answer'} of a causal language model"
    if adapter.supports_decomposition(module):
        return "encoder whose blocks are known"
    stands_last = facts.answer == "last" and not facts.decoder_reads_input
    writes = stands_last and (facts.causal or facts.encoder_decoder)
    return "language model without row gradients" if writes else "other"


def default_method(
    model: Model, *, about_images: bool = False, every_token: bool = False
) -> Method:
    """Return what explains a model's answer when nothing is asked for.

    It is what agrees best with ablations of models of this kind, at the cost of one pass.
    """
    return DEFAULTS[kind_of(model, about_images=about_images, every_token=every_token)]


def drops_sink(method: Method) -> bool:
    """Return whether this is the default that drops the sink of each prompt."""
    return method is DEFAULTS["language model without row gradients"]


def drop_sink(method: Method, model: Model, inputs: Mapping[str, Any], first_token: int) -> Method:
    """Return a default rollout with the sink of this prompt dropped; other methods as they are.

    A start token is a sink by what the tokenizer says; elsewhere the sink is measured.

    inputs: the prompt as the model takes it. first_token: the id that the prompt begins with.
    """
    if not drops_sink(method) or not isinstance(method, Rollout):
        return method
    special = () if model.tokenizer is None else model.tokenizer.all_special_ids
    if model.facts.causal and first_token in special:
        return replace(method, drop=(0,))
    sink = attention_sink(capture(model, inputs, heads="mean"))
    return replace(method, drop=() if sink is None else (sink,))
