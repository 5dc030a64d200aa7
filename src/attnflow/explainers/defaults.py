"""The method that explains when none is asked for: one function, one table, for every door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnflow.hosts.capture import capture
from attnflow.hosts.lens import blocks_of
from attnflow.hosts.model import Model
from attnflow.hosts.quantised import gradient_barrier
from attnflow.methods import BalancedGradient, GradientAttention, GradientRollout, Method, Rollout
from attnflow.methods.gradients import attention_sink
from attnflow.methods.mixing import ONE_STEP

DEFAULTS: dict[str, Method] = {
    # On drawn scenes it keeps twice the mass on the true object (docs/evidence.md).
    "question about images": GradientRollout(),
    # Mosaics of four photos: .84 of a class's map on its own photo, where Grad-CAM has .73 and the
    # log odds without the lens .36; hidden patches of photos with boxes: deletion .23, where those
    # have .43 and .29 (development, docs/evidence.md).
    "image classifier": GradientAttention(score="logit", lens=True),
    "image classifier whose blocks are not known": GradientAttention(score="log-odds"),
    # Leaving words out of facts and running text: LDS .73 and .59 for one answer, .65 and .55 for
    # every token at once, .63 and .52 by plain gradients; the right one of five documents in 1.00,
    # wherever it stands, where plain gradient attention has .53 (docs/evidence.md).
    "answer of a causal language model": BalancedGradient(),
    "tokens of a causal language model": GradientAttention(balanced=True),
    # Where only what a check confirms is handed on: after the check it names the right document as
    # often as balanced gradients do (1.00 of 42 ordinary, .96 of 26 of one article), in a quarter
    # of their time. Its own shares follow position.
    "citations of a causal language model": GradientAttention(balanced=True),
    # Blanking words of three classifiers and a tagger: LDS .82, .69, .68 and .86, where alti has
    # .53, .42, .40 and .83, rollout .37, .10, .16 and .26 (docs/evidence.md).
    "answer of an encoder": BalancedGradient(readings="keys+inputs", score="log-odds"),
    # Joined to what blanking its strongest words takes away (`measures_words`).
    "answer of an encoder–decoder": BalancedGradient(readings="keys+inputs", score="log-odds"),
    # Speech, layers that mix positions without attention, quantised layers that let no gradient
    # pass. `drop_sink` finds what is dropped.
    "language model without row gradients": Rollout(residual=ONE_STEP, drop=(0,)),
    # No answer, so nothing to hold a method against.
    "other": Rollout(),
}


def kind_of(
    model: Model, *, about_images: bool = False, every_token: bool = False, cited: bool = False
) -> str:
    """Return the line of the table for a model: its input, and what of its output is explained.

    cited: nothing is handed on but the sources that a check confirms.
    """
    if about_images:
        return "question about images"
    module, adapter, facts = model.module, model.adapter, model.facts
    has_answer = facts.answer is not None and gradient_barrier(module) is None
    if adapter.reads_images(module) and has_answer:
        return (
            "image classifier"
            if blocks_of(model)
            else "image classifier whose blocks are not known"
        )
    if adapter.supports_row_gradients(module):
        what = "citations" if cited else "tokens" if every_token else "answer"
        return f"{what} of a causal language model"
    if adapter.reads_words(module) and has_answer and not facts.causal:
        return f"answer of an encoder{'–decoder' if facts.encoder_decoder else ''}"
    stands_last = facts.answer == "last" and not facts.decoder_reads_input
    writes = stands_last and (facts.causal or facts.encoder_decoder)
    return "language model without row gradients" if writes else "other"


def default_method(model: Model, **parts: bool) -> Method:
    """Return what agrees best with ablations of such models; parts as `kind_of` has them."""
    return DEFAULTS[kind_of(model, **parts)]


def measures_documents(method: Method) -> bool:
    """Return whether what hiding documents from the answer measures is joined to their shares.

    That is so of what explains answers by default: LDS of documents .74, by gradients alone .58
    (development, docs/evidence.md).
    """
    kinds = ("answer of a causal language model", "citations of a causal language model")
    return method in [DEFAULTS[kind] for kind in kinds]


def measures_words(method: Method) -> bool:
    """Return whether what blanking the strongest words takes away is joined to their shares.

    That is so of the default itself for encoder–decoders: ten passes. A T5 that writes titles of
    reviews, Wikipedia's sentences and Winogender's (40, 19, 10; development), words blanked by the
    unknown token and by padding: LDS .71, .70 where what it blanks by stays the unknown token; by
    the pass alone .67, by that of the log-probability .60.
    """
    return method is DEFAULTS["answer of an encoder–decoder"]


def depends_on_text(method: Method, model: Model) -> bool:
    """Return whether a default is fitted to each text: it drops a sink, needs a mask there, or
    words are measured beside it.
    """
    masked = model.facts.answer == "mask" and method is DEFAULTS["answer of an encoder"]
    rolls_out = method is DEFAULTS["language model without row gradients"]
    return masked or rolls_out or measures_words(method)


def without_mask(method: Method, model: Model, ids: Sequence[int]) -> Method:
    """Return what explains a masked language model that is asked nothing; others as they are."""
    mask = getattr(model.tokenizer, "mask_token_id", None)
    is_question = model.facts.answer != "mask" or mask in ids
    return method if is_question else DEFAULTS["other"]


def drop_sink(method: Method, model: Model, inputs: Mapping[str, Any], first_token: int) -> Method:
    """Return a default rollout with the prompt's sink dropped: a start token, or a measured one."""
    if method is not DEFAULTS["language model without row gradients"]:
        return method
    special = () if model.tokenizer is None else model.tokenizer.all_special_ids
    if model.facts.causal and first_token in special:
        return method
    sink = attention_sink(capture(model, inputs, heads="mean"))
    return Rollout(residual=ONE_STEP, drop=() if sink is None else (sink,))
