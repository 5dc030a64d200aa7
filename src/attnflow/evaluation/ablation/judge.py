"""One prompt judged: what every ranking scores by every metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, MethodError, MissingDependencyError, ModelError
from attnflow.evaluation.ablation.completions import greedy_completion
from attnflow.evaluation.ablation.known import PromptText, TrueSources, known_hits
from attnflow.evaluation.ablation.metrics import (
    curve_sets,
    linear_datamodeling_score,
    rank_of,
)
from attnflow.evaluation.ablation.prompts import CompletionPrompt, is_answered
from attnflow.evaluation.ablation.rankings import CompletionCase, Ranking
from attnflow.evaluation.metrics import area
from attnflow.evaluation.records import Record
from attnflow.explainers.ablation import By, CompletionAblation, Score, blank_token, log_odds
from attnflow.explainers.prompts import encode_prompts
from attnflow.explainers.regression import random_ablations
from attnflow.explainers.request import check_room, completion_ids
from attnflow.explainers.reruns import LeaveOneOut
from attnflow.explainers.sources import Sources, prompt_tokens, strongest
from attnflow.hosts.adapter import ModelFacts
from attnflow.hosts.registry import adapter_for
from attnflow.tokens.units import Level

__all__ = ["LEAVE_ONE_DOCUMENT_OUT", "CompletionJudge"]

Floats = NDArray[np.float64]
Rows = dict[str, dict[str, float]]
LEAVE_ONE_DOCUMENT_OUT: Final = "leave-one-document-out"
"""The row that says whether hiding each document in turn points to the true one."""

_CANNOT = (ModelError, MethodError, MissingDependencyError)
_STEPS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletionJudge:
    """Everything a record depends on beside its prompt; `evaluate_completions` says what each is.

    refused: why rankings could not be run, filled as prompts are judged.
    """

    model: Any
    tokenizer: Any
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
    refused: dict[str, str]

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model."""
        return adapter_for(self.model).facts(self.model)

    def record(self, number: int, prompt: CompletionPrompt) -> Record:
        """What every ranking scores on one prompt, or why it does not count."""
        try:
            return self._judged(number, prompt)
        except _LeftOutError as error:
            return Record(number=number, answer=error.answer, left_out=str(error))
        except (InputError, ModelError) as error:
            return Record(number=number, left_out=str(error))

    def _judged(self, number: int, prompt: CompletionPrompt) -> Record:
        batch = encode_prompts(self.model, self.tokenizer, prompt.prompt, chat=self.chat)
        (encoded,) = batch.prompts()
        ids = encoded.ids
        tokens, special = prompt_tokens(self.tokenizer, ids)
        text = PromptText.of(tokens, prompt.prompt, encoded.form)
        inside = ((0, len(prompt.prompt)),) if self.chat and not prompt.inside else prompt.inside
        sources = Sources.of_tokens(
            tokens,
            level=self.level,
            inside=text.shifted(inside),
            documents=text.shifted(prompt.documents),
            special=special,
            exclude_first=not self.facts.encoder_decoder,
            exclude_last_word=self.exclude_last_word,
        )
        if len(sources) < 2:
            raise InputError(f"The prompt has only one {self.level} that can be a source.")
        places = TrueSources.of(prompt, text, sources)
        completion, answer = self._completion(ids, prompt)
        case = self._case(number, ids, completion, sources)
        scores, seconds = self._scores(case)
        base = float(case.ablation.log_probs([()])[0])
        rows: Rows = {name: {} for name in scores}
        for part in (
            self._against_ablations(case, scores, base) if self.ablations else {},
            self._areas(case, scores) if self.curves else {},
            self._known(case, scores, places) if places else {},
        ):
            for name, values in part.items():
                rows.setdefault(name, {}).update(values)
        return Record(
            number=number,
            answer=answer,
            probability=float(np.exp(base)),
            scores=rows,
            seconds=seconds,
        )

    # -- the case -----------------------------------------------------------------------------

    def _completion(self, ids: list[int], prompt: CompletionPrompt) -> tuple[list[int], str]:
        if prompt.completion is not None:
            own = completion_ids(self.tokenizer, prompt.completion, self.facts)
            return own, prompt.completion
        check_room(self.model, self.facts, len(ids), self.max_new_tokens)
        completion, cut_off = greedy_completion(
            self.model, self.tokenizer, ids, max_new_tokens=self.max_new_tokens, stop=self.stop
        )
        answer = str(self.tokenizer.decode(completion))
        if not completion:
            raise _LeftOutError("The model ended at once.", answer)
        expected = prompt.expected
        if expected is not None and not is_answered(expected, answer, cut_off=cut_off):
            raise _LeftOutError(f"The model wrote {answer!r} and not {expected!r}.", answer)
        return completion, answer

    def _case(
        self, number: int, ids: list[int], completion: list[int], sources: Sources
    ) -> CompletionCase:
        ablation = CompletionAblation(
            model=self.model,
            prompt_ids=ids,
            completion_ids=completion,
            by=self.by,
            blank=blank_token(self.tokenizer) if self.by == "replace" else None,
            batch_tokens=self.batch_tokens,
        )
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        return CompletionCase(self.model, self.tokenizer, ablation, sources, seed)

    def _scores(self, case: CompletionCase) -> tuple[dict[str, Floats], dict[str, float]]:
        """One score for each source by every ranking that can be run, and how long each took."""
        scores: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        for name, ranking in self.rankings.items():
            start = perf_counter()
            try:
                scores[name] = case.sources.scores(ranking(case))
            except _CANNOT as error:
                self.refused.setdefault(name, str(error))
                continue
            seconds[name] = perf_counter() - start
        return scores, seconds

    # -- the metrics --------------------------------------------------------------------------

    def _against_ablations(
        self, case: CompletionCase, scores: Mapping[str, Floats], base: float
    ) -> Rows:
        sources = case.sources
        choice = random_ablations(self.ablations, len(sources), hidden=self.hidden, seed=case.seed)
        tops = np.zeros((len(scores), len(sources)), dtype=bool)
        for row, values in zip(tops, scores.values(), strict=True):
            row[list(strongest(values, self.top))] = True
        log_probs = case.ablation.log_probs(sources.hidden(np.concatenate([choice, tops])))
        response = self._response(np.append(log_probs, base))
        without, with_all = response[len(choice) : -1], response[-1]
        return {
            name: {
                "lds": linear_datamodeling_score(values, choice, response[: len(choice)]),
                "drop": float(with_all - rest),
            }
            for (name, values), rest in zip(scores.items(), without, strict=True)
        }

    def _response(self, log_probs: Floats) -> Floats:
        return log_odds(log_probs) if self.score == "log-odds" else log_probs

    def _areas(self, case: CompletionCase, scores: Mapping[str, Floats]) -> Rows:
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
        self, case: CompletionCase, scores: Mapping[str, Floats], places: TrueSources
    ) -> Rows:
        rows = {
            name: known_hits(values, case.sources, places, top=self.top)
            for name, values in scores.items()
        }
        if self.documents and "document" in case.sources.groups:
            rows[LEAVE_ONE_DOCUMENT_OUT] = self._leave_one_document_out(case, places)
        return rows

    def _leave_one_document_out(
        self, case: CompletionCase, places: TrueSources
    ) -> dict[str, float]:
        groups = case.sources.groups["document"]
        numbers = sorted(set(groups) - {-1})
        true = places.units(groups)
        if not true or len(numbers) < 2:
            return {}
        members = [
            tuple(p for k, own in enumerate(case.sources.positions) if groups[k] == n for p in own)
            for n in numbers
        ]
        documents = Sources(tuple(map(str, numbers)), tuple(members), case.sources.length)
        method = LeaveOneOut(by=self.by, joint=True)
        drops = method.measure(case.ablation, documents).values[0, 0]
        return {"document": float(rank_of(drops, [numbers.index(n) for n in true]) == 1)}


class _LeftOutError(InputError):
    """A prompt that does not count, and what the model wrote."""

    def __init__(self, reason: str, answer: str) -> None:
        super().__init__(reason)
        self.answer = answer
