"""Running an evaluation on completions: every prompt once, for all methods, kept as it goes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow._version import __version__
from attnflow.errors import InputError, MethodError, MissingDependencyError, ModelError
from attnflow.evaluation.ablation.measured import LeaveOneOut, completion_token_ids
from attnflow.evaluation.ablation.metrics import (
    curve_sets,
    group_sums,
    linear_datamodeling_score,
    rank_of,
    strongest,
)
from attnflow.evaluation.ablation.passes import By, CompletionAblation, Score, blank_token, log_odds
from attnflow.evaluation.ablation.prompts import CompletionPrompt, is_answered
from attnflow.evaluation.ablation.rankings import (
    RANDOM,
    CompletionCase,
    Ranking,
    named_rankings,
)
from attnflow.evaluation.ablation.regression import random_ablations
from attnflow.evaluation.ablation.results import CompletionEvaluation
from attnflow.evaluation.ablation.sources import Sources, prompt_tokens
from attnflow.evaluation.journal import Journal
from attnflow.evaluation.metrics import area
from attnflow.evaluation.results import Record
from attnflow.generation.prompts import encode_prompts
from attnflow.hosts.adapter import device_of
from attnflow.hosts.capture import at_rest, provenance_of
from attnflow.hosts.load import load_language_model
from attnflow.hosts.transformers.generate import checked_generator, end_tokens, run_generate
from attnflow.progress import ProgressCallback, tell
from attnflow.tokens.units import Level, check_level, pieces, tokens_in

__all__ = ["LEAVE_ONE_DOCUMENT_OUT", "evaluate_completions", "greedy_completion"]

Floats = NDArray[np.float64]
LEAVE_ONE_DOCUMENT_OUT = "leave-one-document-out"
"""The row that says whether hiding each document in turn points to the true one."""

_CANNOT = (ModelError, MethodError, MissingDependencyError)
_STEPS = 10


def evaluate_completions(
    model: Any,
    prompts: Sequence[str | CompletionPrompt],
    *,
    methods: Sequence[Any] | dict[str, Any],
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
    progress: ProgressCallback | None = None,
) -> CompletionEvaluation:
    """Which attribution agrees with what this language model uses on these prompts?

    model: a name, a folder, a loaded model (with its `tokenizer`), or None for SmolLM2.
    prompts: texts or `CompletionPrompt`s; `read_prompts` reads them from a file.
    methods: names, methods or functions, as `named_rankings` takes them; "random" is added.
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
    """
    if model is None or isinstance(model, (str, os.PathLike)):
        model, own_tokenizer = load_language_model(model)
        tokenizer = tokenizer or own_tokenizer
    check_level(level)
    _check_counts(ablations=ablations, top=top, max_new_tokens=max_new_tokens)
    items = tuple(CompletionPrompt(p) if isinstance(p, str) else p for p in prompts)
    if not items:
        raise InputError("There are no prompts to evaluate on.")
    rankings = named_rankings(methods, by=by, score=score)
    run = _Run(
        model=checked_generator(model),
        tokenizer=tokenizer,
        prompts=items,
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
    )
    return run(samples, resume, progress)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "ablations" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} is a number of at least {least}; got {value!r}.")


def greedy_completion(
    model: Any,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop: str | None = None,
) -> tuple[list[int], bool]:
    """What the model writes by greedy search, and whether it was cut off.

    The end token, and all from the first token on whose text holds `stop`, is left out.
    """
    ids = torch.tensor([list(prompt_ids)], device=device_of(model))
    pad = None if tokenizer is None else tokenizer.pad_token_id or tokenizer.eos_token_id
    options = {"max_new_tokens": max_new_tokens, "pad_token_id": pad or 0}
    with at_rest(model):
        sequence = run_generate(
            model,
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            options,
            observer=None,
            tokenizer=tokenizer,
            stream=None,
            seed=None,
        )[0]
    two_stacks = bool(getattr(model.config, "is_encoder_decoder", False))
    written = sequence[1 if two_stacks else len(prompt_ids) :].tolist()
    ends = end_tokens(model)
    for k, token in enumerate(written):
        if token in ends or (stop is not None and stop in tokenizer.decode([token])):
            return written[:k], False
    return written, True


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """Everything a record depends on."""

    model: Any
    tokenizer: Any
    prompts: tuple[CompletionPrompt, ...]
    rankings: Mapping[str, Ranking]
    level: Level
    by: By
    score: Score
    ablations: int
    hidden: float
    top: int
    curves: bool
    max_new_tokens: int
    stop: str | None
    exclude_last_word: bool
    documents: bool
    chat: bool
    seed: int
    batch_tokens: int | None

    def settings(self) -> dict[str, Any]:
        """In words, for the first line of a journal: the same settings give the same numbers."""
        about = provenance_of(self.model, str(next(self.model.parameters()).dtype))
        data = repr([asdict(prompt) for prompt in self.prompts]).encode()
        names = (
            *("level", "by", "score", "ablations", "hidden", "top", "curves", "max_new_tokens"),
            *("stop", "exclude_last_word", "documents", "chat", "seed"),
        )
        return {
            "attnflow": __version__,
            "model": about["model"],
            "dtype": about["dtype"],
            "weights": _weights_of(self.model),
            "data": hashlib.sha256(data).hexdigest()[:16],
            "methods": list(self.rankings),
            **{name: getattr(self, name) for name in names},
        }

    def __call__(
        self,
        samples: int | None,
        resume: str | os.PathLike[str] | None,
        progress: ProgressCallback | None,
    ) -> CompletionEvaluation:
        settings = self.settings()
        journal = None if resume is None else Journal(Path(resume), settings)
        records = journal.begin() if journal else []
        goal = len(self.prompts) if samples is None else min(samples, len(self.prompts))
        refused: dict[str, str] = {}
        while len(records) < len(self.prompts) and _usable(records) < goal:
            records.append(self._record(len(records), refused))
            if journal:
                journal.append(records[-1])
            tell(progress, "prompts", min(_usable(records), goal), goal)
        if not _usable(records):
            raise ModelError(f"None of {len(records)} prompts could be used: {records[0].left_out}")
        rows = {row for record in records for row in record.scores}
        if rows <= {RANDOM, LEAVE_ONE_DOCUMENT_OUT}:
            reasons = " ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise ModelError(f"No method can be run on this model. {reasons}")
        return CompletionEvaluation(
            methods=tuple(name for name in self.rankings if name in rows),
            records=tuple(_first_usable(records, goal)),
            prompts=tuple(prompt.prompt for prompt in self.prompts),
            refused={**_missing(self.rankings, rows), **refused},
            settings=settings,
        )

    def _record(self, number: int, refused: dict[str, str]) -> Record:
        prompt = self.prompts[number]
        try:
            case, written = self._case(number, prompt)
            return self._judged(number, prompt, case, written, refused)
        except _LeftOutError as error:
            return Record(number=number, answer=error.written, left_out=str(error))
        except (InputError, ModelError) as error:
            return Record(number=number, left_out=str(error))

    def _case(self, number: int, prompt: CompletionPrompt) -> tuple[CompletionCase, str]:
        encoded = encode_prompts(self.model, self.tokenizer, prompt.prompt, chat=self.chat)
        ids = encoded.own_ids(0)
        completion, written = self._completion(ids, prompt)
        ablation = CompletionAblation(
            model=self.model,
            prompt_ids=ids,
            completion_ids=completion,
            by=self.by,
            blank=blank_token(self.tokenizer) if self.by == "replace" else None,
            batch_tokens=self.batch_tokens,
        )
        sources = self._sources(ids, prompt)
        if len(sources) < 2:
            raise InputError(f"The prompt has only one {self.level} that can be a source.")
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        return CompletionCase(self.model, self.tokenizer, ablation, sources, seed), written

    def _completion(self, ids: list[int], prompt: CompletionPrompt) -> tuple[list[int], str]:
        if prompt.completion is not None:
            return completion_token_ids(self.tokenizer, prompt.completion), prompt.completion
        completion, cut_off = greedy_completion(
            self.model, self.tokenizer, ids, max_new_tokens=self.max_new_tokens, stop=self.stop
        )
        written = str(self.tokenizer.decode(completion))
        if not completion:
            raise _LeftOutError("The model ended at once.", written)
        expected = prompt.expected
        if expected is not None and not is_answered(expected, written, cut_off=cut_off):
            raise _LeftOutError(f"The model wrote {written!r} and not {expected!r}.", written)
        return completion, written

    def _sources(self, ids: list[int], prompt: CompletionPrompt) -> Sources:
        tokens, special = prompt_tokens(self.tokenizer, ids)
        shift = _shift(pieces(tokens), prompt.prompt)
        inside = ((0, len(prompt.prompt)),) if self.chat and not prompt.inside else prompt.inside
        two_stacks = bool(getattr(self.model.config, "is_encoder_decoder", False))
        return Sources.of_tokens(
            tokens,
            level=self.level,
            inside=_shifted(inside, shift),
            documents=_shifted(prompt.documents, shift),
            special=special,
            exclude_first=not two_stacks,
            exclude_last_word=self.exclude_last_word,
        )

    # -- scores -------------------------------------------------------------------------------

    def _judged(
        self,
        number: int,
        prompt: CompletionPrompt,
        case: CompletionCase,
        written: str,
        refused: dict[str, str],
    ) -> Record:
        scores: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        for name, ranking in self.rankings.items():
            start = perf_counter()
            try:
                scores[name] = case.sources.scores(ranking(case))
            except _CANNOT as error:
                refused.setdefault(name, str(error))
                continue
            seconds[name] = perf_counter() - start
        rows: dict[str, dict[str, float]] = {name: {} for name in scores}
        base = float(case.ablation.log_probs([()])[0])
        for part in (
            self._against_ablations(case, scores, base),
            self._curves(case, scores) if self.curves else {},
            self._known(case, prompt, scores),
        ):
            for name, values in part.items():
                rows.setdefault(name, {}).update(values)
        return Record(
            number=number,
            answer=written,
            probability=float(np.exp(base)),
            scores=rows,
            seconds=seconds,
        )

    def _against_ablations(
        self, case: CompletionCase, scores: Mapping[str, Floats], base: float
    ) -> dict[str, dict[str, float]]:
        if not self.ablations:
            return {}
        sources = case.sources
        choice = random_ablations(self.ablations, len(sources), hidden=self.hidden, seed=case.seed)
        tops = np.zeros((len(scores), len(sources)), dtype=bool)
        for row, values in zip(tops, scores.values(), strict=True):
            row[list(strongest(values, self.top))] = True
        log_probs = case.ablation.log_probs(sources.hidden(np.concatenate([choice, tops])))
        response = self._response(np.append(log_probs, base))
        without, whole = response[len(choice) : -1], response[-1]
        return {
            name: {
                "lds": linear_datamodeling_score(values, choice, response[: len(choice)]),
                "drop": float(whole - lost),
            }
            for (name, values), lost in zip(scores.items(), without, strict=True)
        }

    def _response(self, log_probs: Floats) -> Floats:
        return log_odds(log_probs) if self.score == "log-odds" else log_probs

    def _curves(
        self, case: CompletionCase, scores: Mapping[str, Floats]
    ) -> dict[str, dict[str, float]]:
        """Areas under the curves of a token's probability, the geometric mean over targets."""
        choices = [np.concatenate(curve_sets(v, steps=_STEPS)) for v in scores.values()]
        sets = case.sources.hidden(np.concatenate(choices))
        count = len(case.ablation.completion_ids)
        probability = np.exp(case.ablation.log_probs(sets) / count)
        curves = probability.reshape(len(scores), 2, _STEPS + 1)
        return {
            name: {"deletion": area(deletion), "insertion": area(insertion[::-1])}
            for name, (deletion, insertion) in zip(scores, curves, strict=True)
        }

    def _known(
        self, case: CompletionCase, prompt: CompletionPrompt, scores: Mapping[str, Floats]
    ) -> dict[str, dict[str, float]]:
        """Whether the true source comes first, at the level of the sources and above."""
        if prompt.answer is None:
            return {}
        tokens = prompt_tokens(self.tokenizer, case.prompt_ids)[0]
        surfaces = pieces(tokens)
        shift = _shift(surfaces, prompt.prompt)
        span = (prompt.answer[0] + shift, prompt.answer[1] + shift)
        true = case.sources.containing(_touching(surfaces, span))
        if not true:
            raise InputError(
                f"The answer {prompt.prompt[slice(*prompt.answer)]!r} is no source of the prompt."
            )
        stated = _shifted((prompt.stated,), shift)[0] if prompt.stated else None
        rows = {name: self._ranks(case, values, true) for name, values in scores.items()}
        for coarser, groups in case.sources.groups.items():
            within = _within(case, surfaces, stated)
            for name, values in scores.items():
                rows[name] |= _group_hits(coarser, values, groups, true, within)
        if self.documents and "document" in case.sources.groups:
            groups = case.sources.groups["document"]
            rows[LEAVE_ONE_DOCUMENT_OUT] = self._leave_document_out(case, groups, true)
        return rows

    def _ranks(self, case: CompletionCase, values: Floats, true: Sequence[int]) -> dict[str, float]:
        rank = rank_of(values, true)
        ranks = {"first": float(rank == 1), "top": float(rank <= self.top)}
        return ranks | ({case.sources.level: ranks["first"]} if self.level != "token" else {})

    def _leave_document_out(
        self, case: CompletionCase, groups: Sequence[int], true: Sequence[int]
    ) -> dict[str, float]:
        members: dict[int, list[int]] = {}
        for k, group in enumerate(groups):
            if group >= 0:
                members.setdefault(group, []).extend(case.sources.positions[k])
        names = [str(group) for group in members]
        spans = Sources(tuple(names), tuple(map(tuple, members.values())), case.sources.length)
        method = LeaveOneOut(by=self.by, joint=True)
        drops = method.measure(case.ablation, spans).values[0, 0]
        places = {list(members).index(groups[k]) for k in true if groups[k] >= 0}
        return {"document": float(bool(places) and rank_of(drops, places) == 1)}


