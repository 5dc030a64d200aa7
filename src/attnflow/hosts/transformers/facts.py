"""What a transformers model's config and class say of it."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from attnflow.hosts.facts import AnswerPosition, ModelFacts

__all__ = ["facts_of", "is_encoder_decoder"]

# Where each kind of head reads its answer, by how the class's name ends; heads of classes read the
# last token where attention is causal (no other one has seen the whole text), as in a decoder, and
# else the first.
_ANSWERS: dict[str, AnswerPosition] = {
    "ForSequenceClassification": "first",
    "ForImageClassification": "first",
    "ForTokenClassification": "each",
    "ForMaskedLM": "mask",
    "ForCausalLM": "last",
    "LMHeadModel": "last",
    "ForConditionalGeneration": "last",
    "MTModel": "last",
    "EncoderDecoderModel": "last",
}


_CLASSIFIER = "Classification"


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether an encoder reads and a decoder writes."""
    config: Any = model.config
    return bool(getattr(config, "is_encoder_decoder", False))


def facts_of(model: PreTrainedModel) -> ModelFacts:
    """Every attention module of the library says whether it is causal."""
    both = is_encoder_decoder(model)
    causal = not both and any(getattr(part, "is_causal", False) is True for part in model.modules())
    endings = (place for ending, place in _ANSWERS.items() if type(model).__name__.endswith(ending))
    answer = next(endings, None)
    if answer == "first":
        answer = "last" if causal or both else _pooling(model)
    return ModelFacts(
        causal=causal,
        encoder_decoder=both,
        answer=answer,
        padding_side="left" if causal else "right",
        start_token=_token(model, "decoder_start_token_id", "bos_token_id", "pad_token_id")
        if both
        else None,
        end_token=_token(model, "eos_token_id"),
        decoder_reads_input=both and type(model).__name__.endswith(_CLASSIFIER),
        pad_token=getattr(model.config.get_text_config(), "pad_token_id", None),
        max_length=_max_length(model),
    )


def _pooling(model: PreTrainedModel) -> AnswerPosition:
    """Whether the config says that a classifier reads the mean of all positions, or the first.

    Families name it differently; one that is not named here reads one position.
    """
    config = model.config
    means = (
        getattr(config, "classifier_pooling", None) == "mean",
        getattr(config, "use_mean_pooling", False) is True,
        getattr(config, "summary_type", None) == "mean",
    )
    return "mean" if any(means) else "first"


def _token(model: PreTrainedModel, *names: str) -> int | None:
    """The first of these ids that the config names, or the settings for generation do."""
    config: Any = model.config
    owners = (config, config.get_text_config(), getattr(model, "generation_config", None))
    for name in names:
        for owner in owners:
            token = getattr(owner, name, None)
            if isinstance(token, int):
                return token
    return None


def _max_length(model: PreTrainedModel) -> int | None:
    """The positions a text may have; some tables of positions begin after that of padding."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        return None
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            return limit if part.padding_idx is None else limit - part.padding_idx - 1
    return limit
