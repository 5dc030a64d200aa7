"""Prompts that a language model continues: their parts are taken away, and the completion loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.errors.arguments import check_count, check_fields
from attnflow.evaluation.faithfulness import run_curves
from attnflow.evaluation.metrics import Floats, area, linear_datamodeling_score, rank_of
from attnflow.evaluation.records import RANDOM, Record
from attnflow.evaluation.subjects import base, rankings
from attnflow.evaluation.subjects.base import LeftOutError, Metric, MetricGroup
from attnflow.evaluation.subjects.examples import CompletionPrompt, read_prompts
from attnflow.evaluation.subjects.rankings import CompletionCase, PromptText, TrueSources
from attnflow.explainers.ablation import ablate, log_odds
from attnflow.explainers.leave_out import random_ablations
from attnflow.explainers.prompts import Prompt, PromptBatch, as_chat, encode_prompts
from attnflow.explainers.request import check_room, completion_ids
from attnflow.explainers.reruns import measure
from attnflow.explainers.sources import Sources, prompt_tokens, strongest
from attnflow.explainers.writer import as_writer, write_texts
from attnflow.hosts.load import ModelLike
from attnflow.methods import LeaveOneOut
from attnflow.methods.reruns import By, RerunScore
from attnflow.tokens.units import Level

Rows = dict[str, dict[str, float]]
LEAVE_ONE_DOCUMENT_OUT: Final = "leave-one-document-out"
"""The row that says whether hiding each document in turn points to the true one."""

DEFAULT_RANKINGS = (
    *("default", "careful", "gradient-attention", "gradient-rollout", "rollout", "raw-mean"),
    "leave-one-out",
)
_ABLATED = (
    Metric("lds", "LDS ↑"),
    Metric("drop", "drop ↑"),
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
)
_KNOWN = (
    Metric("first", "first ↑"),
    Metric("top", "in the top ↑"),
    Metric("sentence", "sentence ↑"),
    Metric("any sentence", "of all sentences ↑"),
    Metric("document", "document ↑"),
)
_MOST = 1_000_000  # passes, tokens: more is a mistake


@dataclass(frozen=True, kw_only=True)
class Prompts(base.Subject):
    """Prompts with their completions, and how methods are held against ablations of them.

    level, by, score: what a source is, how it is taken away, and what is measured.
    ablations, hidden: LDS is taken over so many random ablations, each of this share; 0 leaves LDS
        and the drop out.
    top: how many of the strongest sources are taken away together for the drop.
    curves: whether the areas under the deletion and insertion curves are measured, of the
        probability of a token on average (geometric mean).
    max_new_tokens, stop: how far the model's own completion goes, where none is given; it ends
        before the first token whose text holds `stop`.
    exclude_last_word: the last word, which the completion goes on from, is no source.
    documents: also hide each document as a whole, as a row of its own; default: where prompts say
        where their documents stand.
    chat: put each prompt into the model's chat template, whose own tokens are no sources.
    batch_tokens: about how many tokens run at once; default: by the device.

    >>> Prompts(level="sentence", ablations=32).level
    'sentence'
    """

    name: ClassVar[str] = "prompt"
    example_type: ClassVar[type] = CompletionPrompt
    shuffled: ClassVar[bool] = False
    headline: ClassVar[str] = "lds"

    level: Level = "word"
    by: By = "hide"
    score: RerunScore = "log-odds"
    ablations: int = 64
    hidden: float = 0.3
    top: int = 3
    curves: bool = False
    max_new_tokens: int = 20
    stop: str | None = None
    exclude_last_word: bool = False
    documents: bool | None = None
    chat: bool = False
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("ablations", "top", "max_new_tokens", "batch_tokens"):
            value, least = getattr(self, name), int(name != "ablations")
            if value is not None:  # that of batch_tokens is taken from the device
                check_count(name, value, least, _MOST)
        if not 0 < self.hidden < 1:
            raise InputError(f"hidden is a share between 0 and 1; got {self.hidden!r}.")

    @property
    def groups(self) -> tuple[MetricGroup, ...]:
        """Agreement with ablations, and known answers."""
        return (MetricGroup("Against ablations", _ABLATED), MetricGroup("Known answers", _KNOWN))

    read_file = staticmethod(read_prompts)

    def judge(
        self, model: ModelLike, examples: Sequence[Any], methods: Any, seed: int
    ) -> PromptJudge:
        """Return what judges prompts; what a model cannot be explained by is left out."""
        by_label = rankings.named_rankings(
            DEFAULT_RANKINGS if methods is None else methods, by=self.by, score=self.score
        )
        loaded = as_writer(model)
        documents = self.documents
        if documents is None:
            documents = any(example.documents for example in examples)
        return PromptJudge(
            subject=replace(self, documents=documents),
            model=loaded,
            methods={**by_label, **rankings.named_rankings([RANDOM])},
            seed=seed,
        )

    def describe(self, example: CompletionPrompt) -> tuple[str, str | None]:
        """Return the prompt; which answer is right is known of some, and then asked for."""
        return example.prompt, None

    def content(self, example: CompletionPrompt) -> bytes:
        """Return the prompt and all that is known of it."""
        return repr(asdict(example)).encode("utf-8", "surrogatepass")


@dataclass(eq=False, kw_only=True)
class PromptJudge(base.Judge):
    """One prompt after another: what every ranking scores by every metric."""

    subject: Prompts

    def try_methods(self, examples: Sequence[CompletionPrompt]) -> None:
        """Try nothing: methods may be refused on some prompts and run on others."""

    def _try_examples(self, examples: Sequence[CompletionPrompt]) -> None:
        """Try nothing."""

    def fits(self, record: Record) -> bool:
        """Return whether a record has scores; methods may be refused on some prompts."""
        return bool(record.left_out) != (RANDOM in record.scores)

    def _judge(self, number: int, prompt: CompletionPrompt) -> Record:
        chat = self.subject.chat
        batch = encode_prompts(self.model, as_chat(prompt.prompt) if chat else prompt.prompt)
        (encoded,) = batch.prompts
        sources, places = self._sources(prompt, encoded)
        completion, answer = self._completion(batch, prompt)
        ablation = ablate(
            self.model,
            encoded.ids,
            completion,
            by=self.subject.by,
            batch_tokens=self.subject.batch_tokens,
        )
        case = CompletionCase(self.model, ablation, sources, self._seed(number))
        scores, seconds = self._scores(case)
        base_score = float(ablation.log_probs([()])[0])
        rows: Rows = {name: {} for name in scores}
        for results in (
            self._against_ablations(case, scores, base_score) if self.subject.ablations else {},
            self._areas(case, scores) if self.subject.curves else {},
            self._known(case, scores, places) if places else {},
        ):
            for name, values in results.items():
                rows.setdefault(name, {}).update(values)
        return Record(
            number=number,
            answer=answer,
            probability=float(np.exp(base_score)),
            scores=rows,
            seconds=seconds,
        )

    # -- the case -----------------------------------------------------------------------------

    def _sources(
        self, prompt: CompletionPrompt, encoded: Prompt
    ) -> tuple[Sources, TrueSources | None]:
        """Return the sources of a prompt, and which of them hold the answer, if that is known."""
        level = self.subject.level
        tokens, special = prompt_tokens(self.model.tokenizer, encoded.ids)
        text = PromptText.of(tokens, prompt.prompt, encoded.form)
        inside = prompt.inside
        if self.subject.chat and not inside:
            inside = ((0, len(prompt.prompt)),)
        sources = Sources.of_tokens(
            tokens,
            level=level,
            inside=text.shifted(inside),
            documents=text.shifted(prompt.documents),
            special=special,
            exclude_first=not self.model.facts.encoder_decoder,
            exclude_last_word=self.subject.exclude_last_word,
        )
        if len(sources) < 2:
            raise InputError(f"The prompt has only one {level} that can be a source.")
        return sources, TrueSources.of(prompt, text, sources)

    def _completion(self, batch: PromptBatch, prompt: CompletionPrompt) -> tuple[list[int], str]:
        """Return the completion that is given, or else what the model writes by greedy search."""
        tokenizer = self.model.tokenizer
        if prompt.completion is not None:
            return completion_ids(self.model, prompt.completion), prompt.completion
        most, stop = self.subject.max_new_tokens, self.subject.stop
        check_room(self.model, batch.length, most)
        completion = write_texts(self.model, batch, most)[0].ids
        for k, token in enumerate(completion):
            if stop is not None and stop in tokenizer.decode([token]):
                completion = completion[:k]
                break
        answer = str(tokenizer.decode(completion))
        if not completion:
            raise LeftOutError(f"The model wrote nothing before {stop!r}.", answer)
        expected, is_cut_off = prompt.expected, len(completion) == most
        if expected is not None and not rankings.is_answered(expected, answer, cut_off=is_cut_off):
            raise LeftOutError(f"The model wrote {answer!r} and not {expected!r}.", answer)
        return completion, answer

    def _scores(self, case: CompletionCase) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return a score for each source by every ranking that can be run, and its seconds."""
        scores: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        for name, ranking in self.methods.items():
            start = perf_counter()
            try:
                scores[name] = case.sources.scores(ranking(case))
            except base.CANNOT as error:
                self.refused.setdefault(name, str(error))
                continue
            seconds[name] = perf_counter() - start
        return scores, seconds

    # -- the metrics --------------------------------------------------------------------------

    def _against_ablations(
        self, case: CompletionCase, scores: Mapping[str, Floats], base_score: float
    ) -> Rows:
        sources, subject = case.sources, self.subject
        choice = random_ablations(
            subject.ablations, len(sources), hidden=subject.hidden, seed=case.seed
        )
        tops = _choices([strongest(values, subject.top) for values in scores.values()], sources)
        log_probs = case.ablation.log_probs(sources.hidden(np.concatenate([choice, tops])))
        response = np.append(log_probs, base_score)
        response = log_odds(response) if subject.score == "log-odds" else response
        without, with_all = response[len(choice) : -1], response[-1]
        return {
            name: {
                "lds": linear_datamodeling_score(values, choice, response[: len(choice)]),
                "drop": float(with_all - rest),
            }
            for (name, values), rest in zip(scores.items(), without, strict=True)
        }

    def _areas(self, case: CompletionCase, scores: Mapping[str, Floats]) -> Rows:
        """Return areas under the curves of a token's probability, the geometric mean of all."""
        ablation, sources = case.ablation, case.sources

        def probabilities(sets: Sequence[Sequence[int]]) -> Floats:
            log_probs = ablation.log_probs(sources.hidden(_choices(sets, sources)))
            return np.exp(log_probs / len(ablation.completion_ids))

        orders = [strongest(values, len(values)) for values in scores.values()]
        curves = run_curves(orders, probabilities)
        rows = zip(scores, curves.deletion, curves.insertion, strict=True)
        return {
            name: {"deletion": area(deletion), "insertion": area(insertion[::-1])}
            for name, deletion, insertion in rows
        }

    def _known(
        self, case: CompletionCase, scores: Mapping[str, Floats], places: TrueSources
    ) -> Rows:
        rows = {
            name: rankings.known_hits(values, case.sources, places, top=self.subject.top)
            for name, values in scores.items()
        }
        if self.subject.documents and "document" in case.sources.groups:
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
        positions = case.sources.positions
        members = [
            tuple(p for k, each in enumerate(positions) if groups[k] == n for p in each)
            for n in numbers
        ]
        documents = Sources(tuple(map(str, numbers)), tuple(members), case.sources.length)
        method = LeaveOneOut(by=self.subject.by, joint=True)
        drops = measure(method, case.ablation, documents).values[0, 0]
        return {"document": float(rank_of(drops, [numbers.index(n) for n in true]) == 1)}


def _choices(sets: Sequence[Sequence[int]], sources: Sources) -> NDArray[np.bool_]:
    """Return (sets, sources): True where a source is in a set."""
    choices = np.zeros((len(sets), len(sources)), dtype=bool)
    for row, members in zip(choices, sets, strict=True):
        row[list(members)] = True
    return choices
