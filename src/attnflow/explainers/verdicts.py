"""What does an answer rest on? The model reads it again without what its explanation names.

Of an answer over documents each statement has a verdict: its sentence, its documents and all of
them are hidden. Of any other answer the strongest words, or a region of the image, are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.passages import (
    LOG_PROBS,
    Passage,
    RankedSource,
    Statement,
    passages_of,
    positions_of,
    statements_of,
)
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.attribution.verdict import (
    UNCHECKED,
    Kind,
    Part,
    Verdict,
    is_little,
    is_unsupported,
    support_of,
    takes_away,
)
from attnflow.errors import AttnflowError
from attnflow.errors.progress import tell
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.explainers.request import Completion
from attnflow.explainers.sources import Sources, strongest
from attnflow.hosts.model import Model
from attnflow.tokens import Tokens

_MOST_HIDDEN = 3  # sources that are hidden together before it is said that none stands out
_SIGNS = ".,;:!?\"'()[]{}«»“”‘’"


class _Reading:
    """Log-probabilities of an answer's statements, without some positions of its prompt."""

    def __init__(self, ablation: CompletionAblation, known: Sequence[float] | None) -> None:
        self.ablation = ablation
        self.rows: dict[frozenset[int], NDArray[np.float64]] = {}
        if known is not None and len(known) == len(ablation.completion_ids):
            self.rows[frozenset()] = np.array(known)

    def read(self, sets: Sequence[frozenset[int]]) -> None:
        """Run what is not known yet, all of it in few passes."""
        new = [each for each in dict.fromkeys(sets) if each not in self.rows]
        if new:
            log_probs = self.ablation.token_log_probs([sorted(each) for each in new])
            self.rows.update(zip(new, log_probs, strict=True))

    def of(self, tokens: Sequence[int], hidden: frozenset[int]) -> float:
        return float(np.minimum(self.rows[hidden][list(tokens)], 0.0).sum())


def judge_statements(
    result: Attribution, model: Model, prompt_ids: Sequence[int]
) -> tuple[tuple[Verdict | None, ...], list[float]]:
    """Return a verdict for each statement of an answer over documents, None where none is named,
    and the log-probability of each token of it.

    result: explains the answer, and says where the documents stand. What is hidden keeps its
    place; the question and the template stay. A first round hides the sentence that is named, all
    other documents, and all of them; only where that does not decide a second one hides each of
    the strongest documents, by itself and with those before it: shares are near one another at
    times, and what the answer loses says which of them it rests on.
    """
    ids = list(result.provenance["completion_ids"])
    reading = _Reading(ablate(model, prompt_ids, ids, by=None), result.provenance.get(LOG_PROBS))
    passages = passages_of(result)
    every = frozenset(p for each in passages for p in positions_of(result, each.columns))
    judged = [
        _Judged(statement, passages, result) if statement.sources else None
        for statement in statements_of(result)
    ]
    present = [each for each in judged if each is not None]
    first = [(every, each.sentences[0], every - each.documents[0]) for each in present]
    reading.read([frozenset(), *chain.from_iterable(first)])  # the prompt is read once for all
    undecided = [each for each in present if each.decide(reading, every) is None]
    reading.read([hidden for each in undecided for hidden in each.further(every)])
    verdicts = tuple(None if each is None else each.verdict(reading, every) for each in judged)
    return verdicts, reading.rows[frozenset()].tolist()


class _Judged:
    """One statement: its tokens, the sentence that is named, its documents, strongest first."""

    def __init__(
        self, statement: Statement, passages: Sequence[Passage], result: Attribution
    ) -> None:
        self.tokens = statement.tokens
        self.sources = [each for each in statement.sources if each.share > 0][:_MOST_HIDDEN]
        self.documents = [
            frozenset(positions_of(result, passages[each.passage].columns)) for each in self.sources
        ]
        self.sentences = [
            frozenset(positions_of(result, _strongest_tokens(source, passages)))
            for source in self.sources
        ]

    def decide(self, reading: _Reading, every: frozenset[int]) -> Verdict | None:
        """Return the verdict of the first round, if it is enough for one."""
        hidden = (frozenset[int](), self.sentences[0], every - self.documents[0], every)
        base, without, alone, prior = (reading.of(self.tokens, each) for each in hidden)
        if is_unsupported(support_of(base, without, alone, prior), base - prior):
            return self._said("none", [0], self.sentences[0], reading, every)
        if takes_away(base - without, base - prior):
            return self._rests_on_sentence(0, reading, every)
        return None

    def further(self, every: frozenset[int]) -> list[frozenset[int]]:
        """Return what a second round hides: the strongest documents, each, together, all but it."""
        together = [
            frozenset[int]().union(*self.documents[: k + 1]) for k in range(len(self.documents))
        ]
        return [
            *together,
            *self.documents[1:],
            *self.sentences[1:],
            *(every - one for one in self.documents),
        ]

    def verdict(self, reading: _Reading, every: frozenset[int]) -> Verdict:
        """Return what may be said, after both rounds."""
        decided = self.decide(reading, every)
        if decided is not None:
            return decided
        base, prior = reading.of(self.tokens, frozenset()), reading.of(self.tokens, every)
        gain = base - prior
        needed = [
            number
            for number, document in enumerate(self.documents)
            if takes_away(base - reading.of(self.tokens, document), gain)
        ]
        if len(needed) == 1:
            (only,) = needed
            if takes_away(base - reading.of(self.tokens, self.sentences[only]), gain):
                return self._rests_on_sentence(only, reading, every)
            return self._said("rests", needed, self.documents[only], reading, every)
        if needed:
            hidden = frozenset[int]().union(*(self.documents[k] for k in needed))
            reading.read([hidden])
            return self._said("together", needed, hidden, reading, every)
        for count in range(2, len(self.documents) + 1):
            hidden = frozenset[int]().union(*self.documents[:count])
            if not takes_away(base - reading.of(self.tokens, hidden), gain):
                continue
            enough = [
                k
                for k, document in enumerate(self.documents[:count])
                if takes_away(reading.of(self.tokens, every - document) - prior, gain)
            ]
            if len(enough) > 1:
                return self._said("either", enough, hidden, reading, every)
            return self._said("together", list(range(count)), hidden, reading, every)
        return self._said("partly", [0], self.documents[0], reading, every)

    def _rests_on_sentence(self, number: int, reading: _Reading, every: frozenset[int]) -> Verdict:
        verdict = self._said("rests", [number], self.sentences[number], reading, every)
        return replace(verdict, sources=(self.sources[number].place,))

    def _said(
        self,
        kind: Kind,
        numbers: Sequence[int],
        hidden: frozenset[int],
        reading: _Reading,
        every: frozenset[int],
    ) -> Verdict:
        """The verdict on the documents of these numbers; `hidden` is what was taken away."""
        alone = every - frozenset[int]().union(*(self.documents[k] for k in numbers))
        reading.read([alone])
        return Verdict(
            kind,
            tuple(self.sources[k].name for k in numbers),
            len(self.tokens),
            reading.of(self.tokens, frozenset()),
            reading.of(self.tokens, hidden),
            reading.of(self.tokens, alone),
            reading.of(self.tokens, every),
            tuple(self.sources[k].passage for k in numbers),
        )


