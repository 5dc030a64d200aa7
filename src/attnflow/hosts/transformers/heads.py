"""Which scores a transformers model's answer is read from, by where its head reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError
from attnflow.hosts.adapter import Batch, Scores
from attnflow.hosts.facts import ModelFacts

__all__ = ["read_scores"]

Names = Callable[[Sequence[int]], list[str]]


def read_scores(
    model: nn.Module, tokenizer: Any, logits: Tensor, batch: Batch, facts: ModelFacts
) -> list[Scores | None]:
    """For each example the scores of its class, of its words' classes, or of the next word."""
    config: Any = model.config
    classes = partial(_class_names, getattr(config, "id2label", None) or {})
    tokens = partial(_token_names, tokenizer)
    if facts.answer == "each":
        return [_token_classes(logits, batch, b, classes) for b in range(batch.size)]
    if facts.answer == "mask":
        return [_masked_word(tokenizer, logits, batch, b, tokens) for b in range(batch.size)]
    if facts.answer == "last" and logits.ndim == 3:
        return [_next_word(logits, batch, b, tokens) for b in range(batch.size)]
    if logits.ndim != 2 or logits.shape[1] < 2:
        return [None] * batch.size
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    positions = [_class_position(batch, b, facts) for b in range(batch.size)]
    return [
        Scores(row, position, classes, exclusive=not several, pooled=facts.answer == "mean")
        for row, position in zip(logits, positions, strict=True)
    ]


def _class_position(batch: Batch, example: int, facts: ModelFacts) -> int:
    """The first position; for causal attention the last token, as the model itself finds it.

    The decoder of a classifier reads the input, and the class is read where its end token stands.
    """
    ids = batch.inputs.get("input_ids")
    if facts.answer != "last" or ids is None:
        return 0
    row = ids[example]
    if facts.decoder_reads_input and facts.end_token is not None:
        words = row.eq(facts.end_token)
    else:
        words = torch.ones_like(row) if facts.pad_token is None else row.ne(facts.pad_token)
    tokens = torch.nonzero(words)[:, 0].tolist()
    last = tokens[-1] if tokens else len(row) - 1
    positions = batch.positions_of(example, len(row))
    if last not in positions:
        raise TokensError(
            f"The model reads its class from position {last}, the last that is not its padding "
            f"token {facts.pad_token}, and the attention_mask calls that position padding. Pad "
            "with the model's own padding token."
        )
    return positions.index(last)


def _token_classes(logits: Tensor, batch: Batch, example: int, names: Names) -> Scores | None:
    """One answer for each token; named is the surest that differs from the usual one.

    In "Ada lives in Rome" the usual label says that a word is no name; the surest of the others
    is what a reader looks for.
    """
    if logits.ndim != 3 or logits.shape[-1] < 2:
        return None
    rows = logits[example][list(batch.positions_of(example, logits.shape[1]))]
    best = rows.float().softmax(dim=-1).max(dim=-1)
    usual = best.indices.mode().values
    certainty = best.values + (best.indices != usual).float()  # any other before the usual one
    position = int(certainty.argmax())
    return Scores(rows[position], position, names, each=rows)


def _masked_word(
    tokenizer: Any, logits: Tensor, batch: Batch, example: int, names: Names
) -> Scores | None:
    mask, ids = getattr(tokenizer, "mask_token_id", None), batch.inputs.get("input_ids")
    if mask is None or ids is None:
        return None
    positions = list(batch.positions_of(example, ids.shape[1]))
    masks = torch.nonzero(ids[example][positions] == mask)[:, 0].tolist()
    if not masks:
        return None
    return Scores(logits[example, positions[masks[0]]], masks[0], names)


def _next_word(logits: Tensor, batch: Batch, example: int, names: Names) -> Scores:
    decoder = "decoder_input_ids" in batch.inputs
    positions = batch.positions_of(example, logits.shape[1], decoder=decoder)
    rows = logits[example, list(positions)] if len(positions) < logits.shape[1] else logits[example]
    return Scores(rows[-1], len(positions) - 1, names, next_tokens=rows)


def _class_names(names: Any, ids: Sequence[int]) -> list[str]:
    return [str(names.get(k, f"class {k}")) for k in ids]


def _token_names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(w) for w in (ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids))]
