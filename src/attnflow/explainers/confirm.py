"""How sure is an explanation? Its strongest sources hidden together, in one more pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.attribution import Attribution, Confirmation
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.errors import InputError, ModelError, whole_number
from attnflow.explainers.ablation import CompletionAblation, blank_token
from attnflow.explainers.gradient_rows import LOG_PROBS
from attnflow.explainers.sources import Sources, prompt_tokens, strongest
from attnflow.hosts.registry import adapter_for
from attnflow.tokens import Tokens

_SIGNS = ".,;:!?\"'()[]{}«»“”‘’"


def confirm_completion(
    result: Attribution,
    model: Any,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    tokenizer: Any = None,
    tokens: Sequence[int] | None = None,
    top: int = 3,
    passages: Sequence[tuple[str, Sequence[int]]] | None = None,
) -> Confirmation:
    """What a completion loses without the words that a result finds it to draw on most.

    result: over the prompt's tokens, or over sources that were measured. tokens: which tokens of
    the completion it is about, by number; default: all. top: how many sources are hidden.
    passages: names with positions of the prompt, to be hidden in place of the strongest words.

    Where the log-probabilities of the completion are known from the explanation itself, this is
    one forward pass. Sources are ranked by the sum over the result's targets at its highest layer.
    """
    if (whole_number(top) or 0) < 1:
        raise InputError(f"top is how many sources are hidden, at least 1; got {top!r}.")
    sources = _strongest_words(result, model, tokenizer, prompt_ids, top)
    if passages is not None:
        sources = [(name, tuple(positions)) for name, positions in passages]
    hidden = sorted({position for _, positions in sources for position in positions})
    ablation = _ablation(model, tokenizer, prompt_ids, completion_ids)
    known = result.provenance.get(LOG_PROBS)
    if known is not None and len(known) == len(completion_ids):
        rows = np.stack([np.array(known), ablation.at_once([hidden])[0]])
    else:
        rows = ablation.at_once([(), hidden])
    numbers = list(range(len(completion_ids)) if tokens is None else tokens)
    target_tokens = prompt_tokens(tokenizer, [completion_ids[k] for k in numbers])[0]
    before, after = (tuple(row[numbers].clip(max=0.0).tolist()) for row in rows)
    return Confirmation(
        sources=tuple(name for name, _ in sources),
        positions=tuple(positions for _, positions in sources),
        targets=target_tokens.text,
        log_probs=before,
        log_probs_without=after,
        by=ablation.by,
    )


def _strongest_words(
    result: Attribution, model: Any, tokenizer: Any, prompt_ids: Sequence[int], top: int
) -> list[tuple[str, tuple[int, ...]]]:
    sources = _sources(result, model, tokenizer, prompt_ids)
    ranked = strongest(sources.scores(result), top)
    return [(_readable(sources.names[k]), sources.positions[k]) for k in ranked]


def _sources(result: Attribution, model: Any, tokenizer: Any, prompt_ids: Sequence[int]) -> Sources:
    """Those that were measured, or the words of the prompt."""
    measured = result.provenance.get(SOURCE_TOKENS)
    if measured is not None:
        positions = tuple(tuple(each) for each in measured)
        return Sources(tuple(result.sources), positions, len(prompt_ids))
    tokens, special = prompt_tokens(tokenizer, prompt_ids)
    return Sources.of_tokens(
        tokens,
        level="token" if tokenizer is None else "word",
        special=special,
        exclude_first=not adapter_for(model).facts(model).encoder_decoder,
    )


def _ablation(
    model: Any, tokenizer: Any, prompt_ids: Sequence[int], completion_ids: Sequence[int]
) -> CompletionAblation:
    """Hidden, or blanked where the model counts positions by its mask."""
    options: dict[str, Any] = {
        "model": model,
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
    }
    try:
        return CompletionAblation(**options)
    except ModelError:
        if tokenizer is None:
            raise
        return CompletionAblation(**options, by="replace", blank=blank_token(tokenizer))


def _readable(name: str) -> str:
    """As people read it, without the signs around a word."""
    text = Tokens((name,)).text[0]
    return text.strip(_SIGNS) or text
