"""Hugging Face transformers: encoders, decoders, encoder–decoders and vision models, as loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import CaptureError, TokensError, UnsupportedModelError
from attnflow.extras import MEASURES
from attnflow.hosts.adapter import Adapter, Batch, EmbeddingSite, Scores, TokenIds, device_of
from attnflow.hosts.facts import ModelFacts
from attnflow.hosts.intervention import UNIFORM, Intervention, Session
from attnflow.hosts.measure.blocks import BLOCK_MEASURES, declared_parts, watched_blocks
from attnflow.hosts.measure.value_zeroing import VALUE_ZEROING, outermost_layers, replayed
from attnflow.hosts.padding import kept_positions, padding_to_the_right
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.refusals import refuse_by_name
from attnflow.hosts.transformers import heads
from attnflow.hosts.transformers.attention import attending, eager, uses_the_interface
from attnflow.hosts.transformers.facts import facts_of, is_encoder_decoder
from attnflow.hosts.transformers.row_gradients import (
    PredictingRows,
    gradient_rows,
    rows_are_exact,
)
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, patch_names

__all__ = ["TransformersAdapter"]

_ATTENDING = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
_TOKENS = ("unk", "mask", "pad", "cls", "sep", "bos", "eos")  # as tokenizers name their own
_SECONDS_A_FRAME = 0.02  # Whisper's encoder: one position for two frames of 10 ms


class TransformersAdapter(Adapter):
    """Any transformers model whose attention can be seen; others are refused by name."""

    name = "Hugging Face transformers"
    measures = tuple(MEASURES)

    def recognises(self, model: nn.Module) -> bool:
        """Every model of the library."""
        return isinstance(model, PreTrainedModel)

    def encode(
        self,
        model: nn.Module,
        tokenizer: Any,
        texts: Sequence[str],
        decoder_texts: Sequence[str] | None = None,
    ) -> Batch:
        """The model's own tokenizer, with its special tokens; nothing is cut off."""
        if tokenizer is None:
            raise TokensError(
                "A text needs the model's tokenizer: pass tokenizer=AutoTokenizer.from_pretrained"
                "(...), or pass the model's name instead of the loaded model."
            )
        encoded = _tokenized(tokenizer, texts)
        inputs = dict(encoded)
        if is_encoder_decoder(model):
            inputs |= _decoder_inputs(model, tokenizer, decoder_texts, len(texts))
        elif decoder_texts is not None:
            raise TokensError(f"{type(model).__name__} has no decoder beside its encoder.")
        batch = self.wrap(model, inputs)
        if not encoded.is_fast:
            return batch
        return replace(batch, words=tuple(tuple(encoded.word_ids(b)) for b in range(len(texts))))

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Prepared inputs; padding on the left is moved to the right, where nothing shifts."""
        refuse_by_name(_config(model).model_type, type(model).__name__)
        if not any(name in inputs for name in _INPUTS):
            raise TokensError(
                f"Prepared inputs need one of {', '.join(map(repr, _INPUTS))}; got "
                f"{', '.join(map(repr, inputs)) or 'none'}."
            )
        moved = {k: torch.as_tensor(v).to(device_of(model)) for k, v in inputs.items()}
        _check_ranks(moved)
        moved = padding_to_the_right(moved, "attention_mask")
        moved = padding_to_the_right(moved, "decoder_attention_mask", prefix="decoder_")
        for name in ("input_ids", "decoder_input_ids"):
            if name in moved:
                _check_length(model, moved[name].shape[1])
        return Batch(
            moved,
            size=len(next(moved[name] for name in _INPUTS if name in moved)),
            kept=kept_positions(moved.get("attention_mask")) if "input_ids" in moved else None,
            decoder_kept=kept_positions(moved.get("decoder_attention_mask")),
        )

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """The model, or the one of its towers that the inputs are for."""
        return _tower(cast(PreTrainedModel, model), inputs)(**inputs)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """One forward pass through our attention function, or eagerly where that is not used."""
        tower = _tower(cast(PreTrainedModel, model), inputs)
        if uses_the_interface(tower):
            change = UNIFORM if recorder.disturb else None
            with (
                attending(tower, observer=recorder, intervention=change) as session,
                _measuring(tower, recorder, session),
            ):
                return tower(**inputs)
        if recorder.disturb or set(recorder.record) & set(self.measures):
            raise CaptureError(
                f"{type(tower).__name__} computes attention outside transformers' attention "
                "interface, so it cannot be disturbed to check it, nor measured inside. Gradients "
                "can be captured."
            )
        with eager(tower):
            outputs = tower(**inputs, output_attentions=True)
        for weights in getattr(outputs, "attentions", None) or ():
            if weights is not None:
                recorder.add(weights)
        return outputs

    def expected_layers(self, model: nn.Module) -> int | None:
        """What the config says: a hybrid counts only the layers that attend."""
        config = _config(model)
        if hasattr(config, "vision_config") and hasattr(config, "text_config"):
            return None  # which tower ran is known only from its inputs
        if is_encoder_decoder(model):
            encoder = getattr(config, "encoder_layers", None) or config.num_layers
            decoder = getattr(config, "decoder_layers", None) or config.num_decoder_layers
            return int(encoder) + 2 * int(decoder)
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        if kinds is not None:
            return sum(kind in _ATTENDING for kind in kinds)
        return getattr(config, "num_hidden_layers", None)

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Word pieces, patches, or moments of sound."""
        if "input_ids" in batch.inputs:
            kept = batch.kept[example] if batch.kept else tuple(range(length))
            tokens = _pieces(tokenizer, batch.inputs["input_ids"][example], kept)
            if batch.words is None:
                return tokens
            return replace(tokens, words=tuple(batch.words[example][k] for k in kept))
        if "pixel_values" in batch.inputs:
            return _patches(_config(model), batch.inputs["pixel_values"], length)
        if "input_features" in batch.inputs:
            return Tokens(tuple(f"{k * _SECONDS_A_FRAME:.2f}s" for k in range(length)))
        return super().name_positions(model, tokenizer, batch, example, length)

    def name_decoder_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """The decoder's word pieces."""
        if "decoder_input_ids" not in batch.inputs:
            return super().name_decoder_positions(model, tokenizer, batch, example, length)
        kept = batch.decoder_kept[example] if batch.decoder_kept else tuple(range(length))
        return _pieces(tokenizer, batch.inputs["decoder_input_ids"][example], kept)

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """The model's own word embedding, or the last module before its first block."""
        words = cast(PreTrainedModel, model).get_input_embeddings()
        base: Any = cast(PreTrainedModel, model).base_model
        if at == "words" or hasattr(base, "rotary_emb"):  # no positions are added to the stream
            return words
        for name in ("embeddings", "drop"):
            if isinstance(getattr(base, name, None), nn.Module):
                return getattr(base, name)
        raise UnsupportedModelError(
            f"Where the first block of {type(model).__name__} reads is not known; at='words' is."
        )

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """What the tokenizer names; a word it does not know is still a word."""
        ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in _TOKENS}
        named = {name: int(number) for name, number in ids.items() if number is not None}
        blanks = {name: named[name] for name in _TOKENS[:3] if name in named}
        return TokenIds(blanks, frozenset(named[name] for name in named if name != "unk"))

    def facts(self, model: nn.Module) -> ModelFacts:
        """From the config, the class and the attention modules; no list of names."""
        return facts_of(cast(PreTrainedModel, model))

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """Through our attention function; models that do not look theirs up are refused."""
        tower = _tower(cast(PreTrainedModel, model), inputs)
        if not uses_the_interface(tower):
            self.refuse_other_kinds(tower, intervention, allowed=())
        with attending(tower, intervention=intervention):
            return tower(**inputs)

    def explains_rows(self, model: nn.Module) -> bool:
        """A causal language model in which attention alone carries one position to another."""
        host = cast(PreTrainedModel, model)
        return (
            self.facts(model).causal
            and self.facts(model).answer == "last"
            and host.can_generate()
            and uses_the_interface(host)
            and rows_are_exact(host, self.expected_layers(model))
        )

    def gradient_rows(self, model: nn.Module, batch: Batch, choices: Sequence[int]) -> Tensor:
        """Each position is explained by the token that follows it, the last one by its choice."""
        ids = batch.inputs["input_ids"]
        mask = batch.inputs.get("attention_mask", torch.ones_like(ids))
        tokens = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        for example, choice in enumerate(choices):
            last = batch.kept[example][-1] if batch.kept else ids.shape[1] - 1
            tokens[example, last] = choice
        rows = PredictingRows(ids, mask, first=0, tokens=tokens, explained=mask.float())
        return gradient_rows(cast(PreTrainedModel, model), rows).values

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """A class, the word under the first mask, or the next word: whatever the head says."""
        read = heads.for_head(type(model).__name__)
        if read is None or getattr(outputs, "logits", None) is None:
            return [None] * batch.size
        return [read(model, tokenizer, outputs.logits, batch, b) for b in range(batch.size)]


