"""Texts that a language model writes, attributed to their prompts as it writes, or afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.explainers.prompts import PromptBatch
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import Completion
from attnflow.explainers.rollout_cache import RolloutCache
from attnflow.hosts.inputs import checked_tokenizer, tokens_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import checked_generator, end_tokens, run_generate


def as_writer(model: ModelLike) -> Model:
    """Return a model that writes text; one that cannot is refused."""
    loaded = as_model(model, default="smollm2")
    checked_generator(loaded.module)
    if loaded.tokenizer is not None:
        checked_tokenizer(loaded.tokenizer)
    return loaded


def write(
    reader: Reader,
    batch: PromptBatch,
    max_new_tokens: int,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[tuple[Completion, Attribution]]:
    """Let the model write after each prompt; rows are taken while it does where they can be."""
    prompts, options = batch.prompts, options or {}
    methods = [reader.method_for(prompt.ids) for prompt in prompts]
    by_rows = reader.row_method is not None
    cache = None
    if reader.streams:
        cache = reader.cache(methods, batch.ids, batch.padding, batch.length + max_new_tokens)
    # A plain cache keeps every position of every layer, so that it can be cut afterwards.
    caches = options.get("use_cache", True) and "cache_implementation" not in options
    keys = DynamicCache() if by_rows and caches else None
    settings = {**options, "max_new_tokens": max_new_tokens}
    sequences, texts = _run(reader.model, batch, settings, seed, cache, keys)
    streamed = by_rows or cache is not None
    notes = {"generate": {**settings, "seed": seed}, "streamed": streamed}
    pairs = zip(prompts, texts, strict=True)
    completions = [Completion(prompt, ids, notes) for prompt, ids in pairs]
    if by_rows:
        results = reader.read_rows(completions, sequences, batch.mask, keys)
    elif cache is not None:
        cache.check(sequences.shape[1] - 1)
        results = [
            reader.from_cache(cache, k, method, completion)
            for k, (method, completion) in enumerate(zip(methods, completions, strict=True))
        ]
    else:
        results = reader.read_all(completions)
    return list(zip(completions, results, strict=True))


def write_texts(
    model: Model,
    batch: PromptBatch,
    max_new_tokens: int,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Completion]:
    """Let the model write after each prompt, without an attribution."""
    settings = {**(options or {}), "max_new_tokens": max_new_tokens}
    _, texts = _run(model, batch, settings, seed)
    return [Completion(prompt, ids) for prompt, ids in zip(batch.prompts, texts, strict=True)]


def _run(
    model: Model,
    batch: PromptBatch,
    options: Mapping[str, Any],
    seed: int | None,
    observer: RolloutCache | None = None,
    keys: Any = None,
) -> tuple[Tensor, list[list[int]]]:
    """Return prompts and completions as they were written, and the ids of each completion."""
    module: Any = model.module
    settings = dict(options)
    if model.tokenizer is not None:
        tokens = (model.tokenizer.pad_token_id, model.tokenizer.eos_token_id)
        settings.setdefault("pad_token_id", next((int(t) for t in tokens if t is not None), 0))
    if keys is not None:
        settings.setdefault("past_key_values", keys)
    with at_rest(module):
        sequences = run_generate(
            module,
            batch.inputs(),
            settings,
            observer=observer,
            tokenizer=model.tokenizer,
            seed=seed,
        )
    ends = end_tokens(module, settings)
    start = 1 if model.facts.encoder_decoder else batch.length
    return sequences, [_up_to_end(model, row, ends) for row in sequences[:, start:].tolist()]


def _up_to_end(model: Model, ids: list[int], ends: set[int]) -> list[int]:
    """Return a completion up to its end token, left out with the padding after it."""
    stop = next((k for k, token in enumerate(ids) if token in ends), len(ids))
    if stop == 0:
        raise InputError(
            f"The model ended at once: the first token it generated is its end token "
            f"({tokens_of(model.tokenizer, ids[:1])[0]!r}), so there is nothing to explain. Try "
            "another prompt, messages for a model trained on chats, or min_new_tokens=1."
        )
    return ids[:stop]
