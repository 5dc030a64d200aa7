"""Completions of a corpus of prompts, given or made: `explain_completion` for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnflow.attribution import Attribution
from attnflow.corpus.explainers import Explainer
from attnflow.corpus.settings import Settings, method_label
from attnflow.corpus.texts import CorpusText
from attnflow.errors import InputError, TokensError
from attnflow.explainers.gradient_rows import completion_rows
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import CompletionRequest, check_room, completion_ids
from attnflow.explainers.writer import Writer
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.methods import Method, quiet_about_limits

__all__ = ["CompletionExplainer"]


class CompletionExplainer(Explainer):
    """A language model, and the prompts whose completions are explained."""

    def __init__(self, loaded: Model, settings: Settings) -> None:
        super().__init__(loaded, settings)
        model = checked_generator(loaded.module)
        methods: Sequence[Method | None] = settings.methods or (None,)
        self._readers = [
            Reader(model, loaded.tokenizer, CompletionRequest.of(model, method, None, "prompt"))
            for method in methods
        ]

    @property
    def method_names(self) -> list[str]:
        """As they are asked for; the fallback of a default drops a sink that each prompt has."""
        return [method_label(reader.request.method) for reader in self._readers]

    def length(self, text: CorpusText) -> int:
        """Of the prompt and its completion, or the room for one."""
        prompt = self._prompt(text)
        new = self.settings.max_new_tokens
        if text.completion is not None:
            new = len(self._ids(text))
        elif not new:
            raise TokensError(
                "The prompt has no completion. Give one in a column (--completion), or have one "
                "made: max_new_tokens=20 (--max-new-tokens 20)."
            )
        check_room(self.model, self._readers[0].facts, len(prompt.ids), new)
        return len(prompt.ids) + new

    def explain(self, texts: Sequence[CorpusText]) -> list[list[Attribution]]:
        """Completions that are there are read together, and the others are written together."""
        results: dict[int, list[Attribution]] = {}
        for way, present in ((self._read_all, True), (self._write_all, False)):
            own = [text for text in texts if (text.completion is not None) is present]
            if own:
                with quiet_about_limits():
                    results |= zip((text.number for text in own), way(own), strict=True)
        return [results[text.number] for text in texts]

    def _read_all(self, texts: Sequence[CorpusText]) -> list[list[Attribution]]:
        prompts, ids = [self._prompt(text) for text in texts], [self._ids(text) for text in texts]
        by_reader = [self._read(reader, prompts, ids) for reader in self._readers]
        return [list(results) for results in zip(*by_reader, strict=True)]

    def _write_all(self, texts: Sequence[CorpusText]) -> list[list[Attribution]]:
        first, *others = self._readers
        prompts = [text.text for text in texts]
        batch = encode_prompts(self.model, self.tokenizer, prompts, chat=self.settings.chat)
        completions = Writer(first).write(
            batch, self.settings.max_new_tokens, seed=None, options={}
        )
        by_reader = [
            self._read(
                reader, [own.prompt for own in completions], [own.ids for own in completions]
            )
            for reader in others
        ]
        return [
            [own.result, *results] for own, *results in zip(completions, *by_reader, strict=True)
        ]

    def _read(
        self, reader: Reader, prompts: Sequence[Prompt], ids: Sequence[list[int]]
    ) -> list[Attribution]:
        notes: dict[str, Any] = {"streamed": False}
        if not reader.explains_rows(reader.request.method) or len(prompts) == 1:
            return [reader.read(p, own, notes) for p, own in zip(prompts, ids, strict=True)]
        longest, most = max(len(p.ids) for p in prompts), max(map(len, ids))
        sequences = [
            [0] * (longest - len(p.ids)) + p.ids + own + [0] * (most - len(own))
            for p, own in zip(prompts, ids, strict=True)
        ]
        mask = [[0] * (longest - len(p.ids)) + [1] * len(p.ids) for p in prompts]
        device = self.model.device
        rows = completion_rows(
            self.model,
            torch.tensor(sequences, device=device),
            torch.tensor(mask, device=device),
            longest,
            [len(own) for own in ids],
            **reader.row_options(ids),
        )
        return [
            reader.from_rows(rows, k, p.ids, own, notes)
            for k, (p, own) in enumerate(zip(prompts, ids, strict=True))
        ]

    def _prompt(self, text: CorpusText) -> Prompt:
        batch = encode_prompts(self.model, self.tokenizer, text.text, chat=self.settings.chat)
        return batch.prompts()[0]

    def _ids(self, text: CorpusText) -> list[int]:
        if text.completion is None:
            raise InputError("The prompt has no completion.")
        return completion_ids(self.tokenizer, text.completion, self._readers[0].facts)