def _strongest_tokens(source: RankedSource, passages: Sequence[Passage]) -> Sequence[int]:
    """Return the sources of a passage's strongest sentence, or of all of it where it has none."""
    passage = passages[source.passage]
    if source.sentence is None:
        return passage.columns
    return passage.sentences[source.sentence - 1].tokens


# -- words and regions ------------------------------------------------------------------------

NamePositions = tuple[str, frozenset[int]]
"""What may be hidden: its name, and its positions."""


def with_verdict(result: Attribution, judge: Callable[[], Verdict | None]) -> Attribution:
    """Return the result with its verdict, or with the reason why there can be none."""
    tell("hiding the strongest sources", 0, 1)
    try:
        verdict = judge()
    except AttnflowError as error:  # what was explained stays, and is not called checked
        return replace(result, provenance={**result.provenance, UNCHECKED: str(error)})
    return result if verdict is None else replace(result, verdicts=(verdict,))


def judge_completion(
    result: Attribution,
    model: Model,
    completion: Completion,
    *,
    tokens: Sequence[int] | None = None,
) -> Verdict | None:
    """Return what some tokens of a completion rest on, together; None where no word speaks for it.

    result: over the prompt's tokens, or over sources that were measured; words are ranked by the
    sum over its targets at its highest layer. tokens: by number; default: all.
    """
    ids = completion.ids
    numbers = range(len(ids)) if tokens is None else tokens
    sources = _sources_of(result, model, completion)
    ablation = ablate(model, completion.prompt.ids, ids, by=None)
    reading = _Reading(ablation, result.provenance.get(LOG_PROBS))

    def read(sets: Sequence[frozenset[int]]) -> list[float]:
        reading.read(sets)
        return [reading.of(numbers, each) for each in sets]

    return judge_sources(strongest_words(sources, result), read, len(numbers))


def judge_sources(
    sources: Sequence[NamePositions],
    read: Callable[[Sequence[frozenset[int]]], list[float]],
    tokens: int = 1,
    part: Part = "word",
) -> Verdict | None:
    """Hide some sources together and, where that takes the answer away, the first of them alone.

    read: gives the log-probability of the answer without each of some sets of positions.
    """
    if not sources:
        return None
    names = tuple(name for name, _ in sources)
    base, without = read([frozenset(), frozenset[int]().union(*(each for _, each in sources))])
    kind: Kind = "none" if is_little(base - without) else "partly"
    if takes_away(base - without):
        (alone,) = read([sources[0][1]])
        kind = "rests" if takes_away(base - alone) else "together"
        names, without = (names[:1], alone) if kind == "rests" else (names, without)
    return Verdict(kind, names, tokens, base, without, part=part)


def strongest_words(sources: Sources, result: Attribution) -> list[NamePositions]:
    """Return the sources that speak most for all targets of a result, few of them."""
    scores = sources.scores(result)
    return [
        (_readable(sources.names[k]), frozenset(sources.positions[k]))
        for k in strongest(scores, _MOST_HIDDEN)
        if scores[k] > 0
    ]


def _sources_of(result: Attribution, model: Model, completion: Completion) -> Sources:
    """Return the sources that were measured, or the prompt's words."""
    measured = result.provenance.get(SOURCE_TOKENS)
    if measured is None:
        return Sources.of_prompt(model, completion.prompt)
    positions = tuple(tuple(each) for each in measured)
    return Sources(tuple(result.sources), positions, len(completion.prompt.ids))


def _readable(name: str) -> str:
    """Return a name as people read it, without the signs around a word."""
    text = Tokens((name,)).text[0]
    return text.strip(_SIGNS) or text
