"""One shard explained with one model: what every engine runs, wherever it runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from attnflow.corpus.batches import batches_within
from attnflow.corpus.explainers import Explainer, TextExplainer
from attnflow.corpus.output_folder import PartNotes, write_part
from attnflow.corpus.plan import Shard, ShardReader
from attnflow.corpus.rows import SCHEMA, Row, error_row, result_rows
from attnflow.corpus.settings import Settings
from attnflow.corpus.texts import CorpusText, text_of
from attnflow.errors import AttnflowError
from attnflow.hosts.load import as_model, load
from attnflow.hosts.model import Model

__all__ = ["ALONE", "BatchReport", "ShardWorker", "load_explainer", "load_for"]

ALONE = "alone"
"""The flag of a row whose text was explained alone, because its batch failed."""


class BatchReport(NamedTuple):
    """Told before a batch is run: the numbers of its texts, and its tokens."""

    texts: list[int]
    tokens: int


def load_explainer(
    settings: Settings, loaded: Model | None = None, device: str | None = None
) -> Explainer:
    """The model of these settings, ready for texts, prompts or images."""
    loaded = loaded or load_for(settings)
    if device is not None:
        loaded = Model(loaded.module.to(device), loaded.tokenizer)
    explainer: Explainer
    if settings.columns.prompt is not None:
        from attnflow.corpus.completions import CompletionExplainer

        explainer = CompletionExplainer(loaded, settings)
    elif settings.columns.image is not None:
        from attnflow.corpus.images import ImageExplainer

        explainer = ImageExplainer(loaded, settings)
    else:
        explainer = TextExplainer(loaded, settings)
    explainer.check()
    return explainer


def load_for(settings: Settings) -> Model:
    """The model that these settings name: a language model where prompts are explained."""
    if settings.columns.prompt is not None:
        return as_model(settings.model, default="smollm2")
    return load(settings.model)


class ShardWorker:
    """Explains shards and commits each as a part.

    about: what every part says of the run. lethal: texts that have ended a process before, with
    the sentence that stands in their place. report: called before each batch.
    """

    def __init__(
        self,
        explainer: Explainer,
        paths: Sequence[str],
        output: Path,
        about: dict[str, Any],
        report: Callable[[BatchReport], None] | None = None,
    ) -> None:
        self.explainer = explainer
        self.settings = explainer.settings
        self.output = output
        self.about = about
        self._reader = ShardReader(paths, self.settings.columns.names)
        self._report = report

    def run(
        self, shard: Shard, lethal: dict[int, str] | None = None, careful: Sequence[int] = ()
    ) -> PartNotes:
        """Explain all texts of a shard and write its part.

        careful: texts of batches in which a process has died; they are run alone.
        """
        numbered = enumerate(self._reader.read(shard), start=shard.first)
        texts = [text_of(number, row, self.settings.columns) for number, row in numbered]
        rows: dict[int, list[Row]] = {}
        tokens = 0
        for batch, count in self._batches(texts, lethal or {}, careful, rows):
            if self._report is not None:
                self._report(BatchReport([text.number for text in batch], count))
            rows |= self._explained(batch, alone=len(batch) == 1 and batch[0].number in careful)
            tokens += count
        in_order = [row for text in texts for row in rows[text.number]]
        table = pa.Table.from_pylist(in_order, schema=SCHEMA)
        errors = sum(own[0].get("error") is not None for own in rows.values())
        notes = PartNotes(shard.number, len(texts), errors, tokens)
        write_part(self.output, table, notes, self.about)
        return notes

    def _batches(
        self,
        texts: Sequence[CorpusText],
        lethal: dict[int, str],
        careful: Sequence[int],
        rows: dict[int, list[Row]],
    ) -> Iterator[tuple[list[CorpusText], int]]:
        """Batches of the texts that can be explained, each with its tokens; errors go to `rows`."""
        problems = {text.number: text.problem or lethal.get(text.number) for text in texts}
        sound = [text for text in texts if not problems[text.number]]
        usable: list[CorpusText] = []
        lengths: list[int] = []
        for text, length in zip(sound, self.explainer.lengths(sound), strict=True):
            if isinstance(length, Exception):
                problems[text.number] = _sentence(length)
            else:
                usable.append(text)
                lengths.append(length)
        rows |= {
            text.number: [error_row(text, problem)]
            for text in texts
            if (problem := problems[text.number])
        }
        for numbers in batches_within(lengths, self.settings.tokens_per_batch):
            batch = [usable[k] for k in numbers]
            if any(text.number in careful for text in batch):
                yield from ([[usable[k]], lengths[k]] for k in numbers)  # type: ignore[misc]
            else:
                yield batch, sum(lengths[k] for k in numbers)

    def _explained(self, batch: Sequence[CorpusText], *, alone: bool) -> dict[int, list[Row]]:
        flags = [ALONE] if alone else []
        try:
            results = self.explainer.explain(batch)
            return {
                text.number: result_rows(
                    text, own, self.settings, flags, self.explainer.document_tokens(text)
                )
                for text, own in zip(batch, results, strict=True)
            }
        except Exception as error:  # one text, or the memory of one device, must not end the run
            if len(batch) == 1:
                return {batch[0].number: [error_row(batch[0], _sentence(error))]}
        _free_memory()
        rows: dict[int, list[Row]] = {}
        for text in batch:
            rows |= self._explained([text], alone=True)
        return rows


def _sentence(error: Exception) -> str:
    if isinstance(error, AttnflowError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()[:300]}"


def _free_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
