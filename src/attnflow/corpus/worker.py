"""One shard explained with one model: what every engine runs, wherever it runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from attnflow.corpus.engines import Engine, Event, Identity, JobSpec
from attnflow.corpus.folder import PartNotes, write_part
from attnflow.corpus.plan import CorpusText, Shard, ShardReader
from attnflow.corpus.rows import SCHEMA, Row, error_row, result_rows
from attnflow.corpus.settings import Columns, Settings
from attnflow.errors import AttnflowError, InputError
from attnflow.errors.progress import listening
from attnflow.explainers import batches
from attnflow.explainers.prompts import encode_parts
from attnflow.hosts.fingerprint import digest_tokenizer, digest_weights
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import as_model
from attnflow.hosts.model import Model
from attnflow.models import READER, WRITER
from attnflow.tokens.documents import join_texts

ALONE = "alone"
"""The flag of a row whose text was explained alone, because its batch failed."""
Report = Callable[[Sequence[int], int], None]
"""Called before a batch is run with the numbers of its texts, and its tokens."""


def load_for(job: JobSpec, device: str | None = None) -> Model:
    """Load the model of a job: a language model where prompts are explained."""
    model = as_model(job.model, default=READER if job.columns.prompt is None else WRITER)
    return model if device is None else replace(model, module=model.module.to(device))


def _open_batches(model: Model, settings: Settings, columns: Columns) -> batches.Batches[Any]:
    methods: Any = settings.methods  # made from their names there, as targets are made a list
    if columns.prompt is not None:
        return batches.CompletionBatches(
            model,
            methods,
            layers=settings.layers,
            max_new_tokens=settings.max_new_tokens,
            chat=settings.chat,
            check=settings.check,
        )
    kind = batches.TextBatches if columns.image is None else batches.ImageBatches
    targets: Any = settings.targets
    return kind(model, methods, targets=targets, layers=settings.layers, check=settings.check)


class ShardWorker:
    """A loaded model that explains shards and commits each as a part."""

    def __init__(self, job: JobSpec, model: Model, report: Report | None = None) -> None:
        self._job, self._model = job, model
        self._batches = _open_batches(model, job.settings, job.columns)
        self._reader = ShardReader(job.paths, job.columns)
        self._report = report

    def identity(self) -> Identity:
        """Describe what a result depends on beside settings and data, and the model."""
        module, tokenizer = self._model
        weights = digest_weights(module)
        if weights is None:
            raise InputError(
                "Some weights of the model are not in memory, so it cannot be told from another "
                "when the run goes on. Load it without offloading."
            )
        parameter: Any = next(module.parameters(), None)
        dtype = "" if parameter is None else str(parameter.dtype).removeprefix("torch.")
        settings = {
            "weights": weights,
            "methods": [method.label for method in self._batches.methods],
            "tokenizer": None if tokenizer is None else digest_tokenizer(tokenizer),
        }
        return Identity(settings, provenance_of(module, dtype))

    def pace(self, sample: Shard) -> float:
        """Return the seconds that a text of these takes; one is run before, to warm up."""
        texts = self._reader.read(sample)
        groups = [batch for batch, _ in self._divide(texts, {}, (), {})]
        for batch in groups[:1]:
            self._explain(batch[:1], alone=False)
        begin = time.monotonic()
        for batch in groups:
            self._explain(batch, alone=False)
        return (time.monotonic() - begin) / len(texts)

    def run(
        self,
        shard: Shard,
        about: Mapping[str, Any],
        fatal: Mapping[int, str] | None = None,
        suspects: Sequence[int] = (),
    ) -> PartNotes:
        """Explain all texts of a shard and write its part, which says what `about` has of the run.

        fatal: sentences in place of texts that ended processes. suspects: texts that are run alone.
        """
        texts = self._reader.read(shard)
        rows: dict[int, list[Row]] = {}
        tokens = 0
        for batch, count in self._divide(texts, fatal or {}, suspects, rows):
            if self._report is not None:
                self._report([text.number for text in batch], count)
            rows |= self._explain(batch, alone=len(batch) == 1 and batch[0].number in suspects)
            tokens += count
        ordered = [row for text in texts for row in rows[text.number]]
        table = pa.Table.from_pylist(ordered, schema=SCHEMA)
        errors = sum(result[0].get("error") is not None for result in rows.values())
        notes = PartNotes(shard.number, len(texts), errors, tokens)
        write_part(self._job.output, table, notes, about)
        return notes

    def _divide(
        self,
        texts: Sequence[CorpusText],
        fatal: Mapping[int, str],
        suspects: Sequence[int],
        rows: dict[int, list[Row]],
    ) -> Iterator[tuple[list[CorpusText], int]]:
        """Yield batches of usable texts and their tokens; the errors of others go to `rows`."""
        problems = {text.number: text.problem or fatal.get(text.number) for text in texts}
        sound = [text for text in texts if not problems[text.number]]
        counts = self._batches.lengths([self._item(text) for text in sound])
        usable: list[tuple[CorpusText, int]] = []
        for text, count in zip(sound, counts, strict=True):
            if isinstance(count, Exception):
                problems[text.number] = _sentence(count)
            else:
                usable.append((text, count))
        rows |= {
            text.number: [error_row(text, problem)]
            for text in texts
            if (problem := problems[text.number])
        }
        lengths = [count for _, count in usable]
        for numbers in batches.split_batches(lengths, self._job.settings.batch_tokens):
            batch = [usable[k] for k in numbers]
            alone = any(text.number in suspects for text, _ in batch)
            for group in [[pair] for pair in batch] if alone else [batch]:
                yield [text for text, _ in group], sum(count for _, count in group)

    def _explain(self, batch: Sequence[CorpusText], *, alone: bool) -> dict[int, list[Row]]:
        flags = [ALONE] if alone else []
        try:
            with listening(None):  # the run tells how far it is, not each batch
                results = self._batches.explain([self._item(text) for text in batch])
            return {
                text.number: result_rows(
                    text, result, self._job.settings, flags, self._document_tokens(text)
                )
                for text, result in zip(batch, results, strict=True)
            }
        except Exception as error:  # one text, or the memory of one device, must not end the run
            if len(batch) == 1:
                return {batch[0].number: [error_row(batch[0], _sentence(error))]}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rows: dict[int, list[Row]] = {}
        for text in batch:
            rows |= self._explain([text], alone=True)
        return rows

    def _item(self, text: CorpusText) -> Any:
        if self._job.columns.prompt is not None:
            places = tuple(join_texts(text.documents)[1])
            return batches.PromptText(text.text, text.completion, places)
        return text.text if self._job.columns.image is None else text.image

    def _document_tokens(self, text: CorpusText) -> list[list[int]] | None:
        """Return the tokens that each document is made of, where documents are the sources."""
        if self._job.settings.level != "document" or not text.documents:
            return None
        is_prompt = self._job.columns.prompt is not None
        prompt = encode_parts(
            self._model.tokenizer,
            text.text,
            join_texts(text.documents)[1],
            chat=is_prompt and self._job.settings.chat,
            special=not is_prompt,
        )
        return [list(range(*span)) for span in prompt.spans if span is not None]


class InlineEngine(Engine):
    """A model that is loaded already, in this process."""

    def __init__(self, job: JobSpec, model: Model) -> None:
        self._worker = ShardWorker(job, model)

    def identity(self) -> Identity:
        """Describe the model as it is."""
        return self._worker.identity()

    def pace(self, sample: Shard) -> float | None:
        """Measure it here."""
        return self._worker.pace(sample)

    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Explain one after the other."""
        for shard in shards:
            yield self._worker.run(shard, about)


def _sentence(error: Exception) -> str:
    if isinstance(error, AttnflowError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()[:300]}"
