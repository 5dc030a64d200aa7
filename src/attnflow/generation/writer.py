"""What a language model writes, attributed to its prompt while it writes, or right afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.generation.gradient_rows import completion_rows, empty_cache
from attnflow.generation.prompts import PromptBatch
from attnflow.generation.reader import Reader
from attnflow.generation.rollout_cache import RolloutCache
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import end_tokens, run_generate
from attnflow.methods import Method

__all__ = ["Writer"]


@dataclass(frozen=True, eq=False)
class Writer:
    """Runs a model's own generate(); its reader attributes what comes out."""

    reader: Reader

    def write(
        self,
        batch: PromptBatch,
        max_new_tokens: int,
        *,
        seed: int | None,
        stream: Callable[[str], None] | None,
        options: dict[str, Any],
    ) -> list[Attribution]:
        """One result for each prompt; rows are taken while the model writes where they can be."""
        reader, prompts = self.reader, batch.prompts()
        methods = [reader.method_for(prompt) for prompt in prompts]
        cache = self._cache(methods, batch, max_new_tokens)
        by_rows = reader.explains_rows(methods[0])
        keys = empty_cache() if by_rows else None
        settings = {**self._pad_token(), **options, "max_new_tokens": max_new_tokens}
        if keys is not None and "cache_implementation" not in options:
            settings.setdefault("past_key_values", keys)
        with at_rest(reader.model):
            sequences = run_generate(
                reader.model,
                batch.inputs(),
                settings,
                observer=cache,
                tokenizer=reader.tokenizer,
                stream=stream,
                seed=seed,
            )
        notes = {
            "generate": {**options, "max_new_tokens": max_new_tokens, "seed": seed},
            "streamed": by_rows or cache is not None,
        }
        completions = [self._completion(row, batch.length, settings) for row in sequences]
        if by_rows:
            lengths = [len(ids) for ids in completions]
            rows = completion_rows(reader.model, sequences, batch.mask, batch.length, lengths, keys)
            return [
                reader.less_baseline(reader.from_rows(rows, b, prompt.ids, ids, notes), prompt, ids)
                for b, (prompt, ids) in enumerate(zip(prompts, completions, strict=True))
            ]
        if cache is None:
            pairs = zip(prompts, completions, strict=True)
            return [reader.read(prompt, ids, notes) for prompt, ids in pairs]
        cache.check(sequences.shape[1] - 1)
        return [
            reader.less_baseline(
                reader.from_cache(cache, b, method, prompt.ids, ids, notes), prompt, ids
            )
            for b, (prompt, method, ids) in enumerate(
                zip(prompts, methods, completions, strict=True)
            )
        ]

    def _cache(
        self, methods: Sequence[Method], batch: PromptBatch, max_new_tokens: int
    ) -> RolloutCache | None:
        if not all(map(self.reader.streamable, methods)):
            return None
        room = batch.length + max_new_tokens
        return self.reader.cache(methods, batch.ids, batch.padding, room)

    def _pad_token(self) -> dict[str, int]:
        tokenizer = self.reader.tokenizer
        if tokenizer is None:
            return {}
        tokens = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        return {"pad_token_id": next((int(token) for token in tokens if token is not None), 0)}

    def _completion(self, row: Tensor, prompt: int, settings: dict[str, Any]) -> list[int]:
        """The completion up to its end token, which is left out with the padding after it."""
        start = 1 if self.reader.facts.encoder_decoder else prompt
        ids = row[start:].tolist()
        ends = end_tokens(self.reader.model, settings)
        stop = next((k for k, token in enumerate(ids) if token in ends), len(ids))
        if stop == 0:
            raise InputError(
                f"The model ended at once: the first token it generated is its end token "
                f"({self.reader.tokens(ids[:1])[0]!r}), so there is nothing to explain. Try "
                "another prompt, chat=True for a model trained on chats, or "
                "generate_kwargs={'min_new_tokens': 1}."
            )
        return ids[:stop]
