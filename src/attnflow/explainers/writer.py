"""Texts that a language model writes, attributed to their prompts as it writes, or afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.explainers.prompts import PromptBatch
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import Completion
from attnflow.explainers.rollout_cache import RolloutCache
from attnflow.hosts.factored import Keys
from attnflow.hosts.inputs import checked_tokenizer, tokens_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import (
    cached_keys,
    checked_generator,
    end_tokens,
    plain_cache,
    run_generate,
)
from attnflow.models import WRITER


def as_writer(model: ModelLike) -> Model:
    """Return a model that writes text; one that cannot is refused."""
    loaded = as_model(model, default=WRITER)
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
    settings = {**options, "max_new_tokens": max_new_tokens}
    sequences, texts, keys = _run(reader.model, batch, settings, seed, cache)
    streamed = by_rows or cache is not None
    notes = {"generate": {**settings, "seed": seed}, "streamed": streamed}
    completions = _completions(batch, texts, keys, notes)
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
    _, texts, keys = _run(model, batch, settings, seed)
    return _completions(batch, texts, keys, {"streamed": False})


def _completions(
    batch: PromptBatch, texts: Sequence[list[int]], keys: Keys, notes: Mapping[str, Any]
) -> list[Completion]:
    """Return each text with its prompt and its own part of the keys, without padding."""
    completions = []
    for example, (prompt, ids, pad) in enumerate(
        zip(batch.prompts, texts, batch.padding, strict=True)
    ):
        end = batch.length + len(ids) - 1
        part = (slice(example, example + 1), slice(None), slice(pad, end))
        own = [(key[part], value[part]) for key, value in keys]
        completions.append(Completion(prompt, ids, notes, own))
    return completions


def _run(
    model: Model,
    batch: PromptBatch,
    options: Mapping[str, Any],
    seed: int | None,
    observer: RolloutCache | None = None,
) -> tuple[Tensor, list[list[int]], Keys]:
    """Return prompts and completions as they were written, the ids of each completion, and the
    keys of all, where the model's state is nothing but keys and values.
    """
    module: Any = model.module
    settings = dict(options)
    if model.tokenizer is not None:
        tokens = (model.tokenizer.pad_token_id, model.tokenizer.eos_token_id)
        settings.setdefault("pad_token_id", next((int(t) for t in tokens if t is not None), 0))
    cache = None
    if model.adapter.writes_by_attention(module) and not batch.extra:
        cache = plain_cache(module, options)
    if cache is not None:
        settings["past_key_values"] = cache
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
    texts = [_up_to_end(model, row, ends) for row in sequences[:, start:].tolist()]
    return sequences, texts, cached_keys(cache)


def _up_to_end(model: Model, ids: list[int], ends: set[int]) -> list[int]:
    """Return a completion up to its end token, left out with the padding after it."""
    stop = next((k for k, token in enumerate(ids) if token in ends), len(ids))
    if stop == 0:
        raise InputError(
            f"The model ended at once: the first token it generated is its end token "
            f"({tokens_of(model.tokenizer, ids[:1])[0]!r}), so there is nothing to explain. Try "
            "another prompt; for a model trained on chats --chat, in Python messages; or, there, "
            "min_new_tokens=1."
        )
    return ids[:stop]
