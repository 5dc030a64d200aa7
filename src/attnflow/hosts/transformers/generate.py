"""How a transformers model's own generate() is called: checked first, watched, streamed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnflow.errors import AttnflowError, InputError, ModelError
from attnflow.errors.progress import is_heard, tell
from attnflow.hosts.factored import Keys
from attnflow.hosts.recorder import AttentionObserver
from attnflow.hosts.restore import ordinary
from attnflow.hosts.transformers.answers import is_encoder_decoder
from attnflow.hosts.transformers.attention import uses_the_interface, watch_attention
from attnflow.hosts.transformers_classes import is_pretrained

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel, TextStreamer

_ALLOWED = ("greedy_search", "sample")  # modes of generate()


def checked_generator(model: nn.Module) -> PreTrainedModel:
    """Return the model, or an error that says why it cannot generate."""
    if not is_pretrained(model):
        raise ModelError(
            f"{type(model).__name__} writes no text: it has no generate() of transformers. Use "
            "explain() for it, or name a language model, such as smollm2."
        )
    if not model.can_generate():
        raise ModelError(
            f"{type(model).__name__} cannot generate text: it is an encoder, or a model without a "
            "language-model head. Use explain() for it, or load it with AutoModelForCausalLM."
        )
    return model


def can_stream(model: PreTrainedModel) -> bool:
    """Return whether attention can be watched during generate(): one stack that looks it up."""
    return uses_the_interface(model) and not is_encoder_decoder(model)


def end_tokens(model: PreTrainedModel, options: Mapping[str, Any]) -> set[int]:
    """Return the tokens that end a text under these options of generate().

    Where something else may end a text before others of its batch, padding shows where it ended.
    """
    settings = _settings(model, options)
    otherwise = settings.stop_strings is not None or "stopping_criteria" in options
    tokens = (settings.eos_token_id, settings.pad_token_id if otherwise else None)
    ends = [torch.as_tensor(token).reshape(-1).tolist() for token in tokens if token is not None]
    return {int(token) for part in ends for token in part}


def run_generate(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    *,
    observer: AttentionObserver | None,
    tokenizer: Any,
    seed: int | None,
) -> Tensor:
    """Return the model's own generate(): prompt and completion, (batch, length)."""
    settings = {"do_sample": seed is not None, "use_cache": True, **options}
    _refuse_other_modes(model, settings)
    if settings.get("stop_strings"):
        settings["tokenizer"] = tokenizer
    if is_heard() and tokenizer is not None and len(inputs["input_ids"]) == 1:
        settings["streamer"] = _text_stream(tokenizer, options["max_new_tokens"])
    watching = nullcontext() if observer is None else watch_attention(model, observer=observer)
    with torch.random.fork_rng(enabled=seed is not None), watching:
        if seed is not None:
            torch.manual_seed(seed)
        try:
            output: Any = model.generate(**inputs, **settings)  # type: ignore[operator]
        except AttnflowError:
            raise  # ours, from the watcher: some of them are ValueErrors too
        except _ListenerError as error:
            raise error.cause from None  # the user's own, as it was
        except ValueError as error:  # an option that does not exist or does not fit
            raise InputError(f"generate() refused its options: {error}") from error
    sequences: Tensor = getattr(output, "sequences", output)  # with return_dict_in_generate
    return sequences


def plain_cache(model: PreTrainedModel, options: Mapping[str, Any]) -> DynamicCache | None:
    """Return a cache that keeps every position of every layer, so that others can read it.

    None where these options of generate() ask for another cache, or for none.
    """
    from transformers import DynamicCache

    settings = options.get("generation_config") or model.generation_config
    kind = options.get("cache_implementation", settings.cache_implementation)
    is_plain = kind is None and "past_key_values" not in options
    return DynamicCache() if is_plain and options.get("use_cache", True) else None


def cached_keys(cache: Any) -> Keys:
    """Return the keys and values of every layer, or none where a cache lacks some positions."""
    layers = getattr(cache, "layers", ())
    is_whole = all(
        layer.keys is not None and layer.keys.shape[-2] == layer.get_seq_length()
        for layer in layers
    )
    if not is_whole or len({layer.get_seq_length() for layer in layers}) != 1:
        return ()
    return [(ordinary(layer.keys), ordinary(layer.values)) for layer in layers]


def cache_of(keys: Keys, length: int, batch: int | None = None) -> DynamicCache:
    """Return a cache of the first positions, once for each row of a batch where one is given."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, pair in enumerate(keys):
        key, value = (
            part[:, :, :length].expand(part.shape[0] if batch is None else batch, -1, -1, -1)
            for part in pair
        )
        cache.update(key, value, number)
    return cache


def run_once(model: PreTrainedModel, ids: Tensor, observer: AttentionObserver) -> None:
    """Run one forward pass over a finished text, seen by the watcher, without scores."""
    with watch_attention(model, observer=observer), torch.no_grad():
        model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)


def _refuse_other_modes(model: PreTrainedModel, options: Mapping[str, Any]) -> None:
    """Greedy and sampling write one token after the other; anything else rewrites its past."""
    settings = _settings(model, options)
    mode = settings.get_generation_mode(options.get("assistant_model"))
    several = (settings.num_return_sequences or 1) > 1
    if mode.value not in _ALLOWED or several:
        way = "several sequences for one prompt" if several else mode.value.replace("_", " ")
        raise InputError(
            f"This would generate with {way}, which drops and reorders what was written, so "
            "rows would not belong to the text any more. Use greedy search (num_beams=1) or "
            "sampling (seed=...); or generate as you like and pass the text as completion=."
        )


def _settings(model: Any, options: Mapping[str, Any]) -> Any:
    """The model's own settings for generation, or those of the options, with the rest applied."""
    settings = copy.deepcopy(options.get("generation_config") or model.generation_config)
    settings.update(**{k: v for k, v in options.items() if hasattr(settings, k)})
    return settings


class _ListenerError(Exception):
    """The listener's error on its way through the library, which catches ValueErrors."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _text_stream(tokenizer: Any, total: int) -> TextStreamer:
    """Return what tells the listener of text as soon as it is final, the prompt left out."""
    from transformers import TextStreamer

    pieces = 0

    def tell_text(text: str, stream_end: bool = False) -> None:
        nonlocal pieces
        if not text:
            return
        try:
            pieces += 1
            tell("writing", min(pieces, total), total, text)
        except Exception as error:  # whatever the listener raises
            raise _ListenerError(error) from error

    stream = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    stream.on_finalized_text = tell_text  # type: ignore[method-assign]
    return stream