def _group_hits(
    level: str,
    values: Floats,
    groups: Sequence[int],
    true: Sequence[int],
    within: NDArray[np.bool_],
) -> dict[str, float]:
    """Whether the unit of the true source has the highest sum.

    Of sentences there are two: among those of the stated part, and among all, the unfinished one
    that the completion goes on with too.
    """
    places = {groups[k] for k in true if groups[k] >= 0}
    if not places or len(set(groups) - {-1}) < 2:  # where there is no choice nothing is right
        return {}
    if level != "sentence" or within.all():
        return {level: float(rank_of(group_sums(values, groups), places) == 1)}
    stated = [group if inside else -1 for group, inside in zip(groups, within, strict=True)]
    hits = {f"any {level}": float(rank_of(group_sums(values, groups), places) == 1)}
    if places & set(stated):
        hits[level] = float(rank_of(group_sums(values, stated), places & set(stated)) == 1)
    return hits


def _within(
    case: CompletionCase, surfaces: Sequence[str], span: tuple[int, int] | None
) -> NDArray[np.bool_]:
    """Which sources stand in the stated part of the prompt."""
    if span is None:
        return np.ones(len(case.sources), dtype=bool)
    members = set(tokens_in(surfaces, span))
    return np.array([bool(members & set(own)) for own in case.sources.positions])


