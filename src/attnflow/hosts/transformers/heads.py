"""Which scores a transformers model's answer is read from, by the kind of its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.hosts.adapter import Batch, Scores

__all__ = ["for_head"]

Readout = Callable[[nn.Module, Any, Tensor, Batch, int], Scores | None]


def for_head(class_name: str) -> Readout | None:
    """The function that reads this kind of head, by how the model's class name ends."""
    for ending, read in _READOUTS.items():
        if class_name.endswith(ending):
            return read
    return None


def _class_of(
    model: nn.Module, tokenizer: Any, logits: Tensor, batch: Batch, example: int
) -> Scores | None:
    row = logits[example]
    if row.ndim != 1 or len(row) < 2:
        return None
    config: Any = model.config
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    names = getattr(config, "id2label", None) or {}
    return Scores(
        row,
        _class_position(config, batch, example),
        lambda ids: [str(names.get(k, f"class {k}")) for k in ids],
        exclusive=not several,
    )


def _class_position(config: Any, batch: Batch, example: int) -> int:
    """Encoders read the class from the first position, decoders from the last token."""
    causal = getattr(config, "is_decoder", False) or config.model_type in _CAUSAL
    return len(batch.kept[example]) - 1 if causal and batch.kept else 0


_CAUSAL = ("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")


def _word_under_mask(
    model: nn.Module, tokenizer: Any, logits: Tensor, batch: Batch, example: int
) -> Scores | None:
    mask_id = getattr(tokenizer, "mask_token_id", None)
    if mask_id is None or batch.kept is None:
        return None
    ids = batch.inputs["input_ids"][example][list(batch.kept[example])]
    masks = torch.nonzero(ids == mask_id)[:, 0].tolist()
    if not masks:
        return None
    row = logits[example, batch.kept[example][masks[0]]]
    return Scores(row, masks[0], partial(_words, tokenizer))


def _next_word(
    model: nn.Module, tokenizer: Any, logits: Tensor, batch: Batch, example: int
) -> Scores | None:
    decoder = "decoder_input_ids" in batch.inputs
    kept = batch.decoder_kept if decoder else batch.kept
    last = kept[example][-1] if kept else logits.shape[1] - 1
    position = (len(kept[example]) if kept else logits.shape[1]) - 1
    return Scores(logits[example, last], position, partial(_words, tokenizer))


def _words(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(w) for w in (ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids))]


_READOUTS: dict[str, Readout] = {
    "ForSequenceClassification": _class_of,
    "ForImageClassification": _class_of,
    "ForMaskedLM": _word_under_mask,
    "ForCausalLM": _next_word,
    "LMHeadModel": _next_word,
    "ForConditionalGeneration": _next_word,
    "MTModel": _next_word,
}
