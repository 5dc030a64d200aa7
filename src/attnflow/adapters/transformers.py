"""Hugging Face transformers: attention of a model as it was loaded, SDPA or not.

transformers looks its attention function up by name at every forward pass. We register one under
a name of ours that calls the model file's own eager function and hands the weights on; for one
forward pass every config of the model points to that name. The mask function is registered under
the same name: without it transformers would drop the mask in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from attnflow.adapters.host import Batch, Recorder
from attnflow.errors import CaptureError, TokensError, UnsupportedModelError
from attnflow.tokens import Tokens
from attnflow.trace import Prediction

__all__ = ["TransformersAdapter"]

_NAME = "attnflow_recording"
_ALTERNATIVES = 5

# Which recorder a module reports to. Keyed by module, so that two threads that capture two models
# at once do not mix.
_RECORDERS: WeakKeyDictionary[nn.Module, Recorder] = WeakKeyDictionary()


def _attend_and_record(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The model file's own eager attention, with its weights handed to the module's recorder."""
    home = sys.modules[type(module).__module__]
    output, weights = home.eager_attention_forward(module, *args, **kwargs)
    recorder = _RECORDERS.get(module)
    if recorder is not None:
        recorder.add(weights)
    return output, weights


AttentionInterface.register(_NAME, _attend_and_record)
AttentionMaskInterface.register(_NAME, eager_mask)


class TransformersAdapter:
    """Any transformers model whose attention goes through the attention interface."""

    name = "Hugging Face transformers"

    def recognises(self, model: nn.Module) -> bool:
        """Every model of the library."""
        return isinstance(model, PreTrainedModel)

    def encode(self, model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Batch:
        """The model's own tokenizer, with its special tokens; nothing is cut off."""
        if tokenizer is None:
            raise TokensError(
                "A text needs the model's tokenizer: pass tokenizer=AutoTokenizer.from_pretrained"
                "(...), or pass the model's name instead of the loaded model."
            )
        padding = len(texts) > 1
        encoded = tokenizer(list(texts), return_tensors="pt", padding=padding)
        _check_length(model, encoded["input_ids"].shape[1])
        inputs = {key: value.to(next(model.parameters()).device) for key, value in encoded.items()}
        words = [encoded.word_ids(b) for b in range(len(texts))] if encoded.is_fast else None
        return _batch(tokenizer, inputs, words)

    def wrap(self, model: nn.Module, tokenizer: Any, inputs: Mapping[str, Tensor]) -> Batch:
        """Prepared inputs; without a tokenizer the tokens are called by their ids."""
        if "input_ids" not in inputs:
            raise TokensError(
                f"Prepared inputs need 'input_ids'; got {', '.join(map(repr, inputs)) or 'none'}."
            )
        device = next(model.parameters()).device
        moved = {key: torch.as_tensor(value).to(device) for key, value in inputs.items()}
        if moved["input_ids"].ndim != 2:
            raise TokensError(
                "input_ids must have the shape (batch, length); got "
                f"{tuple(moved['input_ids'].shape)}."
            )
        _check_length(model, moved["input_ids"].shape[1])
        return _batch(tokenizer, moved, None)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """One forward pass with our attention function in place of the model's."""
        if not isinstance(model, PreTrainedModel) or not model._can_set_attn_implementation():
            raise UnsupportedModelError(
                f"{type(model).__name__} computes attention outside transformers' attention "
                "interface, so its weights cannot be recorded. If it returns them itself, load it "
                "with attn_implementation='eager', run it with output_attentions=True and pass "
                "the result to AttentionTrace.from_arrays."
            )
        with _recording(model, recorder):
            return model(**inputs)

    def layer_count(self, model: nn.Module) -> int | None:
        """What the config says."""
        return getattr(model.config, "num_hidden_layers", None)

    def predictions(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Prediction | None]:
        """The class of a classifier, the word under the first mask of a masked language model."""
        kind = type(model).__name__
        if kind.endswith("ForSequenceClassification") and outputs.logits.shape[-1] > 1:
            return [_class_of(model, row) for row in outputs.logits.float()]
        if kind.endswith("ForMaskedLM") and getattr(tokenizer, "mask_token_id", None) is not None:
            return [
                _word_under_mask(tokenizer, outputs, batch, b) for b in range(len(batch.tokens))
            ]
        return [None] * len(batch.tokens)


@contextmanager
def _recording(model: PreTrainedModel, recorder: Recorder) -> Iterator[None]:
    """Point every config of the model at our function; put everything back, whatever happens."""
    configs = _configs(model)
    before = [config._attn_implementation_internal for config in configs]
    modules = list(model.modules())
    if any(module in _RECORDERS for module in modules):
        raise CaptureError("This model is being captured in another thread; capture one at a time.")
    try:
        for config in configs:
            config._attn_implementation_internal = _NAME
        for module in modules:
            _RECORDERS[module] = recorder
        yield
    finally:
        for module in modules:
            _RECORDERS.pop(module, None)
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def _configs(model: PreTrainedModel) -> list[Any]:
    """The configs of the model and of every sub-model, each once."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    return list(found.values())


def _batch(tokenizer: Any, inputs: Mapping[str, Tensor], words: list[Any] | None) -> Batch:
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    kept = tuple(tuple(torch.nonzero(row)[:, 0].tolist()) for row in mask)
    if not all(kept):
        raise TokensError("An example consists of padding only; nothing is left to explain.")
    tokens = tuple(
        _tokens(tokenizer, ids[b], kept[b], words[b] if words else None) for b in range(len(ids))
    )
    return Batch(inputs, tokens, kept)


def _tokens(tokenizer: Any, ids: Tensor, kept: Sequence[int], words: Any) -> Tokens:
    shown = ids[list(kept)].tolist()
    texts = [str(i) for i in shown] if tokenizer is None else tokenizer.convert_ids_to_tokens(shown)
    numbers = None if words is None else tuple(words[position] for position in kept)
    return Tokens(tuple(texts), words=numbers)


def _check_length(model: nn.Module, length: int) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    if isinstance(limit, int) and length > limit:
        raise TokensError(
            f"The text has {length} tokens and {type(model).__name__} takes at most {limit}. "
            "Shorten it, or explain it in parts."
        )


def _class_of(model: nn.Module, logits: Tensor) -> Prediction:
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    shares = logits.sigmoid() if several else logits.softmax(dim=-1)
    names = getattr(model.config, "id2label", None) or {}
    ranked = [
        (str(names.get(int(i), f"class {int(i)}")), float(shares[i]))
        for i in shares.argsort(descending=True)[:_ALTERNATIVES]
    ]
    return Prediction(ranked[0][0], ranked[0][1], 0, tuple(ranked))


def _word_under_mask(tokenizer: Any, outputs: Any, batch: Batch, example: int) -> Prediction | None:
    ids = batch.inputs["input_ids"][example][list(batch.kept[example])]
    masks = torch.nonzero(ids == tokenizer.mask_token_id)[:, 0].tolist()
    if not masks:
        return None
    logits = outputs.logits[example, batch.kept[example][masks[0]]].float()
    best = logits.softmax(dim=-1).topk(min(_ALTERNATIVES, logits.shape[-1]))
    names = tokenizer.convert_ids_to_tokens(best.indices.tolist())
    ranked = tuple(zip(map(str, names), best.values.tolist(), strict=True))
    return Prediction(ranked[0][0], ranked[0][1], masks[0], ranked)
