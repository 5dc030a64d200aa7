"""Where the answer of a transformers model is read, by its config, its class and its head.

Models of two towers that compare images with texts (CLIP, SigLIP) are among them. Neither tower
attends to the other, so each is explained by itself: by what it was given alone, or, with both, by
how similar image and text are. One image and several texts ask why the image is like this text
rather than the others, and the image's patches are the sources; several images and one text ask it
of the words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError
from attnflow.hosts.adapter import AnswerPosition, Batch, ModelFacts, Scores
from attnflow.hosts.transformers_classes import is_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Where each kind of head reads its answer, by how the class's name ends; heads of classes read the
# last token where attention is causal (no other one has seen the whole text), as in a decoder, and
# else the first.
_ANSWERS: dict[str, AnswerPosition] = {
    "ForSequenceClassification": "first",
    "ForImageClassification": "first",
    "ForAudioClassification": "first",
    "ForTokenClassification": "each",
    "ForMaskedLM": "mask",
    "ForCausalLM": "last",
    "LMHeadModel": "last",
    "ForConditionalGeneration": "last",
    "MTModel": "last",
    "EncoderDecoderModel": "last",
}


_MEANS: dict[str, tuple[object, ...]] = {
    "classifier_pooling": ("mean", "late"),
    "use_mean_pooling": (True,),
    "summary_type": ("mean",),
}


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether an encoder reads and a decoder writes."""
    config: Any = model.config
    both = bool(getattr(config, "is_encoder_decoder", False))
    return both and not type(model).__name__.endswith("ForAudioClassification")  # Whisper's encoder


def facts_of(model: PreTrainedModel) -> ModelFacts:
    """Ask the config, the class and the attention modules, which say if they are causal."""
    both = is_encoder_decoder(model)
    causal = not both and any(getattr(part, "is_causal", False) is True for part in model.modules())
    endings = (place for ending, place in _ANSWERS.items() if type(model).__name__.endswith(ending))
    answer = next(endings, "last" if model.can_generate() else None)
    # Families name differently that a classifier reads all positions; one without any of these
    # names reads one position.
    means = [getattr(model.config, name, None) in values for name, values in _MEANS.items()]
    if answer in ("first", "each") and getattr(model.config, "num_labels", 2) < 2:
        answer = None  # one number is no choice
    if answer == "first":
        reads_all = any(means) or _reads_patches(model)
        reads_last = causal or both or _reads_last(model)
        answer = "last" if reads_last else "mean" if reads_all else "first"
    return ModelFacts(
        causal=causal,
        encoder_decoder=both,
        answer=answer,
        padding_side="left" if causal else "right",
        start_token=_token(model, "decoder_start_token_id", "bos_token_id", "pad_token_id")
        if both
        else None,
        end_token=_token(model, "eos_token_id"),
        decoder_reads_input=both and type(model).__name__.endswith("Classification"),
        pad_token=getattr(model.config.get_text_config(), "pad_token_id", None),
        max_length=_max_length(model),
    )


def _reads_last(model: PreTrainedModel) -> bool:
    """Return whether a classifier of texts reads the last token, though no module says so.

    A type that writes, and whose config does not say that it may also be an encoder, does.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config: Any = model.config
    if (place := getattr(config, "summary_type", None)) in ("first", "last"):
        return bool(place == "last")
    writes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    says = any(hasattr(part, "is_causal") for part in model.modules())
    return writes and not says and bool(getattr(config, "is_decoder", True))


def _reads_patches(model: PreTrainedModel) -> bool:
    """Return whether a classifier of images or sounds reads more than a class token."""
    if model.main_input_name == "input_ids":
        return False
    has_class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
    width = getattr(getattr(model, "classifier", None), "in_features", None)
    beside = width is not None and width > getattr(model.config, "hidden_size", width)
    return beside or not has_class_token


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
    if not isinstance(limit, int) or limit < 1:
        return None
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            return limit if part.padding_idx is None else limit - part.padding_idx - 1
    return limit


Names = Callable[[Sequence[int]], list[str]]


def read_scores(
    model: nn.Module, tokenizer: Any, logits: Tensor, batch: Batch, facts: ModelFacts
) -> list[Scores | None]:
    """Return each example's scores: of its class, of its words' classes, or of the next word."""
    config: Any = model.config
    labels = getattr(config, "id2label", None) or {}

    def classes(ids: Sequence[int]) -> list[str]:
        return [str(labels.get(k, f"class {k}")) for k in ids]

    def tokens(ids: Sequence[int]) -> list[str]:
        names = ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)
        return [str(name) for name in names]

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


Side = Literal["image", "text"]


def compares(model: nn.Module) -> bool:
    """Return whether a model has two towers that do not attend to each other."""
    parts = (getattr(model, name, None) for name in ("vision_model", "text_model"))
    return all(is_pretrained(part) for part in parts)


def compared_side(model: nn.Module, inputs: Mapping[str, Tensor]) -> Side | None:
    """Return the tower that a similarity of images and texts explains; None if one is alone."""
    if not compares(model) or not {"pixel_values", "input_ids"} <= set(inputs):
        return None
    images, texts = len(inputs["pixel_values"]), len(inputs["input_ids"])
    if images == 1:
        return "image"
    if texts == 1:
        return "text"
    raise TokensError(
        f"{type(model).__name__} compares images with texts, and the similarity of one image with "
        f"several texts, or of one text with several images, is explained; got {images} images "
        f"and {texts} texts."
    )


def tower_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return the tower that is watched: the model itself unless it has two that compare."""
    if not compares(model):
        return model
    side = compared_side(model, inputs)
    by_image = side == "image" if side is not None else "pixel_values" in inputs
    return cast("PreTrainedModel", model.vision_model if by_image else model.text_model)


def similarity_scores(model: Any, outputs: Any, inputs: Mapping[str, Tensor], side: Side) -> Scores:
    """Return how similar what is explained is to each text, or to each image."""
    logits = outputs.logits_per_image[0] if side == "image" else outputs.logits_per_text[0]
    other = "text" if side == "image" else "image"
    sigmoid = hasattr(model, "logit_bias")  # it judges each pair by itself, as SigLIP does
    pooled = side == "image" and hasattr(model.vision_model, "head")  # attention over all patches
    return Scores(
        logits,
        0 if side == "image" else _text_position(model, inputs["input_ids"][0], sigmoid),
        lambda ids: [f"{other} {k}" for k in ids],
        exclusive=not sigmoid,
        pooled=pooled,
    )


def _text_position(model: Any, ids: Tensor, last: bool) -> int:
    """Return where a text tower is read: SigLIP's at the last token, CLIP's at the first end token,
    or at the largest id, which it was before the config named it.
    """
    if last:
        return len(ids) - 1
    end = model.config.text_config.eos_token_id
    places = (ids == end).nonzero()[:, 0].tolist()
    return int(ids.argmax()) if end == 2 or not places else int(places[0])
