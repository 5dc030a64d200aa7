"""Hugging Face transformers: encoders, decoders, encoder–decoders and vision models, as loaded."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError, TokensError, UnsupportedModelError, shorten
from attnflow.hosts.adapter import (
    Adapter,
    Batch,
    EmbeddingSite,
    ModelFacts,
    Scores,
    Texts,
    TokenIds,
    device_of,
    on_device,
)
from attnflow.hosts.blocks import (
    BLOCK_MEASURES,
    VALUE_ZEROING,
    Parts,
    declared_parts,
    measured,
    outermost_layers,
)
from attnflow.hosts.inputs import (
    check_vocabulary,
    decoder_inputs,
    kept_positions,
    name_patches,
    own_processor,
    padded,
    padding_to_the_right,
    refuse_by_name,
    shifted_input,
    tokenize,
    tokens_of,
    words_of,
)
from attnflow.hosts.quantised import gradient_barrier
from attnflow.hosts.recorder import UNIFORM, Intervention, Recorder, Stage
from attnflow.hosts.transformers.answers import (
    compared_side,
    compares,
    facts_of,
    is_encoder_decoder,
    read_scores,
    similarity_scores,
    tower_of,
)
from attnflow.hosts.transformers.attention import (
    use_eager_attention,
    uses_the_interface,
    watch_attention,
)
from attnflow.hosts.transformers.factors import FactoredRun, FactorRecording
from attnflow.hosts.transformers.row_gradients import NO_CONTRAST, PredictingRows, gradient_rows
from attnflow.hosts.transformers_classes import is_pretrained
from attnflow.tokens import Tokens
from attnflow.trace.extras import BALANCED, BALANCED_ROWS, GRADIENT_ATTENTION, MEASURES, ScoreName

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENDING = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
_TOKENS = ("unk", "mask", "pad", "cls", "sep", "bos", "eos")  # as tokenizers name their own
_SECONDS_A_FRAME = 0.02  # Whisper's encoder: one position for two frames of 10 ms


class TransformersAdapter(Adapter):
    """Any transformers model whose attention can be seen; others are refused by name."""

    name = "Hugging Face transformers"
    measures = tuple(MEASURES)

    def recognises(self, model: nn.Module) -> bool:
        """Return whether it is one of the library's models."""
        return is_pretrained(model)

    def encode(
        self, model: nn.Module, tokenizer: Any, texts: Texts, decoder_texts: Texts | None = None
    ) -> Batch:
        """Use the model's own tokenizer, with its special tokens; nothing is cut off."""
        encoded, facts = tokenize(tokenizer, texts), self.facts(model)
        inputs = dict(padded(encoded, facts))
        if facts.encoder_decoder and not facts.decoder_reads_input:
            inputs |= decoder_inputs(tokenizer, decoder_texts, len(texts), facts)
        elif decoder_texts is not None:
            has = "has no decoder that writes a text of its own"
            has = has if facts.encoder_decoder else "has no decoder beside its encoder"
            raise TokensError(f"{type(model).__name__} {has}.")
        return replace(self.wrap(model, inputs), words=words_of(encoded, texts))

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Prepared inputs; padding on the left is moved to the right, where nothing shifts."""
        for config in (_config(model), *_sides(model)):
            refuse_by_name(config.model_type, type(model).__name__)
        facts = self.facts(model)
        if not any(name in inputs for name in _INPUTS):
            raise TokensError(
                f"Prepared inputs need one of {', '.join(map(repr, _INPUTS))}; got "
                f"{', '.join(map(shorten, inputs)) or 'none'}."
            )
        tensors = on_device(inputs, device_of(model))
        for name in ("input_ids", "decoder_input_ids", "attention_mask"):
            if name in tensors and tensors[name].ndim != 2:
                raise TokensError(
                    f"{name} must have the shape (batch, length); got {tuple(tensors[name].shape)}."
                )
        tensors = padding_to_the_right(tensors, "attention_mask")
        tensors = padding_to_the_right(tensors, "decoder_attention_mask", prefix="decoder_")
        texts = [tensors[name] for name in ("input_ids", "decoder_input_ids") if name in tensors]
        length = max((text.shape[1] for text in texts), default=0)
        if facts.max_length is not None and length > facts.max_length:
            raise TokensError(
                f"The text has {length} tokens and {type(model).__name__} takes at most "
                f"{facts.max_length}. Shorten it, or explain it in parts."
            )
        if "input_ids" in tensors:
            words = getattr(model, "text_model", model) if compares(model) else model
            check_vocabulary(words, tensors["input_ids"])
        mask = tensors.get("attention_mask") if "input_ids" in tensors else None
        positions = kept_positions(mask)
        decoder_positions = kept_positions(tensors.get("decoder_attention_mask"))
        if facts.decoder_reads_input and "input_ids" in tensors:
            tensors.setdefault("decoder_input_ids", _shifted(model, tensors["input_ids"], facts))
            decoder_positions = decoder_positions or positions
        size = len(next(tensors[name] for name in _INPUTS if name in tensors))
        if compared_side(model, tensors) is not None:
            size, positions = 1, None
        _check_classifier(model, tensors, size, facts)
        return Batch(tensors, size=size, positions=positions, decoder_positions=decoder_positions)

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """Run the model, or the one of its towers that the inputs are for."""
        return self._watched(model, inputs)[1](**inputs)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Run one forward pass through our attention function, or eagerly."""
        tower, host = self._watched(model, inputs)
        if uses_the_interface(tower):
            change, record = UNIFORM if recorder.disturb else None, set(recorder.record)
            parts = _parts(tower) if record & set(BLOCK_MEASURES) else []
            layers = _replayed_layers(tower) if VALUE_ZEROING in record else []
            with (
                watch_attention(tower, observer=recorder, intervention=change) as session,
                measured(recorder, session, type(tower).__name__, parts, layers),
            ):
                return host(**inputs)
        if recorder.disturb or set(recorder.record) & set(self.measures):
            raise CaptureError(
                f"{type(tower).__name__} computes attention outside transformers' attention "
                "interface, so it cannot be disturbed to check it, nor measured inside. Gradients "
                "can be captured."
            )
        # Some files make a causal mask only where no cache is asked for.
        uncached = {"use_cache": False} if is_encoder_decoder(tower) else {}
        with use_eager_attention(tower):
            outputs = tower(**inputs, **uncached, output_attentions=True)
        for stage, weights in _eager_weights(outputs):
            if weights is not None:
                recorder.add(weights, stage=stage)
        return outputs

    def expected_layers(self, model: nn.Module) -> int | None:
        """Return what the config says: a hybrid counts only the layers that attend."""
        config, host = _config(model), cast("PreTrainedModel", model)
        two_towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
        if two_towers and not host.can_generate():
            return None  # which tower ran is known only from its inputs
        if is_encoder_decoder(model):
            return _encoder_decoder_layers(model)
        config = config.get_text_config()  # images of a model that writes are seen apart
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        if kinds is not None:
            return sum(kind in _ATTENDING for kind in kinds)
        return getattr(config, "num_hidden_layers", None)

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Word pieces, patches, or moments of sound."""
        image = compared_side(model, batch.inputs) == "image"
        if "input_ids" in batch.inputs and not image:
            positions = list(batch.positions_of(example, length))
            tokens = tokens_of(tokenizer, batch.inputs["input_ids"][example][positions].tolist())
            if batch.words is None:
                return tokens
            return replace(tokens, words=tuple(batch.words[example][k] for k in positions))
        if "pixel_values" in batch.inputs:
            config = _config(model)
            vision = getattr(config, "vision_config", None) or getattr(config, "encoder", config)
            parameters = (name for name, _ in model.named_parameters())
            distilled = any(name.endswith("distillation_token") for name in parameters)
            special = ("[CLS]", "[DIST]") if distilled else ("[CLS]",)
            pixels = batch.inputs["pixel_values"]
            return name_patches(pixels, vision.patch_size, length, special)
        if "input_features" in batch.inputs:
            return Tokens(tuple(f"{k * _SECONDS_A_FRAME:.2f}s" for k in range(length)))
        return super().name_positions(model, tokenizer, batch, example, length)

    def name_decoder_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Return the decoder's word pieces."""
        if "decoder_input_ids" not in batch.inputs:
            return super().name_decoder_positions(model, tokenizer, batch, example, length)
        positions = list(batch.positions_of(example, length, decoder=True))
        return tokens_of(tokenizer, batch.inputs["decoder_input_ids"][example][positions].tolist())

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """Return the model's own word embedding, or the last module before its first block."""
        words = cast("PreTrainedModel", model).get_input_embeddings()
        base: Any = cast("PreTrainedModel", model).base_model
        if at == "words" or hasattr(base, "rotary_emb"):  # no positions are added to the stream
            return words
        for name in ("embeddings", "drop"):
            if isinstance(getattr(base, name, None), nn.Module):
                return getattr(base, name)
        raise UnsupportedModelError(
            f"Where the first block of {type(model).__name__} reads is not known; at='words' is."
        )

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """Return what the tokenizer names; a word it does not know is still a word."""
        ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in _TOKENS}
        numbers = {name: int(number) for name, number in ids.items() if number is not None}
        blanks = {name: numbers[name] for name in _TOKENS[:3] if name in numbers}
        return TokenIds(blanks, frozenset(numbers[name] for name in numbers if name != "unk"))

    def facts(self, model: nn.Module) -> ModelFacts:
        """From the config, the class and the attention modules; no list of names."""
        return facts_of(cast("PreTrainedModel", model))

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """Through our attention function; models that do not look theirs up are refused."""
        tower, host = self._watched(model, inputs)
        if not uses_the_interface(tower):
            self.refuse_other_kinds(tower, intervention, allowed=())
        with watch_attention(tower, intervention=intervention):
            return host(**inputs)

    def _watched(
        self, model: nn.Module, inputs: Mapping[str, Tensor]
    ) -> tuple[PreTrainedModel, PreTrainedModel]:
        """The model whose attention is watched, and the one that is run: the same, or one of two
        towers in a model that compares what both make of their inputs.
        """
        host = cast("PreTrainedModel", model)
        tower = tower_of(host, inputs)
        return tower, tower if compared_side(host, inputs) is None else host

    def reads_images(self, model: nn.Module) -> bool:
        """Ask the library what the model's main input is."""
        return getattr(model, "main_input_name", None) == "pixel_values"

    def reads_words(self, model: nn.Module) -> bool:
        """Ask the library likewise."""
        return getattr(model, "main_input_name", None) == "input_ids"

    def image_processor(self, model: nn.Module) -> Any:
        """Return the processor in the folder, or under the name, that the model came from."""
        return own_processor(model)

    def supports_row_gradients(self, model: nn.Module) -> bool:
        """Return True for such a model, unless its layers let no gradient pass."""
        return self.writes_by_attention(model) and gradient_barrier(model) is None

    def writes_by_attention(self, model: nn.Module) -> bool:
        """Return True where attention alone carries one position to another."""
        host, facts = cast("PreTrainedModel", model), self.facts(model)
        # A layer that mixes positions otherwise (a convolution, a recurrent state) would pass
        # gradients between rows.
        layers, config = self.expected_layers(model), host.config.get_text_config()
        return (
            facts.causal
            and facts.answer == "last"
            and host.can_generate()
            and uses_the_interface(host)
            and layers is not None
            and layers == getattr(config, "num_hidden_layers", None)
        )

    def gradient_rows(
        self,
        model: nn.Module,
        batch: Batch,
        choices: Sequence[int],
        contrasts: Sequence[int | None],
        score: ScoreName,
        *,
        balanced: bool = False,
    ) -> Tensor:
        """Each position is explained by the token that follows it, the last one by its choice."""
        ids = batch.inputs["input_ids"]
        mask = batch.inputs.get("attention_mask", torch.ones_like(ids))
        tokens = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        others = torch.full_like(tokens, NO_CONTRAST)
        for example, (choice, contrast) in enumerate(zip(choices, contrasts, strict=True)):
            last = batch.positions_of(example, ids.shape[1])[-1]
            tokens[example, last] = choice
            others[example, last] = NO_CONTRAST if contrast is None else contrast
        rows = PredictingRows(ids, mask, 0, tokens, explained=mask.float(), contrasts=others)
        rows = replace(rows, counts_positions=False)
        host = cast("PreTrainedModel", model)
        return gradient_rows(host, rows, score, balanced=balanced).values

    def supports_factors(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
        """Return True for one stack of layers over word pieces that looks its attention up."""
        host = cast("PreTrainedModel", model)
        single = not is_encoder_decoder(model) and compared_side(model, inputs) is None
        # Such masks say what each key is worth, and not only which of them a query sees.
        learned_masks = any(hasattr(module, "prepare_dynamic_mask") for module in model.modules())
        known = single and not learned_masks
        return "input_ids" in inputs and known and uses_the_interface(host)

    def run_in_factors(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        gradient_kind: str | None = None,
        spans: Any = None,
        scored: int = 1,
        **options: Any,
    ) -> FactoredRun:
        """Through our attention function, which calls the fused kernel that torch would take."""
        host = self._watched(model, inputs)[0]
        recording = FactorRecording(
            gradients=gradient_kind is not None,
            own_rows=gradient_kind in (GRADIENT_ATTENTION, BALANCED_ROWS),
            balanced=gradient_kind in (BALANCED, BALANCED_ROWS),
            spans=spans,
            **options,
        )
        return FactoredRun(host, recording).run(inputs, scored)

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Read a class, the word under the first mask, or the next word, as the head says."""
        side = compared_side(model, batch.inputs)
        if side is not None:
            return [similarity_scores(model, outputs, batch.inputs, side)]
        facts, logits = self.facts(model), getattr(outputs, "logits", None)
        if facts.answer is None or logits is None:
            return [None] * batch.size
        return read_scores(model, tokenizer, logits, batch, facts)


def _eager_weights(outputs: Any) -> Iterator[tuple[Stage, Tensor | None]]:
    """Yield the weights that a model returns; a decoder attends to itself, then to the encoder."""
    if getattr(outputs, "encoder_attentions", None) is None:
        yield from (("self", weights) for weights in getattr(outputs, "attentions", None) or ())
        return
    yield from (("encoder", weights) for weights in outputs.encoder_attentions)
    pairs = zip(outputs.decoder_attentions or (), outputs.cross_attentions or (), strict=True)
    yield from (part for own, other in pairs for part in (("decoder", own), ("cross", other)))


def _parts(tower: PreTrainedModel) -> list[Parts]:
    return declared_parts(tower.base_model, tower.config.model_type, type(tower).__name__)


def _replayed_layers(tower: PreTrainedModel) -> list[nn.Module]:
    if is_encoder_decoder(tower):
        raise UnsupportedModelError(
            f"{type(tower).__name__} is an encoder–decoder: a layer of its decoder attends twice, "
            "so zeroing a value in it is not one thing. Gradient methods work on it."
        )
    return outermost_layers(tower)


def _shifted(model: nn.Module, ids: Tensor, facts: ModelFacts) -> Tensor:
    """Return what a decoder reads that reads the input: as its own file moves it, if it does."""
    own: Any = getattr(sys.modules[type(model).__module__], "shift_tokens_right", None)
    if own is None:
        return shifted_input(ids, facts)
    count = len(inspect.signature(own).parameters)  # some begin with the text's last token
    result: Tensor = own(ids, *(facts.pad_token, facts.start_token)[: count - 1])
    return result


def _config(model: nn.Module) -> Any:
    return cast("PreTrainedModel", model).config


def _sides(model: nn.Module) -> list[Any]:
    """The configs of both sides of an encoder–decoder that is made of two models."""
    sides = [getattr(_config(model), name, None) for name in ("encoder", "decoder")]
    return [side for side in sides if hasattr(side, "model_type")]


def _encoder_decoder_layers(model: nn.Module) -> int | None:
    """Count the layers that attend, a decoder's twice, by the names of several families."""
    sides, config = _sides(model), _config(model)
    names = ("encoder_layers", "num_encoder_layers", "num_layers")
    decoder_names = ("decoder_layers", "num_decoder_layers")
    if len(sides) == 2:
        encoder, decoder = (getattr(side, "num_hidden_layers", None) for side in sides)
    else:
        encoder = next((n for name in names if (n := getattr(config, name, None))), None)
        decoder = next((n for name in decoder_names if (n := getattr(config, name, None))), None)
    return None if encoder is None or decoder is None else encoder + 2 * decoder


def _check_classifier(
    model: nn.Module, inputs: Mapping[str, Tensor], size: int, facts: ModelFacts
) -> None:
    """Return what the library's own classifiers cannot do without, said before they fail."""
    ids, name = inputs.get("input_ids"), type(model).__name__
    if ids is None or not name.endswith("ForSequenceClassification"):
        return
    if facts.causal and facts.pad_token is None and size > 1:
        raise TokensError(
            f"{name} names no padding token, so in a batch it cannot tell where a text ends. Set "
            "model.config.pad_token_id, or capture one text at a time."
        )
    if facts.decoder_reads_input:
        end = -1 if facts.end_token is None else facts.end_token
        ends = ids.eq(end).sum(dim=1).tolist()
        if len(set(ends)) > 1 or not ends[0]:
            raise TokensError(
                f"{name} reads its class at the end token of its input "
                f"({facts.end_token}), of which every text needs as many; got {ends}. Tokenize "
                "with the special tokens."
            )