@contextmanager
def _measuring(tower: PreTrainedModel, recorder: Recorder, session: Session) -> Iterator[None]:
    """What is asked for beside the weights: blocks taken apart, layers replayed."""
    config, shown = _config(tower), type(tower).__name__
    with ExitStack() as stack:
        if set(recorder.record) & set(BLOCK_MEASURES):
            parts = declared_parts(tower.base_model, config.model_type, shown)
            stack.enter_context(watched_blocks(parts, recorder, shown))
        if VALUE_ZEROING in recorder.record:
            if is_encoder_decoder(tower):
                raise UnsupportedModelError(
                    f"{shown} is an encoder–decoder: a layer of its decoder attends twice, so "
                    "zeroing a value in it is not one thing. Gradient methods work on it."
                )
            stack.enter_context(replayed(outermost_layers(tower), recorder, session))
        yield


def _config(model: nn.Module) -> Any:
    return cast(PreTrainedModel, model).config


def _tower(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model of two towers (CLIP) runs the one its inputs are for."""
    vision, text = getattr(model, "vision_model", None), getattr(model, "text_model", None)
    if not isinstance(vision, PreTrainedModel) or not isinstance(text, PreTrainedModel):
        return model
    if "pixel_values" in inputs and "input_ids" in inputs:
        raise TokensError(
            f"{type(model).__name__} has two towers that do not attend to each other; pass either "
            "pixel_values or input_ids."
        )
    return vision if "pixel_values" in inputs else text


def _tokenized(tokenizer: Any, texts: Sequence[str], **how: Any) -> Any:
    """Padded on the right: on the left, absolute positions would shift."""
    options = {"padding": True, "padding_side": "right"} if len(texts) > 1 else {}
    return tokenizer(list(texts), return_tensors="pt", **options, **how)


def _decoder_inputs(
    model: nn.Module, tokenizer: Any, texts: Sequence[str] | None, count: int
) -> dict[str, Tensor]:
    """The decoder's start token, then its text if there is one."""
    start = torch.full((count, 1), int(_start_token(model)))
    if texts is None:
        return {"decoder_input_ids": start}
    encoded = tokenizer(text_target=list(texts), return_tensors="pt", padding=True)
    mask = torch.cat([torch.ones_like(start), encoded["attention_mask"]], dim=1)
    ids = torch.cat([start, encoded["input_ids"]], dim=1)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def _start_token(model: nn.Module) -> int:
    config = _config(model)
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        found = getattr(config, name, None)
        if found is None:
            found = getattr(getattr(model, "generation_config", None), name, None)
        if found is not None:
            return int(found)
    raise TokensError(f"{type(model).__name__} names no token to start its decoder with.")


def _check_ranks(inputs: Mapping[str, Tensor]) -> None:
    for name in ("input_ids", "decoder_input_ids", "attention_mask"):
        if name in inputs and inputs[name].ndim != 2:
            raise TokensError(
                f"{name} must have the shape (batch, length); got {tuple(inputs[name].shape)}."
            )


def _check_length(model: nn.Module, length: int) -> None:
    limit = getattr(_config(model), "max_position_embeddings", None)
    if isinstance(limit, int) and length > limit:
        raise TokensError(
            f"The text has {length} tokens and {type(model).__name__} takes at most {limit}. "
            "Shorten it, or explain it in parts."
        )


def _pieces(tokenizer: Any, ids: Tensor, kept: Sequence[int]) -> Tokens:
    shown = ids[list(kept)].tolist()
    texts = shown if tokenizer is None else tokenizer.convert_ids_to_tokens(shown)
    return Tokens(tuple(map(str, texts)))


def _patches(config: Any, pixels: Tensor, length: int) -> Tokens:
    vision = getattr(config, "vision_config", config)
    size = vision.patch_size
    down, across = size if isinstance(size, (tuple, list)) else (size, size)
    height, width = pixels.shape[-2:]
    rows, columns = height // down, width // across
    prefix = length - rows * columns
    if prefix < 0:
        raise CaptureError(f"{length} positions for {rows} × {columns} patches.")
    grid = Grid(rows, columns, prefix, height, width)
    return Tokens(patch_names(grid, prefix_names(prefix, config.model_type == "deit")), grid=grid)


def prefix_names(count: int, distilled: bool) -> tuple[str, ...]:
    """Class token, then the distillation token or registers."""
    if distilled:
        return ("[CLS]", "[DIST]")
    return (*["[CLS]"][:count], *(f"[REG{k}]" for k in range(1, count)))
