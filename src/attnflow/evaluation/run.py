"""Running an evaluation: every example once, for all methods together, kept as it goes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attnflow._version import __version__
from attnflow.errors import InputError, ModelError, shorten
from attnflow.errors.arguments import check_count, checked_arguments, checked_seed
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.records import Journal, Record
from attnflow.evaluation.report import Evaluation
from attnflow.evaluation.subjects import guess_subject
from attnflow.evaluation.subjects.base import Judge, Subject
from attnflow.hosts.fingerprint import digest_bytes, digest_tokenizer, digest_weights
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import ModelLike
from attnflow.hosts.restore import in_step

_MOST = 1_000_000  # examples: more is a mistake


@in_step
@checked_arguments
def evaluate(
    model: ModelLike,
    data: Any,
    methods: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    subject: Subject | None = None,
    samples: int | None = None,
    skip: int = 0,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Say which attribution agrees with what this model uses on these examples.

    model: a name, a folder, a loaded model with its tokenizer, or None for the model that ships
        with attnflow: a classifier of texts, or SmolLM2 for prompts.
    data: a file or a folder, or a list: of texts, of `CompletionPrompt`s, of images. A table with a
        column `prompt` is about what a language model writes, one with paths of images about those.
    methods: names or methods such as `Flow(residual=0.4)`, for prompts also functions by a name of
        your own; default: those of the subject. Those that the model cannot be explained by are
        left out, with the reason.
    subject: `Texts(...)`, `Prompts(...)` or `Images(...)` with its settings; default: by the data.
    skip, samples: of the examples in an order drawn by `seed` (prompts in their own), leave out so
        many and take so many (default: all). With larger `samples` the first ones are the same.
    journal: a file that every result is kept in; if it is there, the run goes on after it.

    >>> texts = ["the key to the cabinets", "some people in the old city"]
    >>> evaluation = evaluate(None, texts, ["rollout", "alti"], samples=1)
    >>> evaluation.methods, len(evaluation.used)
    (('rollout', 'alti'), 1)
    """
    if not isinstance(data, (str, os.PathLike, Iterable)) or getattr(data, "ndim", 1) == 0:
        raise InputError(
            f"data is a file, a folder, or a list of texts, prompts or images; got {shorten(data)}."
        )
    subject = guess_subject(data) if subject is None else subject
    if samples is not None:
        check_count("samples", samples, 1, _MOST)
    seed = checked_seed(seed)
    examples = draw_examples(subject, subject.read(data), seed=seed, skip=skip)
    judge = subject.judge(model, examples, methods, seed)
    settings = {**_settings(judge, examples), "skip": skip}
    goal = len(examples[:samples])
    with ExitStack() as stack:
        # The journal is opened first: what is wrong with it is said before anything is run.
        file = stack.enter_context(Journal(Path(journal), settings)) if journal else None
        judge.try_methods(examples[:goal])
        records = _judge_all(judge, examples, goal, file)
    return _conclude(judge, examples, records, settings)


def draw_examples(subject: Subject, examples: Sequence[Any], *, seed: int, skip: int) -> list[Any]:
    """Return the examples that may be used, in a drawn order, so that a longer run goes on."""
    check_count("skip", skip, 0)
    usable = [example for example in examples if subject.can_draw(example)]
    if subject.shuffled:
        random.Random(seed).shuffle(usable)
    if not usable[skip:]:
        raise InputError(
            f"Of {len(examples)} {subject.plural} {len(usable)} can be drawn "
            f"({shorten(subject)}), and {skip} of these are skipped: none is left."
        )
    return usable[skip:]


def _judge_all(
    judge: Judge, examples: Sequence[Any], goal: int, journal: Journal | None
) -> list[Record]:
    """Return the records up to the goal: those of the journal, then those that are missing."""
    records = journal.records(judge.fits) if journal else []
    done = _count(judge, records)
    while done < goal and len(records) < len(examples):
        with patiently():
            records.append(judge.record(len(records), examples[len(records)]))
        if journal:
            journal.append(records[-1])
        done = _count(judge, records)
        tell(judge.subject.plural, min(done, goal), goal)
    while _count(judge, records[:-1]) >= goal:
        records.pop()  # a journal of a longer run
    if all(record.left_out for record in records):
        plural = judge.subject.plural
        raise ModelError(f"None of {len(records)} {plural} could be used: {records[0].left_out}")
    return records


def _count(judge: Judge, records: Sequence[Record]) -> int:
    """Return how many records count: all that were drawn, or else those that can be used."""
    if judge.subject.shuffled:
        return len(records)
    return sum(not record.left_out for record in records)


def _conclude(
    judge: Judge, examples: Sequence[Any], records: Sequence[Record], settings: Mapping[str, Any]
) -> Evaluation:
    rows = {row for record in records for row in record.scores}
    names = [name for name in judge.methods if name not in judge.baselines]
    earlier = {name: "It was refused earlier in this run." for name in names if name not in rows}
    refused = {**earlier, **judge.refused}
    if names and not rows.intersection(names):
        reasons = " ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ModelError(f"No method can be run on this model. {reasons}")
    about = [judge.subject.describe(example) for example in examples]
    return Evaluation(
        subject=judge.subject,
        methods=tuple(name for name in names if name in rows),
        baselines=judge.baselines,
        records=tuple(records),
        refused=refused,
        examples=tuple(name for name, _ in about),
        labels=tuple(label for _, label in about),
        settings=settings,
    )


def _settings(judge: Judge, examples: Sequence[Any]) -> dict[str, Any]:
    """Return, for the first line of a journal, all that the numbers depend on."""
    module, tokenizer = judge.model
    provenance = provenance_of(module, str(next(module.parameters()).dtype))
    subject = judge.subject
    return {
        "attnflow": __version__,
        "subject": subject.name,
        "model": provenance["model"],
        "dtype": provenance["dtype"],
        "weights": digest_weights(module),
        "tokenizer": None if tokenizer is None else digest_tokenizer(tokenizer),
        "data": digest_bytes(subject.content(example) + b"\n" for example in examples),
        subject.plural: len(examples),
        **judge.settings(),
    }