def _touching(surfaces: Sequence[str], span: tuple[int, int]) -> list[int]:
    """Every token that shares a character with a span: an answer may end inside one."""
    ends = np.cumsum([len(surface) for surface in surfaces])
    starts = ends - np.array([len(surface) for surface in surfaces])
    visible = starts + np.array([len(s) - len(s.lstrip()) for s in surfaces])
    return np.flatnonzero((visible < span[1]) & (ends > span[0])).tolist()


def _shift(surfaces: Sequence[str], text: str) -> int:
    """Where a prompt's text begins in what its tokens spell: start tokens stand before it."""
    place = "".join(surfaces).find(text)
    if place < 0:
        raise InputError(
            f"The tokens of the prompt do not spell it: {''.join(surfaces)[:60]!r} for "
            f"{text[:60]!r}. The tokenizer changes the text, so its parts cannot be found."
        )
    return place


def _shifted(spans: Any, shift: int) -> Any:
    return None if spans is None else tuple((start + shift, end + shift) for start, end in spans)


class _LeftOutError(InputError):
    """A prompt that does not count, and what the model wrote."""

    def __init__(self, reason: str, written: str) -> None:
        super().__init__(reason)
        self.written = written


def _usable(records: Sequence[Record]) -> int:
    return sum(not record.left_out for record in records)


def _first_usable(records: Sequence[Record], goal: int) -> list[Record]:
    """All records up to the one that reaches the goal: a longer journal may hold more."""
    taken: list[Record] = []
    for record in records:
        if _usable(taken) >= goal:
            break
        taken.append(record)
    return taken


def _missing(rankings: Mapping[str, Ranking], rows: set[str]) -> dict[str, str]:
    return {name: "It was refused earlier in this run." for name in rankings if name not in rows}


def _weights_of(model: Any) -> str:
    """From the first few numbers of every parameter: another checkpoint differs in some of them."""
    first = [p.detach().flatten()[:8].float().cpu().numpy().tobytes() for p in model.parameters()]
    return hashlib.sha256(b"".join(first)).hexdigest()[:16]
