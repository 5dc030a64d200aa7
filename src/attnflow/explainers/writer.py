"""What a language model writes, attributed to its prompt while it writes, or right afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.explainers.gradient_rows import CompletionRows, completion_rows, empty_cache
from attnflow.explainers.prompts import Prompt, PromptBatch
from attnflow.explainers.reader import Reader
from attnflow.explainers.rollout_cache import RolloutCache
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import end_tokens, run_generate
from attnflow.methods import Method


class Completion(NamedTuple):
    """A prompt, the ids of what was written after it, and what that is attributed to."""

    prompt: Prompt
    ids: list[int]
    result: Attribution


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
        options: dict[str, Any],
    ) -> list[Completion]:
        """One for each prompt; rows are taken while the model writes where they can be."""
        reader, prompts = self.reader, batch.prompts()
        methods = [reader.method_for(prompt) for prompt in prompts]
        cache = self._cache(methods, batch, max_new_tokens)
        by_rows = reader.explains_rows(methods[0])
        keys = empty_cache() if by_rows and "cache_implementation" not in options else None
        sequences, completions = self._run(
            batch, max_new_tokens, seed, options, observer=cache, keys=keys
        )
        notes = {
            "generate": {**options, "max_new_tokens": max_new_tokens, "seed": seed},
            "streamed": by_rows or cache is not None,
        }
        pairs = list(zip(prompts, completions, strict=True))
        if by_rows:
            rows = self._gradient_rows(sequences, batch, completions, keys)
            results = [
                reader.from_rows(rows, b, prompt.ids, ids, notes)
                for b, (prompt, ids) in enumerate(pairs)
            ]
        elif cache is not None:
            cache.check(sequences.shape[1] - 1)
            results = [
                reader.from_cache(cache, b, methods[b], prompt.ids, ids, notes)
                for b, (prompt, ids) in enumerate(pairs)
            ]
        else:
            return [
                Completion(prompt, ids, reader.read(prompt, ids, notes)) for prompt, ids in pairs
            ]
        return [
            Completion(prompt, ids, reader.finished(result, prompt, ids))
            for (prompt, ids), result in zip(pairs, results, strict=True)
        ]

    # The arguments of `write`, spelled out: a bundle of them would serve only these two.
    def texts(
        self,
        batch: PromptBatch,
        max_new_tokens: int,
        *,
        seed: int | None,
        options: dict[str, Any],
    ) -> list[tuple[Prompt, list[int]]]:
        """Prompts and the ids that follow them, without an attribution."""
        _, completions = self._run(batch, max_new_tokens, seed, options)
        return list(zip(batch.prompts(), completions, strict=True))

    def _run(
        self,
        batch: PromptBatch,
        max_new_tokens: int,
        seed: int | None,
        options: dict[str, Any],
        *,
        observer: RolloutCache | None = None,
        keys: Any = None,
    ) -> tuple[Tensor, list[list[int]]]:
        """Prompts and completions as they were written, and the ids of each completion."""
        reader = self.reader
        settings = {**self._pad_token(), **options, "max_new_tokens": max_new_tokens}
        if keys is not None:
            settings.setdefault("past_key_values", keys)
        with at_rest(reader.module):
            sequences = run_generate(
                reader.module,
                batch.inputs(),
                settings,
                observer=observer,
                tokenizer=reader.tokenizer,
                seed=seed,
            )
        return sequences, [self._completion(row, batch.length, settings) for row in sequences]

    def _gradient_rows(
        self, sequences: Tensor, batch: PromptBatch, completions: list[list[int]], keys: Any
    ) -> CompletionRows:
        return completion_rows(
            self.reader.module,
            sequences,
            batch.mask,
            batch.length,
            [len(ids) for ids in completions],
            keys,
            **self.reader.row_options(completions),
        )

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
        ends = end_tokens(self.reader.module, settings)
        stop = next((k for k, token in enumerate(ids) if token in ends), len(ids))
        if stop == 0:
            raise InputError(
                f"The model ended at once: the first token it generated is its end token "
                f"({self.reader.tokens(ids[:1])[0]!r}), so there is nothing to explain. Try "
                "another prompt, messages for a model trained on chats, or min_new_tokens=1."
            )
        return ids[:stop]
