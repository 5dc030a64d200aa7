"""Running an evaluation on completions: every prompt once, for all methods, kept as it goes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnflow._version import __version__
from attnflow.errors import InputError, ModelError, whole_number
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.ablation.judge import LEAVE_ONE_DOCUMENT_OUT, CompletionJudge
from attnflow.evaluation.ablation.prompts import CompletionPrompt
from attnflow.evaluation.ablation.rankings import RANDOM, Ranking, named_rankings
from attnflow.evaluation.ablation.results import CompletionEvaluation
from attnflow.evaluation.fingerprint import digest_of, digest_of_tokenizer, digest_of_weights
from attnflow.evaluation.journal import Journal
from attnflow.evaluation.records import Record
from attnflow.explainers.ablation import By, Score
from attnflow.hosts.capture import provenance_of
from attnflow.hosts.load import as_model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.hosts.transformers.inputs import checked_tokenizer
from attnflow.tokens.units import Level, check_level

__all__ = ["DEFAULT_RANKINGS", "evaluate_completions"]

DEFAULT_RANKINGS = (
    *("default", "careful", "gradient-attention", "gradient-rollout", "rollout", "raw-mean"),
    "leave-one-out",
)

_MOST = 1_000_000  # passes, tokens: more is a mistake
_SETTINGS = (
    *("level", "by", "score", "ablations", "hidden", "top", "curves", "max_new_tokens"),
    *("stop", "exclude_last_word", "documents", "chat", "seed"),
)


@checked_arguments
def evaluate_completions(
    model: Any,
    prompts: Sequence[str | CompletionPrompt],
    *,
    methods: Sequence[Any] | dict[str, Any] | None = None,
    tokenizer: Any = None,
    level: Level = "word",
    by: By = "hide",
    score: Score = "log-odds",
    ablations: int = 64,
    hidden: float = 0.3,
    top: int = 3,
    curves: bool = False,
    max_new_tokens: int = 20,
    stop: str | None = None,
    exclude_last_word: bool = False,
    documents: bool = False,
    chat: bool = False,
    seed: int = 0,
    samples: int | None = None,
    batch_tokens: int | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> CompletionEvaluation:
    """Which attribution agrees with what this language model uses on these prompts?

    model: a name, a folder, a loaded model (with its `tokenizer`), or None for SmolLM2.
    prompts: texts or `CompletionPrompt`s; `read_prompts` reads them from a file.
    methods: names, methods or functions, as `named_rankings` takes them; "random" is added. By
        default those of `DEFAULT_RANKINGS`; what the model cannot be explained by is left out.
    level, by, score: what a source is, how it is taken away, and what is measured.
    ablations, hidden: LDS is taken over so many random ablations, each of this share; 0 leaves LDS
        and the drop out.
    top: how many of the strongest sources are taken away together for the drop.
    curves: whether the areas under the deletion and insertion curves are measured, of the
        probability of a token on average (geometric mean).
    max_new_tokens, stop: how far the model's own completion goes, where none is given; it ends
        before the first token whose text holds `stop`.
    exclude_last_word: the last word, which the completion goes on from, is no source.
    documents: also hide each document as a whole, as a row of its own.
    chat: put each prompt into the model's chat template, whose own tokens are no sources.
    samples: use only so many of the prompts that can be used; default: all.
    resume: a file that every prompt's result is kept in; if it is there, the run goes on after it.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> prompts = ["the keys to the cabinets", "the author talked to sara"]
    >>> evaluation = evaluate_completions(
    ...     model, prompts, methods=["raw"], tokenizer=tokenizer, ablations=8, max_new_tokens=2
    ... )
    >>> evaluation.methods
    ('raw', 'random')
    """
    if model is None or isinstance(model, (str, os.PathLike)):
        model, own_tokenizer = as_model(model, default="smollm2")
        tokenizer = tokenizer or own_tokenizer
    check_level(level)
    _check_counts(ablations=ablations, top=top, max_new_tokens=max_new_tokens)
    _check_counts(samples=1 if samples is None else samples)
    _check_counts(batch_tokens=1 if batch_tokens is None else batch_tokens)
    seed = checked_seed(seed)
    if not 0 < hidden < 1:
        raise InputError(f"hidden is a share between 0 and 1; got {hidden!r}.")
    if tokenizer is not None:
        checked_tokenizer(tokenizer)
    items = tuple(CompletionPrompt(p) if isinstance(p, str) else p for p in prompts)
    if not items:
        raise InputError("There are no prompts to evaluate on.")
    choice = DEFAULT_RANKINGS if methods is None else methods
    rankings = named_rankings(choice, by=by, score=score)
    judge = CompletionJudge(
        model=checked_generator(model),
        tokenizer=tokenizer,
        rankings={**rankings, **named_rankings([RANDOM])},
        level=level,
        by=by,
        score=score,
        ablations=ablations,
        hidden=hidden,
        top=top,
        curves=curves,
        max_new_tokens=max_new_tokens,
        stop=stop,
        exclude_last_word=exclude_last_word,
        documents=documents,
        chat=chat,
        seed=seed,
        batch_tokens=batch_tokens,
        refused={},
    )
    return _run(judge, items, samples, resume)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "ablations" else 1
        number = whole_number(value)
        if number is None or not least <= number <= _MOST:
            raise InputError(f"{name} is a number from {least} to {_MOST:,}; got {value!r}.")


def _run(
    judge: CompletionJudge,
    prompts: Sequence[CompletionPrompt],
    samples: int | None,
    resume: str | os.PathLike[str] | None,
) -> CompletionEvaluation:
    settings = _settings(judge, prompts)
    goal = len(prompts) if samples is None else min(samples, len(prompts))
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(Path(resume), settings)) if resume else None
        records = journal.fitting(_fits) if journal else []
        while len(records) < len(prompts) and _usable(records) < goal:
            with patiently():
                records.append(judge.record(len(records), prompts[len(records)]))
            if journal:
                journal.append(records[-1])
            tell("prompts", min(_usable(records), goal), goal)
    if not _usable(records):
        raise ModelError(f"None of {len(records)} prompts could be used: {records[0].left_out}")
    rows = {row for record in records for row in record.scores}
    if rows <= {RANDOM, LEAVE_ONE_DOCUMENT_OUT} and len(judge.rankings) > 1:
        reasons = " ".join(f"{name}: {reason}" for name, reason in judge.refused.items())
        raise ModelError(f"No method can be run on this model. {reasons}")
    return CompletionEvaluation(
        methods=tuple(name for name in judge.rankings if name in rows),
        records=tuple(_first_usable(records, goal)),
        prompts=tuple(prompt.prompt for prompt in prompts),
        refused={**_missing(judge.rankings, rows), **judge.refused},
        settings=settings,
    )


def _settings(judge: CompletionJudge, prompts: Sequence[CompletionPrompt]) -> dict[str, Any]:
    """In words, for the first line of a journal: the same settings give the same numbers."""
    about = provenance_of(judge.model, str(next(judge.model.parameters()).dtype))
    return {
        "attnflow": __version__,
        "model": about["model"],
        "dtype": about["dtype"],
        "weights": digest_of_weights(judge.model),
        "tokenizer": digest_of_tokenizer(judge.tokenizer),
        "data": digest_of([repr([asdict(prompt) for prompt in prompts]).encode()]),
        "methods": list(judge.rankings),
        **{name: getattr(judge, name) for name in _SETTINGS},
    }


def _fits(record: Record) -> bool:
    """A record is of a prompt that was left out, or has scores; methods may be refused on some."""
    return bool(record.left_out) != (RANDOM in record.scores)


def _usable(records: Sequence[Record]) -> int:
    return sum(not record.left_out for record in records)


def _first_usable(records: Sequence[Record], goal: int) -> list[Record]:
    """All records up to the one that reaches the goal: a longer journal may hold more."""
    count = next((k for k in range(len(records)) if _usable(records[:k]) >= goal), len(records))
    return list(records[:count])


def _missing(rankings: Mapping[str, Ranking], rows: set[str]) -> dict[str, str]:
    return {name: "It was refused earlier in this run." for name in rankings if name not in rows}
